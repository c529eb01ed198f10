"""How a call ends on gRPC: our refusals as status codes, the engine's and the network's failures as verdicts."""

from __future__ import annotations

from typing import Final

import grpc

from tailrace.engines.base import EngineAdapter
from tailrace.gateway.refusal import Refusal
from tailrace.gateway.rpc.request import DEADLINE_SLACK_NS, RpcRequest
from tailrace.gateway.verdict import Phase, Verdict
from tailrace.measure.dialect import EngineFault
from tailrace.model.outcome import OutcomeKind, Reason

_OF_STATUS: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""HTTP status of a refusal -> gRPC code. 404: no such method here. A model is for the engine to know."""
_AS_HTTP: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    # Triton: a unary call of a model that streams.
    grpc.StatusCode.UNIMPLEMENTED: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""gRPC code -> the HTTP status that `engines.errors` knows; the rest is an error of the engine's own, 500."""
_NOT_CONNECTED: Final = ("failed to connect to all addresses", "dns resolution failed", "name resolution failure")
_LOST: Final = (
    "socket closed",
    "connection reset",
    "broken pipe",
    "endpoint closing",
    "goaway",
    "stream removed",
    "transport closed",
    "recvmsg:",
    "cancelling all calls",
    "connection closed",
    # grpc.aio's own words where a write met the end of the call; the engine's status, if it gave one, is lost with it.
    "internal error from core",
)
"""How gRPC words the end of its own connection; an engine that says UNAVAILABLE words what it lacks."""


def code_of(refusal: Refusal) -> grpc.StatusCode:
    """The code that a refusal gets."""
    return _OF_STATUS.get(refusal.status, grpc.StatusCode.UNKNOWN)


def number_of(code: grpc.StatusCode) -> int:
    """A code as it stands on the wire."""
    number: int = code.value[0]
    return number


def fault_verdict(adapter: EngineAdapter, fault: EngineFault, *, tokens_seen: bool) -> Verdict:
    """How a request ended that the engine answered with an error inside its stream."""
    ending = adapter.fault(fault, status=fault.code, tokens_seen=tokens_seen)
    return Verdict(ending.outcome, ending.reason, ending.stage, fault.message)


class UpstreamEnd:
    """How the engine's side of a call ended, when it did not end well."""

    __slots__ = ("code", "details", "refusal", "verdict")

    def __init__(self, verdict: Verdict, code: grpc.StatusCode, details: str, refusal: Refusal | None = None) -> None:
        self.verdict = verdict
        self.code = code
        self.details = details
        self.refusal = refusal
        """Ours, where the engine itself said nothing."""


def upstream_end(request: RpcRequest, code: grpc.StatusCode, details: str, now: int) -> UpstreamEnd:
    """Judge a status other than OK: the deadline's, the network's, or the engine's own, which is passed on as it is."""
    stage = request.stage(now)
    deadline = request.clock.deadline_at
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and deadline is not None and now >= deadline - DEADLINE_SLACK_NS:
        text = f"the deadline budget of {request.clock.length_ns('deadline') / 1e9:g} s is over in stage {stage}"
        verdict = Verdict(OutcomeKind.CANCELLED, Reason.DEADLINE, stage, text, "deadline")
        return _ours(verdict, 504)
    lower = details.lower()
    if code is grpc.StatusCode.UNAVAILABLE and any(words in lower for words in _NOT_CONNECTED):
        request.backend.engine.watch.unreachable()
        text = f"the engine cannot be reached: {details}"
        return _ours(Verdict(OutcomeKind.FAILED, Reason.ENGINE_UNREACHABLE, "ingress", text), 503, retry=1)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL) and any(words in lower for words in _LOST):
        text = f"the engine's connection was lost in stage {stage}: {details}"
        return _ours(Verdict(OutcomeKind.FAILED, Reason.STREAM_CUT, stage, text), 502)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in lower:
        text = f"an answer of the engine is larger than limits.grpc_message_bytes: {details}"
        verdict = Verdict(OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, stage, text)
        return UpstreamEnd(
            verdict, code, text, Refusal(status=413, message=text, reason=Reason.PROTOCOL_ERROR, stage=stage)
        )
    request.backend.engine.answered(b"")
    tokens_seen = request.phase is Phase.STREAMING
    if code is grpc.StatusCode.CANCELLED:
        verdict = Verdict(OutcomeKind.FAILED, Reason.ENGINE_ABORT_UNKNOWN, stage, details)
        return UpstreamEnd(verdict, code, details)
    fault = EngineFault(details, code=_AS_HTTP.get(code, 500))
    return UpstreamEnd(fault_verdict(request.backend.engine.adapter, fault, tokens_seen=tokens_seen), code, details)


def _ours(verdict: Verdict, status: int, *, retry: int | None = None) -> UpstreamEnd:
    refusal = Refusal(
        status=status, message=verdict.error, reason=verdict.reason, stage=verdict.stage, retry_after_s=retry
    )
    return UpstreamEnd(verdict, code_of(refusal), verdict.error, refusal)
