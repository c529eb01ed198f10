"""The stamps that log lines carry: with and without year, with and without zone.

Without a zone a stamp counts as if it were UTC, without a year as if it were 1970 (`Clock.LOCAL`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from tailrace.diagnose.observed import Clock

__all__ = ["Yearless", "leading_rfc3339", "nginx_stamp", "stamp_in"]

_DAY: Final = 86400.0
_YEAR: Final = 365 * _DAY
_MONTHS: Final = {
    name: place for place, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)
}
_LENGTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_FULL: Final = re.compile(
    rb"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\d*( ?Z|[+-]\d\d:?\d\d)?"
)
_SHORT: Final = re.compile(rb"(?<![\d-])(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_AMERICAN: Final = re.compile(rb"(?<!\d)(\d\d)/(\d\d)/(\d{4})[- ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
"""TensorRT-LLM: month, day, year."""
_SYSLOG: Final = re.compile(rb"(?<!\w)([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_NGINX: Final = re.compile(rb"\[(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-]\d{4})\]")


@lru_cache(maxsize=4096)
def _days(year: int, month: int, day: int) -> float | None:
    """Seconds from 1970 to the beginning of a day (civil calendar); `None` for no day."""
    if not 1 <= month <= 12 or not 1 <= day <= _LENGTHS[month - 1] or year < 1:
        return None
    # Days from civil: years begin in March, so that the leap day is their last.
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return (era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468) * _DAY


def _seconds(
    date: tuple[int, int, int], hour: bytes, minute: bytes, second: bytes, fraction: bytes | None
) -> float | None:
    day = _days(*date)
    h, m, s = int(hour), int(minute), int(second)
    if day is None or h > 24 or m > 59 or s > 60:
        return None
    part = float(b"0." + fraction) if fraction else 0.0
    return day + h * 3600 + m * 60 + s + part


def _zone(text: bytes) -> float:
    """Seconds that a zone is east of UTC: `+02:00`, `-0700`, `Z`."""
    plain = text.strip().replace(b":", b"")
    if plain in (b"Z", b""):
        return 0.0
    sign = -1.0 if plain[:1] == b"-" else 1.0
    return sign * (int(plain[1:3]) * 3600 + int(plain[3:5]) * 60)


def _of_full(found: re.Match[bytes]) -> tuple[float, Clock] | None:
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    at = _seconds((int(year), int(month), int(day)), hour, minute, second, fraction)
    if at is None:
        return None
    return (at, Clock.LOCAL) if zone is None else (at - _zone(zone), Clock.UTC)


def stamp_in(text: bytes, end: int = 300) -> tuple[float, Clock] | None:
    """The first stamp within the first `end` bytes of a line: (seconds, clock); `None` when there is none."""
    found = _FULL.search(text, 0, end)
    if found is not None:
        return _of_full(found)
    found = _SHORT.search(text, 0, end)
    if found is not None:
        month, day, hour, minute, second, fraction = found.groups()
        # 1970 had no 29 February: that day is counted as 1 March.
        date = (1970, 3, 1) if (month, day) == (b"02", b"29") else (1970, int(month), int(day))
        at = _seconds(date, hour, minute, second, fraction)
        return None if at is None else (at, Clock.LOCAL)
    found = _AMERICAN.search(text, 0, end)
    if found is not None:
        month, day, year, hour, minute, second, fraction = found.groups()
        at = _seconds((int(year), int(month), int(day)), hour, minute, second, fraction)
        return None if at is None else (at, Clock.LOCAL)
    found = _SYSLOG.search(text, 0, end)
    if found is not None and found[1] in _MONTHS:
        _, day, hour, minute, second, fraction = found.groups()
        at = _seconds((1970, _MONTHS[found[1]], int(day)), hour, minute, second, fraction)
        return None if at is None else (at, Clock.LOCAL)
    return _nginx_found(text, end)


def nginx_stamp(text: bytes) -> float | None:
    """`[11/Feb/2026:09:02:11 +0000]` as seconds since 1970 (UTC)."""
    found = _nginx_found(text, len(text))
    return None if found is None else found[0]


def _nginx_found(text: bytes, end: int) -> tuple[float, Clock] | None:
    begin = text.find(b"[", 0, end)
    while begin >= 0:
        # The same second stands in many lines in a row.
        found = _nginx_stamp(text[begin : begin + 28])
        if found is not None:
            return found
        begin = text.find(b"[", begin + 1, end)
    return None


@lru_cache(maxsize=4096)
def _nginx_stamp(text: bytes) -> tuple[float, Clock] | None:
    found = _NGINX.match(text)
    if found is None or found[2] not in _MONTHS:
        return None
    day, month, year, hour, minute, second, zone = found.groups()
    at = _seconds((int(year), _MONTHS[month], int(day)), hour, minute, second, None)
    return None if at is None else (at - _zone(zone), Clock.UTC)


def leading_rfc3339(text: bytes) -> tuple[float, int] | None:
    """(seconds UTC, where the rest begins) of a stamp with a zone that stands at the very beginning of a line."""
    found = _FULL.match(text)
    if found is None or found[8] is None:
        return None
    stamp = _of_full(found)
    return None if stamp is None else (stamp[0], found.end())


class Yearless:
    """Makes one rising time of stamps without a year: after 31 December comes 1 January."""

    def __init__(self) -> None:
        """It has seen nothing yet."""
        self._last: float | None = None
        self._turns = 0.0

    def rising(self, at: float) -> float:
        """The time of a stamp, as seconds since 1970, with the years that passed within the log added."""
        if self._last is not None and at - self._last < -_YEAR / 2:
            self._turns += _YEAR
        self._last = at
        return at + self._turns
