"""An engine's gauges after the time at which the client was killed."""

from __future__ import annotations

import calendar
import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arm_evidence.cancel_in_arms import CANCEL_ADVICE, CANCEL_PRICE, CANCEL_VERIFY
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Clock, Observed, Series, Setting
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["GRACE_S", "cancel_in_series"]

GRACE_S: Final = 2.0
"""An abort takes up to a step of the engine and a print of its log."""
_LEFT: Final = (
    "client_killed_at", "client_disconnected_at", "client_closed_at", "disconnected_at", "cancelled_at",
    "client_left_at",
    "killed_at", "client_gone_at", "disconnect_at",
)  # fmt: skip
_STAMP: Final = re.compile(
    r"(?:(?P<year>\d{4})[-/])?(?P<month>\d{1,2})[-/](?P<day>\d{1,2})[ T](?P<hour>\d{1,2}):(?P<minute>\d\d)"
    r"(?::(?P<second>\d\d(?:[.,]\d+)?))?"
)


def cancel_in_series(cause: Cause, observed: Observed) -> Finding | None:
    """`running` (or tokens) above 0 in readings more than 2 s after the client left."""
    left = next((item for name in _LEFT if (item := observed.setting(name)) is not None), None)
    running = [item for item in observed.of_series("running") if len(item)]
    if left is None or not running:
        return None
    series = running[0]
    when = _when(left, series)
    if when is None:
        return None
    after = np.flatnonzero(series.at > when + GRACE_S)
    going = after[np.nan_to_num(series.values[after]) > 0]
    if not going.size:
        return None
    first, last = int(going[0]), int(going[-1])
    before = np.flatnonzero(series.at <= when)
    was = float(series.values[before[-1]]) if before.size else None
    still = float(series.values[last])
    dropped = was is not None and float(np.nanmax(series.values[after])) < was
    rate = next((item for item in observed.of_series("output_tok_s") if len(item) == len(series)), None)
    tokens = (
        float(np.nansum(rate.values[going] * np.gradient(series.at)[going]))
        if rate is not None and len(series) > 1
        else None
    )
    open_ = observed.number("client_connections_open_at_end")
    missing = []
    others = still > 1 and open_ is None
    if others or dropped:
        missing.append("how many other requests were open then: they keep the engine busy as well")
    span = float(series.at[last] - when)
    spoken = f"running is {number(still)} {span:.0f} s after the client left"
    evidence = [
        Evidence(f"client left at {left.value}", str(left.place) or "form", left.name),
        Evidence(
            f"running {number(float(series.values[first]))} in the first reading after that",
            str(series.line_of(first)),
            "running",
            float(series.values[first]),
        ),
        Evidence(spoken, str(series.line_of(last)), "running", still),
    ]
    if tokens:
        evidence.append(
            Evidence(
                f"about {tokens:.0f} tokens were generated after the disconnect",
                str(rate.line_of(first)) if rate is not None else "",
                "wasted_tokens",
                round(tokens),
                "tokens",
            )
        )
    if open_ is not None:
        evidence.append(Evidence(f"client connections open at the end: {open_:g}", "form", "connections", open_))
    return cause.finding(
        statement=f"The engine keeps running the request of a client that has left: {spoken}"
        + (f", about {tokens:.0f} tokens for nobody" if tokens else "")
        + ". The disconnect is not passed on as an abort.",
        evidence=evidence,
        explains_ms=None,
        relation=f"running {number(was) if was is not None else '?'} before, {number(still)} {span:.0f} s after; 0 "
        "is right",
        n=int(going.size),
        advice=CANCEL_ADVICE,
        price=CANCEL_PRICE,
        verify=CANCEL_VERIFY,
        missing=missing,
        disproof_checked=[
            f"open connections {open_:g}" if open_ is not None else "other clients are not known",
            f"{going.size} of {after.size} later readings show running requests",
        ],
    )


def _when(left: Setting, series: Series) -> float | None:
    """The moment on the series' axis (s): a number as it is, a stamp without a year as if in 1970, as logs are read."""
    if series.axis != "time":
        return None
    if left.number is not None:
        return left.number
    found = _STAMP.search(str(left.value))
    if found is None or series.clock not in (Clock.LOCAL, Clock.UTC):
        return None
    first = float(series.at[0])
    year = int(found["year"]) if found["year"] and first > 366 * 86400 else 1970
    if not found["year"] and first > 366 * 86400:
        year = _year_of(first)
    second = float((found["second"] or "0").replace(",", "."))
    whole = calendar.timegm(
        (year, int(found["month"]), int(found["day"]), int(found["hour"]), int(found["minute"]), int(second), 0, 0, 0)
    )
    return whole + second - int(second)


def _year_of(seconds: float) -> int:
    year = 1970 + int(seconds // (365.2425 * 86400))
    return year if calendar.timegm((year, 1, 1, 0, 0, 0, 0, 0, 0)) <= seconds else year - 1
