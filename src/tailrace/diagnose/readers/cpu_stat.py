"""cgroup's `cpu.stat`, version 1 or 2: enforcement periods, those in which the limit stopped the group, for how long.

Several copies in one file, or several files, give deltas; one copy counts since the group was made. `nr_periods` stays
0 where no quota is set: that clears nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tailrace.diagnose.observed import Counter, Observed, Place, Understood
from tailrace.diagnose.readers.format import Format

__all__ = ["CPU_STAT", "deltas_of", "read_cpu_stat"]

_LINE: Final = re.compile(r"(?:.*?[/\s:])?([a-z_]+)[\s:=]+(\d+)\s*$")
_COUNTERS: Final = {
    "nr_periods": ("nr_periods", 1.0, "count"),
    "nr_throttled": ("nr_throttled", 1.0, "count"),
    "throttled_usec": ("throttled", 1e-3, "ms"),
    "throttled_time": ("throttled", 1e-6, "ms"),
    "usage_usec": ("cpu_usage", 1e-3, "ms"),
    "user_usec": ("cpu_user", 1e-3, "ms"),
    "system_usec": ("cpu_system", 1e-3, "ms"),
    "nr_bursts": ("nr_bursts", 1.0, "count"),
    "burst_usec": ("burst", 1e-3, "ms"),
    "burst_time": ("burst", 1e-6, "ms"),
    "wait_sum": ("cpu_wait", 1e-6, "ms"),
}
"""Key -> our counter, factor into its unit, unit. Version 1 counts nanoseconds, version 2 microseconds."""
_MARK: Final = re.compile(r"(?m)^[^\w\n]*(?:\S+[:\s])?nr_(?:periods|throttled)\b")


def read_cpu_stat(path: Path, name: str) -> Observed:
    """The counters of a file: deltas between its copies, or since the group's making where it holds one."""
    copies: list[dict[str, tuple[float, int]]] = []
    total = understood = 0
    examples: list[str] = []
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            total += 1
            found = _LINE.match(line.strip())
            if found is None or (found[1] not in _COUNTERS and not found[1].startswith(("core_sched", "nr_"))):
                if len(examples) < 3:
                    examples.append(f"{number}: {line.strip()[:80]}")
                continue
            understood += 1
            if not copies or found[1] in copies[-1]:
                copies.append({})
            copies[-1][found[1]] = float(found[2]), number
    out = Observed(
        understood=[Understood(source=name, format="cpu.stat", understood=understood, total=total, examples=examples)]
    )
    if copies:
        first, last = copies[0], copies[-1]
        for key, (value, number) in last.items():
            if key not in _COUNTERS:
                continue
            counter, scale, unit = _COUNTERS[key]
            out.counters.append(
                Counter(
                    name=counter,
                    first=first[key][0] * scale if len(copies) > 1 and key in first else 0.0,
                    last=value * scale,
                    lifetime=len(copies) == 1,
                    unit=unit,
                    raw=key,
                    place=Place(name, number),
                )
            )
    return out


def deltas_of(counters: Iterable[Counter]) -> Sequence[Counter]:
    """Copies of one counter that stand in several files as what was counted from the first to the last of them; a
    single one as it is.
    """
    items = list(counters)
    if len(items) < 2 or not all(item.lifetime for item in items):
        return items
    first, last = items[0], items[-1]
    return [
        Counter(
            name=last.name,
            labels=last.labels,
            first=first.last,
            last=last.last,
            unit=last.unit,
            raw=last.raw,
            place=last.place,
        )
    ]


def _matches(head: str, name: str) -> bool:
    _ = name
    start = head[:4096]
    return _MARK.search(start) is not None and len(start.splitlines()) <= 400 and "nr_throttled" in start


CPU_STAT: Final = Format(name="cpu.stat", matches=_matches, read=read_cpu_stat)
