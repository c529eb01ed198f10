"""The diagnosis on labelled incidents: right causes, and silence where nothing is wrong.

The incidents are made by `tailrace.simulate.incidents` from seeds of their own; `bench/incidents.py` runs many more.
The floors below are what holds now; a rule that gets better raises them.
"""

import msgspec
import numpy as np
import pytest

from tailrace.diagnose.cause import layer_of
from tailrace.model.record import broken_invariants
from tailrace.simulate.incidents.faults import FAULTS
from tailrace.simulate.incidents.incident import BLOCKS, CONTROL, make_incident
from tailrace.testing.incident_trial import NOTHING, Score, evidence_of, trial_of

KINDS = [fault.kind for fault in FAULTS]
IN_DEFAULT_TIER = 60
CONTROLS = 20
LONGEST = 500
TOP1 = 0.87
"""At least so many of the first answers are right."""
FALSE_ALARMS = 0


@pytest.fixture(scope="module")
def trials():
    jobs = [(KINDS[i % len(KINDS)], i // len(KINDS)) for i in range(IN_DEFAULT_TIER - CONTROLS)]
    jobs += [(CONTROL, i) for i in range(CONTROLS)]
    return [trial_of(make_incident(kind, index, "test", longest=LONGEST)) for kind, index in jobs]


@pytest.mark.long("sixty incidents are simulated and diagnosed", timeout=400)
def test_sixty_incidents(trials):
    score = Score(trials)
    assert len(trials) == IN_DEFAULT_TIER
    print(score.table())
    assert score.top1 / len(score.faults) >= TOP1, score.table()
    assert len(score.false_alarms) <= FALSE_ALARMS, score.false_alarms


@pytest.mark.tier("ci")
@pytest.mark.long("a hundred incidents are simulated and diagnosed", timeout=900)
def test_a_hundred_incidents():
    # Every kind once more and other controls: the figures themselves come from `bench/incidents.py`.
    jobs = [(kind, 1) for kind in KINDS] + [(CONTROL, CONTROLS + i) for i in range(53)]
    score = Score(trial_of(make_incident(kind, index, "test", longest=1000)) for kind, index in jobs)
    print(score.table())
    assert score.top1 / len(score.faults) >= TOP1, score.table()
    assert len(score.false_alarms) <= FALSE_ALARMS + 1, score.false_alarms


def test_every_kind_has_a_label_of_the_catalogue_and_its_own_name():
    assert len(set(KINDS)) == len(KINDS)
    for fault in FAULTS:
        for code in (fault.code, *fault.also, *fault.without_signals):
            layer_of(code)


def test_blocks_of_seeds_have_nothing_in_common():
    assert len(set(BLOCKS.values())) == len(BLOCKS)
    ids = {
        block: {record.request_id for record in make_incident("lane_limit", 0, block, longest=250).records}
        for block in BLOCKS
    }
    assert not ids["tune"] & ids["publish"]
    assert not ids["tune"] & ids["test"]
    assert not ids["publish"] & ids["test"]


@pytest.mark.parametrize("kind", ["network", CONTROL])
def test_an_incident_is_made_again_by_its_name(kind):
    one, two = (make_incident(kind, 3, "test", longest=250) for _ in range(2))
    assert msgspec.structs.astuple(one) == msgspec.structs.astuple(two)
    assert one.name == f"{kind}/test/3"


def test_the_window_before_is_of_the_same_system_and_the_fault_is_all_that_differs():
    index = next(i for i in range(20) if make_incident("postprocess_slow", i, "test", longest=250).before)
    incident = make_incident("postprocess_slow", index, "test", longest=250)
    assert incident.before is not None
    assert not {one.request_id for one in incident.before} & {one.request_id for one in incident.records}
    usual, slow = (
        np.median([one.postprocess_ns for one in side if one.postprocess_ns is not None])
        for side in (incident.before, incident.records)
    )
    assert slow > 3 * usual
    prefill = [
        np.median([one.prefill_ns / one.prompt_tokens for one in side if one.prefill_ns is not None])
        for side in (incident.before, incident.records)
    ]
    assert 0.8 < prefill[1] / prefill[0] < 1.25


def test_evidence_is_what_a_gateway_has():
    incident = make_incident("thermal", 0, "test", longest=250)
    evidence = evidence_of(incident)
    assert evidence.vantage == "gateway"
    assert evidence.header is None
    assert evidence.knobs == {}
    assert not evidence.observed
    assert [text for record in incident.records for text in broken_invariants(record)] == []
    assert bool(incident.gpus) == bool(evidence.hardware.gpus)


def test_a_control_is_right_only_where_nothing_is_said():
    trial = trial_of(make_incident(CONTROL, 1, "test", longest=250))
    assert trial.wanted == NOTHING
    wrong = msgspec.structs.replace(trial, answers=["SCHED_QUEUE_SATURATION"])
    assert not wrong.first
    score = Score([wrong, trial])
    assert score.false_alarms == [wrong]
    assert score.top1 == 0
