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
    # TGI: 429 as a body of its own; inside a stream every error of its calls itself 422.
    _Row(("model is overloaded",), Reason.QUEUE_FULL, "queue", retry=True, status=429),
    _Row(
        ("request failed during generation", "incomplete generation", "stream event serialization error"),
        Reason.ENGINE_ERROR,
        "",
        retry=True,
        status=502,
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
    "`inputs` must have less than",
    "`inputs` tokens + `max_new_tokens` must be",
)


_ANSWERED_TOO_LONG: Final = _Row((), Reason.INPUT_TOO_LONG, "preprocess", retry=False, status=400)
_UNKNOWN_MODEL: Final = _Row((), Reason.UNKNOWN_MODEL, "ingress", retry=False, status=404)
_UNAUTHORIZED: Final = _Row((), Reason.UNAUTHORIZED, "ingress", retry=False, status=401)
_RATE_LIMITED: Final = _Row((), Reason.RATE_LIMITED, "ingress", retry=True, status=429)
_BUSY: Final = _Row((), Reason.QUEUE_FULL, "queue", retry=True, status=503)
_RAN_OUT: Final = _Row((), Reason.ENGINE_RUN_TIMEOUT, "", retry=False, status=504)
_CRASHED: Final = _Row((), Reason.ENGINE_CRASH, "", retry=True, status=502)
_BROKEN: Final = _Row((), Reason.ENGINE_ERROR, "", retry=True, status=502)
_BY_CODE: Final = {
    401: _UNAUTHORIZED,
    403: _UNAUTHORIZED,
    408: _RAN_OUT,
    429: _RATE_LIMITED,
    # A bare 503 says "not now" without saying why; 529 is Anthropic's "overloaded".
    503: _BUSY,
    504: _RAN_OUT,
    529: _BUSY,
}


def _row_by_status(text: str, code: int | None, *, in_stream: bool) -> _Row:
    if code in {400, 413, 422} and any(word in text for word in _TOO_LONG):
        return _ANSWERED_TOO_LONG
    if code == 404 and "model" in text:
        return _UNKNOWN_MODEL
    found = _BY_CODE.get(code) if code is not None else None
    if found is None and "rate_limit" in text:
        found = _RATE_LIMITED
    if found is None and "overloaded" in text:
        found = _BUSY
    if found is None and code is not None and 400 <= code < 500:
        found = _Row((), Reason.BAD_REQUEST, "ingress", retry=False, status=code)
    if found is None and in_stream and code is not None and code >= 500:
        # An error frame with a 5xx inside a stream: the engine behind the API server has died.
        found = _CRASHED
    return found or _BROKEN


def ending_of_error(fault: EngineFault, *, status: int | None = None, tokens_seen: bool = False) -> Ending:
    """Normalise an error. `status` is the HTTP status where the error was the whole answer, `None` inside a stream.

    `tokens_seen` says that text had reached us before: it decides between prefill and decode, and forbids a retry.
    An error object in an answer of status 200 is an `engine_error`: Triton's streaming models answer so.
    """
    code = fault.code if fault.code is not None and 400 <= fault.code <= 599 else None
    if code is None and status is not None and status >= 400:
        code = status
    text = f"{fault.type}\n{fault.message}".lower()
    row = next((row for row in _BY_WORDS if any(word in text for word in row.words)), None)
    if row is None:
        row = _row_by_status(text, code, in_stream=status is None)
    stage = row.stage or ("decode" if tokens_seen else "prefill")
    return Ending(REASON_KIND[row.reason], row.reason, stage, row.retry and not tokens_seen, row.status)


def engine_unreachable() -> Ending:
    """The connection was refused, or could not be made."""
    reason = Reason.ENGINE_UNREACHABLE
    return Ending(REASON_KIND[reason], reason, "ingress", retry_other=True, http_status=502)
