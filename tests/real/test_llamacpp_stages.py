"""Eight slots, sixteen streams at once: do the gateway's stages say what the wire and the engine say?"""

import math
import statistics

import pytest

from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.model.thresholds import MS
from tailrace.store.query import RecordStore
from tests.real.conftest import SLOTS
from tests.real.stream_client import body, together

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("llamacpp"),
    pytest.mark.long("a real engine on one thread computes 1,000 tokens", timeout=240),
]

WAVES = 2
AT_ONCE = 2 * SLOTS
TOKENS = 24


@pytest.fixture(scope="module")
def answers(stack):
    # Connections, threads and code are warm before anything counts.
    together(stack.url, [body("Say yes.", 2) for _ in range(AT_ONCE)])
    out = []
    for wave in range(WAVES):
        out += together(stack.url, [body(f"Tell story number {wave * AT_ONCE + n}.", TOKENS) for n in range(AT_ONCE)])
    return out


@pytest.fixture(scope="module")
def records(stack, answers) -> list[RequestRecord]:
    """The records at rest, to the nanosecond, of the streams of this module."""
    ids = {answer["id"] for answer in answers}
    stack.wait_for_records(len(ids), of=lambda record: record["request_id"] in ids)
    stack.gateway.stop()  # flushes what it holds
    found = [record for record in RecordStore(stack.folder).records() if record.request_id in ids]
    assert len(found) == len(ids) == WAVES * AT_ONCE
    return found


def test_every_stream_is_whole(answers):
    for answer in answers:
        assert (answer["status"], answer["done"]) == (200, True)
        assert answer["usage"]["completion_tokens"] == TOKENS
        assert answer["text"]


def test_stages_add_up_exactly_for_every_record(records):
    assert [broken for record in records for broken in broken_invariants(record)] == []
    for record in records:
        assert sum(record.stages().values()) == record.e2e_ns
        assert record.outcome == "completed"
        assert record.engine == "llamacpp"
        assert (record.output_tokens, record.output_tokens_source) == (TOKENS, "usage")


def test_each_stage_says_how_it_is_known(records):
    for record in records:
        assert record.stage_sources["decode"].startswith("measured")
        assert record.stage_sources["prefill"].partition("(")[0] in {"reported", "inferred"}
        assert record.queue_engine_ns is not None


def _apart(differences):
    """Median and 95th percentile of the sizes of nanoseconds, in milliseconds."""
    sizes = sorted(abs(difference) / MS for difference in differences)
    return statistics.median(sizes), sizes[math.ceil(0.95 * len(sizes)) - 1]


def test_first_token_agrees_with_the_wire(records, stack):
    wire = stack.tap.by_id()
    median, p95 = _apart(record.ttft_upstream_ns - wire[record.request_id].first_token_ns for record in records)
    assert median <= 2
    assert p95 <= 10


def test_header_time_agrees_with_the_wire(records, stack):
    wire = stack.tap.by_id()
    for record in records:
        assert record.queue_engine_ns == record.headers_ns
        assert record.stage_sources["queue.engine"] == "measured(status line)"
    median, _ = _apart(record.headers_ns - wire[record.request_id].headers_ns for record in records)
    assert median <= 2


def test_header_time_is_the_engines_queue_wait(records, stack):
    """llama.cpp sends its status line when a slot takes the request: no field carries the wait.

    Judged where a request had to wait, that is where it found all slots taken. One that found a free slot waits only
    for the step that runs; how soon the status line of such a one leaves depends on the engine's other threads.
    """
    wire = stack.tap.by_id()
    waited = 0
    wrong = []
    for record in records:
        exchange = wire[record.request_id]
        before = [other for other in wire.values() if other.request_ns < exchange.request_ns < other.end_ns]
        if len(before) < SLOTS:
            continue
        waited += 1
        truth = exchange.first_token_ns - exchange.timings["prompt_ms"] * MS
        allowed = 5 * MS + 0.02 * truth
        if abs(record.queue_engine_ns - truth) > allowed:
            wrong.append((record.queue_engine_ns / MS, truth / MS))
    assert waited == WAVES * SLOTS, "half of each wave had to wait for a slot"
    assert wrong == []


def test_requests_that_waited_are_told_from_those_that_did_not(records):
    waits = sorted(record.queue_engine_ns for record in records)
    assert waits[0] < waits[-1] / 5
