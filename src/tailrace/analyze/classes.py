"""Classes of traffic: which requests are alike, and whose readers wait for tokens.

A class is a lane where both windows know the same lanes, and somebody named them; otherwise (one lane that nobody
named, a trace) it is `short` or `long` by the prompt. A class is *interactive* unless its prompts are long against the
rest (median at least `LONG_FACTOR` x the median of all requests): documents may pay for the others, within what a
comparison then names.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import among, codes_of, labelled
from tailrace.store.table import RecordTable

__all__ = ["LONG_FACTOR", "Classes", "classify", "long_prompts", "prompt_tokens"]

LONG_FACTOR: Final = 4.0
"""A prompt this many times the median is long: its prefill is that much longer than its neighbours'."""


_UNNAMED: Final = frozenset({"", "default", "trace"})
"""Lanes that say nothing of what is in them."""


class Classes(NamedTuple):
    """Labels of the rows of each table, and the classes that are interactive."""

    labels: list[NDArray[np.object_]]
    names: list[str]
    interactive: frozenset[str]

    def interactive_mask(self, table: int) -> NDArray[np.bool_]:
        """Which rows of table `table` belong to an interactive class."""
        return among(self.labels[table], self.interactive)


def prompt_tokens(table: RecordTable) -> NDArray[np.float64]:
    """Prompt tokens; where the count is absent, a quarter of the body's bytes (about 4 bytes a token); else NaN."""
    tokens = table.column("prompt_tokens")
    guess: NDArray[np.float64] = np.where(np.isnan(tokens), table.column("prompt_bytes") / 4.0, tokens)
    return guess


def long_prompts(table: RecordTable, median: float | None = None) -> NDArray[np.bool_]:
    """Rows whose prompt is at least `LONG_FACTOR` x the median (of this table unless given)."""
    tokens = prompt_tokens(table)
    known = tokens[~np.isnan(tokens)]
    if not known.size:
        return np.zeros(len(table), dtype=bool)
    middle = float(np.median(known)) if median is None else median
    with np.errstate(invalid="ignore"):
        mask: NDArray[np.bool_] = tokens >= LONG_FACTOR * max(middle, 1.0)
    return mask


def classify(*tables: RecordTable) -> Classes:
    """Label the rows of all tables alike."""
    codes, names = labelled(list(tables), "lane")
    lanes = [set(codes_of(table.column("lane"))[1]) for table in tables if len(table)]
    tokens = np.concatenate([prompt_tokens(table) for table in tables]) if tables else np.empty(0)
    known = tokens[~np.isnan(tokens)]
    middle = float(np.median(known)) if known.size else 0.0
    if lanes and not lanes[0] <= _UNNAMED and all(lane == lanes[0] for lane in lanes):
        joined = np.concatenate(codes)
        interactive = {
            name
            for place, name in enumerate(names)
            if not _median(tokens[joined == place]) >= LONG_FACTOR * max(middle, 1.0)
        } or set(names)
        return Classes([_labels(names, one) for one in codes], names, frozenset(interactive))
    long = [long_prompts(table, middle) for table in tables]
    if all(one.all() for one in long) or not any(one.any() for one in long):
        return Classes([_labels(["all"], one * 0) for one in codes], ["all"], frozenset({"all"}))
    names = ["short", "long"]
    return Classes([_labels(names, one.astype(np.int64)) for one in long], names, frozenset({"short"}))


def _labels(names: list[str], codes: NDArray[np.int64]) -> NDArray[np.object_]:
    return np.array(names, dtype=object)[codes]


def _median(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else 0.0
