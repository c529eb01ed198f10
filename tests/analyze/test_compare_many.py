"""Several arms, and several runs of one arm."""

import numpy as np
import pytest

from tailrace.analyze.compare import compare
from tailrace.analyze.compare_many import compare_many
from tailrace.model.measurement import Verdict
from tailrace.stats.bootstrap import Arm, compare_quantiles
from tailrace.stats.tests import benjamini_hochberg, fisher_p_value, holm
from tests.analyze.tables import MS, request, table


def arm(level, seed, n=1000, sigma=0.3):
    rng = np.random.default_rng(seed)
    return table(
        [
            request(i, at_ms=i * 100.0, prefill_ms=float(level * rng.lognormal(0, sigma)), gaps_ms=[20.0])
            for i in range(n)
        ]
    )


def test_each_arm_is_compared_with_the_first_and_ranked():
    found = compare_many({"base": arm(200, 1), "slow": arm(300, 2), "same": arm(200, 3), "fast": arm(100, 4)})
    assert found.baseline == "base"
    assert {name: one.verdict for name, one in found.comparisons.items()}["fast"] is Verdict.IMPROVED
    assert found.comparisons["slow"].verdict is Verdict.REGRESSED
    assert found.verdict is Verdict.REGRESSED
    ranks = {row.name: row.rank for row in found.ranking}
    assert ranks == {"fast": 1, "base": 2, "same": 2, "slow": 4}
    assert found.comparisons["fast"].name_a == "base"
    assert "Best is fast" in found.summary


def test_another_baseline():
    found = compare_many({"a": arm(200, 1), "b": arm(100, 2)}, baseline="b")
    assert found.comparisons["a"].verdict is Verdict.REGRESSED
    with pytest.raises(KeyError):
        compare_many({"a": arm(200, 1), "b": arm(100, 2)}, baseline="c")


def test_what_one_look_would_decide_many_looks_do_not():
    arms = {"base": arm(200, 1), "near": arm(235, 3)}
    alone = compare_many(arms).comparisons["near"]
    assert alone.verdict is Verdict.REGRESSED
    assert alone.p_value is not None
    # As many other arms as it takes for Holm to let it go.
    others = {f"same{i}": arms["base"] for i in range(min(40, int(0.05 / alone.p_value)))}
    if 0.05 / (len(others) + 1) < alone.p_value:
        found = compare_many(arms | others).comparisons["near"]
        assert found.verdict is Verdict.INCONCLUSIVE
        assert found.observed is Verdict.REGRESSED
        assert "Holm" in found.summary
    else:
        assert alone.p_value < 0.05 / 41


def test_holm_and_fisher():
    assert holm([0.001, 0.02, 0.04]) == [True, True, True]
    assert holm([0.001, 0.03, 0.04]) == [True, False, False]  # 0.03 > 0.05 / 2 ends it
    assert benjamini_hochberg([0.001, 0.03, 0.04]) == [True, True, True]
    assert holm([]) == []
    assert fisher_p_value(6, 200, 0, 200) == pytest.approx(0.0302, abs=5e-4)
    assert fisher_p_value(3, 200, 3, 200) == 1.0
    assert fisher_p_value(0, 0, 3, 200) == 1.0


def restarts(levels, seed):
    """Runs of one configuration, each of which settled at a level of its own."""
    return [arm(level, seed + i, n=600, sigma=0.15) for i, level in enumerate(levels)]


def test_the_spread_between_restarts_counts():
    # One run against one other looks like a clear difference; the restarts of one arm differ as much.
    a, b = restarts([200, 260, 215], 10), restarts([250, 205, 270], 20)
    assert compare(a[0], b[0]).verdict is Verdict.REGRESSED
    pooled = compare(a, b)
    assert pooled.verdict is Verdict.INCONCLUSIVE
    assert (pooled.runs_a, pooled.runs_b) == (3, 3)
    assert (pooled.n_a, pooled.n_b) == (1800, 1800)
    assert any("3 runs" in text for text in pooled.checks)


def test_a_difference_larger_than_that_spread_is_decided():
    found = compare(restarts([200, 210, 205], 10), restarts([100, 104, 98], 20))
    assert found.verdict is Verdict.IMPROVED
    assert found.same_work["arrivals"]


@pytest.mark.parametrize("on_the_runs_clock", [True, False])
def test_an_arm_of_more_runs_carries_no_other_load(on_the_runs_clock):
    def at_ten_a_second(level, seed, day):
        rng = np.random.default_rng(seed)
        return table(
            [
                request(
                    i,
                    at_ms=day * 86_400_000.0 + i * 100.0,
                    prefill_ms=float(level * rng.lognormal(0, 0.15)),
                    run_offset_ns=i * 100 * MS if on_the_runs_clock else None,
                )
                for i in range(600)
            ]
        )

    three = [at_ten_a_second(200, 10 + day, day) for day in range(3)]
    found = compare(three, [at_ten_a_second(100, 20, 0)])
    assert (found.same_work["rate_a"], found.same_work["rate_b"]) == pytest.approx((10.0, 10.0), rel=0.01)
    assert found.verdict is Verdict.IMPROVED, found.summary
    assert compare([at_ten_a_second(100, 20, 0)], three).verdict is Verdict.REGRESSED
    assert not any("request rate" in text for text in found.checks)


def test_runs_without_a_spread_of_their_own_lose_nothing_but_degrees_of_freedom():
    rng = np.random.default_rng(3)
    at = np.sort(rng.uniform(0, 300, 3000))
    run = np.repeat(np.arange(5), 600)
    a, b = rng.lognormal(5, 0.3, 3000), rng.lognormal(5, 0.3, 3000)
    (single,) = compare_quantiles(Arm(a, at), Arm(b, at), [0.9], block_s=3, rng=np.random.default_rng(1))
    (five,) = compare_quantiles(
        Arm(a, at, None, run), Arm(b, at, None, run), [0.9], block_s=3, rng=np.random.default_rng(1)
    )
    assert five.runs_a == five.runs_b == 5
    assert five.low <= single.low
    assert five.high >= single.high
    assert five.high - five.low < 3 * (single.high - single.low)


@pytest.mark.long("150 pairs of three restarts without a difference")
@pytest.mark.timeout(60)
def test_restarts_without_a_difference_are_rarely_called_different():
    rng = np.random.default_rng(4)
    alarms = 0
    for _ in range(150):
        sides = []
        for _side in range(2):
            level = np.repeat(rng.lognormal(0, 0.2, 3), 400)
            values = level * rng.lognormal(5, 0.3, 1200)
            sides.append(Arm(values, np.linspace(0, 120, 1200), None, np.repeat(np.arange(3), 400)))
        (change,) = compare_quantiles(*sides, [0.9], block_s=1, rng=rng, resamples=200)
        alarms += change.low > 0 or change.high < 0
    assert alarms / 150 <= 0.10  # 5 % and what chance adds; blocks alone would call most of them different


def test_no_run_is_an_error():
    with pytest.raises(ValueError, match="no run"):
        compare([], [arm(100, 1)])
