"""CANCEL_NOT_PROPAGATED from two gauges: nobody is connected any more, and the engine goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arm_evidence.cancel_in_arms import CANCEL_ADVICE, CANCEL_PRICE, CANCEL_VERIFY
from tailrace.diagnose.arm_evidence.cancel_in_series import GRACE_S
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Observed, Series
from tailrace.diagnose.series_evidence.shared_gaps import at_times
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["cancel_by_flights"]

LEAST: Final = 2


def cancel_by_flights(cause: Cause, observed: Observed) -> Finding | None:
    """In flight at the client 0 for more than 2 s while running stays above 0 and does not fall."""
    client = _one(observed, "inflight_client") or _one(observed, "connections_open")
    running = _one(observed, "running")
    if client is None or running is None or client.axis != "time" or running.axis != "time":
        return None
    held = at_times(running, client)
    gone = np.flatnonzero((client.values <= 0) & (held > 0))
    before = np.flatnonzero(client.values > 0)
    if gone.size < LEAST or not before.size:
        return None
    left = gone[gone > before[-1]]
    if left.size < LEAST:
        return None
    seconds = float(client.at[left[-1]] - client.at[left[0]])
    still, was = float(held[left[-1]]), float(held[before[-1]])
    if seconds <= GRACE_S or still < 0.5 * was:
        return None
    used = _one(observed, "gpu_util")
    busy = None if used is None else float(at_times(used, client)[left[-1]])
    last = int(left[-1])
    return cause.finding(
        statement=f"The engine keeps running requests of clients that have left: {number(still)} run {seconds:.0f} s "
        "after the last client connection closed (0 in flight)"
        + (f", and the GPU is busy {busy:.0%}" if busy is not None else "")
        + ". The disconnect is not passed on as an abort.",
        evidence=[
            Evidence(f"in flight at the clients {number(was)} before, 0 since", str(client.line_of(int(left[0])))),
            Evidence(f"running {number(still)} {seconds:.0f} s later", str(client.line_of(last)), "running", still),
            *(
                [Evidence(f"GPU utilisation {busy:.0%} then", str(client.line_of(last)), "gpu_util", busy)]
                if busy is not None
                else []
            ),
        ],
        explains_ms=None,
        relation=f"running {number(was)} before, {number(still)} {seconds:.0f} s after; 0 is right after "
        f"{GRACE_S:.0f} s",
        n=int(left.size),
        advice=CANCEL_ADVICE,
        price=CANCEL_PRICE,
        verify=CANCEL_VERIFY,
        missing=[],
        disproof_checked=["no client is in flight, so no other work keeps it busy, unless others use this engine"],
    )


def _one(observed: Observed, name: str) -> Series | None:
    return next((item for item in observed.of_series(name) if len(item) >= 3), None)
