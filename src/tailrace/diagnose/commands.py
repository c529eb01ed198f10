"""Lines to type that collect what several causes ask for."""

from __future__ import annotations

from typing import Final

__all__ = ["CLOCK_OVER_TIME", "CPU_STAT_TWICE"]

CLOCK_OVER_TIME: Final = (
    "tailrace diagnose gpu.csv  # nvidia-smi "
    "--query-gpu=timestamp,clocks.sm,power.draw,power.limit,temperature.gpu,clocks_event_reasons.active "
    "--format=csv -l 1 > gpu.csv, during the same load"
)
CPU_STAT_TWICE: Final = (
    "tailrace diagnose before.stat after.stat  # cat /sys/fs/cgroup/cpu.stat before and after the same load: "
    "nr_throttled stands still"
)
