"""Prefix hits by window: what counters counted between scrapes, or a hit rate that steps while time goes on."""

from __future__ import annotations

from bisect import insort
from typing import Final

import numpy as np

from tailrace.diagnose.observed import Arm, Counter, Observed, Place, Quoted, Role, Series

__all__ = ["hits_by_window", "hits_in_series"]

_FOUND: Final = ("prefix_found", "prefix_hits", "prefix_cache_hits", "prefix_hit_tokens", "cached_tokens")
_ASKED: Final = ("prefix_queried", "prefix_queries", "prefix_cache_queries", "prefix_query_tokens")
LEAST: Final = 3
"""Readings on either side of a step."""
STEP: Final = 0.1


def hits_by_window(observed: Observed) -> list[Arm]:
    """One arm a window, over all engines: hit rate with its tokens, mean TTFT where the histogram was scraped too."""
    windows: dict[int, list[Counter]] = {}
    for item in observed.counters:
        if item.delta is not None and item.name.removesuffix("_total") in (*_FOUND, *_ASKED):
            windows.setdefault(item.order, []).append(item)
    out = []
    for order, items in sorted(windows.items()):
        hits = [item for item in items if item.name.removesuffix("_total") in _FOUND]
        asked = sum(item.delta or 0.0 for item in items if item.name.removesuffix("_total") in _ASKED)
        if not hits or asked <= 0:
            continue
        found, place = sum(item.delta or 0.0 for item in hits), hits[0].place
        name = f"window {order + 1}"
        values = {
            "prefix_hit": Quoted(
                quantity="prefix_hit", value=found / asked, unit="share", place=place,
                label=f"hits {found:,.0f} of {asked:,.0f} tokens asked for",
            )
        }  # fmt: skip
        whole = [one for one in observed.windows("ttft") if one.order == order and not one.lifetime and one.mean]
        for seen in whole:
            values["ttft.mean"] = Quoted(
                quantity="ttft", stat="mean", value=seen.mean or 0.0, unit="ms", label="TTFT mean", place=seen.place
            )
        out.append(Arm(name=name, label=name, values=values, place=place))
    return out


def hits_in_series(observed: Observed) -> list[Arm]:
    """Before and after the largest step down of a hit rate over time; empty where it only wanders."""
    for series in observed.of_series("prefix_hit"):
        known = np.flatnonzero(np.isfinite(series.values))
        values = series.values[known]
        if series.axis != "time" or values.size < 2 * LEAST:
            continue
        before, after = _medians(values.tolist()), _medians(values[::-1].tolist())
        cuts = range(LEAST, values.size - LEAST + 1)
        cut = max(cuts, key=lambda at: before[at - 1] - after[values.size - at - 1])
        sides = values[:cut], values[cut:]
        # Most of what lies before the step lies clear above most of what lies behind it.
        if float(np.quantile(sides[0], 0.25) - np.quantile(sides[1], 0.75)) < STEP:
            continue
        when = float(series.at[known[cut]])
        return [
            _side(observed, series, known[:cut], f"before {when:g} s", Role.BEFORE),
            _side(observed, series, known[cut:], f"from {when:g} s on", Role.AFTER),
        ]
    return []


def _medians(values: list[float]) -> list[float]:
    """The median of the first, of the first two, of the first three …"""
    out: list[float] = []
    ordered: list[float] = []
    for n, value in enumerate(values, start=1):
        insort(ordered, value)
        out.append(ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2)
    return out


def _side(observed: Observed, series: Series, at: np.ndarray, name: str, role: Role) -> Arm:
    place = series.line_of(int(at[0]))
    values = {
        "prefix_hit": Quoted(
            quantity="prefix_hit", value=float(np.median(series.values[at])), unit="share", place=place,
            label="hit rate (median)",
        )
    }  # fmt: skip
    for other in observed.of_series("ttft"):
        if other.at.shape == series.at.shape and np.array_equal(other.at, series.at) and other.unit == "ms":
            median = float(np.nanmedian(other.values[at])) if np.isfinite(other.values[at]).any() else float("nan")
            if np.isfinite(median):
                values["ttft.p50"] = Quoted(
                    quantity="ttft", stat="p50", value=median, unit="ms", label="TTFT",
                    place=Place(place.source, place.line),
                )  # fmt: skip
            break
    return Arm(name=name, label=name, values=values, role=role, place=place)
