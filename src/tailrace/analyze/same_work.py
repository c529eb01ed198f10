"""Whether two windows did the same work: the same arrivals, classes, and lengths."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.classes import Classes, prompt_tokens
from tailrace.analyze.timebase import request_rate, starts_ns, timed
from tailrace.stats.tests import two_proportion_p_value
from tailrace.store.table import RecordTable

__all__ = ["same_arrivals", "same_distribution", "same_work"]

Floats = NDArray[np.float64]

_SHARE_POINTS: Final = 0.02
_ARRIVAL_SLACK_S: Final = 0.1
"""A replayed schedule is off by what the sender was late, a few milliseconds; another schedule is off by seconds."""


def same_distribution(a: Floats, b: Floats) -> bool:
    """Kolmogorov-Smirnov at 1 %: D < 1.63 sqrt((n+m)/(n m)), and equal shares above the pooled p90 and p99.

    Kolmogorov-Smirnov alone is blind where a tail is made: 0.5 % or 5 % of long prompts are the same to it. Two empty
    samples are the same.
    """
    a, b = np.sort(a[~np.isnan(a)]), np.sort(b[~np.isnan(b)])
    if not a.size or not b.size:
        return a.size == b.size
    grid = np.concatenate([a, b])
    gap = np.abs(np.searchsorted(a, grid, side="right") / a.size - np.searchsorted(b, grid, side="right") / b.size)
    if float(gap.max()) >= 1.63 * math.sqrt((a.size + b.size) / (a.size * b.size)):
        return False
    for p in (0.9, 0.99):
        # ">=" where many values are equal to the quantile: a mode at the top is the tail, too.
        bound = float(np.quantile(grid, p))
        above = [int((side >= bound).sum()) for side in (a, b)]
        either = min(
            two_proportion_p_value(above[0], a.size, above[1], b.size),
            two_proportion_p_value(above[1], b.size, above[0], a.size),
        )
        if 2.0 * either < 0.01:
            return False
    return True


def same_work(
    a: RecordTable, b: RecordTable, classes: Classes, *, rates: tuple[float, float] | None = None
) -> dict[str, Any]:
    """What was equal. `same` holds when everything was; `arrivals` alone decides whether blocks may be paired.

    `rates` are the requests a second where the tables hold several runs, whose times lie over each other.

    Keys: same, arrivals, classes, prompt_tokens, output_tokens (each true or false), n_a, n_b, rate_a, rate_b (per
    second), shares_a, shares_b (by class) and `differs` (sentences).
    """
    shares = [_shares(classes, i) for i in (0, 1)]
    rates = rates or (request_rate([a]), request_rate([b]))
    arrivals = same_arrivals(a, b)
    same_classes = all(abs(shares[0].get(k, 0) - shares[1].get(k, 0)) <= _SHARE_POINTS for k in classes.names)
    prompts = same_distribution(prompt_tokens(a), prompt_tokens(b))
    outputs = same_distribution(a.column("output_tokens"), b.column("output_tokens"))
    differs = []
    unknown = [name for name, table in (("A", a), ("B", b)) if len(table) and not timed(table)]
    if unknown:
        differs.append(f"when the requests of {' and '.join(unknown)} were sent is unknown")
    elif not arrivals and abs(rates[1] / rates[0] - 1 if rates[0] else 0.0) > 0.05:
        differs.append(f"the request rate was {rates[0]:.2f}/s in A and {rates[1]:.2f}/s in B")
    elif not arrivals:
        differs.append("the arrival times differ (the rate is about the same)")
    if not same_classes:
        differs.append("the classes have other shares: " + _share_text(shares[0], shares[1]))
    if not prompts:
        differs.append(f"prompts: median {_median(prompt_tokens(a))} tokens in A, {_median(prompt_tokens(b))} in B")
    if not outputs:
        medians = [_median(table.column("output_tokens")) for table in (a, b)]
        differs.append(f"answers: median {medians[0]} tokens in A, {medians[1]} in B")
    return {
        "same": arrivals and same_classes and prompts and outputs,
        "arrivals": arrivals,
        "classes": same_classes,
        "prompt_tokens": prompts,
        "output_tokens": outputs,
        "n_a": len(a),
        "n_b": len(b),
        "rate_a": round(rates[0], 4),
        "rate_b": round(rates[1], 4),
        "shares_a": shares[0],
        "shares_b": shares[1],
        "differs": differs,
    }


def _shares(classes: Classes, table: int) -> dict[str, float]:
    label = classes.labels[table].astype(str)
    return {name: round(float((label == name).mean()), 4) if label.size else 0.0 for name in classes.names}


def same_arrivals(a: RecordTable, b: RecordTable) -> bool:
    """Whether two runs replayed one schedule: as many requests, each within 0.1 s of its counterpart (95 % of them)."""
    if not len(a) or len(a) != len(b) or not (timed(a) and timed(b)):
        return False
    apart = np.abs(_arrivals_s(a) - _arrivals_s(b))
    return bool(np.quantile(apart, 0.95) <= _ARRIVAL_SLACK_S)


def _arrivals_s(table: RecordTable) -> Floats:
    """Intended times where the run has them: what was meant to be sent is what was replayed."""
    offsets = table.column("run_offset_ns")
    times = starts_ns(table).astype(np.float64) if np.isnan(offsets).any() else offsets - offsets.min()
    ordered: Floats = np.sort(times) / 1e9
    return ordered


def _share_text(a: dict[str, float], b: dict[str, float]) -> str:
    return ", ".join(f"{name} {a[name]:.0%} in A and {b[name]:.0%} in B" for name in a)


def _median(values: Floats) -> str:
    known = values[~np.isnan(values)]
    return f"{np.median(known):.0f}" if known.size else "unknown"
