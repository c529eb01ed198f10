import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.stats.decomposition import bucket_shares, conditional_stage_mean, mix_within

A = {"short": np.arange(100.0, 190.0), "long": np.arange(1000.0, 1091.0, 10)}
B = {"short": np.arange(100.0, 160.0), "long": np.arange(1500.0, 1891.0, 10)}


def test_golden_p95():
    split = mix_within(A, B, 0.95)
    assert split is not None
    assert (split.mix, split.within, split.total, split.a, split.b) == (95.0, 705.0, 800.0, 1040.0, 1840.0)


def test_golden_unmoved_median_hides_two_opposite_changes():
    split = mix_within(A, B, 0.5)
    assert split is not None
    assert (split.mix, split.within, split.total) == (20.5, -20.5, 0.0)


buckets = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.lists(st.floats(1, 1000), min_size=1, max_size=20), min_size=1
)


@given(buckets, buckets, st.floats(0.05, 0.99))
def test_mix_and_within_add_up(a, b, p):
    split = mix_within({k: np.array(v) for k, v in a.items()}, {k: np.array(v) for k, v in b.items()}, p)
    if not set(a) & set(b):
        assert split is None
        return
    assert split is not None
    assert split.mix + split.within == pytest.approx(split.b - split.a, abs=1e-6)
    assert split.total == pytest.approx(split.b - split.a)


def test_vanished_traffic_is_not_extrapolated():
    split = mix_within(A, {"short": B["short"]}, 0.95)
    assert split is not None
    assert split.mix == 0.0


def test_injected_changes_land_where_they_were_injected():
    rng = np.random.default_rng(1)
    shares, scales = [0.3, 0.35, 0.25, 0.09, 0.01], [100, 200, 400, 800, 3000]
    names = [f"b{i}" for i in range(5)]

    def window(weights, factor):
        sizes = rng.multinomial(40_000, weights)
        return {
            name: rng.lognormal(np.log(scale * (factor if name == "b3" else 1)), 0.4, size)
            for name, scale, size in zip(names, scales, sizes, strict=True)
        }

    before = window(shares, 1)
    more_long = mix_within(before, window([0.29, 0.34, 0.24, 0.09, 0.04], 1), 0.99)
    slower = window(shares, 2)
    slow = mix_within(before, slower, 0.99)
    assert more_long is not None
    assert slow is not None
    assert more_long.mix > 5 * abs(more_long.within)
    assert slow.within > 5 * abs(slow.mix)
    parts = bucket_shares(before, slower, 0.99)
    assert max(parts, key=lambda k: parts[k]) == "b3"


def test_golden_conditional_stage_mean():
    i = np.arange(1000)
    stages = {
        "queue": 0.5 * (7 * i % 1000),
        "prefill": 50 + 0.1 * (13 * i % 1000),
        "decode": 200 + (29.0 * i % 1000),
    }
    total = sum(stages.values())
    shares = conditional_stage_mean(stages, total, 0.9, 0.025)
    assert shares.rows == 50
    assert shares.stages == pytest.approx({"queue": 342.38, "prefill": 98.884, "decode": 1039.72})
    assert shares.total == pytest.approx(1480.984)
    assert float(np.quantile(total, 0.9)) == pytest.approx(1479.18)


@given(st.integers(1, 40), st.floats(0.01, 0.99), st.floats(0.0, 0.05))
def test_stages_add_up_for_any_window(n, p, half_width):
    rng = np.random.default_rng(n)
    stages = {name: rng.exponential(10, n) for name in "abc"}
    shares = conditional_stage_mean(stages, sum(stages.values()), p, half_width)
    assert shares.rows >= 1
    assert sum(shares.stages.values()) == pytest.approx(shares.total)
