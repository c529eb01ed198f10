"""An engine's gauges after the time at which the client was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from tailrace.diagnose.arm_evidence.cancel_in_arms import BUSY, CANCEL_ADVICE, CANCEL_PRICE, CANCEL_VERIFY
from tailrace.diagnose.arm_evidence.client_left import client_left, passed_on
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.cause import layer_of
from tailrace.diagnose.observed import Observed, Series
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["GRACE_S", "cancel_in_series"]

GRACE_S: Final = 2.0
"""An abort takes up to a step of the engine and a print of its log."""


def cancel_in_series(cause: Cause, observed: Observed) -> Finding | None:
    """`running` above 0 (or, without it, a busy GPU) in readings more than 2 s after the client left."""
    series = next((item for item in observed.of_series("running") if len(item)), None)
    if series is None:
        return _device_alone(cause, observed)
    left = client_left(observed, series)
    if left is None:
        return None
    when = left.at
    after = np.flatnonzero(series.at > when + GRACE_S)
    going = after[np.nan_to_num(series.values[after]) > 0]
    if not going.size:
        return None
    first, last = int(going[0]), int(going[-1])
    before = np.flatnonzero(series.at <= when)
    was = float(series.values[before[-1]]) if before.size else None
    still = float(series.values[last])
    dropped = was is not None and float(np.nanmax(series.values[after])) < was
    told = passed_on(observed, left, 0.0 if was is None else was - float(np.nanmax(series.values[after])))
    if told and was is not None:
        return _others(cause, observed, told, was, still)
    rate = next((item for item in observed.of_series("output_tok_s") if len(item) == len(series)), None)
    made = _counted(observed, series) if when == float("-inf") else None
    tokens = (
        made[0]
        if made is not None
        else float(np.nansum(rate.values[going] * np.gradient(series.at)[going]))
        if rate is not None and len(series) > 1
        else None
    )
    behind = _waiting_behind(observed)
    open_ = observed.number("client_connections_open_at_end")
    missing = []
    others = still > 1 and open_ is None and left.name != "event"
    if others or dropped:
        missing.append("how many other requests were open then: they keep the engine busy as well")
    span = float(series.at[last] - when) if when > float("-inf") else made[1] if made is not None else 0.0
    later = f"{span:.0f} s" if span else f"{len(series)} readings"
    spoken = f"running is {number(still)} {later} after the client left"
    if made is not None and made[1]:
        spoken += f", and {made[2]} counts {made[0]:.0f} tokens meanwhile ({made[0] / made[1]:.1f} tok/s)"
    evidence = [
        Evidence(left.words, left.source, left.name),
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
                str(rate.line_of(first)) if rate is not None else str(series.place),
                "wasted_tokens",
                round(tokens),
                "tokens",
            )
        )
    if behind:
        evidence.append(Evidence(f"{number(behind)} others wait behind it", str(series.place), "waiting", behind))
    if open_ is not None:
        evidence.append(Evidence(f"client connections open at the end: {open_:g}", "form", "connections", open_))
    return cause.finding(
        statement=f"The engine keeps running the request of a client that has left: {spoken}"
        + (f", about {tokens:.0f} tokens for nobody" if tokens else "")
        + (f"; {number(behind)} others wait behind it" if behind else "")
        + ". The disconnect is not passed on as an abort.",
        evidence=evidence,
        explains_ms=None,
        relation=(f"running {number(was)} before, " if was is not None else "running ")
        + f"{number(still)} {later} after; 0 is right",
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


def _counted(observed: Observed, series: Series) -> tuple[float, float, str] | None:
    """(tokens that the engine's counter counted over all windows, their seconds or 0, its name)."""
    windows = [item for item in observed.of_counter("output_tokens") if item.delta is not None]
    made = sum(item.delta or 0.0 for item in windows)
    if not made:
        return None
    stated = observed.number("window_s", "scrape_interval_s", "interval_s") or 0.0
    # A form states the distance of two scrapes; three of them are two windows.
    seconds = sum(item.window_s or stated for item in windows)
    if seconds and len(windows) > len(series):
        seconds = stated * max(len(series) - 1, 1)
    return made, seconds, windows[0].raw or "the counter"


def _waiting_behind(observed: Observed) -> float:
    waits = next((item for item in observed.of_series("waiting") if len(item)), None)
    return 0.0 if waits is None else float(np.nan_to_num(waits.values[-1]))


def _others(cause: Cause, observed: Observed, told: str, was: float, still: float) -> Finding:
    """The cancel was passed on, and other work keeps the engine busy: no verdict on whatever is slow."""
    del observed
    found = cause.insufficient(
        f"what is slow: the cancel did reach the engine ({told}; running {number(was)} -> {number(still)}), and the "
        f"other {number(still)} requests keep the GPU busy, which utilisation alone cannot tell apart",
        "stamps per request (its id, when the client left, when the engine aborted or finished it), to see a cancel "
        "that was lost",
    )
    return msgspec.structs.replace(found, code="INSUFFICIENT_EVIDENCE", layer=layer_of("INSUFFICIENT_EVIDENCE"))


def _device_alone(cause: Cause, observed: Observed) -> Finding | None:
    """No gauge of the engine: a device that stays busy after the only client left."""
    used = next((item for item in observed.of_series("gpu_util") if len(item)), None)
    left = None if used is None else client_left(observed, used)
    if used is None or left is None:
        return None
    after = np.flatnonzero(used.at > left.at + GRACE_S)
    busy = after[np.nan_to_num(used.values[after]) > BUSY]
    if not busy.size or busy.size < after.size:
        return None
    last = int(busy[-1])
    low = float(np.nanmin(used.values[busy]))
    span = float(used.at[last] - left.at)
    open_ = observed.number("client_connections_open_at_end")
    missing = [] if open_ == 0 else ["whether other requests were open then: they keep the GPU busy as well"]
    spoken = f"GPU utilisation is still {number(low, 'share')} or more {span:.0f} s after the client left"
    return cause.finding(
        statement=f"The engine goes on for a client that has left: {spoken}. The disconnect is not passed on as an "
        "abort, and the answer is computed for nobody.",
        evidence=[
            Evidence(left.words, left.source, left.name),
            Evidence(spoken, str(used.line_of(last)), "gpu_util", float(used.values[last]), "share"),
            *([] if open_ is None else [Evidence(f"client connections open at the end: {open_:g}", "form")]),
        ],
        explains_ms=None,
        relation=f"GPU {number(low, 'share')} {span:.0f} s after the disconnect; about 0 within 1 s is right",
        n=int(busy.size),
        advice=CANCEL_ADVICE,
        price=CANCEL_PRICE,
        verify=CANCEL_VERIFY,
        missing=missing,
        disproof_checked=["no other client is connected"] if open_ == 0 else [],
    )
