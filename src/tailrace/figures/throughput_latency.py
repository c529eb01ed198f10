"""The throughput-latency curve of a sweep: what more load costs, where it bends, where the server is full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tailrace.analyze.knee import Knee
from tailrace.analyze.sweep import SweepPoint
from tailrace.figures.palette import GROUND, STAGE_COLORS, Theme
from tailrace.figures.picture import Picture, axis, base_layout, legend
from tailrace.figures.wording import duration
from tailrace.model.measurement import MetricSummary
from tailrace.model.stage import Stage

__all__ = ["WORDS", "throughput_latency"]

NAME: Final = "throughput-latency"
_SHOWN: Final = ("p50", "p95", "p99")
_DASH: Final = {"p50": "solid", "p95": "dash", "p99": "dot"}
_SYMBOL: Final = {"p50": "circle", "p95": "square", "p99": "diamond"}
_COLOR: Final = {"p50": Stage.DECODE, "p95": Stage.QUEUE, "p99": Stage.ENCODE}
WORDS: Final = {"ttft_ms": "time to first token", "e2e_ms": "time to the last byte", "tpot_ms": "time per token"}


def throughput_latency(
    points: Sequence[SweepPoint], *, metric: str = "ttft_ms", knee: Knee | None = None, theme: Theme = "light"
) -> Picture:
    """Latency over completed requests a second, one line a percentile, with the 95 % interval of each that has one.

    Points beyond saturation are hollow; the knee, which lies on the sweep's own axis, is named in the note.
    """
    known = [(point, found) for point in points if (found := point.latency(metric)) is not None]
    words = WORDS.get(metric, metric.removesuffix("_ms"))
    if not known:
        return Picture(
            name=NAME,
            title="No point of the sweep has a latency",
            empty="No request of any point completed: read the errors of the runs.",
        )
    kind = "requests/s" if known[0][0].rate is not None else "at once"
    data = [_line(known, quantile, kind, theme) for quantile in _SHOWN]
    return Picture(
        name=NAME,
        title=_title(known, words, kind, knee),
        note=_note(known, kind, knee),
        alt="; ".join(_alt(point, found, kind) for point, found in known),
        data=[one for one in data if one["x"]],
        layout=base_layout(
            theme,
            xaxis=axis(theme, "completed requests a second", rangemode="tozero"),
            yaxis=axis(theme, f"{words}, ms (log)", type="log"),
            legend=legend(),
            showlegend=True,  # a single line, too, has to say which percentile it is
            margin={"l": 8, "r": 12, "t": 8, "b": 60},
            height=420,
        ),
    )


def _line(known: Sequence[tuple[SweepPoint, MetricSummary]], quantile: str, kind: str, theme: Theme) -> dict[str, Any]:
    shown = [(point, found) for point, found in known if getattr(found, quantile) is not None]
    color = STAGE_COLORS[theme][_COLOR[quantile]]
    paper = GROUND[theme]["paper"]
    values = [getattr(found, quantile) for _, found in shown]
    intervals = [_interval(found, quantile) for _, found in shown]
    out: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": quantile,
        "x": [point.throughput for point, _ in shown],
        "y": values,
        "line": {"color": color, "dash": _DASH[quantile], "width": 2},
        "marker": {
            "symbol": _SYMBOL[quantile],
            "size": 9,
            "color": [paper if point.saturated else color for point, _ in shown],
            "line": {"color": color, "width": 2},
        },
        "customdata": [
            f"offered {point.value:g} {kind}, n = {found.n}" + (f"<br>{point.saturated}" if point.saturated else "")
            for point, found in shown
        ],
        "hovertemplate": f"{quantile} %{{y:,.0f}} ms at %{{x:.2f}} completed/s<br>%{{customdata}}<extra></extra>",
    }
    if any(high is not None or low is not None for low, high in intervals):
        out["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [(high or value) - value for value, (_, high) in zip(values, intervals, strict=True)],
            "arrayminus": [value - (low or value) for value, (low, _) in zip(values, intervals, strict=True)],
            "color": color,
            "thickness": 1,
        }
    return out


def _interval(found: MetricSummary, quantile: str) -> tuple[float | None, float | None]:
    every = getattr(found, "ci", None)
    pair = every.get(quantile) if every else found.p99_ci if quantile == "p99" else None
    return (pair[0], pair[1]) if pair else (None, None)


def _title(known: Sequence[tuple[SweepPoint, MetricSummary]], words: str, kind: str, knee: Knee | None) -> str:
    full = next((point for point, _ in known if point.saturated), None)
    if knee is not None and knee.at is not None:
        return f"The {words} rises faster beyond {knee.at:.3g} {kind}"
    if full is not None:
        return f"The server is full at {full.value:g} {kind}"
    return f"The {words} over the load: no point was beyond what the server can do"


def _note(known: Sequence[tuple[SweepPoint, MetricSummary]], kind: str, knee: Knee | None) -> str:
    parts = [f"{len(known)} runs, one a point; lines at each percentile that has enough requests."]
    if any(point.saturated for point, _ in known):
        parts.append("Hollow points are beyond saturation: their percentiles grow with the length of the run.")
    if knee is not None and knee.at is not None and knee.low is not None and knee.high is not None:
        parts.append(
            f"The knee of {knee.metric}: {knee.at:.3g} {kind}, 95 % interval {knee.low:.3g} to {knee.high:.3g}."
        )
    elif knee is not None:
        parts.append(f"{knee.why[:1].upper()}{knee.why[1:]}.")
    return " ".join(parts)


def _alt(point: SweepPoint, found: MetricSummary, kind: str) -> str:
    shown = ", ".join(f"{name} {duration(value)}" for name in _SHOWN if (value := getattr(found, name)) is not None)
    return f"{point.value:g} {kind}: {point.throughput:.2f} completed a second, {shown}"
