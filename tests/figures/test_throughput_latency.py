"""The curve of a sweep: valid for Plotly, right in its numbers, honest about saturation and the knee."""

from __future__ import annotations

import pytest

from tailrace.analyze.knee import Knee
from tailrace.analyze.sweep import SweepPoint
from tailrace.figures.throughput_latency import throughput_latency
from tailrace.model.measurement import BenchSummary, ClientHealth, MetricSummary


def point(rate: float, p50: float | None, saturated: str = "") -> SweepPoint:
    metric = MetricSummary(n=600 if p50 else 0, p50=p50, p95=p50 and p50 * 2, p99=p50 and p50 * 3,
                           p99_ci=None if p50 is None else [p50 * 2.5, None])  # fmt: skip
    summary = BenchSummary(
        run="", n=600, requests_per_s=min(rate, 12.0), tokens_per_s=1.0, goodput_per_s=1.0, errors={},
        client=ClientHealth(), metrics={"ttft_ms": metric},
    )  # fmt: skip
    return SweepPoint(summary=summary, rate=rate, saturated=saturated)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_sweep_is_a_curve(theme):
    picture = throughput_latency(
        [point(2, 20.0), point(8, 30.0), point(32, 900.0, "the queue grew")],
        knee=Knee(at=9.0, low=7.0, high=12.0, metric="ttft_p95", why="beyond it the latency grows faster."),
        theme=theme,
    )
    picture.figure()
    assert picture.title == "The time to first token rises faster beyond 9 requests/s"
    assert "95 % interval 7 to 12" in picture.note
    assert "Hollow points" in picture.note
    by_name = {one["name"]: one for one in picture.data}
    assert by_name["p50"]["x"] == [2, 8, 12]
    assert by_name["p99"]["y"] == [60.0, 90.0, 2700.0]
    assert by_name["p99"]["error_y"]["arrayminus"] == [10.0, 15.0, 450.0]
    assert by_name["p99"]["error_y"]["array"] == [0, 0, 0]  # an unbounded end is drawn as none
    colors = by_name["p50"]["marker"]["color"]
    assert colors[0] == colors[1] != colors[2]
    assert "32 requests/s: 12.00 completed a second" in picture.alt


def test_without_a_knee_it_says_why():
    picture = throughput_latency([point(2, 20.0), point(8, 30.0, "full")], knee=Knee(why="no knee within the range"))
    assert picture.title == "The server is full at 8 requests/s"
    assert "No knee within the range." in picture.note


def test_nothing_completed():
    picture = throughput_latency([point(2, None)])
    assert picture.empty
    picture.figure()
