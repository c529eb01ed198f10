"""`nsys stats --format csv`: the sums over kernels, CUDA calls, system calls and copies.

A report is known by its columns, which its file name need not tell. Traps: `nsys` prints lines of its own before the
header, and several reports into one file; kernel names hold commas and are quoted; a report of kernels may be grouped
by grid (`GridXYZ`), so that one name has several rows; versions before 2022 spell `Time(%)` and `Average`; a report of
system calls and one of CUDA calls have the same columns, and are told apart by their names.
"""

from __future__ import annotations

import csv
import re
from typing import Final

from tailrace.model.gpu_profile import GpuProfile, ProfileRow

__all__ = ["is_profile_header", "read_nsys"]

KERNELS: Final = "cuda_gpu_kern_sum"
CALLS: Final = "cuda_api_sum"
SYSTEM: Final = "osrt_sum"
COPIES: Final = "cuda_gpu_mem_time_sum"
_CUDA_CALL: Final = re.compile(r"cu(da)?[A-Z]")
_SCALE: Final = {"ns": 1.0, "us": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_UNIT: Final = re.compile(r"(.*?)\s*\((ns|us|μs|ms|s)\)")


def is_profile_header(line: str) -> bool:
    """Whether this line names the columns of one of these reports."""
    return _report_of(_cells(line)) is not None


def read_nsys(text: str, name: str = "") -> tuple[list[GpuProfile], list[str]]:
    """(the reports in the file, what was not understood)."""
    out: dict[str, dict[str, list[float | None]]] = {}
    notes: list[str] = []
    columns: list[str] = []
    kind = ""
    damaged = 0
    for line in text.splitlines():
        cells = _cells(line)
        found = _report_of(cells)
        if found is not None:
            columns, kind = cells, found
            continue
        if not columns or len(cells) == 1:
            columns = columns if len(cells) > 1 else []  # an empty line or a sentence ends a report
            continue
        if len(cells) != len(columns) or not _add(out, kind, dict(zip(columns, cells, strict=True))):
            damaged += 1
    if damaged:
        notes.append(f"{damaged} line(s) are no rows of the report")
    return [_profile(report, rows, name) for report, rows in out.items()], notes


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line]), [""])] or [""]


def _report_of(cells: list[str]) -> str | None:
    """`calls` stands for CUDA calls or system calls: the rows tell which."""
    plain = {_plain(cell) for cell in cells}
    if "total time" not in plain or not plain & {"time (%)", "time(%)"}:
        return None
    if "operation" in plain:
        return COPIES
    if "num calls" in plain and "name" in plain:
        return "calls"
    if "instances" in plain and "name" in plain:
        return KERNELS
    return None


def _plain(column: str) -> str:
    found = _UNIT.fullmatch(column)
    return (found[1] if found else column).lower()


def _value(row: dict[str, str], *names: str) -> float | None:
    """The first of these columns that is there, nanoseconds where it has a unit."""
    for column, cell in row.items():
        if _plain(column) in names:
            found = _UNIT.fullmatch(column)
            try:
                return float(cell.replace(",", "")) * (_SCALE[found[2]] if found else 1.0)
            except ValueError:
                return None
    return None


def _add(out: dict[str, dict[str, list[float | None]]], kind: str, row: dict[str, str]) -> bool:
    name = next((cell for column, cell in row.items() if _plain(column) in ("name", "operation")), "")
    total = _value(row, "total time")
    count = _value(row, "instances", "num calls", "count", "operations")
    if not name or total is None or total < 0:
        return False
    if kind == "calls":
        kind = CALLS if _CUDA_CALL.match(name) else SYSTEM
    longest = _value(row, "max", "maximum")
    known = out.setdefault(kind, {}).setdefault(name, [0.0, 0.0, None])
    known[0] = (known[0] or 0.0) + total
    known[1] = None if count is None or known[1] is None else known[1] + count
    known[2] = max(known[2] or 0.0, longest) if longest is not None else known[2]
    return True


def _profile(report: str, rows: dict[str, list[float | None]], source: str) -> GpuProfile:
    out = [
        ProfileRow(
            name=name,
            total_ns=total or 0.0,
            count=None if count is None else int(count),
            average_ns=(total or 0.0) / count if count else None,
            max_ns=longest,
        )
        for name, (total, count, longest) in rows.items()
    ]
    return GpuProfile(report=report, source=source, rows=sorted(out, key=lambda row: -row.total_ns))
