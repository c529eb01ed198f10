"""What exporters, collectors and writers dropped, against what they passed on: spans, samples, records."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.observed import Observed

__all__ = ["MOST", "lost_on_the_way"]

MOST: Final = 0.01
"""A larger share that was lost says that nothing is to be concluded: what is lost is not lost at random."""
_LOST: Final = re.compile(
    r"(?:^|_|:)(?:dropped|drops?|refused|discarded|enqueue_failed|send_failed|failed_to_(?:send|export))"
    r"(?=_|$)"
)
_WHAT: Final = re.compile(
    r"spans?|metric_points|metrics?_?samples?|samples?|records?|traces?|log_records|logs|events|reports"
)
_PASSED: Final = re.compile(
    r"(?:^|_|:)(?:sent|accepted|exported|received|acknowledged|written|kept|processed|stored|appended|total)(?=_|$)"
)


class _Tally(NamedTuple):
    raw: str
    source: str
    moved: float
    lifetime: bool


def lost_on_the_way(observed: Observed) -> list[str]:
    """Each kind of thing of which more than 1 % was dropped, in words. Where nobody says how many were passed on,
    nothing is said.
    """
    tallies = _tallies(observed)
    lost: dict[tuple[str, str], list[_Tally]] = {}
    for one in tallies:
        what = _WHAT.search(one.raw)
        if what is not None and _LOST.search(one.raw) and one.moved > 0:
            lost.setdefault((_owner(one.raw), what[0].rstrip("s")), []).append(one)
    out = []
    for (owner, noun), items in lost.items():
        dropped = sum(item.moved for item in items)
        passed = [
            one
            for one in tallies
            if one.raw.startswith(owner) and noun in one.raw and _PASSED.search(one.raw) and not _LOST.search(one.raw)
        ]
        known = max((one.moved for one in passed), default=0.0)
        if not known or dropped / (dropped + known) <= MOST:
            continue
        share = dropped / (dropped + known)
        names = " + ".join(item.raw for item in items)
        since = " since the start" if any(item.lifetime for item in items) else ""
        against = f" of {dropped + known:.0f} ({share:.1%})"
        out.append(
            f"all {noun}s: {dropped:.0f}{against} were dropped{since} ({names}, {items[0].source}), above 1 % nothing "
            "is concluded; give the exporter more room (queue, batch, memory) and take the window again"
        )
    return out


def _owner(raw: str) -> str:
    """`otelcol_`, `tailrace_`, `vllm:`: metrics of one program."""
    found = re.match(r"[a-zA-Z0-9]+(?:_|:)", raw)
    return found[0] if found else raw


def _tallies(observed: Observed) -> list[_Tally]:
    """Every counter with what it counted; a collector's own are often not declared as counters, and read as gauges."""
    found: dict[str, _Tally] = {}
    for item in observed.counters:
        moved = item.last if item.lifetime else item.delta
        if moved is None:
            continue
        raw = item.raw or item.name
        known = found.get(raw)
        count = moved + (known.moved if known else 0.0)
        found[raw] = _Tally(raw, str(item.place) or raw, count, item.lifetime)
    gauges: dict[str, _Tally] = {}
    for series in observed.series:
        values = series.values[np.isfinite(series.values)]
        if series.name in found or not values.size or not (_LOST.search(series.name) or _PASSED.search(series.name)):
            continue
        moved = float(values[-1] - values[0]) if values.size > 1 else float(values[-1])
        known = gauges.get(series.name)
        gauges[series.name] = _Tally(
            series.name,
            str(series.place) or series.name,
            max(moved, 0.0) + (known.moved if known else 0.0),
            values.size < 2,
        )
    return [*found.values(), *gauges.values()]
