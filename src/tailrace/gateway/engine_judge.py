"""What the scrapes of one engine add up to: a window of signals, a stand-still, signs of preemption."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from tailrace.engines.beside import counts_beside
from tailrace.engines.coarse_buckets import check_objectives
from tailrace.engines.liveness import Liveness, Standstill
from tailrace.engines.odometer import Odometer, Reading
from tailrace.engines.preemption import PreemptionSign, PreemptionWatch
from tailrace.engines.prometheus_text import Scrape
from tailrace.engines.reading_ring import KEPT_NS, ReadingRing
from tailrace.engines.window import EngineWindow, signals_view, window_between
from tailrace.model.engine_state import EngineState
from tailrace.model.thresholds import S

log = logging.getLogger(__name__)

WINDOW_NS: Final = 60 * S
"""What a view shows unless it is asked for another stretch of time."""
LONGEST_NS: Final = KEPT_NS
_RESTARTS_APART_NS: Final = 30 * S
"""What seems to restart more often is several engines that answer in turn: it is said, and asked who it is, no more."""

Tally = Callable[[], dict[str, int]]
"""Gives what the gateway has counted so far: `outcome` or `outcome/reason` -> requests that were sent to the engine."""


class EngineJudge:
    """Follows one engine through its scrapes; nothing here is on a request's path."""

    def __init__(self, name: str, *, frozen_after_ns: int) -> None:
        self._name = name
        self._odometer = Odometer()
        self._liveness = Liveness(after_ns=frozen_after_ns)
        self._preemption = PreemptionWatch()
        self.ring = ReadingRing()
        self.tally: Tally | None = None
        self._quiet_until = 0
        self.on_restart: Callable[[], None] | None = None
        """Called where the engine was seen to have begun anew."""

    def feed(self, scrape: Scrape, state: EngineState | None, now: int) -> None:
        """One more scrape. A stand-still is logged once, when it begins and when it ends."""
        before = self.ring.newest
        reading = self._odometer.feed(
            scrape,
            now,
            running=None if state is None else state.running,
            waiting=None if state is None else state.waiting,
            kv_usage=None if state is None else state.kv_usage,
            ours=None if self.tally is None else self.tally(),
        )
        self.ring.add(reading)
        was = self.frozen
        frozen = self._liveness.look(reading)
        self._preemption.look(reading)
        if frozen is not None and was is None:
            log.warning("backend %s is frozen: %s", self._name, frozen.text)
        elif frozen is None and was is not None:
            log.warning("backend %s is not frozen any more", self._name)
        if before is not None and reading.restarts > before.restarts and now >= self._quiet_until:
            self._quiet_until = now + _RESTARTS_APART_NS
            log.warning("backend %s has restarted: its counters began anew", self._name)
            if self.on_restart is not None:
                self.on_restart()

    def late(self, now: int) -> None:
        """A scrape was not answered in time."""
        was = self.silent
        silent = self._liveness.late(now)
        if silent is not None and was is None:
            log.warning("backend %s: %s", self._name, silent.text)

    @property
    def silent(self) -> Standstill | None:
        """How long an engine that had work has not answered its metrics, once it is long; no proof of anything."""
        return self._liveness.silent

    @property
    def frozen(self) -> Standstill | None:
        """The stand-still that the last scrape showed."""
        return self._liveness.frozen

    @property
    def preemption(self) -> PreemptionSign:
        """What the last scrape showed of preemptions."""
        return self._preemption.sign

    @property
    def newest(self) -> Reading | None:
        """The totals of the last scrape."""
        return self.ring.newest

    def window(self, length_ns: int = WINDOW_NS) -> EngineWindow | None:
        """What happened in the last stretch of time; `None` before the second scrape."""
        ends = self.ring.window(length_ns)
        return None if ends is None else window_between(*ends)

    def view(
        self, length_ns: int, *, now: int, engine: str, objectives: Sequence[tuple[str, str, int]]
    ) -> dict[str, Any]:
        """For the admin port: the window's signals, its counts beside ours, what its buckets cannot tell."""
        window = self.window(length_ns)
        if window is None:
            return {"window": None}
        coarse = check_objectives(window.timings, objectives, names=window.names, engine=engine)
        return {
            "window": {
                "s": window.seconds,
                "age_ms": (now - window.end_ns) / 1e6,
                "restarts": window.restarts,
                "notes": window.notes,
                "signals": signals_view(window, engine),
            },
            "counts": counts_beside(window, engine=engine).view(),
            "objectives": [one.view() for one in coarse],
        }
