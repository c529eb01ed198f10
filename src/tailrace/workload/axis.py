"""Axes of a sweep: `rate=1,2,4,8`, `concurrency=1..32`, and the arrivals of each point."""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

import msgspec

from tailrace.model.errors import InputError
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.shape import LEAST, MOST

__all__ = ["Axis", "arrivals_at", "parse_axis"]

_MOST: Final = 100
_RANGE = re.compile(r"(\S+?)\s*\.\.\s*(\S+?)(?:\s+in\s+(\d+))?")
_REMEDY: Final = "Write 'rate=1,2,4,8', 'concurrency=1..32' (doubling) or 'rate=1..32 in 8' (eight, geometric)"


class Axis(NamedTuple):
    """What is varied: `rate` (requests a second) or `concurrency` (requests at once), and its values, rising."""

    name: str
    values: tuple[float, ...]


def parse_axis(text: str, *, place: str = "--sweep") -> Axis:
    """Read an axis. Raises `InputError` that names `place` and shows a right one."""
    name, equals, listed = text.partition("=")
    name, listed = name.strip(), listed.strip()
    if name not in ("rate", "concurrency") or not equals:
        raise InputError(f"{text!r} is no axis", place=place, remedy=_REMEDY)
    if found := _RANGE.fullmatch(listed):
        low, high = _number(found[1], place), _number(found[2], place)
        values = _between(low, high, int(found[3]) if found[3] else None, place)
    else:
        values = [_number(one.strip(), place) for one in listed.split(",")]
    if name == "concurrency":
        values = [float(round(value)) if ".." in listed else value for value in values]
        if any(value != round(value) or value < 1 for value in values):
            raise InputError(f"{listed!r} has no whole numbers of workers", place=place, remedy=_REMEDY)
    values = sorted(set(values))
    if not 2 <= len(values) <= _MOST:
        raise InputError(f"{listed!r} has not between 2 and {_MOST} points", place=place, remedy=_REMEDY)
    return Axis(name, tuple(values))


def _number(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not LEAST <= value <= MOST:
        raise InputError(f"{text!r} is no number between {LEAST:g} and {MOST:g}", place=place, remedy=_REMEDY)
    return value


def _between(low: float, high: float, count: int | None, place: str) -> list[float]:
    if low >= high or (count is not None and not 2 <= count <= _MOST):
        raise InputError(f"{low:g}..{high:g} is no range that rises", place=place, remedy=_REMEDY)
    if count is None:
        # Doubling, and the end itself even where it is no power of two times the beginning.
        values = [low * 2**i for i in range(int(math.log2(high / low) + 1e-9) + 1)]
        return values if math.isclose(values[-1], high) else [*values, high]
    return [float(f"{low * (high / low) ** (i / (count - 1)):.6g}") for i in range(count)]


def arrivals_at(arrivals: Arrivals, axis: str, value: float) -> Arrivals:
    """The arrivals of one point: the same process, clients and cap, with another rate; or so many workers.

    Raises `InputError` where the arrivals have a rate or a concurrency that contradicts the axis.
    """
    if arrivals.shape is not None:
        raise InputError(f"'{arrivals.shape}' changes with time; a point has one load", place="--sweep")
    if axis == "concurrency":
        if arrivals.open_loop and arrivals.kind is not ArrivalKind.TRACE:
            raise InputError("a sweep over concurrency is a closed loop", place="--sweep", remedy="Leave out --rate")
        return Arrivals(kind=ArrivalKind.CLOSED, concurrency=round(value))
    if arrivals.kind in (ArrivalKind.CLOSED, ArrivalKind.TRACE):
        return Arrivals(kind=ArrivalKind.POISSON, rate=value)
    return msgspec.structs.replace(arrivals, rate=value)
