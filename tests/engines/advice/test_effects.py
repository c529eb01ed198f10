"""What an advice promises, tried on the simulated engine, whose truth is known: effect and price both come true."""

import re

import msgspec
import numpy as np
import pytest

from tailrace.engines.advice.card import find_card
from tailrace.engines.advice.case import Case
from tailrace.engines.advice.lengths import lengths_of
from tailrace.engines.advice.model_shape import shape_of_size
from tailrace.model.engine_state import EngineState
from tailrace.simulate.presets import preset
from tailrace.simulate.request import SimRequest
from tailrace.simulate.run import VirtualRun
from tests.engines.advice.cases import facts, findings

A100 = preset("a100-llama3-8b")
SECOND_PS = 10**12


def workload(seed, *, rate, seconds, groups):
    """Poisson arrivals; groups of (share, prompt tokens, output tokens)."""
    rng = np.random.default_rng(seed)
    at, out = 0.0, []
    while (at := at + rng.exponential(1 / rate)) < seconds:
        kind = int(rng.choice(len(groups), p=[share for share, _, _ in groups]))
        _, prompt, output = groups[kind]
        out.append((prompt, output, int(at * SECOND_PS), str(kind)))
    return out


def run(requests, **knobs):
    virtual = VirtualRun(msgspec.structs.replace(A100.knobs, **knobs), A100.cost(), keep_timelines="none")
    made = [
        SimRequest(f"r{number}", prompt, output, at, tag=kind)
        for number, (prompt, output, at, kind) in enumerate(requests)
    ]
    records = list(virtual.records(made))
    assert len(records) == len(requests)
    return virtual, records


def case_of(requests, **knobs):
    """What `check` would know of that engine and that load."""
    names = {"enable_chunked_prefill": "chunked_prefill", "policy": "scheduling_policy"}
    settings = msgspec.to_builtins(msgspec.structs.replace(A100.knobs, **knobs))
    return Case(
        name="e",
        engine="simulated",
        facts=facts(**{names.get(key, key): value for key, value in settings.items()}),
        lengths=lengths_of([(prompt, output) for prompt, output, _, _ in requests], source="run"),
        shape=shape_of_size("8b"),
        card=find_card("a100-80g"),
    )


def number_in(advice, option):
    return int(re.search(rf"{option} (\d+)", advice)[1])


def p(records, field, q, *, tag=None):
    values = [getattr(one, field) for one in records if tag in (None, one.lane)]
    return float(np.quantile([value for value in values if value is not None], q)) / 1e6


MIXED = workload(1, rate=8, seconds=90, groups=((0.97, 250, 60), (0.03, 10_000, 60)))


def test_chunked_prefill_on():
    """One giant gap becomes many middling ones: the largest fall, the long prompts' first token comes later."""
    assert "CHUNKED_PREFILL_OFF" in findings(case_of(MIXED, enable_chunked_prefill=False))
    _, off = run(MIXED, enable_chunked_prefill=False)
    _, on = run(MIXED, enable_chunked_prefill=True, max_num_batched_tokens=2048)
    assert p(on, "chunk_gap_max_ns", 0.99) < p(off, "chunk_gap_max_ns", 0.99) / 2
    assert p(on, "ttft_ns", 0.5, tag="1") > p(off, "ttft_ns", 0.5, tag="1")


def test_smaller_steps():
    requests = workload(2, rate=1.2, seconds=120, groups=((0.6, 300, 200), (0.4, 8000, 50)))
    finding = findings(case_of(requests, max_num_batched_tokens=8192))["BATCH_TOKENS_LARGE"]
    smaller = number_in(finding.advice, "--max-num-batched-tokens")
    _, before = run(requests, max_num_batched_tokens=8192)
    _, after = run(requests, max_num_batched_tokens=smaller)
    assert p(after, "chunk_gap_max_ns", 0.99) < p(before, "chunk_gap_max_ns", 0.99) / 2
    assert p(after, "ttft_ns", 0.5, tag="1") > p(before, "ttft_ns", 0.5, tag="1")


def test_no_more_requests_than_the_cache_holds():
    requests = workload(3, rate=6, seconds=60, groups=((1.0, 500, 700),))
    tight = {"num_gpu_blocks": 1200, "max_num_seqs": 256}
    finding = findings(case_of(requests, **tight))["SEQS_ABOVE_KV"]
    fitting = number_in(finding.advice, "--max-num-seqs")
    before, _ = run(requests, **tight)
    after, _ = run(requests, **{**tight, "max_num_seqs": fitting})
    assert before.counters.preemptions > 20
    assert after.counters.preemptions == 0


def test_more_requests_where_the_cache_has_room():
    requests = workload(4, rate=3, seconds=60, groups=((1.0, 500, 200),))
    case = case_of(requests, max_num_seqs=8)
    case.state = EngineState(at_ns=0, running=8, waiting=30, kv_usage=0.05)
    more = number_in(findings(case)["SEQS_BELOW_KV"].advice, "--max-num-seqs")
    _, before = run(requests, max_num_seqs=8)
    _, after = run(requests, max_num_seqs=more)
    assert p(after, "ttft_ns", 0.95) < p(before, "ttft_ns", 0.95) / 2
    assert p(after, "tpot_ns", 0.5) > p(before, "tpot_ns", 0.5)


@pytest.mark.parametrize("seed", [5, 6])
def test_a_threshold_for_long_prompts(seed):
    requests = workload(seed, rate=6, seconds=120, groups=((0.97, 250, 30), (0.03, 16_000, 30)))
    finding = findings(case_of(requests))["LONG_PREFILL_BLOCKS"]
    threshold = number_in(finding.advice, "--long-prefill-token-threshold")
    _, before = run(requests)
    _, after = run(requests, long_prefill_token_threshold=threshold)
    assert p(after, "ttft_ns", 0.95, tag="0") < p(before, "ttft_ns", 0.95, tag="0")
    assert p(after, "ttft_ns", 0.5, tag="1") > p(before, "ttft_ns", 0.5, tag="1")
