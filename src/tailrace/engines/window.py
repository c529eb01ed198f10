"""What happened in an engine between two readings: rates, means and quantile spans, each with its n and its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tailrace.engines.coarse_buckets import remedy
from tailrace.engines.histogram_delta import HistogramDelta, QuantileSpan
from tailrace.engines.odometer import Reading
from tailrace.engines.prometheus_text import Histogram
from tailrace.engines.tallies import COUNTERS, RATIOS, TIMINGS
from tailrace.model.thresholds import S

QUANTILES: Final = (0.5, 0.99)
_FEW_RESTARTS: Final = 3
"""More in one window are no restarts: several engines answer at one address in turn."""


class EngineWindow(msgspec.Struct, frozen=True):
    """Everything that was counted in one stretch of time."""

    begin_ns: int
    end_ns: int
    counters: dict[str, dict[str, float]]
    """Noun -> reason -> increase."""
    timings: dict[str, HistogramDelta]
    ratios: dict[str, tuple[float, float]]
    """Noun -> (seconds, things)."""
    summaries: dict[str, dict[float, tuple[float, float]]]
    """Noun -> q -> span (seconds), not of this window but of one of the engine's own."""
    names: dict[str, str]
    restarts: int
    ours: dict[str, int]
    """What the gateway itself counted meanwhile."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.begin_ns) / S

    def total(self, noun: str) -> float | None:
        """A counter over all its reasons; `None` where this engine does not count it."""
        by = self.counters.get(noun)
        return None if by is None else sum(by.values())

    def rate(self, noun: str) -> float | None:
        """The same a second."""
        total = self.total(noun)
        return None if total is None or self.end_ns <= self.begin_ns else total / self.seconds

    @property
    def prefix_hit(self) -> float | None:
        """Share of prompt tokens that were found in the prefix cache, 0..1; `None` where none were looked for."""
        found, queried = self.total("prefix_found"), self.prefix_queried
        return None if not queried or found is None else min(found / queried, 1.0)

    @property
    def prefix_queried(self) -> float | None:
        """Prompt tokens that were looked for in the prefix cache."""
        queried, missed = self.total("prefix_queried"), self.total("prefix_missed")
        return queried if queried is not None or missed is None else missed + (self.total("prefix_found") or 0.0)

    @property
    def notes(self) -> list[str]:
        """What limits these numbers."""
        if self.restarts > _FEW_RESTARTS:
            said = f"the counters began anew {self.restarts} times: several engines seem to answer at this address"
            return [f"{said} in turn, and no number of this window can be trusted"]
        if self.restarts:
            return ["the engine restarted: what it counted last before that is lost, so counts are lower bounds"]
        return []


def window_between(begin: Reading, end: Reading) -> EngineWindow:
    """What happened from one reading to a later one of the same odometer."""
    counters = {
        noun: {reason: total - begin.counters.get(noun, {}).get(reason, 0.0) for reason, total in by.items()}
        for noun, by in end.counters.items()
        if noun in end.names
    }
    ratios = {}
    for noun, (seconds, things) in end.ratios.items():
        if noun not in end.names:
            continue
        before = begin.ratios.get(noun, (0.0, 0.0))
        ratios[noun] = (seconds - before[0], things - before[1])
    return EngineWindow(
        begin_ns=begin.at_ns,
        end_ns=end.at_ns,
        counters=counters,
        timings={
            noun: HistogramDelta(_since(begin.timings.get(noun), seen), end.restarts - begin.restarts)
            for noun, seen in end.timings.items()
            if noun in end.names
        },
        ratios=ratios,
        summaries=end.summaries,
        names=end.names,
        restarts=end.restarts - begin.restarts,
        ours={key: count - begin.ours.get(key, 0) for key, count in end.ours.items()},
    )


def _since(before: Histogram | None, after: Histogram) -> Histogram:
    if before is None or before is after:
        return after if before is None else Histogram(after.bounds, [0.0] * len(after.bounds), 0.0, 0.0)
    known = dict(zip(before.bounds, before.counts, strict=True))
    bounds = [bound for bound in after.bounds if bound in known or not before.count]
    at = dict(zip(after.bounds, after.counts, strict=True))
    counts = [at[bound] - known.get(bound, 0.0) for bound in bounds]
    return Histogram(bounds, counts, after.sum - before.sum, after.count - before.count)


# -- views


def signals_view(window: EngineWindow, engine: str = "") -> dict[str, dict[str, Any]]:
    """Every signal of the window for JSON: value, `n`, the metric's name. Durations are milliseconds."""
    out: dict[str, dict[str, Any]] = {}
    for noun, delta in window.timings.items():
        out[noun] = timing_view(noun, delta, engine=engine, metric=window.names.get(noun, ""))
    for noun, (seconds, things) in window.ratios.items():
        view: dict[str, Any] = {
            "n": round(things),
            "of": RATIOS[noun].of,
            "mean_ms": seconds / things * 1e3 if things > 0 else None,
            "metric": window.names.get(noun, ""),
        }
        if noun in window.summaries:
            view["engine_window"] = {
                f"p{q * 100:g}_ms": [low * 1e3, high * 1e3] for q, (low, high) in window.summaries[noun].items()
            }
        out[noun] = view
    for noun, by in window.counters.items():
        total = sum(by.values())
        view = {"n": round(total), "per_s": window.rate(noun), "metric": window.names.get(noun, "")}
        if COUNTERS[noun].by and any(by):
            view["by"] = {reason: round(count) for reason, count in by.items() if reason}
        out[noun] = view
    if window.prefix_hit is not None:
        out["prefix_hit"] = {
            "ratio": window.prefix_hit,
            "n": round(window.prefix_queried or 0),
            "of": "tokens",
            "metric": _prefix_metric(window.names),
        }
    return out


