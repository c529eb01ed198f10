"""One try of a client at a simulated gateway, and the record of a try that never reached an engine."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.stage import QUEUE_GATEWAY, SourceKind, Stage, source

if TYPE_CHECKING:
    from tailrace.govern.admission import Decision
    from tailrace.govern.lane import LanePolicy
    from tailrace.simulate.clients import Call, ClientPolicy
    from tailrace.simulate.request import SimRequest
    from tailrace.simulate.seat import EngineSeat

_MEASURED: Final = source(SourceKind.MEASURED)
_QUEUED: Final = {Stage.QUEUE.value: _MEASURED, QUEUE_GATEWAY: _MEASURED}


class Step(StrEnum):
    """What the gateway did with a try."""

    ADMIT = "admit"
    """Let in as it came."""
    WAIT = "wait"
    REFUSE = "refuse"
    GRANT = "grant"
    """Let in from the queue."""
    EXPIRE = "expire"
    """Its time in the queue was over."""
    LEAVE = "leave"
    """Its client went while it waited."""
    STOP = "stop"
    """Cut while an engine had it: a budget was over, or its client went."""
    FINISH = "finish"


class DecisionNote(NamedTuple):
    """One decision with its time (ns)."""

    at_ns: int
    request_id: str
    lane: str
    step: Step
    reason: Reason = Reason.NONE
    position: int = 0
    predicted_wait_ns: int | None = None
    retry_after_s: int | None = None


class Cut(NamedTuple):
    """Why a try ends before its answer is complete."""

    outcome: OutcomeKind
    reason: Reason
    budget: str = ""


CLIENT_LEFT: Final = Cut(OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)
DEADLINE: Final = Cut(OutcomeKind.CANCELLED, Reason.DEADLINE, "deadline")
QUEUE: Final = Cut(OutcomeKind.TIMED_OUT, Reason.QUEUE_TIMEOUT, "queue")
FIRST_TOKEN: Final = Cut(OutcomeKind.TIMED_OUT, Reason.FIRST_TOKEN_TIMEOUT, "first_token")
IDLE: Final = Cut(OutcomeKind.TIMED_OUT, Reason.IDLE_TIMEOUT, "idle")
TOTAL: Final = Cut(OutcomeKind.TIMED_OUT, Reason.TOTAL_TIMEOUT, "total")


class Try:
    """One request on its way. Times in ns."""

    __slots__ = (
        "call",
        "client",
        "cut",
        "decision",
        "label",
        "number",
        "over",
        "policy",
        "received",
        "request",
        "seat",
        "silent_since",
        "started",
    )

    def __init__(self, call: Call, client: ClientPolicy, number: int, received: int, policy: LanePolicy) -> None:
        self.call = call
        self.client = client
        self.number = number
        """0 for the first try of the call."""
        self.label = f"{call.name}.{number}" if number else call.name
        self.received = received
        self.policy = policy
        self.decision: Decision | None = None
        self.request: SimRequest | None = None
        """Set when it is sent to an engine."""
        self.seat: EngineSeat | None = None
        self.started = False
        """Its first token is out."""
        self.silent_since: int | None = None
        """Since when it is seen to be preempted: it gets no token."""
        self.cut: Cut | None = None
        self.over = False

    @property
    def predicted_wait_ns(self) -> int | None:
        """What it was foretold when it came."""
        return None if self.decision is None else self.decision.predicted_wait_ns


def unsent_record(attempt: Try, now: int, cut: Cut, *, unix_ns: int, model: str, http_status: int) -> RequestRecord:
    """The record of a try that the gateway refused, or that ended while it waited there."""
    waited = now - attempt.received
    call = attempt.call
    return RequestRecord(
        vantage="simulated",
        request_id=attempt.label,
        tenant=call.tenant,
        lane=attempt.policy.name,
        endpoint="/v1/chat/completions",
        model=model,
        engine="simulated",
        prompt_tokens=call.prompt_tokens,
        prompt_tokens_source="usage",
        max_tokens=call.max_tokens,
        stream=call.stream,
        start_unix_ns=unix_ns + attempt.received,
        run_offset_ns=attempt.received,
        intended_to_sent_ns=0,
        queue_ns=waited,
        queue_gateway_ns=waited,
        stage_sources=_QUEUED,
        e2e_ns=waited,
        outcome=cut.outcome,
        reason=cut.reason,
        budget=cut.budget,
        died_in=Stage.QUEUE.value,
        http_status=http_status,
        predicted_wait_ns=attempt.predicted_wait_ns,
        retries=attempt.number,
        keep_reason="failed",
    )


_IN_ONE_PIECE: Final[dict[str, Any]] = {
    "stream": False, "ttft_ns": None, "ttft_upstream_ns": None, "ttft_content_ns": None, "e2e_last_token_ns": None,
    "tpot_ns": None, "tokens_per_s": None, "chunk_gap_count": 0, "chunk_gap_p50_ns": None, "chunk_gap_p95_ns": None,
    "chunk_gap_max_ns": None, "chunk_gap_over": 0, "chunk_gap_method": "", "stall_count": 0, "stall_longest_ns": None,
    "slow": [], "timeline": None,
}  # fmt: skip
"""Nobody sees the tokens of an answer that comes as one body."""


def sent_record(record: RequestRecord, attempt: Try) -> RequestRecord:
    """The record of a request that an engine had, with what only the gateway and the client know of it."""
    changes: dict[str, Any] = {}
    if attempt.predicted_wait_ns is not None:
        changes["predicted_wait_ns"] = attempt.predicted_wait_ns
    if attempt.number:
        changes["retries"] = attempt.number
    if attempt.call.tenant:
        changes["tenant"] = attempt.call.tenant
    if not attempt.call.stream:
        changes |= _IN_ONE_PIECE
    if attempt.cut is not None:
        changes["outcome"], changes["reason"], changes["budget"] = attempt.cut
    return msgspec.structs.replace(record, **changes) if changes else record
