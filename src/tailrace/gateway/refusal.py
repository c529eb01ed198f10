"""What a client is told when the gateway itself answers: error bodies and error events in the API's own shape."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.govern.admission import Decision
from tailrace.govern.lane import LanePolicy
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import S

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    414: "invalid_request_error",
    417: "invalid_request_error",
    426: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    501: "not_supported_error",
    505: "invalid_request_error",
    502: "upstream_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The set is closed there, and its SDK picks the model of the error by it."""
MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"
TRITON: Final = "/v2"
"""Every endpoint of the Open Inference Protocol begins so."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of our own: status, a sentence for a person, and facts for a program."""

    status: int
    message: str
    reason: str
    """`model.outcome.Reason` as text: the machine-readable code."""
    stage: str = ""
    lane: str = ""
    position: int | None = None
    """Place in the queue that the request had or would have had."""
    predicted_wait_ms: float | None = None
    predicted_wait_range_ms: tuple[float, float] | None = None
    """Between which about 80 % of such waits lie, where the prediction has one."""
    retry_after_s: int | None = None
    request_id: str = ""
    code: str = ""
    """The API's own word for it, where it has one that clients look for; else `reason` stands there."""
    param: str | None = None
    """The field of the request that is at fault."""
    facts: dict[str, Any] = {}
    """More for a program."""
    allow: bytes = b""
    """With 405: the methods that the path has."""


def _error(refusal: Refusal) -> dict[str, Any]:
    error: dict[str, Any] = {
        "message": refusal.message,
        "type": _TYPES.get(refusal.status, "server_error"),
        "param": refusal.param,
        "code": refusal.code or refusal.reason,
        "reason": refusal.reason,
        **refusal.facts,
    }
    if refusal.stage:
        error["stage"] = refusal.stage
    if refusal.lane:
        error["lane"] = refusal.lane
    if refusal.position is not None:
        error["position"] = refusal.position
    if refusal.position is not None or refusal.predicted_wait_ms is not None:
        # Null where a lane refuses and knows nothing yet: a client that reads it need not ask whether it is there.
        error["predicted_wait_ms"] = refusal.predicted_wait_ms
    if refusal.predicted_wait_range_ms is not None:
        error["predicted_wait_range_ms"] = refusal.predicted_wait_range_ms
    if refusal.retry_after_s is not None:
        error["retry_after_s"] = refusal.retry_after_s
    if refusal.request_id:
        error["request_id"] = refusal.request_id
    return error


def _anthropic(refusal: Refusal) -> dict[str, Any]:
    """Its envelope, with the request's id where Anthropic puts it."""
    status = refusal.status
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    out: dict[str, Any] = {"type": "error", "error": {**_error(refusal), "type": kind}}
    if refusal.request_id:
        out["request_id"] = refusal.request_id
    return out


def _triton(refusal: Refusal) -> dict[str, Any]:
    """The text itself under `error`, which is all that its clients read; our facts stand beside it."""
    facts = _error(refusal)
    del facts["param"]
    return {"error": facts.pop("message"), **facts}


def reason_line(refusal: Refusal) -> bytes:
    """The header line that names the reason to a program that does not read bodies."""
    return b"x-tailrace-reason: %b\r\n" % refusal.reason.encode("latin-1")


def error_body(endpoint: str, refusal: Refusal) -> bytes:
    """The JSON body of a refusal, as the client of that API parses it.

    OpenAI's `{"error": {…}}` everywhere but here: Anthropic's envelope on `/v1/messages`, Triton's `{"error": "…"}`
    under `/v2`. SGLang's own `/generate` words its errors as OpenAI does.
    """
    if endpoint == MESSAGES:
        return msgspec.json.encode(_anthropic(refusal))
    if endpoint.startswith(TRITON):
        return msgspec.json.encode(_triton(refusal))
    return msgspec.json.encode({"error": _error(refusal)})


