"""Error normalisation: an engine's status, words and moment -> one outcome, reason and stage.

The table is ordered; the first row that matches wins. Wording comes before status, because engines give two different
events one status (Triton: queue full and queue timeout are both 503) and one event two (vLLM: a rejected burst is a
503 or a 200 with an error frame).
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.measure.dialect import EngineFault
from tailrace.model.outcome import REASON_KIND, OutcomeKind, Reason


class Ending(msgspec.Struct, frozen=True):
    """How a request ended."""

    outcome: OutcomeKind
    reason: Reason
    stage: str
    """The stage in which it died; empty for a completed one."""
    retry_other: bool
    """Whether trying another instance is safe and may help; never once a token has reached the client."""
    http_status: int | None = None
    """The status that our client should get while none was sent."""


class _Row(msgspec.Struct, frozen=True):
    """One row: any of `words` in message or type (lower case) decides."""

    words: tuple[str, ...]
    reason: Reason
    stage: str
    retry: bool
    status: int


_BY_WORDS: Final = (
    _Row(("prefill token backlog limit",), Reason.TOKEN_BACKLOG, "queue", retry=True, status=503),
    _Row(
        ("currently busy and cannot accept", "exceeds maximum queue size", "queue is full"),
        Reason.QUEUE_FULL,
        "queue",
        retry=True,
        status=503,
    ),
    _Row(("aborted by a higher priority request",), Reason.EVICTED_BY_PRIORITY, "queue", retry=True, status=503),
    _Row(("using priority is disabled",), Reason.BAD_REQUEST, "ingress", retry=False, status=400),
    _Row(
        ("request timeout expired", "request waiting timeout"),
        Reason.ENGINE_QUEUE_TIMEOUT,
        "queue",
        retry=True,
        status=504,
    ),
    _Row(("request running timeout",), Reason.ENGINE_RUN_TIMEOUT, "", retry=False, status=504),
    _Row(("loading model",), Reason.ENGINE_LOADING, "ingress", retry=True, status=503),
    _Row(
        ("enginecore encountered", "enginedeaderror", "engine is dead"), Reason.ENGINE_CRASH, "", retry=True, status=502
    ),
)
_TOO_LONG: Final = (
    "exceed_context_size_error",
    "context_length_exceeded",
    "maximum context length",
    "available context size",
    "max_model_len",
    "longer than the model's context",
    "is too long",
    "exceeds this limit",
    "exceeds the maximum allowed length",
)


def _ending(reason: Reason, stage: str, status: int, *, retry: bool, seen: bool) -> Ending:
    stage = stage or ("decode" if seen else "prefill")
    return Ending(REASON_KIND[reason], reason, stage, retry and not seen, status)


def ending_of_error(fault: EngineFault, *, status: int | None = None, tokens_seen: bool = False) -> Ending:
    """Normalise an error. `status` is the HTTP status where the error was the whole answer, `None` inside a stream.

    `tokens_seen` says that text had reached us before: it decides between prefill and decode, and forbids a retry.
    """
    code = fault.code if fault.code is not None and 400 <= fault.code <= 599 else status
    if status is not None and status >= 400 and fault.code is None:
        code = status
    text = f"{fault.type}\n{fault.message}".lower()
    for row in _BY_WORDS:
        if any(word in text for word in row.words):
            return _ending(row.reason, row.stage, row.status, retry=row.retry, seen=tokens_seen)
    if code in {400, 413, 422} and any(word in text for word in _TOO_LONG):
        return _ending(Reason.INPUT_TOO_LONG, "preprocess", 400, retry=False, seen=tokens_seen)
    if code == 404:
        return _ending(Reason.UNKNOWN_MODEL, "ingress", 404, retry=False, seen=tokens_seen)
    if code in {401, 403}:
        return _ending(Reason.UNAUTHORIZED, "ingress", code, retry=False, seen=tokens_seen)
    if code == 429 or "rate_limit" in text:
        return _ending(Reason.RATE_LIMITED, "ingress", 429, retry=True, seen=tokens_seen)
    if code == 529 or "overloaded" in text or code == 503:
        # A bare 503 says "not now" without saying why.
        return _ending(Reason.QUEUE_FULL, "queue", 503, retry=True, seen=tokens_seen)
    if code in {408, 504}:
        return _ending(Reason.ENGINE_RUN_TIMEOUT, "", 504, retry=False, seen=tokens_seen)
    if code is not None and 400 <= code < 500:
        return _ending(Reason.BAD_REQUEST, "ingress", code, retry=False, seen=tokens_seen)
    if status is None and code is not None and code >= 500:
        # An error frame with a 5xx inside a stream: the engine behind the API server has died.
        return _ending(Reason.ENGINE_CRASH, "", 502, retry=True, seen=tokens_seen)
    return _ending(Reason.ENGINE_ERROR, "", 502, retry=True, seen=tokens_seen)


def engine_unreachable() -> Ending:
    """The connection was refused, or could not be made."""
    return _ending(Reason.ENGINE_UNREACHABLE, "ingress", 502, retry=True, seen=False)
