"""Where ended requests become records, a batch at a time.

A record costs some thirty microseconds of code that the relay does not run in between: made one by one among the
requests in flight, each finds the processor's caches cold and costs two to three times that. So an ended request only
leaves its account here, and the sweeper, or whoever wants to read records, has the batch made.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tailrace.gateway.verdict import Verdict
from tailrace.govern.canary_policy import SHADOW
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.summary import StreamSummary
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import Timeline

if TYPE_CHECKING:
    from tailrace.gateway.gateway import Gateway
    from tailrace.gateway.in_flight import InFlight

log = logging.getLogger(__name__)

BATCH: Final = 32
"""Records made at once at the latest: below a millisecond in which nothing is relayed. More would not be cheaper."""


class Measured(Protocol):
    """What was measured of an answer, read when its record is made."""

    def settle(self, verdict: Verdict) -> tuple[StreamSummary | None, Verdict]:
        """The summary, and the verdict that reading the answer leaves."""

    def timeline(self) -> Timeline | None:
        """Its events, if the record is to keep them."""


class RecordSink(Protocol):
    """Where records go. Never waits."""

    def put(self, record: RequestRecord) -> bool:
        """False when the record was dropped (and counted there)."""


class RecordObserver(Protocol):
    """Metrics that are fed with finished records."""

    def observe(self, record: RequestRecord) -> None:
        """One finished request."""


class Ended(NamedTuple):
    """A request that has no record yet."""

    ledger: RequestLedger
    measured: Measured | StreamSummary | None
    verdict: Verdict
    end: int
    exchange: InFlight | None


class RecordDesk:
    """The accounts of requests that have ended and have no record yet; at most `BATCH`, and never for long."""

    def __init__(self, gateway: Gateway, sink: RecordSink, observer: RecordObserver | None) -> None:
        self._gateway = gateway
        self.sink = sink
        self.observer = observer
        self._ended: list[Ended] = []

    def add(
        self,
        ledger: RequestLedger,
        measured: Measured | StreamSummary | None,
        verdict: Verdict,
        end: int,
        exchange: InFlight | None,
    ) -> None:
        """A request has ended at `end` (ns)."""
        self._ended.append(Ended(ledger, measured, verdict, end, exchange))
        if len(self._ended) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Make the records of all that have ended."""
        while self._ended:  # an observer or sink that comes back here finds only what is new
            batch, self._ended = self._ended, []
            self._gateway.backends.recall(batch)
            for ended in batch:
                self._record(ended)

    def _record(self, ended: Ended) -> None:
        gateway, ledger, verdict = self._gateway, ended.ledger, ended.verdict
        backend, counters = gateway.backends.first, gateway.counters
        if ended.exchange is not None:
            backend = ended.exchange.backend
        elif ledger.route == SHADOW:
            backend = gateway.backends.named(ledger.backend) or backend
        engine = backend.engine
        try:
            measured = ended.measured
            if measured is None or isinstance(measured, StreamSummary):
                summary, timeline = measured, None
            else:
                summary, verdict = measured.settle(verdict)
                timeline = measured.timeline
            # Named at the end: its own answer may have been the first that told which engine this is.
            engine.describe(ledger)
            record = ledger.close(
                ended.end,
                verdict.outcome,
                verdict.reason,
                summary=summary,
                timings=backend.waits.complete(ledger, summary, engine.timings(ledger, summary)),
                died_in=verdict.stage,
                budget=verdict.budget,
                error=verdict.error,
                thresholds=gateway.thresholds,
                sample_rate=gateway.sample_rate,
                timeline=timeline,
            )
            if record.keep_reason and ended.exchange is not None:
                record = gateway.hindsight.complete(record, ended.exchange)
            counters.records += 1
            if not self.sink.put(record):
                counters.records_dropped += 1
            if self.observer is not None and record.route != SHADOW:  # a copy is no client's request
                self.observer.observe(record)
            if gateway.routing is not None:
                gateway.routing.hear(record)
            gateway.kept.add(record)
            gateway.backends.balancing.observed(record, ended.end)
            gateway.shaping.learn(ended.exchange, record)
            gateway.lanes.heard(record, ended.end)
        except Exception:
            # A record that cannot be made is a bug of ours; the client's stream must not pay for it.
            counters.record_errors += 1
            log.exception("request %s left no record", ledger.request_id)
