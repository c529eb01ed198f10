"""Headings and cells of tables that people write: the words of a heading without its unit, a cell as a number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

__all__ = ["Heading", "decimal_comma", "heading", "number", "stamp_ms"]

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BRACKETS: Final = re.compile(r"[\[(]\s*([^\[\]()]{1,12}?)\s*[\])]\s*$")
_UNITS: Final = {
    "ns": "ns", "nanos": "ns", "nanoseconds": "ns",
    "us": "us", "µs": "us", "usec": "us", "micros": "us", "microseconds": "us",
    "ms": "ms", "msec": "ms", "msecs": "ms", "millis": "ms", "milliseconds": "ms", "millisecond": "ms",
    "s": "s", "sec": "s", "secs": "s", "seconds": "s", "second": "s",
    "min": "min", "minutes": "min", "h": "h", "hr": "h", "hour": "h", "hours": "h",
    "pct": "%", "percent": "%", "%": "%", "perc": "%",
    "mhz": "MHz", "w": "W", "c": "C", "bytes": "bytes", "tokens": "tokens", "token": "tokens",
}  # fmt: skip
_SUFFIXES: Final = frozenset(
    {
        "ns",
        "us",
        "µs",
        "usec",
        "ms",
        "msec",
        "millis",
        "milliseconds",
        "s",
        "sec",
        "secs",
        "seconds",
        "pct",
        "percent",
        "h",
        "hours",
    }
)
"""Units that a heading ends with behind an underscore; `tokens` and the like are words of the name there."""
_A_SECOND: Final = frozenset(
    {"tok", "toks", "tokens", "req", "reqs", "requests", "bytes", "mib", "gib", "mb", "gb", "infer", "per"}
)
"""Words behind which `_s` is "a second"."""
_NUMBER: Final = re.compile(r"([+-]?(?:\d[\d_]*(?:[.,]\d+)*|\.\d+)(?:[eE][+-]?\d+)?)\s*(%|[A-Za-zµμ/]*)")
_GROUPS: Final = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_MISSING: Final = frozenset({"", "-", "--", "null", "none", "nan", "na", "n/a", "#n/a", "nil", "?", "\\n"})
_WORDS: Final = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "inf": math.inf, "+inf": math.inf}
_SCALE: Final = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "min": 6e4, "h": 3.6e6}
_CLOCK: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d(?:[.,]\d+)?))?")
_YEARLESS: Final = re.compile(r"(\d{1,2})-(\d{1,2})[ T](\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?)")


class Heading(NamedTuple):
    """What a column is called."""

    name: str
    """Lower case, words joined by underscores, without the unit."""
    unit: str
    """`ms`, `s`, `us`, `ns`, `%`, …; empty where none is written."""


def heading(text: str) -> Heading:
    """`t_first_ms`, `First token (s)`, `sendTimeMs`, `queue [us]` -> name and unit."""
    plain = text.strip().strip("\"'`*").lstrip("#").strip()
    unit = ""
    found = _BRACKETS.search(plain)
    if found is not None and found[1].strip().lower().replace("μ", "µ") in _UNITS:
        unit = _UNITS[found[1].strip().lower().replace("μ", "µ")]
        plain = plain[: found.start()]
    words = [word for word in re.split(r"[\s_\-./:]+", _CAMEL.sub("_", plain).lower().replace("μ", "µ")) if word]
    if not unit and len(words) > 1 and words[-1] in _SUFFIXES and (words[-1] != "s" or words[-2] not in _A_SECOND):
        unit = _UNITS[words.pop()]
    elif not unit and len(words) > 1 and words[-1] == "%":
        unit = "%"
        words.pop()
    elif not unit and {"ms", "us"} & set(words[1:-1]):
        unit = "ms" if "ms" in words[1:-1] else "us"  # `cpu_ms_per_step`
    return Heading("_".join(words), unit)


def decimal_comma(cells: Iterable[Any], *, delimiter: str) -> bool:
    """Whether the commas of a column are decimal ones: only where a comma does not separate the cells, and some comma
    is followed by other than three digits (`25,200` alone is twenty-five thousand).
    """
    if delimiter == ",":
        return False
    for cell in cells:
        if isinstance(cell, str) and "," in cell and "." not in cell and not _GROUPS.fullmatch(cell.strip()):
            return True
    return False


def number(cell: Any, unit: str = "", wanted: str = "", *, comma: bool = False) -> float | None:
    """A cell as a number; in `wanted` (`ms` or `share`) where `unit` (of the heading, or in the cell) allows it.

    NaN for what is missing (`-`, `null`, empty), `None` for what is no number.
    """
    if isinstance(cell, str):
        return _spelled(cell.strip().strip('"'), unit, wanted, comma=comma)
    if cell is None:
        return math.nan
    if isinstance(cell, bool):
        return float(cell)
    if not isinstance(cell, int | float):
        return None
    try:
        return _scaled(float(cell), unit, wanted)
    except OverflowError:  # an integer of hundreds of digits
        return math.nan


def _spelled(text: str, unit: str, wanted: str, *, comma: bool) -> float | None:
    low = text.lower()
    if low in _MISSING:
        return math.nan
    if low in _WORDS:
        return _WORDS[low]
    found = _NUMBER.fullmatch(text)
    digits = "" if found is None else _plain_digits(found[1].replace("_", ""), comma=comma)
    own = "" if found is None else found[2].lower().replace("μ", "µ")
    if not digits or (own and own not in _UNITS):
        return None
    return _scaled(float(digits), _UNITS[own] if own else unit, wanted)


def _plain_digits(digits: str, *, comma: bool) -> str:
    """Digits as Python reads them; empty where commas and points make no number."""
    if "," in digits:
        if comma and digits.count(",") == 1:
            digits = digits.replace(".", "").replace(",", ".")
        elif _GROUPS.fullmatch(digits):
            digits = digits.replace(",", "")
        else:
            return ""
    return digits if digits.count(".") <= 1 else ""


def _scaled(value: float, unit: str, wanted: str) -> float:
    if wanted == "ms":
        return value * _SCALE.get(unit, 1.0)
    if wanted == "share" and unit == "%":
        return value / 100.0
    return value


def stamp_ms(cells: Sequence[Any]) -> tuple[list[float], bool] | None:
    """A column of ISO 8601 stamps -> (ms since 1970, whether a zone was written); `None` where they are none.

    Without a zone as if it were UTC, without a year (`03-09 10:00:08`) as if it were 1970, without a day (`10:00:08`,
    `10:00`) as if it were the first one, and the next one where such a clock has passed midnight.
    """
    out: list[float] = []
    zoned = seen = False
    clocks = [_CLOCK.fullmatch(cell.strip()) if isinstance(cell, str) else None for cell in cells]
    if any(clocks):
        return _clocks(cells, clocks)
    for cell in cells:
        if cell is None or (isinstance(cell, str) and cell.strip().lower() in _MISSING):
            out.append(math.nan)
            continue
        if not isinstance(cell, str):
            return None
        moment = _moment(cell.strip())
        if moment is None:
            return None
        seen, zoned = True, zoned or moment.tzinfo is not None
        out.append((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e3)
    return (out, zoned) if seen else None


def _clocks(cells: Sequence[Any], clocks: Sequence[re.Match[str] | None]) -> tuple[list[float], bool] | None:
    """Times of day, in the order in which they stand."""
    out: list[float] = []
    day, last = 0.0, -math.inf
    for cell, found in zip(cells, clocks, strict=True):
        if found is None:
            if cell is not None and not (isinstance(cell, str) and cell.strip().lower() in _MISSING):
                return None
            out.append(math.nan)
            continue
        at = int(found[1]) * 3.6e6 + int(found[2]) * 6e4 + float((found[3] or "0").replace(",", ".")) * 1e3 + day
        if at < last - 4.32e7:
            day, at = day + 8.64e7, at + 8.64e7
        out.append(at)
        last = at
    return out, False


def _moment(text: str) -> datetime | None:
    found = _YEARLESS.fullmatch(text)
    if found is not None:
        text = f"1970-{int(found[1]):02d}-{int(found[2]):02d}T{found[3].replace(',', '.')}"
    elif len(text) < 16 or not text[:4].isdigit():
        return None
    try:
        return datetime.fromisoformat(text.replace("/", "-").replace(",", "."))
    except ValueError:
        return None
