"""`nvidia-smi -q`: sections of `key : value` by indentation, one block a device; repeated with `-l`. And `dmon`'s rows.

The section of clock limits is "Clocks Event Reasons", before driver 535 "Clocks Throttle Reasons". One print is one
moment: it says what limits now, not what has limited.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tailrace.diagnose.observed import Clock, Event, Observed, Place, Setting, Understood
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.gpu_series import series_of_gpus
from tailrace.model.gpu_state import GpuState

__all__ = ["NVIDIA_SMI_DMON", "NVIDIA_SMI_Q", "read_dmon", "read_smi_q"]

_PAIR: Final = re.compile(r"^(\s*)(.+?)\s+:\s*(.*?)\s*$")
_DEVICE: Final = re.compile(r"^\s*GPU\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+|\d+)\s*$")
_VALUE: Final = re.compile(r"(-?\d+(?:\.\d+)?)\s*(\S*)")
_STAMP: Final = "%a %b %d %H:%M:%S %Y"
_REASONS: Final = {
    "idle": "idle",
    "applications clocks setting": "application_clocks",
    "sw power cap": "sw_power_cap",
    "hw slowdown": "hw_slowdown",
    "hw thermal slowdown": "hw_thermal",
    "hw power brake slowdown": "hw_power_brake",
    "sync boost": "sync_boost",
    "sw thermal slowdown": "sw_thermal",
    "display clock setting": "display_clocks",
}
_SECTIONS: Final = ("clocks event reasons", "clocks throttle reasons")
_SIGNALS: Final[tuple[tuple[str, str, str, float], ...]] = (
    ("utilization", "gpu", "utilisation", 0.01),
    ("clocks", "sm", "sm_clock_mhz", 1.0),
    ("clocks", "memory", "memory_clock_mhz", 1.0),
    ("max clocks", "sm", "max_sm_clock_mhz", 1.0),
    ("power", "power draw", "power_w", 1.0),
    ("power", "average power draw", "power_w", 1.0),
    ("power", "instantaneous power draw", "power_w", 1.0),
    ("power", "enforced power limit", "power_limit_w", 1.0),
    ("power", "current power limit", "power_limit_w", 1.0),
    ("power", "power limit", "power_limit_w", 1.0),
    ("temperature", "gpu current temp", "temperature_c", 1.0),
    ("temperature", "memory current temp", "memory_temperature_c", 1.0),
)
"""Section, key, field of `GpuState`, factor into its unit."""
_LIMITS: Final = ("gpu slowdown temp", "gpu shutdown temp", "gpu max operating temp", "gpu target temperature")


def read_smi_q(path: Path, name: str) -> Observed:
    """Each device's readings as series, what limits its clock as events, its temperature limits as settings."""
    parser = _Query(name)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            parser.take(number, line.rstrip("\n"))
    return parser.done()


