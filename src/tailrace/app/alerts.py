"""Objectives in danger: looked at every few seconds over all workers, told with the diagnosis attached."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Any, Final

import msgspec

from tailrace.app.alert_delivery import Delivery
from tailrace.app.alert_past import AlertPast
from tailrace.app.live_diagnosis import LiveDiagnosis
from tailrace.export.alert_payloads import Said, tailrace_form
from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.alert_keys import AlertsConfig
from tailrace.gateway.served import Served
from tailrace.govern.burn_rate import Alarms, Alert, State
from tailrace.model.errors import TailraceError

__all__ = ["AlertDesk"]

log = logging.getLogger(__name__)

_RECENT: Final = 64
_AGAIN_NS: Final = 60_000_000_000
"""Alertmanager forgets an alert that nobody repeats (after 5 minutes by default)."""
_GOOD_FOR_NS: Final = 5 * _AGAIN_NS


class AlertDesk:
    """Asks the lanes, judges, has the cause looked for, tells."""

    def __init__(self, served: Served, diagnosis: LiveDiagnosis, address: Callable[[], str]) -> None:
        """`address`: of the admin port, once it is bound: who says so."""
        self._served = served
        self._diagnosis = diagnosis
        self._address = address
        self._alarms = Alarms(served.config.alerts.policy())
        self._keys: AlertsConfig | None = None
        self._deliveries: list[Delivery] = []
        self._sending: list[asyncio.Task[None]] = []
        self._why: dict[str, dict[str, Any] | None] = {}
        """Alert -> the diagnosis of when it began."""
        self._past = AlertPast()
        self._repeated = 0
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self.begun: Counter[tuple[str, str, str]] = Counter()
        """(lane, objective, severity) -> alerts that began."""

    async def run(self) -> None:
        """Look, until cancelled; whatever goes wrong once must not end the watch."""
        try:
            await self._read_past()
            while True:
                keys = self._served.config.alerts
                try:
                    self._follow(keys)
                    self._diagnosis.note_engine()
                    await self.look(monotonic_ns())
                except Exception:
                    log.exception("the objectives could not be looked at")
                await asyncio.sleep(int(keys.every) / 1e9)
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    async def _read_past(self) -> None:
        """The windows begin with what the records of before say."""
        config = self._served.config
        if not config.alerts.enabled:
            return
        longest = max(self._alarms.policy.windows().values(), default=0)
        try:
            await asyncio.to_thread(self._past.read, config.records.dir, config.lane_bounds(), longest)
        except Exception:
            log.exception("what was before this start could not be counted")

    def _follow(self, keys: AlertsConfig) -> None:
        """The configuration may have changed."""
        if keys is self._keys:
            return
        self._keys = keys
        self._alarms.policy = keys.policy()
        known = list(zip(self._deliveries, self._sending, strict=True))
        self._deliveries, self._sending = [], []
        for receiver in keys.receivers:
            found = next((one for one in known if one[0].receiver == receiver), None)
            if found is None:
                delivery = Delivery(receiver)
                self._catch_up(delivery)
                found = delivery, asyncio.ensure_future(delivery.run())
            else:
                known.remove(found)
            self._deliveries.append(found[0])
            self._sending.append(found[1])
        for _, task in known:
            task.cancel()

    def _catch_up(self, delivery: Delivery) -> None:
        """A receiver that comes while something fires hears of it; else its first word would be that it is over."""
        now = monotonic_ns()
        for one in self._alarms.firing:
            delivery.offer(self._said(one, now, self._why.get(one.key)))

    async def look(self, now: int) -> None:
        """Once."""
        config = self._served.config
        if config.alerts.enabled:
            lanes = await self._served.lanes()
            missed = {lane: view["missed"] for lane, view in lanes.items() if view.get("missed")}
            bounds, windows = config.lane_bounds(), self._alarms.policy.windows()
            changes = self._alarms.judge(self._past.joined(missed, bounds, windows, now), bounds, now)
        else:
            changes = self._alarms.judge({}, {}, now)
        fresh = [one for one in changes if one.state is State.FIRING]
        why = await self._cause(fresh) if fresh else None
        for one in changes:
            if one.state is State.FIRING:
                self.begun[one.lane, one.objective, one.severity] += 1
                self._why[one.key] = why
                self._tell(one, now, why)
            else:
                self._tell(one, now, self._why.pop(one.key, None))
        if now - self._repeated >= _AGAIN_NS:
            self._repeated = now
            for one in self._alarms.firing:
                said = self._said(one, now, self._why.get(one.key))
                for delivery in self._deliveries:
                    if delivery.receiver.form == "alertmanager":
                        delivery.offer(said)

    async def _cause(self, fresh: list[Alert]) -> dict[str, Any] | None:
        # An alarm without its cause is better than none.
        with contextlib.suppress(TailraceError):  # it is counted, and said in `/diagnosis`
            try:
                return await self._diagnosis.of_window(f"alert {fresh[0].key}")
            except TailraceError:
                raise
            except Exception:
                log.exception("the cause of an alarm could not be looked for")
        return None

    def _said(self, alert: Alert, now: int, why: dict[str, Any] | None) -> Said:
        wall = time_ns()
        return Said(
            alert=alert,
            began_unix_ns=wall - (now - alert.began_ns),
            until_unix_ns=wall if alert.state is State.RESOLVED else wall + _GOOD_FOR_NS,
            gateway=self._address(),
            diagnosis=why,
        )

    def _tell(self, alert: Alert, now: int, why: dict[str, Any] | None) -> None:
        said = self._said(alert, now, why)
        plain = tailrace_form(said)
        first = next(iter((why or {}).get("findings", [])), None)
        plain["diagnosis"] = None if why is None else {"summary": why["summary"], "code": first and first["code"]}
        self._recent.append({"at_unix_ms": time_ns() // 1_000_000, **plain})
        for delivery in self._deliveries:
            delivery.offer(said)

    def view(self) -> dict[str, Any]:
        """What `GET /alerts` answers."""
        now, policy = monotonic_ns(), self._alarms.policy
        return {
            "schema": 1,
            "enabled": self._served.config.alerts.enabled,
            "firing": [tailrace_form(self._said(one, now, self._why.get(one.key))) for one in self._alarms.firing],
            "recent": list(self._recent),
            "receivers": [one.view() for one in self._deliveries],
            "rules": msgspec.to_builtins(policy.burn),
            "diagnoses": {"made": self._diagnosis.made, "given_up": self._diagnosis.failed},
        }

    def set_metrics(self, metrics: GatewayMetrics) -> None:
        """The numbers of a scrape."""
        metrics.clear("tailrace_alerts_firing")
        counts = Counter((one.lane, one.objective, one.severity) for one in self._alarms.firing)
        for (lane, objective, severity), count in counts.items():
            metrics.gauge("tailrace_alerts_firing", count, lane=lane, objective=objective, severity=severity)
        for (lane, objective, severity), count in self.begun.items():
            metrics.counter("tailrace_alerts_total", count, lane=lane, objective=objective, severity=severity)
        results: Counter[tuple[str, str]] = Counter()
        for delivery in self._deliveries:
            for result, count in delivery.counts.items():
                results[delivery.receiver.form, result] += count
        for (form, result), count in results.items():
            metrics.counter("tailrace_alert_deliveries_total", count, form=form, result=result)
