"""What is asked only once a request has ended, and only of one that is worth it: a slow, failed or sampled one."""

from __future__ import annotations

from time import monotonic_ns, process_time_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.gateway.hop import TcpReading, read_tcp
from tailrace.gateway.verdict import Verdict
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord

if TYPE_CHECKING:
    from tailrace.gateway.in_flight import InFlight

_EVERY_NS: Final = 1_000_000_000
_FIRST_NS: Final = 100_000_000


class Hindsight:
    """Completes records with what the fast path does not pay for."""

    def __init__(self) -> None:
        self.rtt_ns: dict[str, int] = {}
        """Hop -> its last reading, for whoever shows this moment."""
        self.cpu: float | None = None
        """Cores that this process used in the last second or so."""
        self._mark = (monotonic_ns(), process_time_ns())

    def measure_cpu(self, now: int) -> None:
        """Once a second, or as soon after it as somebody calls; before the first second is over, what there is."""
        began, used = self._mark
        spent = now - began
        if spent < (_FIRST_NS if self.cpu is None else _EVERY_NS):
            return
        mark = (now, process_time_ns())
        self.cpu = round((mark[1] - used) / spent, 3)
        if spent >= _EVERY_NS:
            self._mark = mark

    def look(self, exchange: InFlight, verdict: Verdict) -> None:
        """A request has just ended whose connections may be closed before its record is made."""
        exchange.readings = self._read(exchange)
        if verdict.outcome is OutcomeKind.CANCELLED and exchange.dropped is not None:
            since, closed = exchange.dropped
            if verdict.reason is Reason.DEADLINE:
                # It was over when it passed, not when the sweeper came by.
                since = exchange.clock.deadline_at or since
            exchange.cancel_ns = max(0, closed - since)
            backend = exchange.backend
            backend.cancels.add(
                request_id=exchange.ledger.request_id,
                reason=verdict.reason,
                stage=verdict.stage,
                since=since,
                sent=exchange.ledger.sent or since,
                closed=closed,
                metrics=backend.engine.watch.counts,
            )

    def complete(self, record: RequestRecord, exchange: InFlight) -> RequestRecord:
        """The record with both hops, the process's CPU use, and how long a cancel took to reach the engine."""
        self.measure_cpu(monotonic_ns())
        found: dict[str, Any] = {"gateway_cpu": self.cpu, "cancel_upstream_ns": exchange.cancel_ns}
        upstream, client = exchange.readings or self._read(exchange)
        self._note(found, "upstream", upstream)
        self._note(found, "client", client)
        return msgspec.structs.replace(record, **found)

    @staticmethod
    def _read(exchange: InFlight) -> tuple[TcpReading | None, TcpReading | None]:
        hop = exchange.hop
        return read_tcp(None if hop is None else hop.transport), read_tcp(exchange.connection.transport)

    def _note(self, found: dict[str, Any], hop: str, reading: TcpReading | None) -> None:
        if reading is None:
            return
        if reading.rtt_ns:
            self.rtt_ns[hop] = reading.rtt_ns
        found[f"{hop}_rtt_ns"] = reading.rtt_ns
        found[f"{hop}_rtt_var_ns"] = reading.rtt_var_ns
        found[f"{hop}_retransmits"] = reading.retransmits
