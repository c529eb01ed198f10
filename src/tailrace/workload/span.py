"""Spans of time as text, and distributions of them: think times, lengths of audio, when a client leaves."""

from __future__ import annotations

import re
from typing import Final

from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS, UNITS, S
from tailrace.workload.length import Fixed, Length, LogNormal, Uniform

_UNIT = "|".join(UNITS)
_SPAN = re.compile(rf"(\d+(?:\.\d+)?|\.\d+)\s*({_UNIT})?")
LONGEST_NS: Final = 24 * 3600 * S
_REMEDY = "Write 5s (always), 2s-10s (uniform) or 5s~0.8 (log-normal, median and sigma); up to 24h"


def read_span(text: str) -> int | None:
    """`5s`, `250ms`, `2m`, `3` (seconds) -> ns; `None` where it is none."""
    found = _SPAN.fullmatch(text.strip())
    if not found:
        return None
    return round(float(found[1]) * UNITS[found[2] or "s"])


def parse_spans(text: str, *, place: str = "", zero: bool = True) -> Length:
    """Read `5s`, `2s-10s` or `5s~0.8`: the grammar of lengths with units. The result counts **milliseconds**.

    Raises `InputError` that names `place`; `zero` says whether nothing at all is allowed.
    """
    text = text.strip()
    out: Length | None = None
    median, tilde, sigma = text.partition("~")
    low, dash, high = text.partition("-")
    if tilde:
        at = read_span(median)
        if at is not None and re.fullmatch(r"\d*\.?\d+", sigma):
            out = LogNormal(round(at / MS), float(sigma), 0 if zero else 1, LONGEST_NS // MS)
    elif dash:
        one, two = read_span(low), read_span(high)
        if one is not None and two is not None and one <= two:
            out = Uniform(round(one / MS), round(two / MS))
    elif (at := read_span(text)) is not None:
        out = Fixed(round(at / MS))
    if out is None or not (0 if zero else 1) <= _least(out) <= LONGEST_NS // MS:
        raise InputError(f"{text!r} is no span of time", place=place, remedy=_REMEDY)
    return out


def _least(length: Length) -> int:
    if isinstance(length, Fixed):
        return length.tokens
    return length.low if isinstance(length, Uniform) else length.median


def render_spans(length: Length) -> str:
    """The text that `parse_spans` reads."""
    if isinstance(length, Fixed):
        return f"{length.tokens}ms"
    if isinstance(length, Uniform):
        return f"{length.low}ms-{length.high}ms"
    return f"{length.median}ms~{length.sigma:g}"
