import msgspec
import numpy as np
import pytest

from tailrace.analyze.inferred_waits import with_inferred
from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.record_evidence.overload import overloaded_stretch
from tailrace.diagnose.record_evidence.turns import turns_of
from tailrace.model.finding import Action, Level
from tailrace.model.thresholds import Objectives
from tailrace.store.run_file import Arrival, RunHeader
from tailrace.store.table import RecordTable
from tests.diagnose.altered import restamped, stamps
from tests.diagnose.simulated import (
    MS,
    answer,
    as_client,
    as_gateway,
    codes,
    evidence,
    found,
    served,
    traffic,
    without_state,
)

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


def queued_for_nothing(wait_ms, *, reported=True):
    """One request in ten waits in the engine's queue, and nothing that the records know says why."""
    out, rng = [], np.random.default_rng(5)
    for record in without_state(as_gateway(served(rate=4.0, long_share=0.0))):
        wait = int(rng.uniform(0.5, 1.5) * wait_ms * MS) if rng.random() < 0.1 else 0
        late = {"queue_engine_ns": (record.queue_engine_ns or 0) + wait, "queue_ns": (record.queue_ns or 0) + wait}
        moved = restamped(record, stamps(record) + wait, unattributed_ns=record.unattributed_ns)
        out.append(msgspec.structs.replace(moved, **(late if reported else {"queue_engine_ns": None})))
    return out


def test_a_queue_that_makes_the_tail_is_suspected_where_no_rule_holds():
    promised = Objectives(bounds={"ttft": {0.99: 300 * MS}})
    result = answer(queued_for_nothing(800), objectives=promised)
    first = result.findings[0]
    assert (first.code, first.level, result.action) == (CODE, Level.SUSPECTED, Action.COLLECT)
    assert "running and waiting requests" in first.missing[0]
    assert first.evidence[0].value > 0.95
    assert 800 < first.explains_ms < 1200
    assert CODE not in codes(answer(queued_for_nothing(120), objectives=promised)), "in time"
    roomy = [
        msgspec.structs.replace(one, running_at_admission=3 + i % 4) for i, one in enumerate(queued_for_nothing(800))
    ]
    assert CODE not in codes(answer(roomy, objectives=promised)), "as many ran when others did not wait"
    unknown = answer(queued_for_nothing(800, reported=False), objectives=promised)
    assert not any("engine's queue" in finding.statement for finding in unknown.findings), "the queue is not told"


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


# -- from the records alone: no gauge of running and waiting requests, no cap that is reached

VARIED = {"rate": 3.0, "n": 800, "long_share": 0.0, "short_tokens": (300, 6000), "output": (40, 160)}
"""Prompts of any length at about 60 % of what the engine can compute: each waits for those before it."""


def test_steps_that_are_full_of_other_prompts_are_a_queue_without_a_cap():
    result = answer(without_state(as_gateway(served(**VARIED))))
    first = result.findings[0]
    assert (first.code, first.level) == (CODE, Level.CONSISTENT)
    assert "while it computes other prompts" in first.statement
    assert "of the time" in first.relation
    assert "max_num_seqs" not in first.advice
    assert result.tail.metric == "ttft"
    assert first.explains_ms > 0.7 * result.tail.lost_ms


def test_prompts_that_leave_room_in_the_steps_make_it_a_suspicion():
    finding = found(answer(without_state(as_gateway(served(**{**VARIED, "rate": 2.0})))), CODE)
    assert finding is None or (finding.level is Level.SUSPECTED and "half the rate" in finding.missing[0])


def test_an_inferred_queue_is_a_suspicion():
    records = as_client(served(rate=10.0, long_share=0.0, short_tokens=(600, 2400), output=(40, 160)))
    body = EvidenceSet(with_inferred(RecordTable.from_records(records)))
    assert body.now.inferred
    finding = found(diagnose(body), CODE)
    assert finding.level is Level.SUSPECTED
    assert "inferred" in finding.missing[0]


def test_a_peak_that_the_rest_of_the_window_hides():
    at = traffic(200, 4.0, 200, 14.0, 300, 4.0)
    records = as_gateway(served(at=at, n=700, long_share=0.0, max_num_seqs=24))
    finding = found(answer(without_state(records)), CODE)
    assert finding.level is Level.CONSISTENT
    assert "s into the window" in finding.statement
    begin, end = at[200] / 1e12, at[399] / 1e12
    stretch = overloaded_stretch(evidence(records).now, evidence(records).now.lost.engine_queue)
    assert stretch.begin_s == pytest.approx(begin, abs=5)
    assert stretch.end_s == pytest.approx(end, abs=10)


@pytest.mark.parametrize("seed", range(4))
def test_a_backlog_that_wanders_by_chance_is_no_peak(seed):
    body = evidence(as_gateway(served(seed, rate=6.0, long_share=0.0)))
    assert overloaded_stretch(body.now, body.now.lost.engine_queue) is None
    # A wait that grows with nothing but time, at a steady rate, is none either.
    assert overloaded_stretch(body.now, np.linspace(1.0, 900.0, body.now.n)) is None


def test_who_does_not_wait_has_no_turns():
    assert turns_of(evidence(as_gateway(served(rate=6.0, long_share=0.0))).now) is None
    assert turns_of(evidence(as_client(served(**VARIED))).now) is None


def test_a_cap_that_is_not_reached_is_no_reason_to_tune_it():
    result = answer(as_gateway(served(**VARIED)))
    assert "the cap leaves room" not in result.findings[0].advice
