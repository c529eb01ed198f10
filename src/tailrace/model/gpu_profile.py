"""A summary of an accelerator's profile: what ran for how long, as a profiler's own report says."""

from __future__ import annotations

import msgspec


class ProfileRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, call or copy."""

    name: str
    total_ns: float
    count: int | None = None
    average_ns: float | None = None
    max_ns: float | None = None


class GpuProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One report, its rows the longest first."""

    report: str
    """`cuda_gpu_kern_sum`, `cuda_api_sum`, `osrt_sum`, `cuda_gpu_mem_time_sum`."""
    source: str = ""
    """The file it came from."""
    rows: list[ProfileRow] = []

    @property
    def total_ns(self) -> float:
        """Time of all rows."""
        return sum(row.total_ns for row in self.rows)

    @property
    def count(self) -> int:
        """Calls of all rows, of those that tell."""
        return sum(row.count or 0 for row in self.rows)
