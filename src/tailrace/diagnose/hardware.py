"""What was seen of the machine and its accelerators beside the requests, and how it lies on the requests' axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.window import Window
from tailrace.model.gpu_profile import GpuProfile
from tailrace.model.gpu_state import GpuState
from tailrace.model.host_state import HostState, ProcessState, Role

__all__ = ["Hardware", "Shares", "host_shares", "of_engine", "shares_of_gpu"]

Floats = NDArray[np.float64]
_BETWEEN_NS: Final = 30_000_000_000
"""A reading speaks for the time since the one before it, and for no more than this."""
_BEFORE_NS: Final = 2_000_000_000
"""Requests of a moment may fall between two readings: the one before them is then all there is."""


class Hardware(msgspec.Struct, kw_only=True):
    """All series; empty where nothing was read."""

    host: list[HostState] = []
    gpus: list[GpuState] = []
    profiles: list[GpuProfile] = []
    engine_pids: list[int] = []
    absent: dict[str, str] = {}
    """Signal -> why it is not there, as the reader said."""
    sources: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.host or self.gpus or self.profiles)

    def joined(self, other: Hardware) -> Hardware:
        """Both together."""
        return Hardware(
            host=sorted([*self.host, *other.host], key=lambda state: state.at_unix_ns),
            gpus=[*self.gpus, *other.gpus],
            profiles=[*self.profiles, *other.profiles],
            engine_pids=sorted({*self.engine_pids, *other.engine_pids}),
            absent={**self.absent, **other.absent},
            sources=[*self.sources, *other.sources],
        )

    def within(self, window: Window) -> Hardware:
        """What lies in the time of the window's requests. Readings without a wall clock cannot be placed, and stay."""
        if not window.n:
            return self
        begin, end = window.origin_unix_ns, window.origin_unix_ns + float(window.end.max())
        return msgspec.structs.replace(
            self,
            host=[
                state for state in self.host if state.at_unix_ns > begin and state.at_unix_ns - state.interval_ns < end
            ],
            gpus=[
                state
                for state in self.gpus
                if state.at_unix_ns is None or begin - _BEFORE_NS <= state.at_unix_ns <= end + _BETWEEN_NS
            ],
        )

    def devices(self) -> dict[str, list[GpuState]]:
        """Device -> its readings in order of time."""
        out: dict[str, list[GpuState]] = {}
        for state in sorted(self.gpus, key=lambda state: state.at_unix_ns or state.at_ns):
            out.setdefault(state.index, []).append(state)
        return out


class Shares(NamedTuple):
    """A share (0..1) of each of some intervals on the window's axis, in order and without overlap."""

    begin: Floats
    end: Floats
    share: Floats

    def inside_ms(self, begin: Floats, end: Floats) -> Floats:
        """Share x time, summed over what of each [begin, end] (ns) the intervals cover (ms)."""
        return self._integral(begin, end, self.share)

    def covered(self, begin: Floats, end: Floats) -> Floats:
        """Which part of each [begin, end] the intervals cover (0..1)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            part = self._integral(begin, end, np.ones_like(self.share)) * 1e6 / (end - begin)
        return np.nan_to_num(part, nan=0.0)

    def _integral(self, begin: Floats, end: Floats, height: Floats) -> Floats:
        if not self.begin.size:
            return np.zeros_like(begin)
        knots = np.column_stack([self.begin, self.end]).ravel()
        grown = np.cumsum((self.end - self.begin) * height)
        total = np.column_stack([np.concatenate([[0.0], grown[:-1]]), grown]).ravel()
        inside: Floats = (np.interp(end, knots, total) - np.interp(begin, knots, total)) / 1e6
        return inside


def of_engine(states: Sequence[HostState]) -> list[tuple[HostState, ProcessState]]:
    """The intervals in which the engine's processes were seen, with what was seen."""
    return [(state, process) for state in states if (process := state.of(Role.ENGINE)) is not None]


def host_shares(window: Window, intervals: Sequence[tuple[HostState, float]]) -> Shares:
    """A share of each interval of the host, on the window's axis."""
    origin = window.origin_unix_ns
    end = np.array([state.at_unix_ns - origin for state, _ in intervals], dtype=np.float64)
    length = np.array([state.interval_ns for state, _ in intervals], dtype=np.float64)
    return Shares(*_ordered(end - length, end, np.array([share for _, share in intervals], dtype=np.float64)))


def shares_of_gpu(window: Window, readings: Sequence[tuple[GpuState, float]]) -> Shares | None:
    """A share at each reading, which speaks for the time since the last one; `None` where no wall clock places them."""
    placed = [(state.at_unix_ns, share) for state, share in readings if state.at_unix_ns is not None]
    if len(placed) < 2:
        return None
    origin = window.origin_unix_ns
    end = np.array([at - origin for at, _ in placed], dtype=np.float64)
    between = np.minimum(np.diff(end, prepend=end[0] - float(np.median(np.diff(end)))), _BETWEEN_NS)
    return Shares(*_ordered(end - between, end, np.array([share for _, share in placed], dtype=np.float64)))


def _ordered(begin: Floats, end: Floats, share: Floats) -> tuple[Floats, Floats, Floats]:
    order = np.argsort(end, kind="stable")
    begin, end, share = begin[order], end[order], share[order]
    if end.size > 1:
        begin[1:] = np.maximum(begin[1:], end[:-1])
    return np.minimum(begin, end), end, share
