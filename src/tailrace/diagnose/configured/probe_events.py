"""GW_PROBE_KILL from a cluster's events: containers that a probe ended, and what was in their queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.configured.probes import liveness_probes
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["probe_kill_in_events"]

_SHOWN: Final = 4


def probe_kill_in_events(cause: Cause, observed: Observed) -> Finding | None:
    """A restart that names its probe, no crash before it, and requests that ran or waited."""
    kills = [event for event in observed.of_kind("restart") if "liveness" in str(event.attributes.get("by", ""))]
    misses = [event for event in observed.of_kind("probe_failed") if event.attributes.get("probe") == "liveness"]
    if not kills or observed.of_kind("died"):
        return None
    waiting, running = (_most(observed, name) for name in ("waiting", "running"))
    probes = liveness_probes(observed)
    missing = []
    if waiting is None and running is None:
        missing.append("running and waiting requests before the restart: a probe kills a busy engine, or a dead one")
    if not probes:
        missing.append("the probe's timeout (k8s: timeoutSeconds, 1 s where it is not set)")
    busy = " and ".join(
        f"{value[0]:g} {word}" for value, word in ((running, "run"), (waiting, "wait")) if value is not None
    )
    late = f" after {len(misses)} probes that were not answered in time" if misses else ""
    load = f" while {busy}" if busy else ""
    return cause.finding(
        statement=f"The liveness probe ended {len(kills)} container{'s' if len(kills) > 1 else ''}{late}{load}, and no "
        "crash is told: a busy engine answers /health late, and is killed for it.",
        evidence=[
            *(Evidence(event.text, str(event.place), event.kind) for event in (*misses[:_SHOWN], *kills[:_SHOWN])),
            *(
                Evidence(f"{name} {value[0]:g}", value[1], name, value[0])
                for name, value in (("running", running), ("waiting", waiting))
                if value is not None
            ),
            *(
                Evidence(f"liveness probe: timeout {one.timeout_ms / 1e3:g} s, {one.misses:g} misses", one.place)
                for one in probes[:1]
            ),
        ],
        explains_ms=None,
        relation=f"{len(misses)} missed probes -> {len(kills)} restart{'s' if len(kills) > 1 else ''}"
        + (f" with waiting {waiting[0]:g}" if waiting is not None else ""),
        n=len(kills),
        advice="Judge liveness by progress (the delta of an iteration or token counter), not by /health: a stalled "
        "engine answers it, a busy one does not. Until then a longer timeoutSeconds and more misses, and shed what the "
        "engine cannot queue.",
        price="A longer probe finds real hangs later.",
        verify="tailrace bench http://localhost:8000 --rate 5 --duration 120  # kubectl get events: none is Unhealthy",
        missing=missing,
        disproof_checked=["no crash or out-of-memory kill is told"],
    )


def _most(observed: Observed, name: str) -> tuple[float, str] | None:
    found = [item for item in observed.of_series(name) if len(item) and np.isfinite(item.values).any()]
    if not found:
        return None
    best = max(found, key=lambda item: float(np.nanmax(item.values)))
    row = int(np.nanargmax(best.values))
    return float(best.values[row]), str(best.line_of(row))
