"""Records of the simulated engine in virtual time, as the gateway or a client before it would have written them."""

from functools import cache

import numpy as np

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.model.timeline import EventKind, Timeline
from tailrace.simulate.engine import Engine
from tailrace.simulate.presets import PRESETS
from tailrace.simulate.request import SimRequest, State

NS = 1_000  # picoseconds
MS = 1_000_000
WALL = 1_700_000_000_000_000_000


def arrivals(seed, *, rate, n, long_share, long_tokens=(5000, 7500), short_tokens=(50, 400), output=(60, 300)):
    """(label, prompt, output, arrival ps) of a Poisson stream of chat with some documents."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1e12 / rate, n)).astype(np.int64)
    out = []
    for i in range(n):
        long = rng.random() < long_share
        low, high = long_tokens if long else short_tokens
        out.append(
            ("long" if long else "short", int(rng.integers(low, high)), int(rng.integers(*output)), int(at[i]))
        )
    return out


@cache
def served(seed=1, rate=6.0, n=600, long_share=0.1, preset="a100-llama3-8b", speed=1.0, **knobs):
    """Finished requests and their token stamps (ns from the arrival)."""
    return serve(
        arrivals(seed, rate=rate, n=n, long_share=long_share),
        preset=preset,
        speed=speed,
        **knobs,
    )


def serve(work, *, preset="a100-llama3-8b", speed=1.0, **knobs):
    chosen = PRESETS[preset]
    changed = {name: value for name, value in knobs.items()}
    engine_knobs = type(chosen.knobs)(**{
        **{name: getattr(chosen.knobs, name) for name in chosen.knobs.__struct_fields__},
        **changed,
    })
    engine = Engine(engine_knobs, chosen.cost(speed=speed))
    for i, (label, prompt, output, at) in enumerate(work):
        engine.submit(SimRequest(label, prompt, output, at, tag=i))
    engine.advance()
    out = []
    for request in sorted(engine.ended, key=lambda r: r.tag):
        assert request.state == State.FINISHED
        ends = np.concatenate([engine.log.ends(first, last) for first, last in request.spans])
        out.append((request, ((ends - request.arrival) // NS).tolist()))
    return out


def record(request, stamps, *, vantage="gateway", reported=True, timeline=True, kv=True, **extra):
    """One record. The client knows neither queue nor prefill; the gateway has them from the engine's report."""
    first, last = stamps[0], stamps[-1]
    gaps = np.diff(stamps)
    queue = (request.scheduled_at - request.arrival) // NS
    split = vantage == "gateway" and reported
    stages = (
        {"queue_ns": queue, "queue_engine_ns": queue, "prefill_ns": first - queue, "decode_ns": last - first}
        if split
        else {"unattributed_ns": first, "decode_ns": last - first}
    )
    sources = {"queue": "reported(metrics.queue_time_ms)", "prefill": "reported(metrics.time_to_first_token_ms)"}
    at = request.arrival // NS
    state = {
        "running_at_admission": request.running_at_arrival,
        "waiting_at_admission": request.waiting_at_arrival,
        "kv_usage_at_admission": request.kv_at_arrival,
        "running_at_first_token": request.running_at_first,
        "waiting_at_first_token": request.waiting_at_first,
        "kv_usage_at_first_token": request.kv_at_first,
        "preemptions": request.preemptions,
    }
    fields = {
        "request_id": f"r{request.tag:06}",
        "vantage": vantage,
        "lane": request.label,
        "prompt_tokens": request.prompt,
        "prompt_tokens_source": "usage",
        "output_tokens": len(stamps),
        "output_tokens_source": "usage",
        "start_unix_ns": WALL + at,
        "stage_sources": {
            **({k: v for k, v in sources.items() if split}),
            "decode": "measured",
            **({} if split else {"unattributed": "measured"}),
        },
        "e2e_ns": last,
        "e2e_last_token_ns": last,
        "ttft_ns": first,
        "chunk_gap_count": len(gaps),
        "chunk_gap_max_ns": int(gaps.max()) if gaps.size else None,
        "chunk_gap_p50_ns": int(np.median(gaps)) if gaps.size else None,
        "chunk_gap_p95_ns": int(np.quantile(gaps, 0.95)) if gaps.size else None,
        "chunk_gap_over": int((gaps > 150 * MS).sum()),
        "tpot_ns": (last - first) // (len(stamps) - 1) if len(stamps) > 1 else None,
        "outcome": OutcomeKind.COMPLETED,
        "reason": Reason.NONE,
        **({"run_offset_ns": at, "intended_to_sent_ns": 0} if vantage == "client" else {}),
        **(state if kv and vantage == "gateway" else {}),
        **stages,
        "timeline": Timeline(at_ns=stamps, kind=[int(EventKind.CONTENT)] * len(stamps), tokens=[1] * len(stamps))
        if timeline
        else None,
        **extra,
    }
    out = RequestRecord(**fields)
    assert broken_invariants(out) == []
    return out


def records(done, **kwargs):
    return [record(request, stamps, **kwargs) for request, stamps in done]
