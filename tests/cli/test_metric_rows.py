"""Metrics as rows: whatever the terminal's width, no number is cut and no row is longer."""

import pytest

from tailrace.cli.metric_rows import metric_rows
from tailrace.model.measurement import MetricSummary


def summary(size: float, n: int = 303, p99: float | None = None) -> MetricSummary:
    return MetricSummary(
        n=n, mean=size, min=size, p50=size, p90=size * 2, p95=size * 3, p99=p99, max=size * 4, p99_ci=[size * 3.5, None]
    )


METRICS = {
    "ttft_ms": summary(24.4),
    "ttft_content_ms": summary(24.4),
    "tpot_ms": summary(12.1, n=1_234_567, p99=13.0),
    "e2e_ms": summary(2104.7),
    "postprocess_ms": summary(0.0),
    "itl_ms": MetricSummary(n=0, reason="the server said no token counts"),
}


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_row_is_longer_than_the_terminal_and_no_number_is_cut(width):
    rows = metric_rows(METRICS, width)
    assert max(map(len, rows)) <= width
    text = " ".join(" ".join(rows).split())
    for number in ("24.4", "1,234,567", "2104.7", "6314.1", "8418.8", "7366.4 … ?"):
        assert number in text
    assert "not known: ITL (per token): the server said no token counts" in text
    assert "-: too few requests for that percentile" in text


def test_columns_give_way_and_the_interval_stands_below():
    wide, narrow = metric_rows(METRICS, 120), metric_rows(METRICS, 80)
    assert wide[0].split() == ["n", "mean", "p50", "p90", "p95", "p99", "p99.9", "max", "p99", "95", "%", "interval"]
    assert "p99 95 % interval: TTFT 85.4 … ?, TPOT (per request)" in " ".join(" ".join(narrow).split())
    assert {"p50", "p95", "p99", "max"} <= set(narrow[0].split())


def test_the_same_numbers_are_not_shown_twice():
    assert not any("TTFT content" in row for row in metric_rows(METRICS, 120))
    different = METRICS | {"ttft_content_ms": summary(30.0)}
    assert any("TTFT content" in row for row in metric_rows(different, 120))


def test_nothing_known_has_no_head():
    assert metric_rows({"ttft_ms": MetricSummary(n=0, reason="nothing was streamed")}, 80) == [
        "  not known: TTFT: nothing was streamed"
    ]
