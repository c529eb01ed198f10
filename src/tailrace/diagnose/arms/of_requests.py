"""A table of requests as arms: one for each value of a column, with the medians of its requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Arm, Observed, Quoted, Rows

__all__ = ["arms_by", "classes_of", "stages_by", "tables_of_requests", "tpot_of"]

Floats = NDArray[np.float64]
LEAST: int = 3
MOST_CLASSES: Final = 6
STAGES: Final = ("ttft", "e2e", "queue", "preprocess", "encode", "prefill", "decode", "postprocess")
_NAMED_FIRST: Final = ("arm", "group")
_NO_CLASSES: Final = frozenset(
    {"id", "status", "status_text", "error", "retry_of", "session_id", "wall", "wall_s", "http_status", "output_tokens"}
)


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


def classes_of(rows: Rows) -> Iterator[tuple[str, dict[str, NDArray[np.bool_]]]]:
    """(column, its values and the rows that have them) of every column that sorts the requests into few classes, none
    of them of fewer than `LEAST`: `group`, `arm`, a number of images. Times and stamps sort nothing.
    """
    ordered = sorted(rows.columns.items(), key=lambda item: item[0] not in _NAMED_FIRST)
    for name, values in ordered:
        if name in _NO_CLASSES or name.endswith("_ms"):
            continue
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        kinds = [kind for kind in dict.fromkeys(texts) if kind not in ("", "nan")]
        if 2 <= len(kinds) <= MOST_CLASSES and all(texts.count(kind) >= LEAST for kind in kinds):
            column = np.array(texts, dtype=object)
            yield name, {kind: column == kind for kind in kinds}


def stages_by(rows: Rows, masks: dict[str, NDArray[np.bool_]]) -> list[Arm]:
    """An arm for each named mask: n, and the median of every stage and total that the table tells (ms)."""
    ok = np.array([status in ("ok", "") for status in rows.texts("status")], dtype=bool)
    out = []
    for name, mask in masks.items():
        mine = mask & ok
        values = {"n": Quoted(quantity="n", value=float(mine.sum()), unit="count", label="requests", place=rows.place)}
        for stage in STAGES:
            column = rows.numbers(f"{stage}_ms")
            known = column[mine & np.isfinite(column)]
            if known.size and known.size >= 0.5 * mine.sum():
                item = Quoted(
                    quantity=stage, stat="p50", value=round(float(np.median(known)), 2), unit="ms",
                    label=stage, place=rows.place,
                )  # fmt: skip
                values[item.key] = item
        out.append(Arm(name=name, label=name, values=values, place=rows.place))
    return out


def tables_of_requests(observed: Observed) -> list[Rows]:
    """The tables of requests with enough rows for a comparison within them."""
    return [rows for rows in observed.table("requests") if len(rows) >= 2 * LEAST]
