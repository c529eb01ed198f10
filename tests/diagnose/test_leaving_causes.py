"""CANCEL_STORM, CANCEL_NOT_PROPAGATED, CLIENT_TIMEOUT_BUDGET, CLIENT_UPLOAD_LATE: what clients do."""

import msgspec
import numpy as np

from tailrace.diagnose.causes.gateway.cancel_not_propagated import CancelNotPropagated
from tailrace.diagnose.causes.gateway.cancel_storm import CancelStorm
from tailrace.diagnose.causes.gateway.client_timeout_budget import ClientTimeoutBudget
from tailrace.diagnose.causes.speech.upload_late import UploadLate
from tailrace.model.finding import Level
from tests.diagnose.altered import calm, failed, restamped, stamps
from tests.diagnose.simulated import MS, evidence


def leaving(share, age, *, seed=0, **extra):
    rng = np.random.default_rng(seed)
    return [
        failed(r, age(r, rng), reason="client_disconnect", outcome="cancelled", tokens=True, max_tokens=900, **extra)
        if rng.random() < share
        else r
        for r in calm(n=300)
    ]


def at_random(record, rng):
    return float(rng.uniform(0.2, 0.95)) * record.e2e_ns / MS


def test_clients_that_leave_in_droves():
    usual = leaving(0.01, at_random)
    finding = CancelStorm().judge(evidence(leaving(0.3, at_random), before=usual))
    assert (finding.code, finding.level) == ("CANCEL_STORM", Level.CONSISTENT)
    assert CancelStorm().judge(evidence(leaving(0.3, at_random))).level is Level.SUSPECTED
    assert CancelStorm().judge(evidence(usual)) is None
    assert CancelStorm().judge(evidence(leaving(0.3, at_random), before=leaving(0.3, at_random, seed=1))) is None


def test_clients_that_leave_at_one_age_have_a_timeout():
    finding = ClientTimeoutBudget().judge(evidence(leaving(0.1, lambda *_: 8_000)))
    assert finding.code == "CLIENT_TIMEOUT_BUDGET"
    assert finding.level is Level.CONSISTENT
    assert "8 s" in finding.statement
    assert ClientTimeoutBudget().judge(evidence(leaving(0.1, at_random))) is None
    blind = [msgspec.structs.replace(r, max_tokens=None) for r in leaving(0.1, lambda *_: 8_000)]
    assert ClientTimeoutBudget().judge(evidence(blind)).level is Level.SUSPECTED


def test_an_engine_that_goes_on_for_nobody():
    late = leaving(0.1, at_random, cancel_slot_ns=9_000 * MS, cancel_upstream_ns=3 * MS)
    finding = CancelNotPropagated().judge(evidence(late))
    assert (finding.code, finding.level) == ("CANCEL_NOT_PROPAGATED", Level.CONSISTENT)
    assert CancelNotPropagated().judge(evidence(leaving(0.1, at_random, cancel_slot_ns=300 * MS))) is None
    assert CancelNotPropagated().cannot_run(evidence(calm(n=300)))


def uploads(ms, *, lag=1):
    rng = np.random.default_rng(0)
    out = []
    for record in calm(n=300):
        late = int(rng.uniform(0.5, 1.5) * ms * MS) if rng.random() < 0.1 else 5 * MS
        made = restamped(record, stamps(record) + late)
        out.append(
            msgspec.structs.replace(
                made,
                ingress_ns=late,
                unattributed_ns=record.unattributed_ns,
                stage_sources={**record.stage_sources, "ingress": "measured"},
                loop_lag_ns=None if lag is None else lag * MS,
            )
        )
    return out


def test_requests_that_come_in_slowly():
    finding = UploadLate().judge(evidence(uploads(1500)))
    assert (finding.code, finding.level) == ("CLIENT_UPLOAD_LATE", Level.CONSISTENT)
    assert UploadLate().judge(evidence(uploads(1500, lag=None))).level is Level.SUSPECTED
    assert UploadLate().judge(evidence(uploads(1500, lag=3000))) is None
    assert UploadLate().judge(evidence(uploads(5))) is None
