"""A cause that takes as much of the window before is no reason to complain of this one."""

import msgspec
import numpy as np
import pytest

from tailrace.diagnose.blocks_of_time import grown
from tailrace.diagnose.broken_rules import BrokenRules
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.engine import _tells_them_apart
from tailrace.diagnose.symptoms import Symptom, symptoms
from tailrace.diagnose.than_before import ThanBefore
from tailrace.diagnose.verdict import answering
from tailrace.model.finding import Evidence, Level
from tests.diagnose.altered import calm, merged_by_timer, restamped, stamps
from tests.diagnose.simulated import MS, answer, as_gateway, codes, evidence, served

BEYOND_DOUBT = Symptom("worse", "", doubtless=True)


class Scripted(Cause):
    """Explains what it is told to, in the order of arrival; silent where that is little."""

    code = "SCHED_HOL_LONG_PREFILL"
    stage = "queue"
    needs = ()
    disproof = "none"

    def __init__(self, now, before, code="SCHED_HOL_LONG_PREFILL"):
        self.told = iter((now, before))
        self.code = code

    def judge(self, given):
        values = next(self.told)[: given.now.n]
        explains = given.now.explain(self.code, values)
        if values.mean() < 5.0:
            return None
        fact = Evidence("0 seen", "record")
        return self.finding(
            statement="", evidence=[fact], explains_ms=explains, relation="", n=1, advice="", price="", verify=""
        )


