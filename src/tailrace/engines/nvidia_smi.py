"""`nvidia-smi --query-gpu=… --format=csv` and `--query-compute-apps=…`: a call's answer, or a log of many.

Columns are found by their names, never by place. Traps: an unknown column fails the whole query (drivers before 535
know `clocks_throttle_reasons` only); units stand in the cells (`485.20 W`) or, with `nounits`, in the header alone; a
value that the device does not have is `[N/A]`, `N/A` or `[Not Supported]`; `used_memory` is printed as
`used_gpu_memory`; process names are not quoted and may hold commas; stamps have no time zone.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from tailrace.engines.clock_reasons import decode, reason_of_column
from tailrace.model.gpu_state import GpuProcess, GpuState

__all__ = ["APPS_QUERY", "GPU_QUERIES", "is_query_header", "read_apps", "read_query"]

_CELL: Final = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z%/]*)\s*")
_HEAD: Final = re.compile(r"\s*([a-z0-9_.]+)\s*(?:\[([A-Za-z%/]+)\])?\s*")
_STAMP: Final = "%Y/%m/%d %H:%M:%S.%f"
_UNITS: Final = {"": 1.0, "%": 0.01, "MiB": float(1 << 20), "MHz": 1.0, "W": 1.0, "C": 1.0}
_COLUMNS: Final = {
    "utilization.gpu": "utilisation",
    "memory.used": "memory_used_bytes",
    "memory.free": "memory_free_bytes",
    "memory.total": "memory_total_bytes",
    "clocks.sm": "sm_clock_mhz",
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.gr": "sm_clock_mhz",
    "clocks.current.graphics": "sm_clock_mhz",
    "clocks.max.sm": "max_sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
    "power.draw": "power_w",
    "power.draw.instant": "power_w",
    "enforced.power.limit": "power_limit_w",
    "power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
    "temperature.memory": "memory_temperature_c",
}
_NEED_UNIT: Final = frozenset({"utilisation", "memory_used_bytes", "memory_free_bytes", "memory_total_bytes"})
_MASKS: Final = frozenset({"clocks_event_reasons.active", "clocks_throttle_reasons.active"})
_IDENTITY: Final = {"index": "index", "uuid": "uuid", "gpu_uuid": "uuid", "name": "name", "gpu_name": "name"}
_WHOLE: Final = frozenset({"memory_used_bytes", "memory_free_bytes", "memory_total_bytes"})
_LEAST_KNOWN: Final = 2

_ASKED: Final = (
    *("index", "uuid", "name", "utilization.gpu", "memory.used", "memory.free", "memory.total", "clocks.sm"),
    *("clocks.max.sm", "clocks.mem", "power.draw", "enforced.power.limit", "temperature.gpu"),
)
GPU_QUERIES: Final = (
    ",".join((*_ASKED, "clocks_event_reasons.active")),
    ",".join((*_ASKED, "clocks_throttle_reasons.active")),
    ",".join(_ASKED),
)
"""What to ask for, the newest drivers' columns first."""
APPS_QUERY: Final = "gpu_uuid,pid,process_name,used_memory"


def is_query_header(line: str) -> bool:
    """Whether this line names columns of a query, at least two of which are known."""
    return sum(1 for name, _ in _columns(line) if _known(name)) >= _LEAST_KNOWN


def read_query(text: str, at_ns: int = 0, at_unix_ns: int | None = None) -> tuple[list[GpuState], list[str]]:
    """(states in the order of the lines, what was not understood).

    With a `timestamp` column the states are spaced by it, `at_ns` counting from the first line; otherwise every line is
    of the moment `at_ns`.
    """
    columns: list[tuple[str, str]] = []
    states: list[GpuState] = []
    notes: list[str] = []
    first: datetime | None = None
    damaged = 0
    for line in text.splitlines():
        if not line.strip():
            continue
        if is_query_header(line):
            if not columns:
                notes += [f"column {name!r} is not read" for name, _ in _columns(line) if not _known(name)]
            columns = _columns(line)
            continue
        cells = line.split(",")
        if not columns or len(cells) != len(columns):
            damaged += 1
            continue
        row = {name: (cell.strip(), unit) for (name, unit), cell in zip(columns, cells, strict=True)}
        at = at_ns
        if "timestamp" in row:
            stamp = _stamp(row["timestamp"][0])
            if stamp is None:
                damaged += 1
                continue
            first = first or stamp
            at = at_ns + round((stamp - first).total_seconds() * 1e3) * 1_000_000
        states.append(_state(row, at, at_unix_ns if "timestamp" not in row else None))
    if damaged:
        notes.append(f"{damaged} line(s) are no rows of the query")
    return states, notes


def read_apps(text: str) -> dict[str, list[GpuProcess]]:
    """`--query-compute-apps` with the columns of `APPS_QUERY` -> device's UUID -> its processes."""
    out: dict[str, list[GpuProcess]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 4 or not cells[1].isdigit():
            continue
        memory = _number(cells[-1], "MiB")
        out.setdefault(cells[0], []).append(
            GpuProcess(
                pid=int(cells[1]),
                name=", ".join(cells[2:-1]),
                memory_bytes=None if memory is None else int(memory),
            )
        )
    return out


def _known(name: str) -> bool:
    return (
        name in _COLUMNS or name in _IDENTITY or name in _MASKS or name == "timestamp" or bool(reason_of_column(name))
    )


def _columns(line: str) -> list[tuple[str, str]]:
    out = []
    for cell in line.split(","):
        found = _HEAD.fullmatch(cell)
        if found is None:
            return []
        out.append((found[1], found[2] or ""))
    return out


def _stamp(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, _STAMP).replace(tzinfo=UTC)  # only differences are used
    except ValueError:
        return None


def _number(cell: str, unit: str) -> float | None:
    """A cell in our unit; the unit in the cell goes before the header's."""
    found = _CELL.fullmatch(cell)
    if found is None:
        return None
    scale = _UNITS.get(found[2] or unit)
    return None if scale is None else float(found[1]) * scale


def _state(row: dict[str, tuple[str, str]], at_ns: int, at_unix_ns: int | None) -> GpuState:
    values: dict[str, Any] = {}
    used: dict[str, str] = {}
    reasons: list[str] = []
    told = False
    for column, (cell, unit) in row.items():
        identity = _IDENTITY.get(column)
        signal = _COLUMNS.get(column)
        reason = reason_of_column(column)
        if identity is not None:
            values[identity] = cell
        elif column in _MASKS and re.fullmatch(r"0x[0-9a-fA-F]+", cell):
            reasons, told = decode(int(cell, 16)), True
            used["reasons"] = column
        elif reason is not None and cell in ("Active", "Not Active"):
            told = True
            used.setdefault("reasons", column)
            if cell == "Active" and reason not in reasons:
                reasons.append(reason)
        elif signal is not None and signal not in values:
            value = _number(cell, unit)
            bare = _CELL.fullmatch(cell)
            if value is None or value < 0 or (signal in _NEED_UNIT and bare is not None and not (bare[2] or unit)):
                continue
            values[signal] = int(value) if signal in _WHOLE else value
            used[signal] = column
    index = values.pop("index", "") or values.get("uuid") or "gpu"
    return GpuState(
        index=index,
        at_ns=at_ns,
        at_unix_ns=at_unix_ns,
        source="nvidia-smi",
        names=used,
        reasons=reasons if told else None,
        **values,
    )
