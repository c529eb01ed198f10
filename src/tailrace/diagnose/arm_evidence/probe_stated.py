"""GW_PROBE_KILL from a form: restarts, how long the probe's page took, when the probe gives up, and no error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.asked import number_stated
from tailrace.diagnose.arms.shown import evidence_of_setting
from tailrace.diagnose.configured.probes import liveness_probes
from tailrace.diagnose.observed import Observed, Setting
from tailrace.diagnose.observed.vocabulary import in_unit, unit_in_name
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["probe_stated"]

_RESTARTS: Final = r"restart|kills?\b|killed|evict|not ready|unready"
_TRIP: Final = r"health(?:z| check)?\b.*(?:rtt|p\d\d|max|latency|ms|s)$|^health|probe (?:rtt|latency|took|response)"
_TIMEOUT: Final = r"(?:probe|liveness|readiness|health(?: check)?).*(?:timeout|deadline)"
_PERIOD: Final = r"(?:probe|liveness|readiness).*period|^period(?: seconds| s)?$"
_MISSES: Final = r"failure threshold|misses|failures before restart"
_ERRORS: Final = r"errors?\b|crash|\boom\b"
_QUEUE: Final = r"waiting|queue(?!.*(?:ms|time))|pending"


def probe_stated(cause: Cause, observed: Observed) -> Finding | None:
    """Restarts while the probe's page takes longer than the probe waits; not with an error or a crash beside them."""
    restarts, trip = number_stated(observed, _RESTARTS), number_stated(observed, _TRIP)
    if restarts is None or not restarts.number or trip is None or "timeout" in trip.name:
        return None
    took = _ms(trip)
    timeout, given = _timeout(observed)
    errors = number_stated(observed, _ERRORS)
    if took is None or timeout is None or took <= timeout or (errors is not None and errors.number):
        return None
    queue = number_stated(observed, _QUEUE)
    missing = ["restarts beside the queue over time: a probe kills if they come while the queue is high"]
    if errors is None:
        missing.append("errors, crashes and out-of-memory kills of the engine before each restart")
    period, misses = number_stated(observed, _PERIOD), number_stated(observed, _MISSES)
    detection = ""
    if period is not None and misses is not None and period.number and misses.number:
        each = _ms(period) or period.number * 1e3
        detection = (
            f"; {misses.number:g} misses x {each / 1e3:g} s = {misses.number * each / 1e3:g} s until it is killed"
        )
    shown = [item for item in (restarts, trip, given, queue, errors, period, misses) if item is not None]
    return cause.finding(
        statement=f"A probe may kill engines that are busy: its page took {took / 1e3:.3g} s, the probe gives up after "
        f"{timeout / 1e3:g} s, and there were {restarts.number:g} restarts"
        + (" without an error." if errors is not None else "."),
        evidence=[
            *(evidence_of_setting(item) for item in shown),
            Evidence(f"{took / 1e3:.3g} s > {timeout / 1e3:g} s{detection}", str(trip.place) or "form"),
        ],
        explains_ms=None,
        relation=f"{took / 1e3:.3g} s > {timeout / 1e3:g} s{detection}",
        n=int(restarts.number),
        advice="Let liveness watch progress (the delta of an iteration or token counter) instead of a page that waits "
        "behind requests; until then raise timeoutSeconds and failureThreshold x periodSeconds above the longest busy "
        "pause.",
        price="Real hangs are found later: watch the counter from outside meanwhile.",
        verify="tailrace diagnose series.csv  # restarts, waiting and /health over the next day",
        missing=missing,
        disproof_checked=["no error is stated"] if errors is None else ["errors are stated to be 0"],
        action=Action.FIX,
        level=Level.SUSPECTED,
    )


def _timeout(observed: Observed) -> tuple[float | None, Setting | None]:
    stated = number_stated(observed, _TIMEOUT)
    if stated is not None:
        return _ms(stated), stated
    probe = next(iter(liveness_probes(observed)), None)
    return (None if probe is None else probe.timeout_ms), None


def _ms(item: Setting) -> float | None:
    unit = item.unit or unit_in_name(item.name)[1] or "s"
    return None if item.number is None else in_unit(item.number, unit, "ms")
