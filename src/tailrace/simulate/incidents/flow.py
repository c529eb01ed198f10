"""One request on its way through a site: every stamp that some part of it takes. Times in ns, one clock."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from tailrace.model.outcome import OutcomeKind, Reason

if TYPE_CHECKING:
    from tailrace.model.engine_state import EngineState
    from tailrace.simulate.incidents.path import Chunks, Delivered
    from tailrace.simulate.incidents.traffic import Call
    from tailrace.simulate.request import SimRequest


class Phase(IntEnum):
    """Where a request is."""

    UPLOAD = 0
    LANE = 1
    LINE = 2
    """Waits for a connection."""
    SENT = 3
    """With what stands before the engine."""
    CORE = 4
    DELIVERY = 5
    """The engine is done; its answer is on the way."""
    OVER = 6


class Draw(NamedTuple):
    """What chance decides of one call, whatever the site makes of it: uniform numbers in [0, 1)."""

    hold: float
    parser: float
    slow: float
    late: float
    late_by: float
    leave: float
    leave_at: float
    fails: float
    grammar: float
    before: float
    after: float
    seed: int


class Ending(NamedTuple):
    """How it ended."""

    outcome: OutcomeKind = OutcomeKind.COMPLETED
    reason: Reason = Reason.NONE
    stage: str = ""
    status: int | None = 200
    error: str = ""


class Flow:
    """One try of a call."""

    __slots__ = (
        "admission",
        "admitted",
        "attempts",
        "awaited",
        "call",
        "chunks",
        "cut_at",
        "delivered",
        "draw",
        "encode_ns",
        "end",
        "ending",
        "failed_attempts",
        "first_core",
        "handed",
        "headers",
        "ident",
        "intended",
        "lane",
        "left",
        "line_since",
        "lost",
        "marks",
        "number",
        "parsed",
        "phase",
        "pool_wait",
        "pre_ns",
        "predicted_wait_ns",
        "preemptions",
        "queued",
        "queued_ts",
        "received",
        "replica",
        "reported",
        "requests",
        "retry_wait",
        "sent",
        "step_at_sent",
        "upstream_end",
    )  # fmt: skip

    def __init__(self, call: Call, draw: Draw, ident: str, number: int, intended: int) -> None:
        self.call = call
        self.draw = draw
        self.ident = ident
        self.number = number
        """0 for the first try of the call."""
        self.intended = intended
        self.phase = Phase.UPLOAD
        self.received = self.parsed = self.queued = intended
        self.admitted: int | None = None
        self.line_since: int | None = None
        self.pool_wait: int | None = None
        self.sent: int | None = None
        self.headers: int | None = None
        self.handed: int | None = None
        """When the engine's core had it."""
        self.queued_ts: int | None = None
        """When the core's queue time began: between two steps."""
        self.replica = 0
        self.lane = "default"
        self.attempts = 1
        self.failed_attempts = 0
        self.retry_wait = 0
        self.pre_ns: int | None = None
        self.encode_ns: int | None = None
        self.requests: list[SimRequest] = []
        self.awaited = False
        """Given up while the engine had it: its account is complete when the engine has noticed."""
        self.left = 0
        """Answers that the engine still works on."""
        self.first_core: int | None = None
        self.step_at_sent = 0
        self.marks: tuple[int, ...] = ()
        """Ends of the steps that ran when it was sent, as the gateway saw them by its neighbours' tokens."""
        self.admission: EngineState | None = None
        self.predicted_wait_ns: int | None = None
        self.reported: tuple[int, int] | None = None
        """Queue and prefill as the engine's own clock has them."""
        self.preemptions = 0
        self.chunks: Chunks | None = None
        """Events as they reach the gateway."""
        self.delivered: Delivered | None = None
        self.upstream_end: int | None = None
        self.lost = 0
        """Packets of the answer that had to be sent again."""
        self.cut_at: int | None = None
        """When it was given up before its end; the gateway's stamp."""
        self.end = 0
        self.ending = Ending()
