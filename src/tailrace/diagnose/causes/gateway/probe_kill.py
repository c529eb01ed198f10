"""GW_PROBE_KILL: a health probe restarts engines that are busy, not dead."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arm_evidence.probe_stated import probe_stated
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.configured.probes import Probe, liveness_probes
from tailrace.diagnose.log_evidence.probe_events import probe_in_events
from tailrace.diagnose.observed import Observed, Series
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["ProbeKill"]

Floats = NDArray[np.float64]
QUEUED: Final = 2.0
"""A restart counts as one under load if so many times the usual number waits there."""
MOST: Final = 0.7
"""Share of the restarts that must lie under load."""


class _Restarts(NamedTuple):
    """Moments at which an engine was restarted (or left the endpoints)."""

    series: Series
    rows: list[int]
    """Places in the series of the first reading after each."""
    total: int
    words: str
    kind: str = "liveness"
    """The probe that does it."""


class ProbeKill(Cause):
    """Restarts come while the queue is long and the probe's path is slow, and no error goes before them."""

    code: ClassVar[str] = "GW_PROBE_KILL"
    stage: ClassVar[str] = "ingress"
    needs: ClassVar[tuple[str, ...]] = (
        "restarts and waiting requests over time",
        "the probe's timeout and how long its path took",
        "errors of the engine",
    )
    disproof: ClassVar[str] = "An error, a crash or an out-of-memory kill is logged before the restart."
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """From series, else from the events of Kubernetes."""
        return surest([self._in_series(observed), probe_in_events(self, observed), probe_stated(self, observed)])

    def _in_series(self, observed: Observed) -> Finding | None:
        """Restarts that coincide with load and a slow probe, and with no error."""
        found = _restarts(observed)
        if found is None:
            return None
        load = _load(observed, found)
        if load is None or load[2] < MOST:
            return None
        errors = _errors(observed)
        if errors is not None and errors[0] > 0:
            return None
        timeout = _timeout_s(observed, found.kind)
        rtt = _slow_probe(observed, found)
        if rtt is not None and timeout is not None and rtt[0] / 1e3 < timeout[0]:
            return None  # the probe was answered in time: it did not do it
        missing = []
        if errors is None:
            missing.append("errors, crashes and out-of-memory kills of the engine before each restart")
        if timeout is None:
            missing.append("the probe's timeout (k8s: timeoutSeconds, 1 s where it is not set)")
        if rtt is None:
            missing.append("how long the probe's path (/health) took at the restarts")
        return self._found(observed, found, load, errors, timeout, rtt, missing)

    def _found(
        self,
        observed: Observed,
        found: _Restarts,
        load: tuple[float, float, float, str],
        errors: tuple[float, str] | None,
        timeout: tuple[float, str] | None,
        rtt: tuple[float, str] | None,
        missing: list[str],
    ) -> Finding:
        at, usual, share, name = load
        detection = _detection(observed, found.kind)
        hits = round(share * len(found.rows))
        path = observed.text("probe_path", "liveness_path", "livenessProbe.path", "k8s.liveness.path") or "/health"
        evidence = [
            Evidence(
                text=f"{found.total} {found.words}; {hits} of {len(found.rows)} under load",
                source=str(found.series.line_of(found.rows[-1])),
                name="restarts",
                value=float(found.total),
            ),
            Evidence(
                text=f"{name} at those: {at:.0f}, otherwise {usual:.0f} (median)",
                source=str(found.series.line_of(found.rows[0])),
                name=name,
                value=at,
            ),
        ]
        parts = [f"{hits} of {len(found.rows)} {found.words} fall where {name} is {at:.0f} (otherwise {usual:.0f})"]
        if rtt is not None:
            evidence.append(
                Evidence(
                    text=f"the probe's path took {rtt[0] / 1e3:.3g} s there",
                    source=rtt[1],
                    name="health_rtt",
                    value=rtt[0],
                    unit="ms",
                )
            )
        if timeout is not None:
            evidence.append(
                Evidence(
                    text=f"the probe of {path} gives up after {timeout[0]:g} s",
                    source=timeout[1],
                    name="probe_timeout",
                    value=timeout[0],
                    unit="s",
                )
            )
        if rtt is not None and timeout is not None:
            parts.append(f"{rtt[0] / 1e3:.3g} s > {timeout[0]:g} s")
        if detection is not None:
            parts.append(detection.text)
        if errors is not None:
            evidence.append(
                Evidence(text="0 errors of the engine were counted", source=errors[1], name="engine_errors", value=0.0)
            )
            parts.append("errors 0")
        progress = _progress(observed, found)
        if progress is not None:
            evidence.append(progress)
        evidence += [detection] if detection else []
        probe = f"; {path} then takes {rtt[0] / 1e3:.3g} s" if rtt is not None else ""
        gone = "takes busy engines out" if found.kind == "readiness" else "kills engines that are busy"
        limit = f", and the probe gives up after {timeout[0]:g} s" if timeout is not None else ""
        return self.finding(
            statement=f"A {found.kind} probe of {path} {gone}: {hits} of {len(found.rows)} {found.words} "
            "fall where "
            f"{name} is {at:.0f} (otherwise {usual:.0f}){probe}{limit}.",
            evidence=evidence,
            explains_ms=None,
            relation="; ".join(parts),
            n=found.total,
            advice="Let liveness look at progress, not at a page that waits behind requests: restart only when the "
            "counter "
            "of iterations (or of tokens) has stood still for a minute while requests run. Until then raise "
            "timeoutSeconds "
            "and failureThreshold x periodSeconds above the longest busy pause, keep readiness apart from liveness, "
            "and "
            "give start-up its own startupProbe.",
            price="Real hangs are seen later: failureThreshold x periodSeconds of the longer probe; progress as "
            "liveness "
            "needs a small exporter.",
            verify=(
                "tailrace diagnose series.csv  # over the next day: restarts stay 0 under the same queue "
                "(kubectl get pods -w)"
            ),
            missing=missing,
            disproof_checked=["no error was counted before the restarts" if errors is not None else "errors not known"],
            level=Level.SUSPECTED if missing else Level.CONSISTENT,
        )