def error_event(endpoint: str, refusal: Refusal, events: int = 0) -> bytes:
    """A last SSE event that says why the stream ends here; every SDK raises on it. `events` went before it.

    OpenAI's chat, completions and transcription streams carry `data: {"error": {…}}`, Triton's `data: {"error": "…"}`.
    Anthropic's messages and `/v1/responses` name the event; the latter numbers its events, and wants the error both as
    members (its schema) and under `error` (its service, and what its SDK raises on).
    """
    if endpoint == MESSAGES:
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(_anthropic(refusal))
    if endpoint.startswith(TRITON):
        return b"data: %b\n\n" % msgspec.json.encode(_triton(refusal))
    error = _error(refusal)
    if endpoint == RESPONSES:
        whole = {**error, "type": "error", "sequence_number": events, "error": error}
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(whole)
    error["code"] = refusal.status
    return b"data: %b\n\n" % msgspec.json.encode({"error": error})


def cancellation(reason: Reason, why: str, stage: str) -> Refusal:
    """What the client of a request is told that somebody else ended.

    503 where another try may do better. Otherwise 499, which no SDK tries again by itself: what an operator stopped, or
    what a speaker talked over, is not wanted a second time.
    """
    again = reason in (Reason.SHUTDOWN, Reason.EVICTED)
    return Refusal(
        status=503 if again else 499, message=why, reason=reason, stage=stage, retry_after_s=1 if again else None
    )


def lane_refusal(decision: Decision, policy: LanePolicy) -> Refusal:
    """Why a lane does not take a request, and when to come back."""
    predicted = decision.predicted_wait_ns
    if decision.reason is Reason.DEGRADED:
        return _degraded(decision)
    if decision.reason is Reason.NO_BACKEND:
        return Refusal(
            status=decision.http_status,
            message=f"no engine of lane {decision.lane!r} takes requests at the moment",
            reason=decision.reason,
            stage="queue",
            lane=decision.lane,
            retry_after_s=decision.retry_after_s,
        )
    if decision.reason is Reason.TOKEN_BACKLOG:
        why = f"the prompts and predicted answers that wait come near its limit of {policy.queued_tokens} tokens"
    elif decision.reason is Reason.QUEUE_FULL:
        why = f"{policy.running} requests are running and {policy.queued} are waiting, which is its limit"
    elif predicted is not None and predicted > policy.budgets.queue_ns:
        budget = policy.budgets.queue_ns / 1e9
        why = f"the predicted wait of {predicted / 1e9:.1f} s is longer than its queue budget of {budget:g} s"
    else:
        why = f"with a predicted wait of {(predicted or 0) / 1e9:.1f} s the request's own deadline cannot be met"
    return Refusal(
        status=decision.http_status,
        message=f"lane {decision.lane!r} is full: {why}. Try again in {decision.retry_after_s} s.",
        reason=decision.reason,
        stage="queue",
        lane=decision.lane,
        position=decision.position,
        predicted_wait_ms=None if predicted is None else round(predicted / 1e6, 3),
        predicted_wait_range_ms=_range_ms(decision),
        retry_after_s=decision.retry_after_s,
    )


def _degraded(decision: Decision) -> Refusal:
    """The ladder refuses: quality was given up first, and it was not enough."""
    wait = decision.predicted_wait_ns
    return Refusal(
        status=decision.http_status,
        message=f"the service is under heavy load, and lane {decision.lane!r} takes only what it can begin at once, or "
        f"nothing. Nothing is wrong with the request. Try again in {decision.retry_after_s} s.",
        reason=decision.reason,
        stage="queue",
        lane=decision.lane,
        position=decision.position,
        predicted_wait_ms=None if wait is None else round(wait / 1e6, 3),
        retry_after_s=decision.retry_after_s,
    )


def _range_ms(decision: Decision) -> tuple[float, float] | None:
    predicted = decision.predicted
    return None if predicted is None else (round(predicted.low_ns / 1e6, 3), round(predicted.high_ns / 1e6, 3))


def budget_refusal(reason: Reason, message: str, stage: str, lane: str, wait_ns: int | None) -> Refusal:
    """A budget is over; `wait_ns` is what the lane's next arrival would wait, where the queue was where it ran out."""
    queued = reason is Reason.QUEUE_TIMEOUT
    return Refusal(
        # 429: there is capacity, but it is contended. 504: it was tried and took too long.
        status=429 if queued else 504,
        message=message,
        reason=reason,
        stage=stage,
        lane=lane,
        predicted_wait_ms=None if wait_ns is None else wait_ns / 1e6,
        retry_after_s=max(1, -(-(wait_ns or 0) // S)) if queued else None,
    )
