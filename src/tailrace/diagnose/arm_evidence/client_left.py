"""When a client left: stated by a form, written beside a moment, or told by its connections that all closed."""

from __future__ import annotations

import calendar
import re
from typing import Final, NamedTuple

from tailrace.diagnose.observed import Clock, Observed, Series, Setting

__all__ = ["Left", "client_left", "left_setting", "passed_on"]

_LEFT: Final = re.compile(
    r"(?:clients?|connections?|sockets?|users?)?_?(?:were_|was_)?"
    r"(?:killed|disconnected|closed|cancelled|canceled|left|gone|aborted|hung_up|disconnect|dropped)_?at(?:_s)?$"
    r"|^(?:disconnect|cancel|kill|abort)_(?:at|time)(?:_s)?$"
)
_GONE: Final = re.compile(
    r"^(?:clients?|requests?|users?|connections?)_(?:that_)?(?:timed_out|gave_up|left|gone|disconnected|cancel\w*|closed|"
    r"killed|aborted|dropped)$|^(?:disconnected|cancelled|canceled|killed|closed)_(?:clients?|requests?|connections?)$"
)
_EVENT: Final = re.compile(
    r"(?:clients?|connections?|curl|sockets?|users?|browser)\b.{0,40}\b(?:killed|disconnect\w*|closed|left|gone|abort\w*|"
    r"cancel\w*|hung up|dropped)|\b(?:kill\w*|disconnect\w*|close[sd]?|cancel\w*|ctrl.?c)\b.{0,30}"
    r"\b(?:clients?|connections?|curl|sockets?|requests?|streams?)",
    re.IGNORECASE,
)
_STAMP: Final = re.compile(
    r"(?:(?P<year>\d{4})[-/])?(?P<month>\d{1,2})[-/](?P<day>\d{1,2})[ T](?P<hour>\d{1,2}):(?P<minute>\d\d)"
    r"(?::(?P<second>\d\d(?:[.,]\d+)?))?"
)
_CLOCK: Final = re.compile(r"(?<!\d)(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d(?:[.,]\d+)?))?(?!\d)")
_BEFORE_ALL: Final = re.compile(r"before\b.{0,20}\b(?:t0|first|scrapes?|window|before|start)", re.IGNORECASE)
_PASSED_ON_S: Final = 10.0
"""An abort is logged within a step of the engine; a log may be a print later."""


class Left(NamedTuple):
    """The moment on a series' axis, and who says so."""

    at: float
    words: str
    source: str
    name: str


def left_setting(observed: Observed) -> Setting | None:
    """The statement of when the client left."""
    return next((item for item in observed.settings if _LEFT.search(item.name)), None)


def client_left(observed: Observed, series: Series) -> Left | None:
    """When the (last) client left, on the axis of `series`; `None` where nothing says it."""
    stated = left_setting(observed)
    if stated is not None:
        when = _when(stated, series)
        if when is not None:
            return Left(when, f"client left at {stated.value}", str(stated.place) or "form", stated.name)
    beside = _beside_a_moment(observed, series) if series.axis == "time" else None
    return beside or _all_gone(observed)


def _all_gone(observed: Observed) -> Left | None:
    """Clients that were counted as gone, and no connection left at the end: they left before the last reading."""
    gone = next((one for one in observed.settings if _GONE.search(one.name) and one.number), None)
    if (
        gone is None
        or observed.number("client_connections_open_at_end", "client_connections_open", "open_clients") != 0
    ):
        return None
    return Left(float("-inf"), f"{gone.name.replace('_', ' ')}: {gone.value}", str(gone.place) or "form", gone.name)


def _beside_a_moment(observed: Observed, series: Series) -> Left | None:
    """Words in the series' own table: `all clients killed` beside one of its rows."""
    for arm in observed.arms:
        said = next((str(v) for v in arm.keys.values() if isinstance(v, str) and _EVENT.search(v)), "")
        if said and arm.place.source == series.place.source and series.lines is not None:
            rows = [i for i, line in enumerate(series.lines) if int(line) == arm.place.line]
            if rows:
                return Left(float(series.at[rows[0]]), f"at {arm.name}: {said[:80]}", str(arm.place), "event")
    for table in observed.table("moments"):
        time = table.columns.get("time")
        if time is None or table.place.source != series.place.source:
            continue
        texts = [name for name, column in table.columns.items() if column.dtype == object]
        found = next(
            ((row, text) for name in texts for row, text in enumerate(table.texts(name)) if _EVENT.search(text)), None
        )
        if found is not None:
            return Left(float(time[found[0]]), found[1][:80], str(table.line_of(found[0])), "event")
    return None


def passed_on(observed: Observed, left: Left, fell: float) -> str:
    """What says that the cancel reached the engine: abort lines just after, and as many fewer running; empty if
    nothing does. `fell`: running before minus running after.
    """
    aborts = [
        event
        for event in observed.of_kind("aborted")
        if event.at is not None and -1.0 <= event.at - left.at <= _PASSED_ON_S
    ]
    killed = observed.number("clients_killed", "cancelled", "killed", "clients_left") or 1.0
    if not aborts or len(aborts) < killed or fell < killed:
        return ""
    return (
        f"{len(aborts)} abort line{'s' if len(aborts) != 1 else ''} within {_PASSED_ON_S:g} s ({aborts[0].text[:80]})"
    )


def _when(left: Setting, series: Series) -> float | None:
    """The moment on the series' axis (s): a number as it is, a stamp without a year as if in 1970, as logs are read;
    minus infinity where it was before the first reading.
    """
    if _BEFORE_ALL.search(str(left.value)):
        return float("-inf")
    if series.axis != "time":
        return None
    if left.number is not None:
        return left.number
    found = _STAMP.search(str(left.value))
    clock = _CLOCK.search(str(left.value))
    if clock is None or series.clock not in (Clock.LOCAL, Clock.UTC):
        return None
    first = float(series.at[0])
    if found is None:
        return first - first % 86400 + int(clock["hour"]) * 3600 + int(clock["minute"]) * 60 + _second(clock)
    year = int(found["year"]) if found["year"] and first > 366 * 86400 else 1970
    if not found["year"] and first > 366 * 86400:
        year = _year_of(first)
    second = _second(found)
    whole = calendar.timegm(
        (year, int(found["month"]), int(found["day"]), int(found["hour"]), int(found["minute"]), int(second), 0, 0, 0)
    )
    return whole + second - int(second)


def _second(found: re.Match[str]) -> float:
    return float((found["second"] or "0").replace(",", "."))


def _year_of(seconds: float) -> int:
    year = 1970 + int(seconds // (365.2425 * 86400))
    return year if calendar.timegm((year, 1, 1, 0, 0, 0, 0, 0, 0)) <= seconds else year - 1
