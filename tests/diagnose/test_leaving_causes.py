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


def test_a_few_that_leave_are_what_is_wrong_where_nobody_else_fails():
    few = leaving(0.05, at_random)
    left = sum(r.outcome == "cancelled" for r in few)
    assert 0.03 < left / len(few) < 0.07
    finding = CancelStorm().judge(evidence(few))
    assert finding.level is Level.SUSPECTED
    assert any("longer window" in text for text in finding.missing)
    # Beside as many that fail otherwise, it is not the clients that are the matter.
    others = [failed(r, 900.0) if i % 12 == 0 and r.outcome == "completed" else r for i, r in enumerate(few)]
    assert CancelStorm().judge(evidence(others)) is None


def held(records, *, stale, told):
    """The engine goes on with what was cancelled unless it is told; its gauge is so old that it follows nobody."""
    zero = min(r.start_unix_ns for r in records)
    spans = [(r.start_unix_ns - zero, r.start_unix_ns - zero + r.e2e_ns, r.outcome == "cancelled") for r in records]
    end = [over + (over - begin) * 2 if gone and not told else over for begin, over, gone in spans]
    out = []
    for r, (begin, _, _) in zip(records, spans, strict=True):
        at = begin // stale * stale
        count = sum(a <= at < b for (a, _, _), b in zip(spans, end, strict=True))
        seen = {"running_at_admission": count, "waiting_at_admission": 0, "max_tokens": None}
        out.append(msgspec.structs.replace(r, **seen))
    return out


def test_as_many_too_many_as_left_are_theirs_though_the_gauge_is_old():
    gone = leaving(0.5, lambda r, rng: float(rng.uniform(0.2, 0.5)) * r.e2e_ns / MS)
    finding = CancelNotPropagated().judge(evidence(held(gone, stale=7_000 * MS, told=False)))
    assert finding.code == "CANCEL_NOT_PROPAGATED"
    assert {"ghosts", "expected"} <= {item.name for item in finding.evidence}
    assert CancelNotPropagated().judge(evidence(held(gone, stale=7_000 * MS, told=True))) is None


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