def _prefix_metric(names: Mapping[str, str]) -> str:
    found, queried = names["prefix_found"], names.get("prefix_queried")
    return f"{found} / {queried}" if queried else f"{found} / ({names['prefix_missed']} + {found})"


def timing_view(noun: str, delta: HistogramDelta, *, engine: str = "", metric: str = "") -> dict[str, Any]:
    """One distribution: its mean, which is right, and its quantiles as spans, which are what buckets can tell."""
    out: dict[str, Any] = {"n": round(delta.n), "mean_ms": None, "metric": metric}
    means = TIMINGS[noun].means
    if means:
        out["means"] = means
    mean = delta.mean
    if mean is None:
        return out
    out["mean_ms"] = mean * 1e3
    unreadable = False
    for q in QUANTILES:
        span = delta.quantile(q)
        if span is not None:
            out[f"p{q * 100:g}_ms"] = span_view(span)
            unreadable = unreadable or (not span.exact and (span.low == 0 or span.high == math.inf))
    if unreadable:
        advice = remedy(noun, {}, engine=engine)
        if advice:
            out["remedy"] = advice
    return out


def span_view(span: QuantileSpan) -> dict[str, Any]:
    """A span for JSON; `high` is `null` where no bucket ends above it."""
    out: dict[str, Any] = {
        "low": span.low * 1e3,
        "high": None if span.high == math.inf else span.high * 1e3,
        "text": span.text(1e3, "ms"),
    }
    if span.estimate is not None:
        out["interpolated"] = span.estimate * 1e3
    return out


def means_of(window: EngineWindow) -> Mapping[str, tuple[float, float]]:
    """Noun -> (mean in seconds, n) of everything that has one."""
    out: dict[str, tuple[float, float]] = {}
    for noun, delta in window.timings.items():
        if delta.mean is not None:
            out[noun] = (delta.mean, delta.n)
    for noun, (seconds, things) in window.ratios.items():
        if things > 0 and math.isfinite(seconds):
            out[noun] = (seconds / things, things)
    return out
