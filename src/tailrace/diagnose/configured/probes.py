"""GW_PROBE_KILL from manifests: a liveness probe that a busy engine cannot answer in time ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["Probe", "liveness_probes", "probe_in_configuration"]

SHORT_MS: Final = 5_000.0
"""An engine that prefills a long prompt, or whose loop tokenises one, answers /health later than this now and then."""
SOON_MS: Final = 60_000.0
_NEEDS: Final = (
    "restarts beside the queue over time: a probe kills if they come while the queue is high, without a crash"
)
_HEALTH: Final = ("/health", "/v1/models", "/healthz", "/ping", "/")


class Probe(NamedTuple):
    """One liveness probe with its defaults."""

    scope: str
    path: str
    timeout_ms: float
    period_ms: float
    misses: float
    unset: list[str]
    place: str

    @property
    def detection_ms(self) -> float:
        """Misses x period: how long a container may be silent."""
        return self.misses * self.period_ms


def liveness_probes(observed: Observed, *, kind: str = "liveness") -> list[Probe]:
    """The probes of manifests: `liveness` restarts a container, `readiness` takes it out of the endpoints."""
    scopes: dict[str, dict[str, object]] = {}
    places: dict[str, str] = {}
    for item in observed.settings:
        if item.name.startswith(f"k8s.{kind}."):
            scopes.setdefault(item.scope, {})[item.name.rpartition(".")[2]] = item.value
            if item.name.endswith(".timeout"):
                places[item.scope] = str(item.place)
    out = []
    for scope, found in scopes.items():
        numbers = [found.get(name) for name in ("timeout", "period", "failure_threshold")]
        unset = found.get("unset")
        if all(isinstance(value, int | float) for value in numbers):
            timeout, period, misses = (float(value) for value in numbers if isinstance(value, int | float))
            names = [str(name) for name in unset] if isinstance(unset, list) else []
            out.append(Probe(scope, str(found.get("path", "")), timeout, period, misses, names, places.get(scope, "")))
    return out


def probe_in_configuration(cause: Cause, observed: Observed) -> Finding | None:
    """A probe shorter than the pauses that were seen, or so short that any pause passes it."""
    probes = [probe for probe in liveness_probes(observed) if probe.timeout_ms < SHORT_MS and _asks_health(probe)]
    if not probes:
        return None
    probe = min(probes, key=lambda one: (one.timeout_ms, one.detection_ms))
    pause = _longest_pause(observed)
    if pause is not None and pause[0] <= probe.timeout_ms:
        return None  # every pause that was seen is shorter: the probe is answered
    if pause is None and probe.detection_ms >= SOON_MS:
        return None
    default = " (Kubernetes' default: nothing sets it)" if "timeoutSeconds" in probe.unset else ""
    evidence = [
        Evidence(
            text=f"{probe.scope}: liveness probe {probe.path} has timeoutSeconds {probe.timeout_ms / 1e3:g}{default}",
            source=probe.place,
            name="k8s.liveness.timeout",
            value=probe.timeout_ms,
            unit="ms",
        ),
        Evidence(
            text=f"{probe.misses:g} misses x {probe.period_ms / 1e3:g} s = {probe.detection_ms / 1e3:g} s until a "
            "restart",
            source=probe.place,
            name="k8s.liveness.detection",
            value=probe.detection_ms,
            unit="ms",
        ),
    ]
    seen = ""
    if pause is not None:
        seen = f"; {pause[1]} was {pause[0] / 1e3:.3g} s"
        evidence.append(Evidence(f"{pause[1]} {pause[0] / 1e3:.3g} s", pause[2], "pause", round(pause[0], 3), "ms"))
    return cause.finding(
        statement=f"A busy engine may be killed: the liveness probe of {probe.scope} waits "
        f"{probe.timeout_ms / 1e3:g} s and "
        f"restarts the container after {probe.detection_ms / 1e3:g} s without an answer{seen}.",
        evidence=evidence,
        explains_ms=None,
        relation=f"{probe.misses:g} x {probe.period_ms / 1e3:g} = {probe.detection_ms / 1e3:g} s; timeout "
        f"{probe.timeout_ms / 1e3:g} s",
        n=len(probes),
        advice="Let liveness watch progress (the delta of an iteration or token counter) instead of /health, which a "
        "busy loop answers late and a hung engine may still answer; give it timeoutSeconds 10 or more and a longer "
        "failureThreshold, a startupProbe for the load of the model, and keep /health for readiness.",
        price="Real hangs are found later: watch the counter from outside meanwhile.",
        verify=(
            "tailrace diagnose series.csv  # restarts and waiting requests over the next day: "
            "restarts by Liveness stay 0 (kubectl describe pod)"
        ),
        missing=[_NEEDS],
        level=Level.SUSPECTED,
        action=Action.TUNE,
    )


def _asks_health(probe: Probe) -> bool:
    return (
        not probe.path
        or probe.path.split("?")[0].rstrip("/") in {path.rstrip("/") for path in _HEALTH}
        or ("curl" in probe.path or "wget" in probe.path)
    )


def _longest_pause(observed: Observed) -> tuple[float, str, str] | None:
    """(ms, what, where) of the longest time in which the engine answered nobody."""
    best: tuple[float, str, str] | None = None
    for name, words in (("health_rtt", "the slowest /health"), ("loop_lag", "the longest lag of the loop")):
        for series in observed.of_series(name):
            if len(series) and np.isfinite(series.values).any():
                at = int(np.nanargmax(series.values))
                value = float(series.values[at])
                if best is None or value > best[0]:
                    best = (value, words, str(series.line_of(at)))
    return best
