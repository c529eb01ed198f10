"""METRIC_MEAN_DILUTION: the mean fell because more fast requests were counted, not because any became faster."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite
from typing import ClassVar, Final

from tailrace.diagnose.arms.as_written import called, seen, shown
from tailrace.diagnose.arms.asked import worded
from tailrace.diagnose.arms.moments import in_order
from tailrace.diagnose.arms.pairs import before_and_after
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Arm, Histogram, Observed, Role
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["MeanDilution"]

FELL: Final = 0.95
MORE: Final = 1.1
FEWEST: Final = 5
"""Completions of a window; a quantile of fewer is one of them."""
HELD: Final = 0.98
LONG_MS: Final = 10_000.0
"""From here on people say seconds."""
_LATENCIES: Final = ("ttft", "e2e", "queue", "tpot", "itl", "prefill", "decode")


class MeanDilution(Cause):
    """The mean of a window fell, completions rose, and p50 or p90 did not fall."""

    code: ClassVar[str] = "METRIC_MEAN_DILUTION"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("three scrapes (two windows) of the histogram", "its count and sum")
    disproof: ClassVar[str] = "p50 and p90 of the window fell too."
    action: ClassVar[Action] = Action.NONE

    def observe(self, observed: Observed) -> Finding | None:
        """Two windows of one histogram; else two arms with mean, n and p50."""
        for name in _LATENCIES:
            by: dict[tuple[tuple[str, str], ...], list[Histogram]] = {}
            for item in observed.of_histogram(name):
                if not item.lifetime and item.n and item.mean is not None:
                    by.setdefault(tuple(sorted(item.labels.items())), []).append(item)
            for windows in by.values():
                for before, after in pairwise(windows):
                    found = self._windows(before, after)
                    if found is not None:
                        return found
        return self._arms(observed)

    def _windows(self, before: Histogram, after: Histogram) -> Finding | None:
        old, new = before.mean, after.mean
        if old is None or new is None or new > FELL * old or after.n < MORE * before.n:
            return None
        quantiles = {f"p{100 * p:.0f}": (before.quantile(p), after.quantile(p)) for p in (0.5, 0.9)}
        held = {key: pair for key, pair in quantiles.items() if pair[0] is not None and pair[1] is not None}
        risen = {key: pair for key, pair in held.items() if (pair[1] or 0.0) >= HELD * (pair[0] or 0.0)}
        if not risen:
            return None
        place, unit = str(after.place) or after.raw, before.unit or "ms"
        name = called(before.name)
        words = "; ".join(
            f"{key} {_edge(pair[0], before)} -> {_edge(pair[1], after)} {unit}" for key, pair in held.items()
        )
        risen_words = ", ".join(
            f"{key} {_edge(pair[0], before)} -> {_edge(pair[1], after)} {unit}{_in_s(pair, unit)}"
            for key, pair in risen.items()
        )
        return self.finding(
            statement=f"Mean {name} fell from {shown(old)} to {shown(new)} {unit} because more completions were "
            "counted "
            f"({before.n:.0f} -> {after.n:.0f}), not because requests became faster: {risen_words}.",
            evidence=[
                Evidence(
                    text=f"mean {name} {shown(old)} -> {shown(new)} {unit} (sum / count of each window)",
                    source=place, name=f"{before.name}.mean", value=round(new, 3), unit=unit,
                ),
                Evidence(
                    text=f"completions: n = {before.n:.0f} -> {after.n:.0f}", source=place, name="n", value=after.n
                ),
                Evidence(text=f"from the buckets' deltas: {words}", source=place, name=f"{before.name}.p50"),
            ],
            explains_ms=None,
            relation=f"{shown(before.sum or 0)}/{before.n:.0f} = {shown(old)}; {shown(after.sum or 0)}/{after.n:.0f} = "
            f"{shown(new)} {unit}; {risen_words}",
            n=int(after.n),
            advice="Show p50 and p90 of each window from the buckets' deltas, with the count beside them, and split "
            "queue "
            "from prefill. Do not call it an improvement.",
            price="None.",
            verify="tailrace diagnose t0.prom t1.prom t2.prom",
            disproof_checked=[f"p50 and p90 of both windows: {words}"],
            missing=[] if before.n >= 5 else ["more completions in the first window"],
        )  # fmt: skip

    def _arms(self, observed: Observed) -> Finding | None:
        for before, after in [*before_and_after(observed.arms), *_first_and_last(observed)]:
            for name in _LATENCIES:
                old, new = before.quoted(name, "mean"), after.quoted(name, "mean")
                mid = (before.quoted(name, "p50", "p90"), after.quoted(name, "p50", "p90"))
                n = (_completed(before), _completed(after))
                if not (old and new and mid[0] and mid[1] and n[0] and n[1]) or old.relative or new.relative:
                    continue
                if mid[0].stat != mid[1].stat or new.value > FELL * old.value or n[1] < MORE * n[0]:
                    continue
                if mid[1].value < HELD * mid[0].value:
                    continue
                high = (before.quoted(name, "p90", "p95", "p99"), after.quoted(name, "p90", "p95", "p99"))
                held = bool(high[0] and high[1] and mid[0].stat == "p50" and high[0].stat == high[1].stat)
                if held and high[0] and high[1] and high[1].value < HELD * high[0].value:
                    continue
                more = [seen(arm, one) for arm, one in zip((before, after), high, strict=True) if held and one]
                return self.finding(
                    statement=f"Mean {name.upper()} fell from {shown(old.value)} to {shown(new.value)} {new.unit} "
                    "while "
                    f"{mid[0].stat} went {shown(mid[0].value)} -> {shown(mid[1].value)} {new.unit} and the completions "
                    f"{n[0]:.0f} -> {n[1]:.0f}: the mean was diluted, nothing became faster.",
                    evidence=[
                        seen(before, old),
                        seen(after, new),
                        seen(before, mid[0]),
                        seen(after, mid[1]),
                        *more,
                        Evidence(text=f"n = {n[0]:.0f} -> {n[1]:.0f}", source=str(after.place), name="n", value=n[1]),
                    ],
                    explains_ms=None,
                    relation=f"mean x {new.value / old.value:.2f}, {mid[0].stat} x {mid[1].value / mid[0].value:.2f}, "
                    f"n x {n[1] / n[0]:.2f}",
                    n=int(n[1]),
                    advice="Compare p50 and p90 of equal windows, with their counts.",
                    price="None.",
                    verify="tailrace diagnose t0.prom t1.prom t2.prom",
                    missing=[]
                    if held and min(n[0], n[1]) >= FEWEST
                    else ["the buckets of both windows (three scrapes), or p50, p90 and more requests of each"],
                    disproof_checked=[item.text for item in more],
                )
        return None


def _completed(arm: Arm) -> float | None:
    told = arm.get("n")
    counted = (
        worded(arm, r"^(?:completed|finished|served|done|answered)\b|completions|finished requests")
        if told is None
        else None
    )
    return told if counted is None else counted.value


def _first_and_last(observed: Observed) -> list[tuple[Arm, Arm]]:
    """The first and the last row of each table of windows that tells no before from after."""
    tables: dict[str, list[Arm]] = {}
    for arm in in_order(observed):
        if arm.role is Role.NONE and _completed(arm) is not None:
            tables.setdefault(arm.place.source, []).append(arm)
    return [(rows[0], rows[-1]) for rows in tables.values() if len(rows) > 2]


def _in_s(pair: tuple[float | None, float | None], unit: str) -> str:
    """` (4.69 -> 15.3 s)` behind long times in ms."""
    known = [value for value in pair if value is not None and isfinite(value)]
    if unit != "ms" or len(known) < 2 or max(known) < LONG_MS:
        return ""
    return f" ({known[0] / 1e3:.3g} -> {known[1] / 1e3:.3g} s)"


def _edge(value: float | None, histogram: Histogram) -> str:
    if value is None:
        return "?"
    return f"> {shown(histogram.bounds[-1])}" if value == float("inf") else shown(round(value, 3))
