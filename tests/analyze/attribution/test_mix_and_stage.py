"""p99 worse, the mean unmoved: a shift of the mix and a shift of a stage told apart, with intervals."""

import numpy as np
import pytest

from tailrace.analyze.attribution.mix_split import mix_split, split_of
from tailrace.analyze.attribution.regressions import regressions_of
from tailrace.analyze.attribution.traffic import Traffic, kinds_of_traffic
from tailrace.analyze.decompose import shift_words, stage_change, stage_intervals, tail_stages
from tests.analyze.attribution.rivals import KINDS, WINDOW_MS, window
from tests.analyze.tables import request, table

SHARES = (0.30, 0.35, 0.25, 0.09, 0.01)
MORE_LONG = (0.29, 0.34, 0.24, 0.09, 0.04)
SCALES = np.array([100.0, 200.0, 400.0, 800.0, 2200.0])
SAME = (1.0, 1.0, 1.0, 1.0, 1.0)
SLOW_3 = (1.0, 1.0, 1.0, 2.0, 1.0)
SLOW_2 = (1.0, 1.0, 1.6, 1.0, 1.0)


def rng():
    return np.random.default_rng(7)


def buckets(seed, shares=SHARES, slower=SAME, n=40_000):
    draw = np.random.default_rng(seed)
    kind = draw.choice(5, n, p=np.array(shares) / sum(shares))
    return (SCALES * np.array(slower))[kind] * draw.lognormal(0.0, 0.35, n), np.zeros(n), kind


INJECTED = {
    "four times as many long requests": ({"shares": MORE_LONG}, "mix", None),
    "one bucket twice as slow": ({"slower": SLOW_3}, "within", "bucket 3"),
    "both": ({"shares": MORE_LONG, "slower": SLOW_3}, "both", "bucket 3"),
    "nothing": ({}, "", None),
    "a quarter of the traffic 60 % slower": ({"slower": SLOW_2}, "", "bucket 2"),
}


@pytest.mark.parametrize("name", INJECTED)
@pytest.mark.parametrize("seed", range(3))
def test_five_injected_changes_are_told_apart_with_intervals(name, seed):
    change, verdict, slower = INJECTED[name]
    a, b = buckets(10 + seed), buckets(20 + seed, **change)
    traffic = Traffic(a[2], b[2], [f"bucket {i}" for i in range(5)])
    split = split_of(a[:2], b[:2], traffic, rng())
    assert split.verdict == verdict
    assert split.mix.low <= split.mix.value <= split.mix.high
    assert split.mix.value + split.within.value == pytest.approx(split.b - split.a)
    if verdict in ("mix", "both"):
        assert split.mix.low > 0
        assert split.grown.name == "bucket 4"
    if verdict in ("within", "both"):
        assert split.within.low > 0
        assert split.slower.name == slower
    rows = regressions_of(a[:2], b[:2], [traffic], rng())
    # The aggregate is blind to the last one; the table of buckets is not, and cries at nothing else.
    assert {row.kind for row in rows if row.slower} == ({slower} if slower else set())
    assert not any(row.faster for row in rows)
    if name.startswith("a quarter"):
        middle = next(row for row in rows if row.kind == "bucket 2" and row.p == 0.5)
        assert middle.low < 0.6 < middle.high


def stages(seed, *, queue=1.0, prefill=1.0, stalls=0.0, n=8000):
    """Five stages a request; rows are made cheap, columns are what is looked at."""
    draw = np.random.default_rng(seed)
    made = {
        "queue": draw.exponential(20.0, n) * queue,
        "prefill": draw.lognormal(4.0, 0.4, n) * prefill,
        "decode": draw.lognormal(6.5, 0.6, n) + np.where(draw.random(n) < stalls, draw.uniform(3000, 9000, n), 0.0),
    }
    base = table([request(0)])
    rows = base.where(np.zeros(n, dtype=np.int64))
    total = np.zeros(n)
    for name, values in made.items():
        rows.columns[f"{name}_ns"] = np.round(values * 1e6)
        total += np.round(values * 1e6)
    for name in ("response", "ingress", "preprocess", "postprocess"):
        rows.columns[f"{name}_ns"] = np.zeros(n)
    rows.columns["e2e_ns"] = total.astype(np.int64)
    rows.columns["start_unix_ns"] = rows.columns["start_unix_ns"] + np.arange(n) * 50_000_000
    return rows


