import numpy as np
import pytest

from tailrace.stats.bootstrap import MIN_BLOCKS, Arm, block_length, compare_quantiles, dependence_length


def independent(rng, n=2000, scale=1.0, seconds=60.0):
    return Arm(rng.lognormal(6, 1, n) * scale, np.sort(rng.uniform(0, seconds, n)))


def queue_arm(rng, *, rate=12.0, seconds=45.0, service=0.06, services=None, gaps=None):
    """Waiting times of a single-server queue (Lindley): bursts make neighbours alike, as in a real tail."""
    n = int(rate * seconds)
    gaps = rng.exponential(1 / rate, n) if gaps is None else gaps
    services = rng.exponential(service, n) if services is None else services
    wait = np.zeros(n)
    for i in range(1, n):
        wait[i] = max(0.0, wait[i - 1] + services[i - 1] - gaps[i])
    return Arm((wait + services) * 1e3, np.cumsum(gaps)), gaps, services


def test_a_large_change_is_decided_and_its_interval_holds_it():
    rng = np.random.default_rng(1)
    (change,) = compare_quantiles(independent(rng), independent(rng, scale=0.3), [0.99], block_s=1, rng=rng)
    assert change.high < 0
    assert change.low < -0.7 + 0.2 < change.high + 0.4
    assert change.p_value < 0.01
    assert change.n_a == change.n_b == 2000


def test_equal_arms_paired_have_no_width():
    rng = np.random.default_rng(2)
    arm = independent(rng)
    (change,) = compare_quantiles(arm, arm, [0.99], block_s=1, rng=rng, paired=True)
    assert (change.change, change.low, change.high) == (0, 0, 0)
    assert change.p_value == 1.0


def test_detectable_effect_agrees_with_the_closed_form():
    # 2.80 * sqrt(2 p(1-p)/n) * sigma / phi(z_p) = 33 % at n = 2000, sigma = 1, p99.
    rng = np.random.default_rng(3)
    seen = [
        compare_quantiles(independent(rng), independent(rng), [0.99], block_s=1, rng=rng)[0].detectable
        for _ in range(10)
    ]
    assert 0.25 < float(np.median(seen)) < 0.50


def test_pairing_removes_what_the_arrivals_did_to_both():
    rng = np.random.default_rng(4)
    a, gaps, services = queue_arm(rng)
    b, _, _ = queue_arm(rng, gaps=gaps, services=services * 0.95)
    paired = compare_quantiles(a, b, [0.95], block_s=3, rng=rng, paired=True)[0]
    free = compare_quantiles(a, b, [0.95], block_s=3, rng=rng)[0]
    assert paired.high - paired.low < 0.7 * (free.high - free.low)


@pytest.mark.long("120 pairs of queues without a difference")
@pytest.mark.timeout(60)
def test_a_queue_without_change_is_rarely_called_changed():
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(120):
        a, _, _ = queue_arm(rng)
        b, _, _ = queue_arm(rng)
        residence = float(np.quantile(a.values, 0.99)) / 1e3
        block = block_length(a, b, residence)
        change = compare_quantiles(a, b, [0.95], block_s=block, rng=rng, resamples=400)[0]
        alarms += change.low > 0 or change.high < 0
    assert alarms / 120 <= 0.11


def test_resampling_single_requests_would_alarm_more_often():
    # The reason for blocks: the same queues, cut as if requests were independent.
    rng = np.random.default_rng(6)
    wide = narrow = 0.0
    for _ in range(10):
        a, _, _ = queue_arm(rng, seconds=120)
        b, _, _ = queue_arm(rng, seconds=120)
        blocks = compare_quantiles(a, b, [0.95], block_s=8, rng=rng)[0]
        shuffled = [Arm(rng.permutation(arm.values), arm.at_s) for arm in (a, b)]
        single = compare_quantiles(*shuffled, [0.95], block_s=1, rng=rng)[0]
        wide += blocks.detectable
        narrow += single.detectable
    assert wide > 1.5 * narrow


def test_short_arms_keep_a_minimum_of_blocks():
    rng = np.random.default_rng(7)
    (change,) = compare_quantiles(independent(rng), independent(rng), [0.5], block_s=50, rng=rng)
    assert change.blocks == MIN_BLOCKS


def test_dependence_is_seen():
    rng = np.random.default_rng(8)
    arm = independent(rng)
    assert dependence_length(arm) <= 1.0
    slow_wave = Arm(1 + np.sin(arm.at_s / 5) + 0.1 * rng.random(2000), arm.at_s)
    assert dependence_length(slow_wave) >= 3.0
    assert block_length(arm, arm, residence_s=4.0) == 32.0


def test_many_values_are_binned_without_moving_the_answer():
    rng = np.random.default_rng(9)
    a, b = independent(rng, n=60_000), independent(rng, n=60_000, scale=1.3)
    (change,) = compare_quantiles(a, b, [0.99], block_s=1, rng=rng)
    assert change.low < 0.3 < change.high
    assert change.high - change.low < 0.2


def test_zeros_are_no_division():
    rng = np.random.default_rng(10)
    at = np.linspace(0, 30, 300)
    (change,) = compare_quantiles(Arm(np.zeros(300), at), Arm(np.zeros(300), at), [0.5], block_s=1, rng=rng)
    assert change.change == 0.0


def test_empty_arms_are_an_error():
    rng = np.random.default_rng(11)
    with pytest.raises(ValueError, match="values"):
        compare_quantiles(independent(rng), Arm(np.array([]), np.array([])), [0.5], block_s=1, rng=rng)


def test_weights_give_one_arm_the_mix_of_the_other():
    rng = np.random.default_rng(12)
    at = np.linspace(0, 60, 2000)
    long_a, long_b = np.arange(2000) % 50 == 0, np.arange(2000) % 10 == 0

    def values(long):
        return np.where(long, 1000.0, 100.0) * rng.lognormal(0, 0.1, 2000)

    weights = np.where(long_b, 0.02 / 0.1, 0.98 / 0.9)
    a, b = Arm(values(long_a), at), Arm(values(long_b), at)
    raw = compare_quantiles(a, b, [0.95], block_s=2, rng=rng)[0]
    adjusted = compare_quantiles(a, b._replace(weights=weights), [0.95], block_s=2, rng=rng)[0]
    assert raw.change > 5
    assert abs(adjusted.change) < 0.05


def test_an_arm_too_short_for_its_dependence_is_widened_unless_paired():
    rng = np.random.default_rng(13)
    a, b = independent(rng, seconds=30), independent(rng, seconds=30, scale=1.2)
    fits = compare_quantiles(a, b, [0.9], block_s=5, rng=rng)[0]
    short = compare_quantiles(a, b, [0.9], block_s=45, rng=rng)[0]
    paired = compare_quantiles(a, b, [0.9], block_s=45, rng=rng, paired=True)[0]
    assert short.high - short.low > 2 * (fits.high - fits.low)
    assert paired.high - paired.low < 0.7 * (short.high - short.low)
