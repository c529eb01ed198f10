"""Whether the gap grows over an answer, with the batch and the context's own cost held equal."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.gaps import Part
from tailrace.diagnose.window import Window

__all__ = ["PositionSlope", "position_slope"]

Floats = NDArray[np.float64]
STRETCH: Final = 16
"""Gaps that one point of the regression is the median of: a stall inside moves it not."""
LEAST: Final = 30
LEAST_STREAMS: Final = 3
VARY: Final = 1.5
MOST: Final = 0.8


class PositionSlope(NamedTuple):
    """Regression of the gap (ms) on the position in the answer (tokens), streams decoding meanwhile, and the prompt."""

    slope_ms: float
    """By token of the answer, beyond what a token of the prompt costs: the attention walks over both alike."""
    prompt_ms: float
    t: float
    early_at: float
    late_at: float
    early_ms: float
    late_ms: float
    prompts_vary: bool
    n: int
    streams: int


def position_slope(window: Window) -> PositionSlope | None:
    """`None` where there are too few long streams."""
    parts = [_stretches(part) for part in window.gaps.parts()]
    if sum(part[0].size for part in parts) < LEAST:
        return None
    value, position, row, begin = (np.concatenate(column) for column in zip(*parts, strict=True))
    at = window.start[row] + begin
    first, last = (np.sort(side[~np.isnan(side)]) for side in (window.first, window.end))
    batch = np.searchsorted(first, at, side="right") - np.searchsorted(last, at, side="left")
    prompt = np.nan_to_num(window.tokens[row], nan=0.0)
    streams = int(np.unique(row).size)
    spread = np.quantile(prompt, (0.1, 0.9))
    vary = bool(spread[1] >= VARY * max(spread[0], 1.0) and spread[1] - spread[0] >= 0.25 * np.ptp(position))
    if streams < LEAST_STREAMS or np.ptp(position) == 0:
        return None
    columns = [np.ones(value.size), position, batch.astype(np.float64)] + ([prompt] if vary else [])
    # Events that come at one instant say nothing of the pace, and a stall nothing of the position.
    middling = float(np.median(value))
    keep = (value >= 0.3 * middling) & (value <= 5.0 * middling)
    design, kept = np.column_stack([column[keep] for column in columns]), value[keep]
    fit, _, rank, _ = np.linalg.lstsq(design, kept, rcond=None)
    if float(keep.mean()) < MOST or rank < min(design.shape[1], 3) or keep.sum() <= design.shape[1]:
        return None
    rest = kept - design @ fit
    error = float(rest @ rest) / (int(keep.sum()) - design.shape[1])
    spreads = error * np.diag(np.linalg.pinv(design.T @ design))
    of_prompt = float(fit[3]) if vary else 0.0
    slope = float(fit[1]) - max(of_prompt, 0.0)
    deviation = float(np.sqrt(max(spreads[1] + (spreads[3] if vary else 0.0), 1e-18)))
    early, late = (float(np.quantile(position, q)) for q in (0.1, 0.95))
    middle = float(np.median(value)) - slope * float(np.median(position))
    return PositionSlope(
        slope_ms=slope,
        prompt_ms=of_prompt,
        t=slope / deviation,
        early_at=early,
        late_at=late,
        early_ms=max(middle + slope * early, 1e-3),
        late_ms=middle + slope * late,
        prompts_vary=vary,
        n=int(keep.sum()),
        streams=streams,
    )


def _stretches(part: Part) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64]]:
    """(median gap a token, mean position in the answer, row, begin) of each whole stretch of gaps of one stream."""
    brought = np.where(part.tokens > 0, part.tokens, 1)
    total = np.cumsum(brought)
    place = total - (total[part.first] - brought[part.first])[part.owner]
    many = part.size // STRETCH
    owner = np.repeat(np.arange(many.size), many)
    nth = np.arange(owner.size) - np.repeat(np.cumsum(many) - many, many)
    points = part.first[owner] + STRETCH * nth
    cube = points[:, None] + np.arange(STRETCH)
    ordered = np.sort((part.ms / brought)[cube], axis=1)
    middle = (ordered[:, STRETCH // 2 - 1] + ordered[:, STRETCH // 2]) / 2.0
    return middle, place[cube].mean(axis=1), part.row[owner], part.begin_ns[points]