def waits(share, *, seed, n=450, clustered=False):
    """What a share of the requests lost (300 ms each), one by one or twenty together."""
    rng = np.random.default_rng(seed)
    hit = np.repeat(rng.random(n // 20 + 1) < share, 20)[:n] if clustered else rng.random(n) < share
    return np.where(hit, 300.0, 0.0)


def asked(now, before, code="SCHED_HOL_LONG_PREFILL"):
    given = evidence(calm(), before=calm(2))
    cause = Scripted(now, before, code)
    finding = cause.judge(given)
    return ThanBefore(given, [cause], BrokenRules()), finding


def test_a_cause_that_takes_more_than_before_has_grown():
    than, finding = asked(waits(0.2, seed=1), waits(0.01, seed=2))
    assert than.grew(finding)
    assert not than.as_before(finding)


def test_a_cause_that_takes_as_much_as_before_has_not():
    than, finding = asked(waits(0.1, seed=1), waits(0.1, seed=2))
    assert than.grew(finding) is False
    assert than.as_before(finding)


def test_one_cluster_by_chance_is_not_more_than_before():
    now = np.zeros(450)
    now[200:225] = 300.0
    than, finding = asked(now, np.zeros(450))
    assert than.grew(finding) is False, "twenty-five requests that waited for one document are one event"
    again, other = asked(now, np.zeros(450), "ENGINE_STALL")
    assert again.grew(other) is None, "a cause that happens once cannot be tested so"


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_two_windows_of_one_system_seldom_seem_to_differ(clustered, share):
    sides = [[waits(share, seed=1000 * side + seed, clustered=clustered) for seed in range(200)] for side in (1, 2)]
    assert sum(bool(grown(a, b)) for a, b in zip(*sides, strict=True)) <= 1


def test_where_the_whole_is_worse_beyond_doubt_a_cause_of_a_few_waits_need_only_have_risen():
    than, finding = asked(waits(0.02, seed=4), np.zeros(450))
    finding = msgspec.structs.replace(finding, level=Level.CONSISTENT)
    assert than.grew(finding) is False, "eight waits are too few for a test of their own"
    assert _tells_them_apart(finding, than, {"worse"}, BEYOND_DOUBT)
    assert not _tells_them_apart(finding, than, {"worse"}, None)
    unsure = msgspec.structs.replace(finding, level=Level.SUSPECTED)
    assert not _tells_them_apart(unsure, than, {"worse"}, BEYOND_DOUBT)
    again, other = asked(waits(0.02, seed=4), waits(0.018, seed=3))
    other = msgspec.structs.replace(other, level=Level.CONSISTENT)
    assert not _tells_them_apart(other, again, {"worse"}, BEYOND_DOUBT), "it takes as much of the window before"


def test_what_takes_most_of_the_rise_is_its_cause_however_much_it_took_before():
    than, finding = asked(np.full(450, 240.0), np.full(450, 200.0))
    finding = msgspec.structs.replace(finding, level=Level.CONSISTENT)
    assert than.as_before(finding)
    assert not _tells_them_apart(finding, than, {"worse"}, BEYOND_DOUBT)
    rose = BEYOND_DOUBT._replace(rise_ms=50.0)
    assert _tells_them_apart(finding, than, {"worse"}, rose)
    assert not _tells_them_apart(finding, than, {"worse"}, BEYOND_DOUBT._replace(rise_ms=100.0)), "40 of 100 ms"
    unsure = msgspec.structs.replace(finding, level=Level.SUSPECTED)
    assert not _tells_them_apart(unsure, than, {"worse"}, rose)


def test_what_those_lose_that_lose_most_may_be_the_rise_where_the_slowest_requests_lose_the_same():
    before, now = waits(0.1, seed=3), waits(0.1, seed=3) * 1.3
    than, finding = asked(now, before)
    finding = msgspec.structs.replace(finding, level=Level.CONSISTENT, explains_ms=0.0)
    assert than.took_most_of(finding, 150.0), "300 to 390 ms"
    assert not than.took_most_of(finding, 200.0)


def test_only_a_rise_far_beyond_its_interval_is_beyond_doubt():
    usual = calm(2)

    def told(records):
        return [one for one in symptoms(evidence(records, before=usual)) if one.kind == "worse"]

    (worse,) = told(merged_by_timer(calm(3), 400))
    assert worse.doubtless
    assert worse.rise_ms > 100.0
    assert not any(one.doubtless for seed in range(3, 9) for one in told(calm(seed)))


def test_a_quantile_that_moved_is_beyond_doubt_where_blocks_of_time_show_it_too():
    def moved(rows):
        late = [restamped(one, stamps(one) + 400 * MS) if i in rows else one for i, one in enumerate(calm(3))]
        (found,) = (one for one in symptoms(evidence(late, before=calm(2))) if one.kind == "moved")
        return found

    n = len(calm(3))
    over_all = moved(set(range(0, n, 8)))
    assert over_all.doubtless
    assert over_all.rise_ms > 200.0
    at_once = moved(set(range(n // 3, n // 3 + n // 8)))
    assert not at_once.doubtless, "they waited for one thing"
    assert at_once.rise_ms == 0.0


def test_a_few_blocks_that_lost_much_do_not_hide_that_most_lose_more():
    rng = np.random.default_rng(3)
    before, now = np.zeros(500), np.where(rng.random(500) < 0.1, 300.0, 0.0)
    now[:50] = 4_000.0
    before[:5] = 9_000.0
    assert grown(before, now) is True


def test_fewer_requests_than_blocks_need_are_not_compared():
    assert grown(np.zeros(30), np.ones(500)) is None
    assert grown(np.zeros(500), np.ones(500)) is True
    assert grown(np.ones(500), np.ones(500)) is False


def test_without_a_window_before_nothing_is_compared():
    given = evidence(calm())
    cause = Scripted(waits(0.2, seed=1), waits(0.2, seed=2))
    finding = cause.judge(given)
    than = ThanBefore(given, [cause], BrokenRules())
    assert than.grew(finding) is None
    assert not than.as_before(finding)
    assert not than.was_well


def test_documents_that_were_there_before_too_are_no_complaint():
    usual = as_gateway(served(5, rate=2.0, n=500, long_share=0.05, long_tokens=(2500, 3500)))
    again = as_gateway(served(6, rate=2.0, n=500, long_share=0.05, long_tokens=(2500, 3500)))
    assert "SCHED_HOL_LONG_PREFILL" not in codes(answer(again, before=usual))


def test_failures_alone_ask_for_the_causes_that_end_requests():
    given = evidence(calm())
    slow, left = (
        Scripted(waits(0.2, seed=1), waits(0.2, seed=2), code).judge(given)
        for code in ("SCHED_HOL_LONG_PREFILL", "CANCEL_STORM")
    )

    def first(kinds):
        return answering([slow, left], [Symptom(kind, "") for kind in sorted(kinds)])[0].code

    for kinds in ({"failures"}, {"failures", "fails_more"}, {"fails_more", "moved"}):
        assert first(kinds) == "CANCEL_STORM"
    for kinds in ({"failures", "worse"}, {"moved"}, {"objective", "failures"}):
        assert first(kinds) == "SCHED_HOL_LONG_PREFILL"
