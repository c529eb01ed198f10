"""A table of requests as arms: one for each value of a column, with the medians of its requests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Arm, Quoted, Rows

__all__ = ["arms_by", "tpot_of"]

Floats = NDArray[np.float64]
LEAST: int = 3


def tpot_of(rows: Rows) -> Floats:
    """Time per output token of each request (ms); NaN where it has fewer than two tokens, or no stamps."""
    took, tokens = rows.numbers("t_last_ms") - rows.numbers("t_first_ms"), rows.numbers("output_tokens")
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((tokens > 1) & (took >= 0), took / (tokens - 1), np.nan)


def arms_by(rows: Rows, masks: dict[str, NDArray[np.bool_]], least: int = LEAST) -> list[Arm]:
    """An arm for each named mask with at least `least` good requests: n, prompt tokens, TTFT p50, TPOT p50."""
    ok = np.array([status in ("ok", "") for status in rows.texts("status")], dtype=bool)
    columns = {
        "ttft": (rows.numbers("ttft_ms"), "ms"),
        "tpot": (tpot_of(rows), "ms"),
        "prompt_tokens": (rows.numbers("prompt_tokens"), "tokens"),
    }
    out = []
    for name, mask in masks.items():
        mine = mask & ok
        values = {"n": Quoted(quantity="n", value=float(mine.sum()), unit="count", label="requests", place=rows.place)}
        for quantity, (column, unit) in columns.items():
            known = column[mine & np.isfinite(column)]
            if known.size < least:
                continue
            stat = "mean" if unit == "tokens" else "p50"
            value = float(known.mean()) if unit == "tokens" else float(np.median(known))
            item = Quoted(
                quantity=quantity, stat=stat, value=round(value, 2), unit=unit, label=quantity, place=rows.place
            )
            values[item.key] = item
        if "ttft.p50" in values:
            out.append(Arm(name=name, label=name, values=values, place=rows.place))
    return out
