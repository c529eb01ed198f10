"""Overlapping spans of stages made into stages that never overlap.

At each instant one stage has the time: that of the span that began last, which is the innermost where spans are
nested, and the newest where they ran beside each other. So stages never add up to more than the time that passed,
and a part never exceeds its stage.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple


class NamedSpan(NamedTuple):
    """`stage` or `stage.part` from `start` to `end` (ns of one clock)."""

    name: str
    start: int
    end: int
    depth: int = 0
    """Decides between spans of the same start and end: the larger number is the inner one."""


def partition(spans: Sequence[NamedSpan]) -> dict[str, int]:
    """Stage and part -> ns, each stage before its parts, in the order in which they began.

    A part alone makes its stage. A stage that took no time is there with 0. Cost: n log n.
    """
    out: dict[str, int] = {}
    events: list[tuple[int, int, int]] = []
    keys: list[tuple[int, int, int, int]] = []
    for index, span in enumerate(sorted(spans, key=lambda span: span.start)):
        for name in _prefixes(span.name):
            out.setdefault(name, 0)
        # The one that ends first is the inner of two that began together.
        keys.append((span.start, -span.end, span.depth, index))
        if span.end > span.start:
            events += [(span.start, 1, index), (span.end, 0, index)]
    names = [span.name for span in sorted(spans, key=lambda span: span.start)]
    events.sort()
    active: list[tuple[int, int, int, int]] = []
    reached = 0
    for at, begins, index in events:
        if active and at > reached:
            root = names[active[-1][3]].partition(".")[0]
            mine = {root}
            for key in active:
                name = names[key[3]]
                if name.partition(".")[0] == root:
                    mine.update(_prefixes(name))
            for name in mine:
                out[name] += at - reached
        reached = at
        if begins:
            insort(active, keys[index])
        else:
            del active[bisect_left(active, keys[index])]
    return out


def _prefixes(name: str) -> list[str]:
    """`a.b.c` -> `a`, `a.b`, `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
