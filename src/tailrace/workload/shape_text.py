"""Shapes as people write them: on one line, or as rows of a file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Final

from tailrace.model.errors import InputError
from tailrace.model.thresholds import UNITS, S
from tailrace.workload.shape import EXAMPLES, LONGEST_NS, MOST, Form, Segment, Shape, Spike

__all__ = ["parse_series", "parse_shape", "span_ns"]

_LEVEL: Final = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TIME: Final = rf"((?:\d+\.?\d*|\.\d+)\s*(?:{'|'.join(sorted(UNITS, key=len, reverse=True))}|))"
_HOLD = re.compile(rf"({_LEVEL})(?:\s+for\s+{_TIME})?")
_RAMP = re.compile(rf"({_LEVEL})\s*\.\.\s*({_LEVEL})\s+over\s+{_TIME}(\s+exponential)?(?:\s+in\s+(\d+)\s+steps)?")
_SPIKE = re.compile(rf"spike\s+(x?)({_LEVEL})\s+for\s+{_TIME}(?:\s+at\s+{_TIME})?(?:\s+every\s+{_TIME})?")


def parse_shape(text: str, *, place: str = "--rate") -> Shape:
    """Read a shape. Raises `InputError` that names `place`, the part that cannot be read, and a right example."""
    try:
        return _shape(text)
    except InputError as error:
        raise InputError(error.message, place=place, remedy=error.remedy or f"Write {EXAMPLES}") from None


def _shape(text: str) -> Shape:
    segments: list[Segment] = []
    spikes: list[Spike] = []
    repeat = False
    parts = [part.strip() for part in text.split(",")]
    for number, part in enumerate(parts, start=1):
        where = f" (part {number} of {text!r})" if len(parts) > 1 else ""
        if repeat:
            raise InputError(f"nothing can follow 'repeat', but {part!r} does", remedy="Write 'repeat' last")
        if part == "repeat":
            repeat = True
        elif part.startswith("spike"):
            spikes.append(_spike(part, where))
        elif spikes:
            raise InputError(
                f"{part!r} follows a spike{where}", remedy="Write the levels first, then the spikes laid over them"
            )
        else:
            segments.append(_segment(part, where))
    return Shape(segments=segments, spikes=spikes, repeat=repeat)


def _segment(part: str, where: str) -> Segment:
    if found := _HOLD.fullmatch(part):
        level = float(found[1])
        return Segment(start=level, end=level, span_ns=span_ns(found[2]) if found[2] else None)
    if found := _RAMP.fullmatch(part):
        return Segment(
            start=float(found[1]),
            end=float(found[2]),
            span_ns=span_ns(found[3]),
            form=Form.EXPONENTIAL if found[4] else Form.LINEAR,
            steps=int(found[5] or 0),
        )
    if ".." in part and "over" not in part:
        raise InputError(f"{part!r} does not say how long the ramp takes{where}", remedy="Write '2..20 over 60s'")
    if not part:
        raise InputError(f"there is an empty part{where or ''}")
    raise InputError(f"cannot read {part!r}{where}")


def _spike(part: str, where: str) -> Spike:
    found = _SPIKE.fullmatch(part)
    if found is None:
        raise InputError(
            f"cannot read {part!r}{where}", remedy="Write 'spike 50 for 2s every 30s', or 'spike x10 for 2s at 45s'"
        )
    at, every = found[4], found[5]
    if not at and not every:
        raise InputError(
            f"{part!r} does not say when{where}",
            remedy="Write 'spike 50 for 2s every 30s', or 'spike 50 for 2s at 45s'",
        )
    height = float(found[2])
    every_ns = span_ns(every) if every else None
    return Spike(
        level=None if found[1] else height,
        factor=height if found[1] else None,
        span_ns=span_ns(found[3]),
        at_ns=span_ns(at) if at else every_ns or 0,
        every_ns=every_ns,
    )


def span_ns(text: str) -> int:
    """`1.5s`, `250 ms`, `60` (seconds) -> ns, without the rounding of a binary fraction.

    Raises `KeyError` or `decimal.InvalidOperation` for what is none.
    """
    figure = text.rstrip("".join(set("".join(UNITS)))).strip()
    unit = text.strip()[len(figure) :].strip()
    return int((Decimal(figure) * (UNITS[unit] if unit else S)).to_integral_value())


def parse_series(lines: Iterable[str], *, place: str, linear: bool = False) -> Shape:
    """A shape from rows of `seconds,rate`, the first at 0; each rate holds until the next row's time.

    A header row and empty lines are left out. With `linear` the rate goes straight from row to row. The last rate
    holds to the end. Raises `InputError` that names the line.
    """
    rows: list[tuple[int, float]] = []
    example = "Write rows of seconds,rate: 0,5 then 30,20"
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.removeprefix("\ufeff").replace(";", ",").split(",")]
        if cells == [""] or (number == 1 and not cells[0][:1].isdigit()):
            continue
        try:
            at, rate = int((Decimal(cells[0]) * S).to_integral_value()), float(cells[1])
        except (InvalidOperation, ValueError, IndexError, OverflowError):
            raise InputError(f"cannot read {line.strip()!r}", place=f"{place}:{number}", remedy=example) from None
        if rows and at <= rows[-1][0]:
            raise InputError("is not later than the row before", place=f"{place}:{number}", remedy=example)
        if not 0 <= rate <= MOST or not 0 <= at <= LONGEST_NS:
            raise InputError(f"{line.strip()!r} is out of bounds", place=f"{place}:{number}", remedy=example)
        if not rows and at != 0:
            raise InputError("the first row is not at 0 seconds", place=f"{place}:{number}", remedy=example)
        rows.append((at, rate))
    if not rows:
        raise InputError("there is no row in it", place=place, remedy=example)
    segments = [
        Segment(start=rate, end=following if linear else rate, span_ns=later - at)
        for (at, rate), (later, following) in itertools.pairwise(rows)
    ]
    last = rows[-1][1]
    try:
        return Shape(segments=[*segments, Segment(start=last, end=last)])
    except InputError as error:
        raise InputError(error.message, place=place, remedy=error.remedy or example) from None
