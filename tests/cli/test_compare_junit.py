from xml.etree import ElementTree as ET

import msgspec

from tailrace.cli.compare_junit import render_junit
from tailrace.model.measurement import Comparison, MetricDelta, Verdict


def comparison(verdict, one=Verdict.IMPROVED, **more):
    delta = MetricDelta(a=100.0, b=50.0, delta_pct=-50.0, ci_pct=[-60.0, -40.0], n_a=600, n_b=601, verdict=one)
    given = {"metrics": {"ttft_ms.p99": delta}, "headline": ["ttft_ms.p99"], "summary": "In short."} | more
    return Comparison(verdict=verdict, same_work={}, trade_offs=[], min_detectable_pct=9.0, **given)


def outcomes(result, **more):
    suite = ET.fromstring(render_junit(result, **more))[0]
    return {case.get("name"): [child.tag for child in case if child.tag != "system-out"] for case in suite}


def test_the_verdict_and_what_it_rests_on():
    assert outcomes(comparison(Verdict.IMPROVED)) == {"verdict": [], "ttft_ms.p99": []}
    worse = comparison(Verdict.REGRESSED, one=Verdict.REGRESSED)
    assert outcomes(worse) == {"verdict": ["failure"], "ttft_ms.p99": ["failure"]}
    assert b"100.0 ms to 50.0 ms (-50.0 %), 95 % interval -60.0 to -40.0 %, n = 600 and 601" in render_junit(worse)


def test_the_price_of_an_improvement_is_told_and_fails_nothing():
    paid = comparison(Verdict.IMPROVED, one=Verdict.REGRESSED)
    assert outcomes(paid) == {"verdict": [], "ttft_ms.p99": []}
    assert b"a price of the improvement" in render_junit(paid)


def test_inconclusive_is_skipped_unless_it_is_to_fail():
    unsure = comparison(Verdict.INCONCLUSIVE, one=Verdict.INCONCLUSIVE)
    assert outcomes(unsure) == {"verdict": ["skipped"], "ttft_ms.p99": ["skipped"]}
    assert outcomes(unsure, fail_on_inconclusive=True)["verdict"] == ["failure"]


def test_a_refusal_is_an_error_because_nothing_was_judged():
    refused = msgspec.structs.replace(
        comparison(Verdict.INCONCLUSIVE), refused=["client_limited: run B"], metrics={}, headline=[]
    )
    assert outcomes(refused, fail_on_inconclusive=True) == {"verdict": ["error"]}