class _Query:
    """Reads the blocks line by line."""

    def __init__(self, name: str) -> None:
        self.out = Observed()
        self.name = name
        self.states: list[GpuState] = []
        self.at = self.first = 0
        self.origin: datetime | None = None
        self.device = ""
        self.values: dict[str, Any] = {}
        self.reasons: list[str] | None = None
        self.sections: list[tuple[int, str]] = []
        self.line = self.total = self.read = 0
        self.lines: list[int] = []

    def take(self, number: int, text: str) -> None:
        if not text.strip() or set(text.strip()) <= {"=", "-"}:
            return
        self.total += 1
        device = _DEVICE.match(text)
        if device is not None:
            self._close()
            self.device, self.line, self.read = device[1], number, self.read + 1
            return
        pair = _PAIR.match(text)
        indent = len(text) - len(text.lstrip())
        while self.sections and self.sections[-1][0] >= indent:
            self.sections.pop()
        if pair is None:
            self.sections.append((indent, text.strip().lower()))
            self.read += bool(self.device)
            return
        self.read += 1
        key, value = pair[2].strip().lower(), pair[3]
        if key == "timestamp":
            self._close()
            self._stamp(value)
        elif self.device:
            self._value(key, value, number)

    def _stamp(self, value: str) -> None:
        try:
            moment = datetime.strptime(" ".join(value.split()), _STAMP).replace(tzinfo=UTC)
        except ValueError:
            self.at += 1_000_000_000
            return
        self.origin = self.origin or moment
        self.at = round((moment - self.origin).total_seconds() * 1e9)

    def _value(self, key: str, value: str, number: int) -> None:
        section = self.sections[-1][1] if self.sections else ""
        path = " / ".join(text for _, text in self.sections)
        if any(mark in path for mark in _SECTIONS):
            reason = _REASONS.get(key)
            if reason is not None and value in ("Active", "Not Active"):
                self.reasons = self.reasons or []
                if value == "Active":
                    self.reasons.append(reason)
                    self.out.events.append(
                        Event(
                            kind="clock_event",
                            at=self.at / 1e9,
                            clock=Clock.RELATIVE if self.origin else Clock.NONE,
                            text=f"GPU {self.device}: {key} is active",
                            attributes={"gpu": self.device, "reason": reason},
                            place=Place(self.name, number),
                        )
                    )
            return
        found = _VALUE.match(value)
        if found is None:
            return
        if section == "temperature" and key in _LIMITS:
            self.out.settings.append(
                Setting(
                    name=key.replace(" ", "_"),
                    value=float(found[1]),
                    unit="C",
                    scope=self.device,
                    place=Place(self.name, number),
                )
            )
        for where, what, field, factor in _SIGNALS:
            at_home = section == where or (where == "power" and "power readings" in section)
            if at_home and key == what and field not in self.values:
                self.values[field] = float(found[1]) * factor
                return

    def _close(self) -> None:
        if self.device and (self.values or self.reasons is not None):
            self.states.append(
                GpuState(index=self.device, at_ns=self.at, source="nvidia-smi -q", reasons=self.reasons, **self.values)
            )
            self.lines.append(self.line)
        self.device, self.values, self.reasons, self.sections = "", {}, None, []

    def done(self) -> Observed:
        self._close()
        self.out.series = series_of_gpus(self.states, self.name, self.lines)
        self.out.understood = [
            Understood(source=self.name, format="nvidia-smi -q", understood=self.read, total=self.total)
        ]
        return self.out


_DMON: Final = {
    "pwr": ("power_w", 1.0),
    "gtemp": ("temperature_c", 1.0),
    "temp": ("temperature_c", 1.0),
    "mtemp": ("memory_temperature_c", 1.0),
    "sm": ("utilisation", 0.01),
    "pclk": ("sm_clock_mhz", 1.0),
    "mclk": ("memory_clock_mhz", 1.0),
}


def read_dmon(path: Path, name: str) -> Observed:
    """`nvidia-smi dmon`: a row a second and device under `#` headings; times are counted where no stamp is printed."""
    states: list[GpuState] = []
    lines: list[int] = []
    columns: list[str] = []
    seen: dict[str, int] = {}
    total = 0
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            words = line.split()
            if not words:
                continue
            if words[0].startswith("#"):
                names = [word.lstrip("#").lower() for word in words if word != "#"]
                columns = names if "gpu" in names else columns
                continue
            total += 1
            row = dict(zip(columns, words, strict=False))
            device = row.get("gpu", "")
            if not device.isdigit():
                continue
            seen[device] = seen.get(device, -1) + 1
            values = {}
            for column, (field, factor) in _DMON.items():
                found = _VALUE.fullmatch(row.get(column, ""))
                if found is not None:
                    values[field] = float(found[1]) * factor
            states.append(
                GpuState(index=device, at_ns=seen[device] * 1_000_000_000, source="nvidia-smi dmon", **values)  # type: ignore[arg-type]
            )
            lines.append(number)
    return Observed(
        series=series_of_gpus(states, name, lines),
        understood=[Understood(source=name, format="nvidia-smi dmon", understood=len(states), total=total)],
    )


def _matches(head: str, name: str) -> bool:
    _ = name
    return "NVSMI LOG" in head[:4096] or (
        any(mark in head.lower() for mark in _SECTIONS) and any(_DEVICE.match(line) for line in head.splitlines())
    )


def _matches_dmon(head: str, name: str) -> bool:
    _ = name
    return any(
        line.startswith("#") and {"gpu", "sm", "mem"} <= set(line.lstrip("# ").lower().split())
        for line in head.splitlines()[:20]
    )


NVIDIA_SMI_Q: Final = Format(name="nvidia-smi -q", matches=_matches, read=read_smi_q)
NVIDIA_SMI_DMON: Final = Format(name="nvidia-smi dmon", matches=_matches_dmon, read=read_dmon)
