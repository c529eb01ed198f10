"""The diagnosis on labelled incidents: right causes, and silence where nothing is wrong.

The incidents are made by `tailrace.simulate.incidents` from seeds of their own; `bench/incidents.py` runs many more.
The floors below are what holds now; a rule that gets better raises them.
"""

import msgspec
import pytest

from tailrace.diagnose.cause import layer_of
from tailrace.model.record import broken_invariants
from tailrace.simulate.incidents.faults import FAULTS
from tailrace.simulate.incidents.incident import BLOCKS, CONTROL, make_incident
from tailrace.testing.incident_trial import NOTHING, Score, evidence_of, trial_of

KINDS = [fault.kind for fault in FAULTS]
IN_DEFAULT_TIER = 60
CONTROLS = 20
LONGEST = 360
TOP1 = 0.30
"""At least so many of the first answers are right."""
FALSE_ALARMS = 2


@pytest.fixture(scope="module")
def trials():
    jobs = [(KINDS[i % len(KINDS)], i // len(KINDS)) for i in range(IN_DEFAULT_TIER - CONTROLS)]
    jobs += [(CONTROL, i) for i in range(CONTROLS)]
    return [trial_of(make_incident(kind, index, "test", longest=LONGEST)) for kind, index in jobs]


@pytest.mark.long("sixty incidents are simulated and diagnosed", timeout=120)
def test_sixty_incidents(trials):
    score = Score(trials)
    assert len(trials) == IN_DEFAULT_TIER
    print(score.table())
    assert score.top1 / len(score.faults) >= TOP1, score.table()
    assert len(score.false_alarms) <= FALSE_ALARMS, score.false_alarms


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
