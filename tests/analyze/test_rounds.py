import math

import msgspec
import numpy as np
import pytest

from tailrace.analyze.rounds import Round, agree_on
from tailrace.model.measurement import BenchSummary, ClientHealth, MetricSummary


def summary(p99, *, tokens=1000.0, schedule=None):
    metric = MetricSummary(n=1000, p50=p99 / 4, p95=p99 / 2, p99=p99)
    return BenchSummary(
        run="",
        n=1000,
        requests_per_s=5.0,
        tokens_per_s=tokens,
        goodput_per_s=5.0,
        errors={},
        client=ClientHealth(),
        metrics={"ttft_ms": metric},
        from_schedule={} if schedule is None else {"ttft_ms": MetricSummary(n=1000, p50=1.0, p95=1.0, p99=schedule)},
    )


def rounds(a, b, first=None):
    first = first or [i % 2 == 0 for i in range(len(a))]
    return [Round(a=summary(x), b=summary(y), a_first=order) for x, y, order in zip(a, b, first, strict=True)]


def test_the_interval_is_t_over_the_rounds():
    a, b = [100.0, 110.0, 90.0, 105.0], [50.0, 60.0, 44.0, 50.0]
    effect = agree_on(rounds(a, b)).effects["ttft_ms.p99"]
    each = np.log(np.array(b) / np.array(a))
    half = 3.182446 * each.std(ddof=1) / 2
    assert effect.mean_pct == pytest.approx(math.expm1(each.mean()) * 100, abs=0.01)
    assert effect.ci_pct == pytest.approx(
        [math.expm1(each.mean() - half) * 100, math.expm1(each.mean() + half) * 100], abs=0.01
    )
    assert effect.better == 4
    assert effect.excludes_zero


def test_a_drift_of_both_arms_is_no_effect():
    levels = [100.0 * 1.2**i for i in range(6)]
    found = agree_on(rounds(levels, levels))
    effect = found.effects["ttft_ms.p99"]
    assert effect.mean_pct == 0.0
    assert effect.drift_pct == pytest.approx((1.2**5 - 1) * 100, abs=0.1)
    assert effect.between_runs_pct == pytest.approx(0.0, abs=0.01)
    assert any("drifted" in text for text in found.warnings)


def test_going_second_is_told_apart_from_the_change():
    first = [True, False, True, False]
    a = [100.0 if one else 150.0 for one in first]
    b = [150.0 if one else 100.0 for one in first]
    found = agree_on(rounds(a, b, first))
    effect = found.effects["ttft_ms.p99"]
    assert effect.mean_pct == pytest.approx(0.0, abs=0.01)
    assert effect.second_pct == pytest.approx(50.0, abs=0.1)
    assert any("went second" in text for text in found.warnings)


def test_rates_are_better_when_higher_and_the_intended_time_comes_first():
    one = Round(a=summary(100, tokens=500, schedule=400), b=summary(100, tokens=600, schedule=800), a_first=True)
    found = agree_on([one, one, one])
    assert found.effects["tokens_per_s"].better == 3
    assert found.effects["ttft_ms.p99"].mean_pct == 100.0


def test_what_a_run_cannot_tell_is_in_no_effect():
    whole = summary(100)
    short = BenchSummary(
        run="", n=50, requests_per_s=1, tokens_per_s=1, goodput_per_s=1, errors={}, client=ClientHealth(),
        metrics={"ttft_ms": MetricSummary(n=50, p50=20.0)},
    )  # fmt: skip
    found = agree_on([Round(a=whole, b=short, a_first=True)])
    assert "ttft_ms.p50" in found.effects
    assert "ttft_ms.p99" not in found.effects
    assert found.effects["ttft_ms.p50"].ci_pct == [None, None]
    assert not found.effects["ttft_ms.p50"].excludes_zero
    assert "rounds say nothing" in found.warnings[0]


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        day = rng.normal(0, 0.5, 6)
        a, b = np.exp(day + rng.normal(0, 0.1, 6)) * 100, np.exp(day + rng.normal(0, 0.1, 6)) * 80
        low, high = agree_on(rounds(a.tolist(), b.tolist())).effects["ttft_ms.p99"].ci_pct
        covered += low <= -20.0 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_a_headline_of_a_class_has_an_effect_of_its_own():
    def arm(chat):
        return msgspec.structs.replace(
            summary(900),
            classes={"chat": {"ttft_ms": MetricSummary(n=600, p95=chat / 2)}},
            classes_from_schedule={"chat": {"ttft_ms": MetricSummary(n=600, p95=chat)}},
        )

    one = Round(a=arm(100), b=arm(50), a_first=True)
    found = agree_on([one, one, one], ["chat/ttft_from_schedule_ms.p95", "interactive/ttft_ms.p95"])
    assert found.effects["ttft_ms.p95"].mean_pct == 0.0
    assert found.effects["chat/ttft_from_schedule_ms.p95"].mean_pct == -50.0
    assert "interactive/ttft_ms.p95" not in found.effects, "no run tells it"