def _restarts(observed: Observed) -> _Restarts | None:
    for series in observed.of_series("restarts_total"):
        rises = np.flatnonzero(np.diff(np.nan_to_num(series.values, nan=0.0)) > 0) + 1
        if rises.size:
            total = int(np.nansum(np.maximum(np.diff(series.values), 0)))
            return _Restarts(series, [int(row) for row in rises], total, "restarts")
    for series in observed.of_series("ready_endpoints"):
        falls = np.flatnonzero(np.diff(series.values) < 0) + 1
        if falls.size:
            return _Restarts(series, [int(row) for row in falls], int(falls.size), "losses of an endpoint", "readiness")
    return None


def _load(observed: Observed, found: _Restarts) -> tuple[float, float, float, str] | None:
    """(median of what waits at the restarts, elsewhere, share of restarts under load, its name)."""
    for name in ("waiting", "running", "inflight_client"):
        for series in observed.of_series(name):
            values = _along(series, found.series)
            if values is None:
                continue
            # The queue that made the probe late may be seen at the restart's own reading or at the one before it.
            near = np.array([np.nanmax(values[max(row - 1, 0) : row + 1]) for row in found.rows])
            around = np.zeros(values.size, dtype=bool)
            for row in found.rows:
                peak = row if values[row] >= values[max(row - 1, 0)] else row - 1
                around[peak] = True
            # Endpoints that are gone do not take the queue with them: what is usual shows while all are there.
            full = found.series.values >= np.nanmax(found.series.values) if found.kind == "readiness" else ~around
            rest = values[~around & full & np.isfinite(values)]
            if not rest.size or not np.isfinite(near).any():
                continue
            usual = float(np.median(rest))
            high = near > QUEUED * max(usual, 1.0)
            if high.any():
                return float(np.median(near[high])), usual, float(high.mean()), name
    return None


