"""What a client is told of its request's future: header lines, and comments while it waits in its lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.gateway.foresight_keys import PredictionsConfig
from tailrace.gateway.queue_speech import QueueSpeech
from tailrace.govern.admission import Decision

if TYPE_CHECKING:
    from tailrace.gateway.lanes import LaneDesk


class Foresight:
    """Turns the governor's predictions into words."""

    def __init__(self, lanes: LaneDesk, config: PredictionsConfig) -> None:
        self._lanes = lanes
        self.apply(config)

    def apply(self, config: PredictionsConfig) -> None:
        """From the next request on."""
        self._headers = config.headers
        self._every_ns = 0 if config.comments is None else int(config.comments)

    def lines(self, decision: Decision) -> bytes:
        """Header lines for the answer to a request about which the governor has just decided."""
        if not self._headers:
            return b""
        out = b""
        if decision.predicted_wait_ns is not None:
            out = b"x-tailrace-predicted-wait-ms: %d\r\n" % round(decision.predicted_wait_ns / 1e6)
        duration = self._lanes.admission.predicted_duration(decision)
        if duration is not None:
            low, high = round(duration.low_ns / 1e6), round(duration.high_ns / 1e6)
            out += b"x-tailrace-predicted-duration-ms: %d-%d\r\n" % (low, high)
        return out

    def speech(self, now: int) -> QueueSpeech | None:
        """Comments for a stream that begins to wait; `None` where the operator wants none."""
        return QueueSpeech(self._every_ns, now) if self._every_ns else None
