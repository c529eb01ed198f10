"""RETRY_STORM: failed requests come again and again, and the repeats are part of what makes them fail."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import among
from tailrace.analyze.timebase import starts_ns
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding

__all__ = ["AMPLIFIED", "RISING", "retries_in_records"]

Floats = NDArray[np.float64]
AMPLIFIED: Final = 1.2
"""Attempts a request from which repeats are a load of their own."""
RISING: Final = 1.1
"""So many times more attempts where, or when, more fails."""
LEAST: Final = 50


def retries_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Amplification of the window, and whether it goes with errors."""
    window = evidence.now
    if len(window.every) < LEAST:
        return None
    attempts, of_clients = _attempts(window)
    ratio = float(attempts.sum()) / max(float(attempts.size), 1.0)
    if ratio <= AMPLIFIED:
        return None
    failed = 1.0 - window.n / max(len(window.every), 1)
    waited = np.nan_to_num(window.done.ms("retry_wait"), nan=0.0)
    explains = window.explain(cause.code, waited)
    earlier = evidence.before
    old = None
    if earlier is not None and len(earlier.every) >= LEAST:
        before = _attempts(earlier)[0]
        old = float(before.sum()) / max(float(before.size), 1.0)
    with_errors, words = _with_errors(window, attempts, of_clients=of_clients)
    rising = old is not None and ratio > RISING * old
    if old is not None and not rising:
        return None
    missing = [] if rising or with_errors else ["whether the attempts rise with the errors (a window from before)"]
    who = "clients send" if of_clients else "the gateway makes"
    return cause.finding(
        statement=f"Requests are repeated: {who} {ratio:.2f} attempts for each request, so {ratio - 1:.0%} of the "
        "load is repeats.",
        evidence=[
            Evidence(
                f"{int(attempts.sum())} attempts for {attempts.size} requests: {ratio:.2f} each"
                + (f", {old:.2f} before" if old is not None else ""),
                "record:client_request_id" if of_clients else "record:attempts",
                "amplification",
                round(ratio, 4),
            ),
            Evidence(f"{failed:.1%} of the requests did not complete", "record:outcome", "failed", round(failed, 4)),
            Evidence(
                f"the repeats are {ratio - 1:.0%} of the requests that clients wanted",
                "record:attempts",
                "extra",
                round(ratio - 1, 4),
            ),
            *([Evidence(words, "record:attempts, record:start", "with_errors")] if words else []),
            *(
                [
                    Evidence(
                        f"failed attempts and pauses took {explains:.0f} ms of the slowest requests",
                        "record:retry_wait_ns",
                        "explains_ms",
                        round(explains, 1),
                        "ms",
                    )
                ]
                if explains > 1.0
                else []
            ),
        ],
        explains_ms=explains if explains > 1.0 else window.tail_lost_ms * (1.0 - 1.0 / ratio),
        relation=f"attempts / client requests = {attempts.sum():.0f} / {attempts.size} = {ratio:.2f} > {AMPLIFIED}",
        n=int(attempts.size),
        advice="Give retries a budget (at most a tenth of the requests), backoff with jitter, and none at all "
        "after "
        "a timeout of a request that the engine may still compute; answer overload with 429 and Retry-After. Then "
        "find what failed first: the repeats only multiply it.",
        price="Some requests fail at once that a retry would have saved.",
        verify=evidence.verify_command,
        missing=missing,
        disproof_checked=[words] if words else [],
    )


def _attempts(window: Window) -> tuple[Floats, bool]:
    """(attempts of each request that a client wanted, whether clients repeated it themselves)."""
    every = window.every
    own = np.maximum(every.column("attempts").astype(np.float64), 1.0 + every.column("retries").astype(np.float64))
    named = ~among(every.column("client_request_id"), {""})
    if named.any():
        ids = every.column("client_request_id").astype(str)
        _, place = np.unique(ids[named], return_inverse=True)
        theirs = np.bincount(place, weights=own[named])
        if (theirs.size and float((theirs > own[named].max()).mean()) > 0) or float(theirs.mean()) > float(
            own[named].mean()
        ):
            return np.concatenate([theirs, own[~named]]), True
    return own, False


def _with_errors(window: Window, attempts: Floats, *, of_clients: bool) -> tuple[bool, str]:
    """Whether more is repeated where more fails: by tenths of the window."""
    every = window.every
    if of_clients or len(every) < 10 * 5:
        repeated = int((attempts > 1).sum())
        return of_clients and repeated >= 5, f"{repeated} requests were sent more than once" if of_clients else ""
    start = starts_ns(every)
    tenth = np.minimum((start * 10 // max(int(start.max()), 1)), 9)
    tries = np.array([float(attempts[tenth == i].mean()) if (tenth == i).any() else np.nan for i in range(10)])
    busy = ~np.isnan(tries)
    low, high = float(np.nanmin(tries)), float(np.nanmax(tries))
    if busy.sum() < 5 or high <= RISING * low:
        return False, ""
    return True, f"attempts a request range from {low:.2f} to {high:.2f} between tenths of the window"
