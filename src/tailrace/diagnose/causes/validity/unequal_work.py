"""METRIC_UNEQUAL_WORK: the two windows (or arms) that are compared did not do the same work."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.arms.asked import given
from tailrace.diagnose.arms.pairs import before_and_after
from tailrace.diagnose.arms.unfinished import lost_share
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Arm, Observed
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding, Level
from tailrace.stats.quantiles import quantile_interval

__all__ = ["UnequalWork"]

APART: Final = 1.25
"""Lengths and rates that differ by more than this factor are other work."""
SHARES: Final = 0.05
"""Shares (cache hits, failures) that differ by more than this."""
ENOUGH: Final = 50
_LENGTHS: Final = ("prompt_tokens", "output_tokens", "offered_rps", "concurrency", "sessions")
_ADVICE: Final = (
    "Replay the same traffic against both (equal lengths, arrivals and cache state), or compare within buckets of "
    "equal length only; until then a difference is the traffic's as well as the change's."
)


class UnequalWork(Cause):
    """Lengths, arrivals, cache hits or failures of before and after differ: said before any cause of the difference."""

    code: ClassVar[str] = "METRIC_UNEQUAL_WORK"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("lengths, arrivals, cache hits and failures of both windows",)
    disproof: ClassVar[str] = "Within buckets of equal length and load the difference is the same."
    action: ClassVar[Action] = Action.COLLECT
    beside: ClassVar[bool] = True

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Medians and rates of both windows."""
        before, now = evidence.before, evidence.now
        if before is None or min(before.n, now.n) < ENOUGH:
            return None
        pairs = _both(_work(before), _work(now))
        for name in [name for name in pairs if _by_chance(before, now, name)]:
            del pairs[name]
        return self._found(_differing(pairs), "before and now", "record", now.n, evidence.verify_command)

    def observe(self, observed: Observed) -> Finding | None:
        """What both arms of a pair say of their work."""
        for before, after in before_and_after(observed.arms):
            pairs = {name: (old, new) for name, old, new in _said(before, after)}
            words = f"{before.name} and {after.name}"
            place = str(after.place) or "facts"
            found = self._found(_differing(pairs), words, place, int(after.get("n") or 0), _VERIFY)
            if found is not None:
                return found
        return None

    def _found(
        self, differs: list[tuple[str, float, float]], sides: str, source: str, n: int, verify: str
    ) -> Finding | None:
        if not differs:
            return None
        words = ", ".join(f"{name} {_shown(name, old)} -> {_shown(name, new)}" for name, old, new in differs)
        return self.finding(
            statement=f"The work of {sides} differs: {words}. A cause of the difference in latency must first explain "
            "what this does to it.",
            evidence=[
                Evidence(
                    text=f"{name} ({sides}): {_shown(name, old)} -> {_shown(name, new)}",
                    source=source,
                    name=name,
                    value=new,
                )
                for name, old, new in differs
            ],
            explains_ms=None,
            relation=words,
            n=n,
            advice=_ADVICE,
            price="A run more.",
            verify=verify,
            missing=["the same comparison at equal work"],
            level=Level.SUSPECTED,
        )


_VERIFY: Final = "tailrace ab --a http://localhost:8000 --b http://localhost:8001 --rounds 5 --rate 5 --duration 60"


def _both(before: dict[str, float], now: dict[str, float]) -> dict[str, tuple[float, float]]:
    return {name: (value, now[name]) for name, value in before.items() if name in now}


_QUANTILES: Final = {"p50": 0.5, "p90": 0.9}


def _by_chance(before: Window, now: Window, name: str) -> bool:
    """Whether a quantile of lengths differs by no more than two samples of one traffic do: where kinds of requests lie
    far apart and the quantile falls between two of them, a few requests more move it from one to the other.
    """
    column, _, stat = name.rpartition(" ")
    p = _QUANTILES.get(stat)
    if p is None:
        return False
    ends = []
    for side in (before, now):
        values = side.done.column(column.replace(" ", "_")).astype(np.float64)
        ends.append(quantile_interval(values[np.isfinite(values)], p))
    (low_a, high_a), (low_b, high_b) = ends
    apart = (high_a is not None and low_b is not None and high_a < low_b) or (
        high_b is not None and low_a is not None and high_b < low_a
    )
    return not apart


def _work(window: Window) -> dict[str, float]:
    """What a window's requests asked for."""
    every, done = window.every, window.done
    out = {"failed share": 1.0 - window.n / len(every)}
    for name in ("prompt_tokens", "output_tokens"):
        values = done.column(name).astype(np.float64)
        values = values[np.isfinite(values)]
        if values.size >= ENOUGH:
            out[f"{name.replace('_', ' ')} p50"] = float(np.median(values))
            out[f"{name.replace('_', ' ')} p90"] = float(np.quantile(values, 0.9))
    prompts, cached = (done.column(name).astype(np.float64) for name in ("prompt_tokens", "cached_tokens"))
    known = np.isfinite(prompts) & np.isfinite(cached)
    if known.sum() >= ENOUGH and prompts[known].sum() > 0:
        out["cached share"] = float(cached[known].sum() / prompts[known].sum())
    if window.span_s > 0:
        out["requests/s"] = window.n / window.span_s
    return out


def _said(before: Arm, after: Arm) -> list[tuple[str, float, float]]:
    out = []
    for name in _LENGTHS:
        numbers = [given(arm, name, "", "mean", "p50") for arm in (before, after)]
        if numbers[0] is not None and numbers[1] is not None:
            out.append((name.replace("_", " "), numbers[0], numbers[1]))
    for name, shares in (
        ("cached share", [arm.get("prefix_hit") for arm in (before, after)]),
        ("failed share", [lost_share(arm) for arm in (before, after)]),
    ):
        if shares[0] is not None and shares[1] is not None:
            out.append((name, shares[0], shares[1]))
    return out


def _differing(pairs: dict[str, tuple[float, float]]) -> list[tuple[str, float, float]]:
    out = []
    for name, (old, new) in pairs.items():
        if name.endswith("share"):
            if abs(new - old) > SHARES:
                out.append((name, old, new))
        elif min(old, new) > 0 and max(old, new) / min(old, new) > APART:
            out.append((name, old, new))
    return out


def _shown(name: str, value: float) -> str:
    return f"{value:.1%}" if name.endswith("share") else f"{value:.4g}"