def _along(series: Series, other: Series) -> Floats | None:
    """The values of one series at the places of another; `None` where they do not share an axis."""
    if series.axis != other.axis or len(series) < 2:
        return None
    if series.at.shape == other.at.shape and bool(np.array_equal(series.at, other.at)):
        return series.values
    known = np.isfinite(series.values)
    if not known.any():
        return None
    at: Floats = np.interp(other.at, series.at[known], series.values[known])
    return at


def _errors(observed: Observed) -> tuple[float, str] | None:
    """(errors counted, where) from a series, else from events of crashes."""
    for series in (*observed.of_series("engine_errors_total"), *observed.of_series("failed")):
        rises = np.diff(series.values)
        return float(np.nansum(np.maximum(rises, 0))), str(series.line_of(len(series) - 1))
    crashes = [event for event in observed.events if event.kind in ("error", "crash", "oom")]
    return (float(len(crashes)), str(crashes[0].place)) if crashes else None


def _timeout_s(observed: Observed, kind: str) -> tuple[float, str] | None:
    for probe in _of_kind(observed, kind):
        return probe.timeout_ms / 1e3, probe.place
    for name in ("probe_timeout_s", "probe_deadline_s", "liveness_timeout_s", "livenessProbe.timeoutSeconds"):
        found = observed.setting(name)
        if found is not None and found.number is not None:
            return found.number, str(found.place)
    for setting in observed.settings:
        low = setting.name.lower()
        if "probe" in low and "timeout" in low and setting.number is not None:
            return setting.number / (1e3 if low.endswith("_ms") else 1.0), str(setting.place)
    return None


def _slow_probe(observed: Observed, found: _Restarts) -> tuple[float, str] | None:
    """Median of the probe's round trip at the restarts (ms)."""
    for series in observed.of_series("health_rtt"):
        values = _along(series, found.series)
        scale = in_unit(1.0, series.unit or "ms", "ms")
        if values is None or scale is None:
            continue
        values = values * scale
        near = [float(np.nanmax(values[max(row - 1, 0) : row + 1])) for row in found.rows]
        return float(np.median(near)), str(series.line_of(min(found.rows[0], len(series) - 1)))
    return None


def _progress(observed: Observed, found: _Restarts) -> Evidence | None:
    """Whether the engine still counted before it was killed."""
    for series in observed.of_series("iterations_total"):
        values = _along(series, found.series)
        if values is None:
            continue
        before = [values[row - 1] - values[row - 2] for row in found.rows if row >= 2]
        moved = [delta for delta in before if np.isfinite(delta) and delta > 0]
        if before:
            return Evidence(
                text=f"before {len(moved)} of {len(before)} of them its iterations still rose (progress, no hang)",
                source=str(series.line_of(found.rows[0] - 1)),
                name="iterations",
                value=float(len(moved)),
            )
    return None


def _of_kind(observed: Observed, kind: str) -> list[Probe]:
    """The probes of that kind; where a manifest has none, a liveness probe that ends the container may do it."""
    return liveness_probes(observed, kind=kind) or liveness_probes(observed)


def _detection(observed: Observed, kind: str) -> Evidence | None:
    source = "setting"
    period = observed.number("probe_period_s", "period_s", "livenessProbe.periodSeconds")
    misses = observed.number("probe_misses", "failure_threshold", "livenessProbe.failureThreshold")
    for probe in _of_kind(observed, kind):
        period, misses, source = probe.period_ms / 1e3, probe.misses, probe.place
    if period is None or misses is None:
        return None
    return Evidence(
        text=f"{misses:g} misses x {period:g} s = {misses * period:g} s until it is "
        + ("taken out of the endpoints" if kind == "readiness" else "killed"),
        source=source,
        name="detection",
        value=misses * period,
        unit="s",
    )