@pytest.mark.parametrize(
    ("change", "stage"),
    [({"queue": 30.0}, "queue"), ({"prefill": 20.0}, "prefill"), ({"stalls": 0.02}, "decode"), ({}, None)],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_stage_that_was_slowed_is_named_with_its_interval_and_no_other(change, stage, seed):
    changes = stage_change(stages(1 + seed), stages(50 + seed, **change), rng(), block_s=None)
    grown = [name for name, one in changes.items() if one.named and one.delta > 0]
    assert grown == ([stage] if stage else [])
    if stage:
        one = changes[stage]
        assert 0 < one.low < one.delta < one.high
        assert f"{stage} +" in shift_words(changes)
    less = [name for name, one in changes.items() if one.named and one.delta < 0]
    assert ("crowding-out" in shift_words(changes)) == bool(stage and less)


def test_stages_at_the_quantile_have_intervals_that_hold_them():
    rows = stages(3, queue=10.0)
    tail = tail_stages(rows)
    parts = stage_intervals(rows, tail, rng())
    assert parts[0].stage == tail.leader
    assert sum(one.value for one in parts) == pytest.approx(tail.value_ms, rel=0.05)
    for one in parts:
        assert 0 <= one.low <= one.value <= one.high
        assert f"{one.value:.0f} ms" in one.share


# -- four rivals with an unmoved mean


@pytest.mark.parametrize("kind", KINDS)
def test_the_five_windows_have_the_same_mean_and_all_but_one_a_worse_p99(kind):
    a, b = (window(name, seed).ms("e2e") for name, seed in (("nothing", 1), (kind, 2)))
    assert abs(b.mean() / a.mean() - 1) < 0.05
    assert (np.quantile(b, 0.99) > 1.15 * np.quantile(a, 0.99)) is np.bool_(kind != "nothing")


def told(kind, seed=2):
    a, b = window("nothing", 1), window(kind, seed)
    return mix_split(a, b, rng(), metric="e2e"), stage_change(a, b, rng(), block_s=None)


@pytest.mark.parametrize("seed", [2, 3])
def test_more_long_prompts_are_a_shift_of_the_mix(seed):
    split, _ = told("more long prompts", seed)
    assert split.verdict == "mix"
    assert split.mix.low > 0
    assert split.mix.value > 3 * abs(split.within.value)
    assert not split.mean_moved
    assert split.mean_mix.low > 0 > split.mean_within.high
    assert "did not move" in split.sentence
    assert "prompts of 4096 to 8192 tokens" in split.grown.name


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("a blocked post-processing thread", "postprocess"),
        ("a batch window", "queue"),
        ("a slower client", "response"),
    ],
)
@pytest.mark.parametrize("seed", [2, 3])
def test_a_stage_that_slowed_is_within_equal_requests_and_named(kind, stage, seed):
    split, changes = told(kind, seed)
    assert split.verdict == "within"
    assert split.within.low > 0
    assert not split.mean_moved
    assert [name for name, one in changes.items() if one.named and one.delta > 0] == [stage]
    assert changes[stage].low > 0


def test_only_a_timer_leaves_a_cluster_of_waits():
    from tailrace.stats.periods import spike_of

    for kind in KINDS:
        waits = window(kind, 2).ms("queue_engine")
        found = spike_of(waits[waits > 50.0])
        assert (found is not None) is (kind == "a batch window"), kind
        if found is not None:
            assert found.nominal == WINDOW_MS


def test_another_window_of_the_same_is_neither():
    split, changes = told("nothing")
    assert split.verdict == ""
    assert not any(one.named for one in changes.values())


# -- kinds of traffic


def test_kinds_are_named_by_what_differs():
    rows = [
        request(
            i,
            lane="chat" if i % 2 else "doc",
            prompt=200 if i % 2 else 5000,
            audio_seconds=None if i % 4 else 12.0,
            gaps_ms=[10] * 3,
        )
        for i in range(400)
    ]
    traffic = kinds_of_traffic(table(rows), table(rows))
    assert any("lane doc" in name and "audio of 10 to 30 s" in name for name in traffic.names)
    assert sum(traffic.shares()[0]) == pytest.approx(1.0)
    same = kinds_of_traffic(table([request(i) for i in range(50)]), table([request(i) for i in range(50)]))
    assert same.names == ["all requests"]


def test_traffic_that_only_one_window_has_is_counted_apart():
    old = [request(i, at_ms=i * 50, prompt=200, prefill_ms=40 + i % 7) for i in range(1000)]
    new = old[:950] + [request(2000 + i, at_ms=i * 900, prompt=9000, prefill_ms=2000 + i) for i in range(50)]
    split = mix_split(table(old), table(new), rng())
    assert split.verdict == "mix"
    assert split.traffic > 1500
    assert abs(split.mix.value) < 10
    assert list(split.new.values()) == [0.05]
    assert split.mix.value + split.within.value + split.traffic == pytest.approx(split.b - split.a)


def test_too_few_requests_are_not_split():
    few = table([request(i) for i in range(20)])
    assert mix_split(few, few, rng()) is None
    assert mix_split(table([request(0)]), few, rng()) is None
