"""Records for tests: realistic ones by the thousand from a seed, and any at all from hypothesis."""

import random

from hypothesis import strategies as st

from tailrace.model.outcome import REASON_KIND, OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.stage import STAGES
from tailrace.model.timeline import Timeline

T0 = 1_790_000_000_000_000_000
"""A morning in September 2026."""
DAY = 86_400_000_000_000


def realistic(n, seed=1, *, kept=0.03, events=50, t0=T0, step_ns=1_000_000, failing=0.02):
    """`n` records of a busy gateway, ids unique within a seed, starts ascending."""
    draw = random.Random(seed)
    return [_one(draw, f"{seed:04x}{i:012x}", t0 + i * step_ns, kept, events, failing) for i in range(n)]


def _one(draw, request_id, start, kept, events, failing):
    ingress, queue = draw.randrange(10_000, 1_000_000), draw.randrange(10_000, 10**8)
    prefill, decode = draw.randrange(10**6, 10**9), draw.randrange(10**7, 10**10)
    post, response, rest = (draw.randrange(10_000, 1_000_000) for _ in range(3))
    e2e = ingress + queue + prefill + decode + post + response + rest
    timeline = None
    if draw.random() < kept:
        stamps = sorted(draw.randrange(e2e) for _ in range(events))
        timeline = Timeline(at_ns=stamps, kind=[0] * events, tokens=[draw.choice([1, 1, 2]) for _ in stamps])
    reason = draw.choice(list(Reason)[1:]) if draw.random() < failing else Reason.NONE
    seen = reason is Reason.NONE or draw.random() < 0.5
    return RequestRecord(
        request_id=request_id,
        trace_id=f"{draw.getrandbits(128):032x}",
        lane=draw.choice(["interactive", "long_document", "batch"]),
        endpoint="/v1/chat/completions",
        model=draw.choice(["llama-3-8b", "llama-3-70b"]),
        engine="vllm",
        prompt_tokens=draw.choice([None, draw.randrange(10, 40_000), draw.randrange(10, 2000)]),
        prompt_tokens_source="usage",
        output_tokens=draw.randrange(1, 3000),
        output_tokens_source="usage",
        sampled=draw.choice([None, True, False]),
        kv_usage_at_admission=draw.random(),
        start_unix_ns=start,
        ingress_ns=ingress,
        queue_ns=queue,
        queue_gateway_ns=queue // 3,
        prefill_ns=prefill,
        decode_ns=decode,
        postprocess_ns=post,
        response_ns=response,
        unattributed_ns=rest,
        stage_sources={"queue": draw.choice(["measured", "reported(metrics.queue_time_ms)"]), "decode": "measured"},
        e2e_ns=e2e,
        ttft_ns=ingress + queue + prefill if seen else None,
        tpot_ns=draw.randrange(10**8) if seen else None,
        chunk_gap_max_ns=draw.randrange(10**9),
        chunk_gap_count=draw.randrange(500),
        outcome=REASON_KIND[reason],
        reason=reason,
        died_in="" if reason is Reason.NONE else draw.choice(["queue", "prefill", "decode"]),
        keep_reason="slow" if timeline else "",
        slow=["ttft"] if timeline else [],
        timeline=timeline,
    )


_TEXT = st.text(max_size=12) | st.sampled_from(
    ["", "default", "interactive", "it's", '"quoted"', "a,b\nc", "…", "\x00"]
)
_DURATION = st.integers(0, 2**50)
"""Up to thirteen days in ns: what the public form carries exactly."""
_COUNT = st.integers(0, 2**31 - 1)
_SHARE = st.floats(0, 1)


@st.composite
def timelines(draw):
    n = draw(st.integers(0, 8))
    return Timeline(
        at_ns=sorted(draw(st.lists(_DURATION, min_size=n, max_size=n))),
        kind=draw(st.lists(st.integers(0, 12), min_size=n, max_size=n)),
        tokens=draw(st.lists(st.integers(-1, 9), min_size=n, max_size=n)),
        thinned=draw(st.integers(0, 99)),
    )


def _free_fields():
    """A strategy for every field of a plain type that has a default."""
    by_type = {"str": _TEXT, "int": _COUNT, "bool": st.booleans(), "float": _SHARE}
    out = {}
    for name, annotation in RequestRecord.__annotations__.items():
        base, _, maybe = annotation.partition(" | ")
        if base in by_type and name not in ("schema", "request_id", "start_unix_ns", "e2e_ns"):
            strategy = _DURATION if name.endswith("_ns") else by_type[base]
            out[name] = st.none() | strategy if maybe else strategy
    return out


_FREE = _free_fields()


@st.composite
def any_record(draw):
    """A record in which any field may have any value of its type."""
    reason = draw(st.sampled_from(list(Reason)))
    values = {
        "request_id": draw(st.text(min_size=1, max_size=20)),
        "start_unix_ns": draw(st.integers(10**18, 2 * 10**18)),
        "e2e_ns": draw(_DURATION),
        "outcome": draw(st.sampled_from(list(OutcomeKind))),
        "reason": reason,
        "stage_sources": draw(st.dictionaries(st.sampled_from([str(stage) for stage in STAGES]), _TEXT, max_size=3)),
        "fact_sources": draw(st.dictionaries(st.sampled_from(["dtype", "batch_size"]), _TEXT, max_size=2)),
        "parts_ns": draw(st.dictionaries(st.sampled_from(["preprocess.retrieval", "queue.db"]), _DURATION, max_size=2)),
        "slow": draw(st.lists(st.sampled_from(["ttft", "tpot", "stall", "gap"]), max_size=3)),
        "timeline": draw(st.none() | timelines()),
    }
    for name in sorted(draw(st.sets(st.sampled_from(sorted(_FREE)), max_size=15))):
        values[name] = draw(_FREE[name])
    return RequestRecord(**values)
