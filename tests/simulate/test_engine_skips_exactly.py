"""The fast engine against the plain one, to the picosecond, over random workloads, knobs and tiny KV caches."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.simulate.cost import Accelerator, ClosedFormCost, ModelShape
from tailrace.simulate.engine import Engine
from tailrace.simulate.knobs import EngineKnobs
from tailrace.simulate.request import SimRequest, State
from tests.simulate.plain_engine import Plain, PlainEngine

MODEL = ModelShape(
    name="tiny",
    layers=2,
    heads=4,
    head_size=64,
    layer_weight_bytes=2e8,
    layer_parameters=1e8,
    head_parameters=1e7,
    kv_bytes_per_token=4096,
)
GPU = Accelerator(
    name="tiny",
    bandwidth=1e12,
    flops=1e13,
    mbu=0.7,
    mfu=0.7,
    knee=2.0,
    mbu_attention=0.5,
    mfu_attention=0.5,
    decode_layer_s=1e-5,
    decode_layer_seq_s=1e-7,
    prefill_layer_s=1e-5,
    prefill_layer_token_s=1e-8,
    step_s=1e-3,
)
COST = ClosedFormCost(MODEL, GPU)
CONTEXT_FREE = ClosedFormCost(msgspec.structs.replace(MODEL, kv_bytes_per_token=0), GPU)
MS = 1_000_000_000


@st.composite
def knobs(draw):
    seqs = draw(st.integers(1, 12))
    block = draw(st.sampled_from([1, 4, 16]))
    return EngineKnobs(
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, draw(st.sampled_from([4, 8, 16, 33, 64, 256]))),
        enable_chunked_prefill=draw(st.sampled_from([True, True, False])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 5, 16])),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        enable_prefix_caching=draw(st.booleans()),
        num_gpu_blocks=max(2, draw(st.integers(120, 600)) // block),
        block_size=block,
    )


@st.composite
def changes(draw, start):
    """Knobs that an operator sets while the engine runs; those that size memory stay."""
    out = []
    at = 0
    for _ in range(draw(st.integers(0, 2))):
        at += draw(st.sampled_from([MS, 30 * MS, 300 * MS]))
        new = draw(knobs())
        out.append((at, msgspec.structs.replace(new, num_gpu_blocks=start.num_gpu_blocks, block_size=start.block_size)))
    return out


@st.composite
def workloads(draw):
    out = []
    at = 0
    for i in range(draw(st.integers(1, 14))):
        at += draw(st.sampled_from([0, 0, 1, MS // 2, 3 * MS, 40 * MS, 500 * MS]))
        prompt = draw(st.integers(1, 160))
        leaves = draw(st.sampled_from([None, None, None, 0, 1, MS, 7 * MS, 100 * MS]))
        # Chains share their beginnings: a branch is a path in a binary tree.
        branch = draw(st.sampled_from(["", "", "0", "00", "01", "0100", "111111"]))
        out.append(
            {
                "label": str(i),
                "prompt": prompt,
                "output": draw(st.integers(1, 90)),
                "arrival": at,
                "priority": draw(st.integers(-1, 1)),
                "prefix": tuple(hash(("chain", branch[: n + 1])) for n in range(len(branch))),
                "prefix_tokens": 16,
                "abort_at": None if leaves is None else at + leaves,
            }
        )
    return out


def fast(settings_, workload, cost, *, skip, changes=()):
    engine = Engine(settings_, cost)
    requests = [SimRequest(**row) for row in workload]
    for request in requests:
        engine.submit(request)
    for at, new in changes:
        engine.advance(at)
        engine.set_knobs(new)
    while engine.plan(skip=skip) is not None:
        engine.commit()
    return engine, requests


def stamps_of(engine, request):
    return [engine.log.end_of(step) for first, last in request.spans for step in range(first, last + 1)]


OUTCOMES = {State.FINISHED: "finished", State.ABORTED: "aborted", State.REFUSED: "refused"}


@settings(max_examples=400, deadline=None)
@given(st.data(), knobs(), workloads(), st.sampled_from([COST, CONTEXT_FREE]), st.booleans())
def test_fast_engine_agrees_with_the_plain_one(data, knobs_, workload, cost, skip):
    sets = data.draw(changes(knobs_))
    plain = PlainEngine(knobs_, cost)
    expected = [Plain(**row) for row in workload]
    plain.run(expected, sets)
    engine, got = fast(knobs_, workload, cost, skip=skip, changes=sets)
    for want, have in zip(expected, got, strict=True):
        assert OUTCOMES[have.state] == want.outcome
        assert have.ended_at == want.ended_at
        assert have.scheduled_at == want.scheduled_at
        assert have.cached == want.cached
        assert have.preemptions == want.preemptions
        assert stamps_of(engine, have) == want.stamps
        assert have.first_at == (want.stamps[0] if want.stamps else None)
    assert engine.counters.steps == plain.steps
    assert engine.counters.computed_tokens == plain.tokens_computed
    assert engine.counters.preemptions == sum(r.preemptions for r in expected)
    assert engine.counters.generation_tokens == sum(len(r.stamps) for r in expected)
    # Drained: everything is free again.
    assert engine.kv.free == engine.kv.total == len(plain.queue)
    assert engine.running == engine.waiting == 0
    assert engine.cohort.count == engine.cohort.bases == sum(engine.cohort.grow) == 0
