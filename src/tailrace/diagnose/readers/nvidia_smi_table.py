"""The table that `nvidia-smi` prints without options: one look at each device, and the processes on it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from tailrace.diagnose.observed import Event, Observed, Place, Understood
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.gpu_series import series_of_gpus
from tailrace.model.gpu_state import GpuState

__all__ = ["NVIDIA_SMI_TABLE", "read_smi_table"]

_NAME: Final = "nvidia-smi"
_TELLS: Final = re.compile(r"\| NVIDIA-SMI \d|^\|\s*GPU\s+Name\s+(?:TCC|Persistence|Driver)", re.MULTILINE)
_DEVICE: Final = re.compile(r"^\|\s+(\d+)\s+(\S.*?)\s+(?:On|Off|N/A|WDDM|TCC)\s+\|\s*[0-9A-Fa-f]{4,8}:")
_TEMPERATURE: Final = re.compile(r"\s(\d+)C\s")
_POWER: Final = re.compile(r"(\d+)W\s*/\s*(\d+)W")
_MEMORY: Final = re.compile(r"(\d+)MiB\s*/\s*(\d+)MiB")
_USED: Final = re.compile(r"\|\s+(\d+)%\s")
_PROCESS: Final = re.compile(
    r"^\|\s+(\d+)\s+(?:\S+\s+\S+\s+)?(\d+)\s+([CGM+]{1,3})\s+(\S.*?)\s+(?:(\d+)MiB|N/A)\s*\|\s*$"
)
_MIB: Final = 1 << 20


def read_smi_table(path: Path, name: str) -> Observed:
    """Each device as one reading, each process as an event `gpu_process` (gpu, pid, type, name, MiB)."""
    states: list[GpuState] = []
    lines: list[int] = []
    events: list[Event] = []
    read = total = 0
    device: tuple[str, str, int] | None = None
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.rstrip()
            if not re.search(r"[0-9A-Za-z]", line):
                continue
            total += 1
            head, process = _DEVICE.match(line), _PROCESS.match(line)
            if head is not None:
                device = head[1], head[2], number
            elif device is not None and _MEMORY.search(line) is not None:
                states.append(_state(line, device))
                lines.append(device[2])
                device = None
            elif process is not None:
                events.append(_process(process, Place(name, number), line))
            read += 1
    return Observed(
        series=series_of_gpus(states, name, lines),
        events=events,
        understood=[Understood(source=name, format=_NAME, understood=read, total=total)],
    )


def _state(line: str, device: tuple[str, str, int]) -> GpuState:
    values: dict[str, Any] = {}
    temperature, power, memory, used = (one.search(line) for one in (_TEMPERATURE, _POWER, _MEMORY, _USED))
    if temperature is not None:
        values["temperature_c"] = float(temperature[1])
    if power is not None:
        values["power_w"], values["power_limit_w"] = float(power[1]), float(power[2])
    if memory is not None:
        values["memory_used_bytes"], values["memory_total_bytes"] = (int(part) * _MIB for part in memory.groups())
    if used is not None:
        values["utilisation"] = float(used[1]) / 100.0
    return GpuState(index=device[0], name=device[1], at_ns=0, source=_NAME, **values)


def _process(found: re.Match[str], place: Place, line: str) -> Event:
    device, pid, kind, command, size = found.groups()
    attributes: dict[str, float | str] = {"gpu": device, "pid": pid, "type": kind, "name": command}
    if size is not None:
        attributes["mib"] = float(size)
    return Event(kind="gpu_process", text=line.strip("| "), attributes=attributes, place=place)


def _matches(head: str, name: str) -> bool:
    _ = name
    if "GPU" not in head and "NVIDIA-SMI" not in head:
        return False
    return _TELLS.search(head[:8192]) is not None and any(_DEVICE.match(line) for line in head.splitlines())


NVIDIA_SMI_TABLE: Final = Format(name=_NAME, matches=_matches, read=read_smi_table)
