import numpy as np
import pytest

from tailrace.analyze.history import history, point_of
from tailrace.model.errors import InputError
from tailrace.model.measurement import ClientHealth
from tailrace.model.outcome import Reason
from tailrace.store.history_file import HistoryPoint
from tailrace.store.run_file import Arrival, RunTrailer
from tests.analyze.tables import request, run

DAY = 86_400 * 10**9


def points(values, *, work="w", metric="ttft_ms.p99", n=600, limited=()):
    return [
        HistoryPoint(
            run=f"{i:03}.run",
            started_unix_ns=i * DAY,
            work=work,
            n=n,
            values={metric: float(value)},
            label=f"c{i}",
            limited=i in limited,
        )
        for i, value in enumerate(values)
    ]


def noisy(level, n, seed, sd=0.05):
    return level * np.exp(np.random.default_rng(seed).normal(0, sd, n))


def test_a_step_is_found_where_it_is_and_named():
    (found,) = history(points([*noisy(400, 22, 1), *noisy(600, 8, 2)]), ("ttft_ms.p99",))
    (change,) = found.metrics[0].changes
    assert (change.index, change.run, change.label, change.runs_since) == (22, "022.run", "c22", 8)
    assert change.worse
    assert change.before == pytest.approx(400, rel=0.03)
    assert change.change_pct == pytest.approx(50, abs=6)
    assert found.regressions(recent=5) == []
    assert found.regressions(recent=8) == [("ttft_ms.p99", change)]


def test_more_tokens_a_second_are_no_regression_and_fewer_are():
    up = history(points([*noisy(400, 15, 1), *noisy(600, 15, 2)], metric="tokens_per_s"), ("tokens_per_s",))[0]
    down = history(points([*noisy(600, 15, 1), *noisy(400, 15, 2)], metric="tokens_per_s"), ("tokens_per_s",))[0]
    assert [change.worse for change in (*up.metrics[0].changes, *down.metrics[0].changes)] == [False, True]


def test_errors_that_begin_are_a_change_although_there_were_none():
    values = [0.0] * 15 + [0.05] * 10
    (found,) = history(points(values, metric="error_rate"), ("error_rate",))
    assert [(change.index, change.worse) for change in found.metrics[0].changes] == [(15, True)]


def test_a_client_limited_run_is_shown_and_is_no_level():
    values = [*noisy(400, 20, 3), *([4000.0] * 6)]
    (found,) = history(points(values, limited=range(20, 26)), ("ttft_ms.p99",))
    assert found.metrics[0].changes == []
    assert len(found.metrics[0].values) == 26
    assert history(points(values), ("ttft_ms.p99",))[0].metrics[0].changes


def test_few_runs_say_how_many_there_must_be():
    (found,) = history(points([400.0, 410.0, 900.0]), ("ttft_ms.p99",))
    assert found.metrics[0].changes == []
    assert "3 runs have it" in found.metrics[0].missing
    assert "20" in found.metrics[0].missing


def test_other_work_is_another_history_and_a_run_counts_once():
    one, two = points(noisy(400, 25, 4), work="one"), points(noisy(900, 5, 5), work="two")
    found = history([*two, *one, *one], ("ttft_ms.p99",))
    assert [(item.work, len(item.runs)) for item in found] == [("one", 25), ("two", 5)]


def test_an_unknown_metric_is_named():
    with pytest.raises(InputError, match=r"ttft_ms\.p98"):
        history(points([1.0, 2.0]), ("ttft_ms.p98",))


def test_the_point_of_a_run():
    records = [request(i, at_ms=i * 10, prefill_ms=100, gaps_ms=(10,) * 3, vantage="client") for i in range(100)]
    records += [request(200 + i, at_ms=i, reason=Reason.STREAM_CUT, vantage="client") for i in range(25)]
    made = run(
        records,
        trailer=RunTrailer(n=125, duration_s=10.0, client=ClientHealth(limited=True)),
        path="/somewhere/x.run",
        model="m",
        mix="short:1",
        started_unix_ns=7,
        arrival=Arrival(kind="poisson", rate=5.0),
    )
    point = point_of(made, label="abc")
    assert (point.run, point.label, point.started_unix_ns, point.limited) == ("x.run", "abc", 7, True)
    assert point.work == "m · poisson 5/s · short:1"
    assert point.values["ttft_ms.p50"] == 100.0
    assert "ttft_ms.p99" not in point.values, "100 requests do not support it"
    assert point.values["error_rate"] == 0.2
    assert point.values["requests_per_s"] == 10.0


def test_another_load_is_another_history():
    loads = [
        Arrival(kind="poisson", shape="2..20 over 60s"),
        Arrival(kind="poisson", shape="2..40 over 60s"),
        Arrival(kind="gamma", rate=5.0, burstiness=0.3),
        Arrival(kind="gamma", rate=5.0, burstiness=4.0),
        Arrival(kind="poisson", rate=5.0, clients="50 clients zipf 1.1"),
        Arrival(kind="poisson", rate=5.0),
        Arrival(kind="closed", concurrency=8),
        Arrival(kind="closed", concurrency=8, shape="1..8 over 60s"),
    ]
    made = [point_of(run([request(0)], arrival=one)).work for one in loads]
    assert len(set(made)) == len(loads)
    shared, more = ({"a": {"traits": {"prefixes": {"pool": 5, "hit": hit}}}} for hit in (0.6, 0.9))
    assert len({point_of(run([request(0)], classes=one)).work for one in (shared, more, {})}) == 3
