"""Virtual runs: records that add up, conservation, order, determinism, memory that does not grow."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from tailrace.measure.meter import StreamMeter
from tailrace.measure.openai import OpenAIChat
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.simulate.knobs import EngineKnobs
from tailrace.simulate.presets import preset
from tailrace.simulate.request import SimRequest
from tailrace.simulate.run import VirtualRun, from_trace
from tailrace.workload.trace import TraceRow, read_trace
from tests.conftest import shared_path

A100 = preset("a100-llama3-8b")
MS = 1_000_000_000


def workload(seed=1, count=400, rate=8.0, leave=0.1, priorities=(0,)):
    rng = np.random.default_rng(seed)
    at = 0.0
    for i in range(count):
        at += rng.exponential(1 / rate)
        arrival = int(at * 1e12)
        leaves = int(rng.exponential(2) * 1e12) if rng.random() < leave else None
        yield SimRequest(
            f"r{i}",
            int(rng.integers(1, 3000)),
            int(rng.integers(1, 300)),
            arrival,
            priority=int(rng.choice(priorities)),
            abort_at=None if leaves is None else arrival + leaves,
            tag="long" if rng.random() < 0.1 else "short",
        )


def run(knobs=A100.knobs, requests=None, **options):
    virtual = VirtualRun(knobs, A100.cost(), **options)
    return virtual, list(virtual.records(requests or workload()))


TIGHT = msgspec.structs.replace(A100.knobs, num_gpu_blocks=1200)


@pytest.mark.parametrize("knobs", [A100.knobs, TIGHT, msgspec.structs.replace(TIGHT, enable_chunked_prefill=False)])
def test_every_record_is_sound(knobs):
    virtual, records = run(knobs, keep_timelines="all")
    assert len(records) == 400
    assert {r.outcome for r in records} == {OutcomeKind.COMPLETED, OutcomeKind.CANCELLED}
    for record in records:
        assert not broken_invariants(record)
        assert record.vantage == "simulated"
        assert record.queue_engine_ns == record.queue_ns
        assert record.lane in ("short", "long")
        if record.outcome is OutcomeKind.COMPLETED:
            assert record.ttft_ns == record.queue_ns + record.prefill_ns
            assert record.e2e_ns == record.ttft_ns + record.decode_ns == record.e2e_last_token_ns
            assert record.stage_sources["queue.engine"] == "reported(simulate)"
        else:
            assert record.reason is Reason.CLIENT_DISCONNECT
            assert record.died_in in ("queue", "prefill", "decode")
    assert sum(r.preemptions for r in records) == virtual.counters.preemptions
    assert (knobs is A100.knobs) == (virtual.counters.preemptions == 0)


def test_tokens_in_are_tokens_out_and_every_block_comes_back():
    virtual, records = run(TIGHT, workload(leave=0.0))
    counters = virtual.counters
    assert counters.generation_tokens == sum(r.output_tokens for r in records)
    assert counters.prompt_tokens == sum(r.prompt_tokens for r in records)
    assert counters.arrived == counters.finished == counters.scheduled == len(records)
    # Each output token but the last is computed once too; recomputation after preemption comes on top.
    needed = sum(r.prompt_tokens + r.output_tokens - 1 for r in records)
    assert counters.computed_tokens >= needed
    assert virtual.engine.kv.free == virtual.engine.kv.total


def test_without_preemption_nothing_is_computed_twice():
    virtual, records = run(A100.knobs, workload(leave=0.0))
    assert virtual.counters.preemptions == 0
    assert virtual.counters.computed_tokens == sum(r.prompt_tokens + r.output_tokens - 1 for r in records)


@pytest.mark.parametrize("chunked", [True, False])
def test_first_come_is_first_served(chunked):
    knobs = msgspec.structs.replace(TIGHT, enable_chunked_prefill=chunked)
    _, records = run(knobs, workload(rate=30, leave=0.0))
    begins = [r.start_unix_ns + r.queue_ns for r in sorted(records, key=lambda r: r.start_unix_ns)]
    assert begins == sorted(begins)


def test_priority_serves_the_urgent_first():
    knobs = msgspec.structs.replace(A100.knobs, policy="priority", max_num_seqs=8, max_num_batched_tokens=512)
    requests = list(workload(rate=20, leave=0.0, priorities=(-5, 10)))
    urgent = {r.label for r in requests if r.priority < 0}
    _, records = run(knobs, requests)
    waits = {
        True: [r.queue_ns for r in records if r.request_id in urgent],
        False: [r.queue_ns for r in records if r.request_id not in urgent],
    }
    assert np.mean(waits[True]) * 3 < np.mean(waits[False])


def test_the_same_seed_gives_the_same_bytes():
    one, two = (msgspec.json.encode(run(TIGHT)[1]) for _ in range(2))
    assert one == two
    assert one != msgspec.json.encode(run(TIGHT, workload(seed=2))[1])


@pytest.mark.parametrize("batch", [1, 7, 100_000])
def test_taking_requests_in_by_batches_changes_nothing(batch):
    _, expected = run(TIGHT, keep_timelines="all")
    got = list(VirtualRun(TIGHT, A100.cost(), keep_timelines="all").records(workload(), batch_size=batch))
    assert msgspec.json.encode(got) == msgspec.json.encode(expected)


def test_memory_does_not_grow_with_the_workload():
    virtual = VirtualRun(A100.knobs, A100.cost(), keep_timelines="none")
    longest = 0
    for _ in virtual.records(workload(count=8000, rate=3.0)):
        longest = max(longest, len(virtual.engine.log))
    # About four runs of steps a request; without forgetting there would be 30,000 at the end.
    assert longest < 12_000
    assert virtual.engine.log.end_step > 50_000


def feed(record: RequestRecord) -> StreamMeter:
    """The record's timeline, sent through the stream meter as the bytes of a real answer."""
    meter = StreamMeter(OpenAIChat(), origin_ns=0, timeline_limit=100_000)
    stamps = record.timeline.token_stamps()
    for i, at in enumerate(stamps):
        body = {"choices": [{"index": 0, "delta": {"content": " x"}, "finish_reason": None}]}
        meter.feed(b"data: " + msgspec.json.encode(body) + b"\n\n", at)
        if i == len(stamps) - 1:
            usage = {"prompt_tokens": record.prompt_tokens, "completion_tokens": len(stamps)}
            meter.feed(b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n", at)
    meter.feed(b"data: [DONE]\n\n", stamps[-1])
    meter.end(stamps[-1], clean=True)
    return meter


def test_a_record_says_what_the_meter_would_say_of_the_same_stream():
    knobs = msgspec.structs.replace(TIGHT, enable_chunked_prefill=False, max_num_batched_tokens=8192)
    _, records = run(knobs, workload(rate=12, leave=0.0, count=250), keep_timelines="all")
    assert any(r.stall_count for r in records)
    assert any(r.preemptions for r in records)
    for record in records:
        summary = feed(record).summary()
        for name in (
            "ttft_ns",
            "output_tokens",
            "chunk_gap_count",
            "chunk_gap_p50_ns",
            "chunk_gap_p95_ns",
            "chunk_gap_max_ns",
            "chunk_gap_over",
            "tpot_ns",
            "stall_count",
            "stall_longest_ns",
            "slow",
            "e2e_last_token_ns",
        ):
            assert getattr(record, name) == getattr(summary, name), name
        assert record.tokens_per_s == pytest.approx(summary.tokens_per_s)


def test_what_never_fits_is_refused_and_blocks_nobody():
    knobs = EngineKnobs(num_gpu_blocks=10, block_size=16)
    requests = [SimRequest("big", 150, 20, 0), SimRequest("small", 100, 20, 0)]
    _, records = run(knobs, requests)
    big, small = sorted(records, key=lambda r: r.request_id)
    assert (big.outcome, big.reason, big.e2e_ns) == (OutcomeKind.REJECTED, Reason.INPUT_TOO_LONG, 0)
    assert not broken_invariants(big)
    assert small.outcome is OutcomeKind.COMPLETED


def test_a_client_that_leaves_counts_only_the_tokens_it_saw():
    _, (whole,) = run(requests=[SimRequest("a", 100, 50, 0)], keep_timelines="all")
    stamps = whole.timeline.token_stamps()
    leave = stamps[10] * 1000 + 1
    _, (cut,) = run(requests=[SimRequest("a", 100, 50, 0, abort_at=leave)], keep_timelines="all")
    assert cut.timeline.token_stamps() == stamps[:11]
    assert (cut.output_tokens, cut.died_in, cut.e2e_ns) == (11, "decode", leave // 1000)
    assert cut.keep_reason == "all"


def test_shared_prefixes_are_hit():
    rows = [TraceRow(i * 1_000_000_000, 2000, 5, (1, 2, 3, 100 + i)) for i in range(4)]
    _, records = run(requests=from_trace(rows))
    assert [r.cached_tokens for r in records] == [0, 1536, 1536, 1536]
    assert records[0].prefill_ns > 2 * records[1].prefill_ns
    _, records = run(msgspec.structs.replace(A100.knobs, enable_prefix_caching=False), from_trace(rows))
    assert [r.cached_tokens for r in records] == [0, 0, 0, 0]


@pytest.mark.needs("shared")
@pytest.mark.long("sixteen thousand recorded requests with 85 hashes each, on a busy machine")
@pytest.mark.parametrize(
    ("name", "blocks", "share"),
    [
        # Shares of prompt blocks that a 10,000-block LRU cache and an infinite one hit in these traces, counted without
        # any engine.
        ("conversation", 320_000, 0.211),
        ("synthetic", 10**9, 0.640),
        ("synthetic", 320_000, 0.424),
    ],
)
def test_prefix_hits_are_those_of_the_recorded_hashes(name, blocks, share):
    path = shared_path() / "data" / "traces" / f"mooncake_{name}_trace.jsonl"
    # So slow that every request is alone: then the cache's order of use is the order of arrival.
    rows = read_trace(path.read_text().splitlines(), rng=np.random.default_rng(1), speed=0.02)
    knobs = msgspec.structs.replace(A100.knobs, num_gpu_blocks=blocks, max_model_len=300_000)
    virtual = VirtualRun(knobs, preset("h100-llama3-8b").cost(speed=20.0), keep_timelines="none")
    assert sum(1 for _ in virtual.records(from_trace(rows))) == len(rows)
    hit = virtual.counters.prefix_hit_tokens / 512 / sum(len(row.blocks) for row in rows)
    assert hit == pytest.approx(share, abs=0.006)
    assert virtual.engine.kv.free == blocks
    if blocks < 10**9:
        # 171,000 and 40,000 different hashes went through it, and at most 10,000 units fit.
        assert len(virtual.engine.kv.units) < 21_000


def test_unchunked_prefill_makes_rare_giant_gaps_and_chunked_many_medium_ones():
    def gaps(**changes):
        knobs = msgspec.structs.replace(A100.knobs, max_num_batched_tokens=8192, **changes)
        chats = [SimRequest(f"c{i}", 200, 300, i * 50 * MS) for i in range(20)]
        document = SimRequest("doc", 7000, 20, 1000 * MS)
        requests = sorted([*chats, document], key=lambda r: r.arrival)
        _, records = run(knobs, requests, keep_timelines="all")
        chat = [r.timeline.token_stamps() for r in records if r.request_id != "doc"]
        return np.array([b - a for stamps in chat for a, b in itertools.pairwise(stamps)]) / 1e6

    off = gaps(enable_chunked_prefill=False)
    on = gaps(enable_chunked_prefill=True, long_prefill_token_threshold=256)
    assert off.max() > 350
    assert on.max() < 60
    # The stall is the same work, spread: twenty streams wait once for long, or many times a little longer.
    assert (on > 20).mean() > 10 * (off > 20).mean()
