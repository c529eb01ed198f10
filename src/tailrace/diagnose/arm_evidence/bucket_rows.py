"""A histogram that somebody pasted as a table: one row a bucket, its upper edge (`le`) and a cumulative count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tailrace.diagnose.observed import Arm, Histogram, Observed
from tailrace.diagnose.observed.vocabulary import in_unit

__all__ = ["histograms_in_rows"]

LEAST: Final = 3
_EDGE: Final = re.compile(
    r"le|(?:bucket_?)?(?:le|upper(?:_?(?:edge|bound|limit))?|edge|bound)(?:_m?s)?|bucket(?:_m?s)?"
)
_TOP: Final = re.compile(r"[+<>≤ ]*\+?inf(?:inity)?|overflow|> ?\d[\d.]* ?s?", re.IGNORECASE)
_NAMES: Final = (("ttft", r"ttft|first.?token"), ("queue", r"queue"), ("itl", r"inter.?token|\bitl\b"), ("e2e", r""))


def histograms_in_rows(observed: Observed) -> Iterator[Histogram]:
    """The histogram of each table of buckets: the only column of counts, or the second minus the first of two."""
    tables: dict[str, list[Arm]] = {}
    for arm in observed.arms:
        if any(_EDGE.fullmatch(name) for name in arm.keys):
            tables.setdefault(arm.place.source, []).append(arm)
    for arms in tables.values():
        found = _of_table(arms, observed)
        if found is not None:
            yield found


def _of_table(arms: list[Arm], observed: Observed) -> Histogram | None:
    key = next(name for name in arms[0].keys if _EDGE.fullmatch(name))
    edges = [_edge(arm, key) for arm in arms]
    columns = [
        name
        for name in dict.fromkeys(name for arm in arms for name in arm.values)
        if name.partition("@")[0] != key and all(name in arm.values for arm in arms)
    ]
    if len(arms) < LEAST or not columns or any(edge is None for edge in edges) or edges[-1] != float("inf"):
        return None
    bounds = [edge for edge in edges[:-1] if edge is not None]
    totals = [arm.values[columns[-1]].value for arm in arms]
    if len(columns) > 1:
        totals = [total - arm.values[columns[0]].value for total, arm in zip(totals, arms, strict=True)]
    rising = all(one <= two for one, two in pairwise(totals)) and all(one < two for one, two in pairwise(bounds))
    if not rising and all(one < two for one, two in pairwise(bounds)) and min(totals) >= 0:
        # What falls from one bucket to the next is counted in each.
        totals = [sum(totals[: place + 1]) for place in range(len(totals))]
        rising = True
    if not rising or totals[-1] <= 0 or totals[0] < 0:
        return None
    counts = [totals[0], *(two - one for one, two in pairwise(totals))]
    told = [str(item.value) for item in observed.settings if isinstance(item.value, str)]
    words = " ".join((arms[0].values[columns[-1]].label, *observed.notes, *told, arms[0].place.source))
    name = next(name for name, pattern in _NAMES if re.search(pattern, words, re.IGNORECASE))
    return Histogram(
        name=name, bounds=bounds, counts=counts, unit="ms", raw="the table of buckets", lifetime=False,
        place=arms[-1].place,
    )  # fmt: skip


def _edge(arm: Arm, key: str) -> float | None:
    """The upper edge (ms); infinite for the last."""
    value = arm.keys.get(key)
    quoted = next((item for item in arm.values.values() if item.quantity == key), None)
    if isinstance(value, str):
        return float("inf") if _TOP.fullmatch(value.strip()) else None
    if value is None:
        return None
    unit = quoted.unit if quoted is not None and quoted.unit else "s"
    return in_unit(float(value), unit, "ms")
