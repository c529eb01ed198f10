import pytest

from tailrace.model.finding import Action, Level
from tailrace.store.run_file import Arrival, RunHeader
from tests.diagnose.simulated import answer, as_client, as_gateway, codes, found, served

CODE = "SCHED_QUEUE_SATURATION"


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_more_arrives_than_is_served(share):
    result = answer(as_gateway(served(rate=25.0, long_share=share, max_num_seqs=32)))
    first = result.findings[0]
    assert (first.code, first.level) == (CODE, Level.CONSISTENT)
    assert "R1" in result.triage
    assert "R11" in result.triage
    assert "offered 25." in first.relation


def test_with_room_in_the_engine_the_answer_is_tune():
    # 16 places, KV at a few percent, 14 ms a token: the cap is what limits.
    first = answer(as_gateway(served(rate=12.0, long_share=0.0, max_num_seqs=16))).findings[0]
    assert first.code == CODE
    assert first.action is Action.TUNE
    assert "max_num_seqs" in first.advice


def test_from_a_client_it_is_suspected():
    finding = found(answer(as_client(served(rate=25.0, long_share=0.0, max_num_seqs=32))), CODE)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "queue times from the engine" in finding.missing


def test_a_busy_engine_without_a_queue_is_not_it():
    result = answer(as_gateway(served(rate=8.0, long_share=0.0)))
    assert result.findings == []


def test_a_wait_behind_documents_at_a_sustainable_rate_is_not_it():
    assert CODE not in codes(answer(as_gateway(served(rate=6.0, max_num_batched_tokens=512))))


def test_a_closed_loop_is_told_by_littles_law():
    records = as_gateway(served(rate=25.0, n=400, long_share=0.0, max_num_seqs=32))
    seconds = max(r.start_unix_ns for r in records) / 1e9 - min(r.start_unix_ns for r in records) / 1e9
    rate = len(records) / seconds
    mean = sum(r.e2e_ns for r in records) / len(records) / 1e9
    header = RunHeader(arrival=Arrival(kind="closed", concurrency=round(rate * mean)))
    finding = found(answer(records, header=header), CODE)
    assert finding is not None
    assert finding.relation.startswith("Little's law")
