"""What grows while a session goes on: the time that a chunk takes, the backlog, the lag of the text."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Arm, Observed, Series
from tailrace.diagnose.observed.vocabulary import in_unit, unit_in_name
from tailrace.diagnose.trend import Trend, trend
from tailrace.stats.correlation import correlation

__all__ = ["Growth", "growths"]

Floats = NDArray[np.float64]

SERVICE: Final = frozenset(
    {
        "chunk_service",
        "service",
        "service_time",
        "feed",
        "feed_time",
        "chunk_processing",
        "processing",
        "chunk_time",
        "vad_feed",
    }
)
WAITED: Final = frozenset({"lag", "transcript_lag", "backlog", "session_lag", "asr_lag"})
_RECEIVED: Final = ("audio_received", "audio_received_s")
_PROCESSED: Final = ("audio_processed", "audio_processed_s")
_AGE: Final = re.compile(r"\bage\b|session (?:time|minute|length)|elapsed|\bminutes?\b", re.IGNORECASE)
_ADDED: Final = re.compile(r"feed|chunk|service|lag|backlog|processing", re.IGNORECASE)
_STEADY: Final = 4
"""Points; three must grow further."""
_FOLLOWS: Final = 0.9


class Growth(NamedTuple):
    """A quantity along a session."""

    what: str
    """`service time of a chunk`, `backlog`, `lag`."""
    waits: bool
    """A backlog or a lag, which users wait for; otherwise the work on one chunk."""
    age_s: Floats
    values: Floats
    """Milliseconds."""
    line: Trend
    sessions: str
    """`constant`, `follows` (the number of sessions explains it) or `unknown`."""
    most_sessions: float
    stream: str
    first_place: str
    last_place: str

    @property
    def first(self) -> float:
        """The first value (ms)."""
        return float(self.values[0])

    @property
    def last(self) -> float:
        """The last value (ms)."""
        return float(self.values[-1])

    @property
    def steady(self) -> bool:
        """Whether each point lies above the one before, up to a multiple of the first: a bend is growth as well."""
        return (
            bool((np.diff(self.values) > 0).all())
            and self.last > (2 if self.values.size >= _STEADY else 4) * self.first > 0
        )

    @property
    def per_minute(self) -> float:
        """The slope (ms a minute)."""
        return self.line.slope * 60.0


def growths(observed: Observed) -> list[Growth]:
    """Every series along a session's age or time that says how long a chunk takes, or how far the text is behind."""
    out = []
    for series in observed.series:
        if series.axis not in {"session_age", "time"}:
            continue
        plain, unit = unit_in_name(series.name.lower())
        scale = in_unit(1.0, series.unit or unit or "ms", "ms")
        if plain not in SERVICE | WAITED or scale is None:
            continue
        what = "service time of a chunk" if plain in SERVICE else plain.replace("_", " ")
        found = _growth(observed, series, series.values * scale, what, waits=plain in WAITED)
        out += [found] if found is not None else []
    out += _backlogs(observed)
    out += _of_arms(observed)
    return out


def _of_arms(observed: Observed) -> list[Growth]:
    """Rows of a table along the age of a session: `session age (min) | feed (ms)`."""
    columns: dict[tuple[str, str], list[tuple[float, float, Arm]]] = {}
    for arm in observed.arms:
        age = next((found for name, value in arm.keys.items() if (found := _age_s(arm, name, value)) is not None), None)
        for value in arm.values.values() if age is not None else ():
            if value.unit == "ms" and not value.relative and _ADDED.search(value.quantity):
                columns.setdefault((arm.place.source, value.quantity), []).append((age or 0.0, value.value, arm))
    out = []
    for (_, name), rows in columns.items():
        rows.sort(key=lambda row: row[0])
        ages = np.array([row[0] for row in rows])
        values = np.array([row[1] for row in rows])
        line = trend(ages, values)
        if line is not None:
            waits = unit_in_name(name.lower())[0] in WAITED
            places = str(rows[0][2].place), str(rows[-1][2].place)
            what = name.replace("_", " ")
            out.append(Growth(what, waits, ages, values, line, "unknown", 0.0, "", *places))
    return out


def _age_s(arm: Arm, name: str, value: float | str) -> float | None:
    if isinstance(value, str) or not _AGE.search(name.replace("_", " ")):
        return None
    label = " ".join([name, *(one.label for one in arm.values.values() if _AGE.search(one.label))]).lower()
    scale = 60.0 if re.search(r"\bmin", label) else 3600.0 if re.search(r"\(h|hour", label) else 1.0
    return float(value) * scale


def _backlogs(observed: Observed) -> list[Growth]:
    """Audio received minus audio processed."""
    out = []
    for name in _RECEIVED:
        for received in observed.of_series(name):
            for other in _PROCESSED:
                for processed in observed.of_series(other, **received.labels):
                    if len(processed) != len(received) or processed.place.source != received.place.source:
                        continue
                    scale = in_unit(1.0, received.unit or "s", "ms") or 1e3
                    behind = (received.values - processed.values) * scale
                    found = _growth(observed, received, behind, "backlog", waits=True)
                    out += [found] if found is not None else []
    return out


def _growth(observed: Observed, series: Series, values: Floats, what: str, *, waits: bool) -> Growth | None:
    known = np.isfinite(values) & np.isfinite(series.at)
    index = np.flatnonzero(known)
    line = trend(series.at[known], values[known])
    if line is None:
        return None
    sessions, most = _sessions(observed, series, values)
    return Growth(
        what,
        waits,
        series.at[known],
        values[known],
        line,
        sessions,
        most,
        series.labels.get("stream", ""),
        str(series.line_of(int(index[0]))),
        str(series.line_of(int(index[-1]))),
    )


def _sessions(observed: Observed, series: Series, values: Floats) -> tuple[str, float]:
    """Whether the number of sessions stood still while it grew, or explains the growth."""
    for counted in (*observed.of_series("sessions"), *observed.of_series("concurrency")):
        if counted.place.source != series.place.source or len(counted) != len(series):
            continue
        known = np.isfinite(counted.values) & np.isfinite(values)
        count, seen = counted.values[known], values[known]
        if not count.size:
            continue
        most = float(count.max())
        if float(np.ptp(count)) == 0.0:
            return "constant", most
        alike = correlation(count, seen)
        if alike >= _FOLLOWS and not _grows_within(series.at[known], seen, count):
            return "follows", most
        return "constant" if _grows_within(series.at[known], seen, count) else "unknown", most
    return "unknown", 0.0


def _grows_within(at: Floats, seen: Floats, count: Floats) -> bool:
    """Whether it grows while the number of sessions stands still (at any number with enough points)."""
    for number in np.unique(count):
        line = trend(at[count == number], seen[count == number])
        if line is not None and line.n >= 4 and line.grows and line.last > 1.1 * max(line.first, 1e-9):
            return True
    return False
