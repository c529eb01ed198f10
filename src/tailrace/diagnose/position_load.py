"""What the text that is written so far costs each token: pace of whole requests against the company that they had.

A step pays for all streams in it. Where each pays for its own text so far (an answer decoded anew with each token), the
step pays for the sum of the positions, and every stream in it is slower. Attention reads the prompts' tokens as well as
the answers', so what a token of the prompts costs is taken off.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.order import stable_order
from tailrace.stats.quantiles import or_zero, quantile

__all__ = ["PositionLoad", "position_load"]

Floats = NDArray[np.float64]
LEAST: Final = 60
LEAST_TOKENS: Final = 16
PROMPT_MOST: Final = 2e-4
"""What attention over a token costs at most (ms): twice what it does on a large accelerator."""
PROMPT_ERROR: Final = 5e-5
"""Standard error (ms a token) from which what a token of the prompts costs is not known."""


class PositionLoad(NamedTuple):
    """Regression of the time a token on the streams, their positions and their prompts, each a mean over its life."""

    us_per_token: float
    """By token of text in the step's streams, beyond what a token of their prompts costs."""
    prompt_us: float
    taken: bool
    """`prompt_us` is the most that attention may cost, and not seen: text and prompts grew together."""
    t: float
    r: float
    """Of the fit."""
    low_tokens: float
    high_tokens: float
    """Tokens of text in a step: p10 and p90 over the requests."""
    base_ms: float
    """A token's time at the first, by the fit."""
    share: float
    """Of the time a token (mean), what the text costs."""
    explains: Floats
    """By row of `done` (ms)."""
    n: int


@once_a_window
def position_load(window: Window) -> PositionLoad | None:
    """`None` where there are too few streams."""
    pace = window.done.ms("tpot")
    tokens = or_zero(window.done.column("output_tokens"))
    served = replicas(window)
    usable = ~np.isnan(pace) & ~np.isnan(window.first) & (tokens >= LEAST_TOKENS) & (window.end > window.first)
    if usable.sum() < LEAST:
        return None
    batch, text, prompts = (np.full(window.n, np.nan) for _ in range(3))
    for place in np.unique(served.of_row).tolist():
        rows = np.flatnonzero((served.of_row == place) & ~np.isnan(window.first) & (window.end > window.first))
        mine = _company(window, rows, tokens)
        batch[rows], text[rows], prompts[rows] = mine
    keep = np.flatnonzero(usable)
    value = pace[keep]
    low, high = np.quantile(value, (0.02, 0.98))
    keep = keep[(value >= low) & (value <= high)]
    value = pace[keep]
    if np.ptp(value) == 0:
        return None
    found = _fit(value, [batch[keep], text[keep], prompts[keep]])
    if found is None:
        return None
    fit, errors, rest = found
    of_prompt, taken = max(float(fit[3]), 0.0), False
    slope, deviation = float(fit[2]) - of_prompt, float(np.hypot(errors[2], errors[3]))
    if errors[3] > PROMPT_ERROR or fit[3] > PROMPT_MOST:
        # Where text and prompts grow together nobody can tell their costs apart: the most that attention may cost is
        # taken off, and the rest is the text's.
        held = _fit(value - PROMPT_MOST * prompts[keep], [batch[keep], text[keep]])
        if held is not None:
            fit, errors, rest = held
            of_prompt, taken = PROMPT_MOST, True
            slope, deviation = float(fit[2]) - of_prompt, float(errors[2])
    deviation = max(deviation, 1e-12)
    cost = slope * or_zero(text)
    explains = np.maximum(np.minimum(cost, or_zero(pace)), 0.0) * tokens
    lows, highs = (quantile(text[keep], q) for q in (0.1, 0.9))
    return PositionLoad(
        us_per_token=slope * 1e3,
        prompt_us=of_prompt * 1e3,
        taken=taken,
        t=slope / deviation,
        r=float(np.sqrt(max(1.0 - float(rest.var()) / float(value.var()), 0.0))),
        low_tokens=lows,
        high_tokens=highs,
        base_ms=float(value.mean()) - slope * (float(text[keep].mean()) - lows),
        share=float(cost[keep].mean()) / float(value.mean()),
        explains=explains,
        n=int(keep.size),
    )


def _fit(value: Floats, factors: list[Floats]) -> tuple[Floats, Floats, Floats] | None:
    """(level and coefficients, their standard errors, residuals) of least squares; `None` if they are not all told."""
    design = np.column_stack([np.ones(value.size), *factors])
    scale = np.maximum(np.maximum(design.max(axis=0), -design.min(axis=0)), 1e-12)
    design /= scale
    fit, _, rank, _ = np.linalg.lstsq(design, value, rcond=None)
    if rank < design.shape[1]:
        return None
    rest = value - design @ fit
    spread = float(rest @ rest) / (value.size - design.shape[1])
    errors = np.sqrt(np.maximum(spread * np.diag(np.linalg.pinv(design.T @ design)), 0.0)) / scale
    return fit / scale, errors, rest


def _company(window: Window, rows: NDArray[np.int64], tokens: Floats) -> tuple[Floats, Floats, Floats]:
    """Streams, their positions and their prompts, each a mean over the time in which each row decoded."""
    first, end = window.first[rows], window.end[rows]
    lived = end - first
    rate = tokens[rows] / lived
    prompt = or_zero(window.tokens[rows])
    at = np.concatenate([first, end])
    order = stable_order(at)
    span = np.diff(at[order])
    # Where each row's begin and end are in that order: a sum over time up to them is read, not looked for.
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    del at, first, end

    def over_life(level: Floats) -> Floats:
        """Mean over each row's life of what has this `level` from one moment to the next."""
        total = np.zeros(order.size)
        np.cumsum(span * level, out=total[1:])
        mean: Floats = (total[place[rows.size :]] - total[place[: rows.size]]) / lived
        return mean

    def level(begun: Floats, over: Floats) -> Floats:
        """What rises at each begin and falls at each end, behind each moment."""
        out: Floats = np.cumsum(np.concatenate([begun, over])[order])
        return out

    streams = over_life(level(np.ones(rows.size), -np.ones(rows.size))[:-1])
    prompts = over_life(level(prompt, -prompt)[:-1])
    # The sum of positions rises by the sum of the rates, and falls by each answer's length at its end.
    risen = span * level(rate, -rate)[:-1]
    text = level(np.zeros(rows.size), -rate * lived)
    text[1:] += np.cumsum(risen)
    return streams, over_life(text[:-1] + risen / 2.0), prompts
