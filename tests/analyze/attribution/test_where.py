"""Who stops with whom, on which replica, at which moment, and whose requests they are."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.analyze.attribution.contribution import contributions
from tailrace.analyze.attribution.gaps_together import Stops, Streams, episodes_of, gaps_together
from tailrace.analyze.attribution.moments import Happening, moments
from tailrace.analyze.attribution.replicas import replica_skew
from tailrace.model.outcome import Reason
from tailrace.stats.blocks import blocks_of
from tests.analyze.tables import request, table

S = 1e9


def rng():
    return np.random.default_rng(3)


def streams(n=60, *, groups=1, weight=1.0, length_s=20.0, step_s=1.0):
    first = np.arange(n) * step_s * S
    return Streams(first=first, end=first + length_s * S, group=np.arange(n) % groups, weight=np.full(n, float(weight)))


def stop_all(who, at_s, length_s=0.5, only=None):
    """Every stream alive at each moment stops."""
    rows, begin = [], []
    for at in at_s:
        alive = np.flatnonzero((who.first < at * S) & (who.end > (at + length_s) * S))
        alive = alive if only is None else alive[who.group[alive] == only]
        rows += alive.tolist()
        begin += [at * S] * alive.size
    begin = np.array(begin)
    return Stops(stream=np.array(rows, dtype=np.int64), begin=begin, end=begin + length_s * S)


def test_all_streams_of_an_engine_together():
    who = streams()
    found = gaps_together(who, stop_all(who, range(5, 55, 5)))
    assert found.verdict == "engine"
    assert found.together == pytest.approx(1.0)
    assert (found.episodes, found.common) == (10, 10)
    assert found.common_low > 0.6
    assert "engine or its host" in found.sentence


def test_one_stream_alone_is_that_request():
    who = streams()
    stops = Stops(stream=np.arange(10, 50, 5), begin=who.first[10:50:5] + 3 * S, end=who.first[10:50:5] + 4 * S)
    found = gaps_together(who, stops)
    assert found.verdict == "request"
    assert found.alone == pytest.approx(1.0)
    assert "that request or its client" in found.sentence


def test_one_replica_of_two_stops_and_the_other_does_not():
    who = streams(groups=2)
    found = gaps_together(who, stop_all(who, range(5, 55, 5), only=1))
    assert found.verdict == "engine"
    assert found.across == 0.0
    both = gaps_together(who, stop_all(who, range(5, 55, 5)))
    assert both.verdict == "before the engines"
    assert "gateway" in both.sentence


def test_a_sample_of_timelines_does_not_make_stops_common():
    """Ten streams that stopped alone are all kept; of the others every hundredth is, and stands for a hundred."""
    who = streams(40)
    weight = np.where(np.arange(40) % 4 == 0, 1.0, 100.0)
    who = msgspec.structs.replace(who, weight=weight)
    kept = np.arange(0, 40, 4)
    stops = Stops(stream=kept, begin=np.full(10, 19.5 * S), end=np.full(10, 20.0 * S))
    stops = msgspec.structs.replace(stops, begin=who.first[kept] + 3 * S, end=who.first[kept] + 3.5 * S)
    assert gaps_together(who, stops).together == 0.0
    at_once = stop_all(who, [25.0, 28.0, 31.0])
    slow = np.isin(at_once.stream, kept)
    few = Stops(stream=at_once.stream[slow], begin=at_once.begin[slow], end=at_once.end[slow])
    assert gaps_together(who, few).together == 0.0


def test_without_company_nothing_is_said():
    who = streams(3, step_s=100.0)
    found = gaps_together(who, Stops(stream=np.arange(3), begin=who.first + S, end=who.first + 2 * S))
    assert found.verdict == ""
    assert found.judged == 0
    nothing = Stops(stream=np.empty(0, dtype=np.int64), begin=np.empty(0), end=np.empty(0))
    assert gaps_together(who, nothing) is None
    assert episodes_of(nothing, who).begin.size == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 15), st.floats(0.2, 3)), min_size=1, max_size=30))
def test_episodes_are_what_a_plain_loop_finds(drawn):
    who = streams(10, groups=2)
    stream = np.array([row for row, _, _ in drawn])
    begin = who.first[stream] + np.array([at for _, at, _ in drawn]) * S
    stops = Stops(stream=stream, begin=begin, end=begin + np.array([length for _, _, length in drawn]) * S)
    found = episodes_of(stops, who)
    expected = []
    for group in (0, 1):
        mine = sorted((b, e, s) for b, e, s in zip(stops.begin, stops.end, stream, strict=True) if s % 2 == group)
        for begin_at, end_at, row in mine:
            if expected and expected[-1][0] == group and begin_at < expected[-1][2]:
                expected[-1][2] = max(expected[-1][2], end_at)
                expected[-1][3].add(row)
            else:
                expected.append([group, begin_at, end_at, {row}])
    assert sorted(zip(found.group, found.begin, found.end, found.streams, strict=True)) == sorted(
        (group, b, e, len(rows)) for group, b, e, rows in expected
    )
    whole = gaps_together(who, stops)
    assert 0 <= whole.alone + whole.together <= 1 + 1e-9


# -- replicas


def loaded(shares, *, n=1200, tokens=None, seed=0):
    draw = np.random.default_rng(seed)
    backend = draw.choice(len(shares), n, p=shares)
    return table(
        [
            request(
                i,
                at_ms=i * 100 + draw.uniform(0, 50),
                prompt=int((tokens or [200] * len(shares))[backend[i]] * draw.uniform(0.5, 1.5)),
                backend=f"engine-{backend[i]}",
                gaps_ms=[100] * 20,
            )
            for i in range(n)
        ]
    )


def test_a_full_replica_beside_idle_ones_is_skew():
    found = replica_skew(loaded([0.85, 0.05, 0.05, 0.05]), rng())
    assert found.skewed
    assert found.replicas[0].name == "engine-0"
    assert found.low < 3.4 < found.high
    assert f"{found.skew:.2f}" in found.sentence


def test_even_replicas_are_not_skewed():
    found = replica_skew(loaded([0.25, 0.25, 0.25, 0.25]), rng())
    assert not found.skewed
    assert 1.0 <= found.low <= found.skew < 1.5


def test_equal_counts_of_unequal_work_are_seen_by_tokens():
    found = replica_skew(loaded([0.5, 0.5], tokens=[4000, 400]), rng())
    assert found.skew < 1.2
    assert found.token_skew > 1.7


def test_one_replica_or_none_has_no_skew():
    assert replica_skew(table([request(i, backend="a") for i in range(50)]), rng()) is None
    assert replica_skew(table([request(i) for i in range(50)]), rng()) is None


# -- moments


def changing(*, factor=3.0, at=0.6, n=3000, failing=0.0, version=False, longer=1.0):
    draw = np.random.default_rng(5)
    out = []
    for i in range(n):
        late = i >= at * n
        fails = late and draw.random() < failing
        out.append(
            request(
                i,
                at_ms=i * 100 + draw.uniform(0, 50),
                prompt=int(300 * (longer if late else 1.0) * draw.uniform(0.8, 1.2)),
                prefill_ms=100 * draw.lognormal(0, 0.3) * (factor if late else 1.0),
                gaps_ms=[20, 20, 20],
                engine_version="2.0" if version and late else "1.0",
                reason=Reason.ENGINE_ERROR if fails else Reason.NONE,
            )
        )
    return table(out)


def test_the_moment_and_what_changed_then():
    (moment,) = moments(changing(version=True, longer=4.0))
    assert moment.metric == "ttft"
    assert moment.at_s == pytest.approx(180.0, abs=3 * moment.within_s)
    assert moment.low < 2.0 < moment.high
    assert any(text.startswith("engine version 2.0 0% -> 100%") for text in moment.changed)
    assert any(text.startswith("prompt length (mean) ") and " -> 1,2" in text for text in moment.changed)
    assert "at that moment" in moment.sentence


def test_events_that_are_known_are_laid_beside_it():
    rows = changing()
    origin = rows.column("start_unix_ns").min() / 1e9
    (moment,) = moments(rows, [Happening(origin + 180.5, "configuration reloaded"), Happening(origin + 20, "a deploy")])
    assert moment.happened == ["configuration reloaded"]
    (alone,) = moments(rows)
    assert "nothing else is known" in alone.sentence


def test_failures_that_begin_are_a_moment():
    found = [moment for moment in moments(changing(factor=1.0, failing=0.3)) if moment.metric == "failures"]
    assert len(found) == 1
    assert found[0].after == pytest.approx(0.3, abs=0.08)


def test_a_steady_window_has_none():
    assert moments(changing(factor=1.0)) == []
    assert moments(table([request(i) for i in range(50)])) == []


# -- contributions


def shared_out(n=4000, seed=1):
    draw = np.random.default_rng(seed)
    tenant = draw.choice(["red", "blue", "green"], n, p=[0.1, 0.6, 0.3])
    slow = draw.random(n) < np.where(tenant == "red", 0.15, 0.01)
    rows = table(
        [request(i, at_ms=i * 100, tenant=str(tenant[i]), route="canary" if i % 5 else "stable") for i in range(n)]
    )
    return rows, slow, blocks_of(np.where(slow, 900.0, 100.0), np.arange(n) / 10.0)


def test_the_tenant_that_makes_the_tail_is_named_and_no_other():
    found = contributions(*shared_out(), rng())
    named = [one for one in found if one.named]
    assert [(one.dimension, one.name) for one in named] == [("tenant", "red")]
    red = named[0]
    assert red.low < 0.62 < red.high
    assert red.low > red.traffic_share == pytest.approx(0.1, abs=0.02)
    assert "6." in red.sentence or "5." in red.sentence
    assert found[0] is red


def test_equal_tenants_are_not_named():
    hits = 0
    for seed in range(20):
        rows, _, blocks = shared_out(1000, seed)
        slow = np.random.default_rng(100 + seed).random(1000) < 0.025
        hits += any(one.named for one in contributions(rows, slow, blocks, rng()))
    assert hits <= 2


def test_one_burst_of_one_tenant_is_no_pattern():
    """All of the tail within two seconds: whoever was there then was slow, and more is not known."""
    rows, _, _ = shared_out(3000)
    slow = np.zeros(3000, dtype=bool)
    burst = np.arange(1500, 1520)
    slow[burst[np.asarray(rows.column("tenant")[burst] == "blue")]] = True
    at = np.arange(3000) / 10.0
    found = contributions(rows, slow, blocks_of(np.where(slow, 9000.0, 100.0), at), rng())
    assert not any(one.named for one in found)


def test_nothing_slow_is_nobodys():
    rows, slow, blocks = shared_out(200)
    assert contributions(rows, np.zeros_like(slow), blocks, rng()) == []
