"""Outcomes: the closed set of ways in which a request ends, and the reasons within each."""

from __future__ import annotations

from enum import StrEnum


class OutcomeKind(StrEnum):
    """How the request ended. The HTTP status does not decide it: an error frame inside a 200 is `failed`."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    FAILED = "failed"


class Reason(StrEnum):
    """Why, within an outcome. These strings are the keys of every `errors` map; `NONE` belongs to `completed`."""

    NONE = ""
    # cancelled
    CLIENT_DISCONNECT = "client_disconnect"
    CLIENT_WRITE_FAILED = "client_write_failed"
    BARGE_IN = "barge_in"
    DEADLINE = "deadline"
    EVICTED = "evicted"
    OPERATOR = "operator"
    SHUTDOWN = "shutdown"
    LEFT_AS_PLANNED = "left_as_planned"
    """A load test's client left in mid-answer because its plan said so; no error, and counted apart."""
    # timed out
    QUEUE_TIMEOUT = "queue_timeout"
    ENGINE_QUEUE_TIMEOUT = "engine_queue_timeout"
    ENGINE_RUN_TIMEOUT = "engine_run_timeout"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105  (a reason, not a password)
    IDLE_TIMEOUT = "idle_timeout"
    GAP_LIMIT = "gap_limit"
    """A gap between two tokens was longer than its lane allows, which has it ended."""
    SLOW_STREAM = "slow_stream"
    """It brought fewer tokens a second than its lane demands."""
    TOTAL_TIMEOUT = "total_timeout"
    STAGE_TIMEOUT = "stage_timeout"
    """A service's own budget for one of its stages; the record names both."""
    # rejected
    QUEUE_FULL = "queue_full"
    PREDICTED_WAIT = "predicted_wait"
    TOKEN_BACKLOG = "token_backlog"  # noqa: S105
    DEGRADED = "degraded"
    """The degradation ladder refuses it: its lane is of low priority, or it would have had to wait."""
    EVICTED_BY_PRIORITY = "evicted_by_priority"
    BAD_REQUEST = "bad_request"
    INPUT_TOO_LONG = "input_too_long"
    UNKNOWN_MODEL = "unknown_model"
    UNAUTHORIZED = "unauthorized"
    RATE_LIMITED = "rate_limited"
    ENGINE_LOADING = "engine_loading"
    NO_BACKEND = "no_backend"
    # failed
    ENGINE_CRASH = "engine_crash"
    ENGINE_ERROR = "engine_error"
    ENGINE_ABORT_UNKNOWN = "engine_abort_unknown"
    ENGINE_UNREACHABLE = "engine_unreachable"
    STREAM_CUT = "stream_cut"
    PROTOCOL_ERROR = "protocol_error"
    GATEWAY_ERROR = "gateway_error"
    CLIENT_ERROR = "client_error"
    """A probe's own failure (its socket, its DNS); never the server's."""
    APPLICATION_ERROR = "application_error"
    """A service before the gateway failed by itself."""


REASON_KIND: dict[Reason, OutcomeKind] = {
    Reason.NONE: OutcomeKind.COMPLETED,
    **dict.fromkeys(
        (
            Reason.CLIENT_DISCONNECT,
            Reason.CLIENT_WRITE_FAILED,
            Reason.BARGE_IN,
            Reason.DEADLINE,
            Reason.EVICTED,
            Reason.OPERATOR,
            Reason.SHUTDOWN,
            Reason.LEFT_AS_PLANNED,
        ),
        OutcomeKind.CANCELLED,
    ),
    **dict.fromkeys(
        (
            Reason.QUEUE_TIMEOUT,
            Reason.ENGINE_QUEUE_TIMEOUT,
            Reason.ENGINE_RUN_TIMEOUT,
            Reason.FIRST_TOKEN_TIMEOUT,
            Reason.IDLE_TIMEOUT,
            Reason.GAP_LIMIT,
            Reason.SLOW_STREAM,
            Reason.TOTAL_TIMEOUT,
            Reason.STAGE_TIMEOUT,
        ),
        OutcomeKind.TIMED_OUT,
    ),
    **dict.fromkeys(
        (
            Reason.QUEUE_FULL,
            Reason.PREDICTED_WAIT,
            Reason.TOKEN_BACKLOG,
            Reason.DEGRADED,
            Reason.EVICTED_BY_PRIORITY,
            Reason.BAD_REQUEST,
            Reason.INPUT_TOO_LONG,
            Reason.UNKNOWN_MODEL,
            Reason.UNAUTHORIZED,
            Reason.RATE_LIMITED,
            Reason.ENGINE_LOADING,
            Reason.NO_BACKEND,
        ),
        OutcomeKind.REJECTED,
    ),
    **dict.fromkeys(
        (
            Reason.ENGINE_CRASH,
            Reason.ENGINE_ERROR,
            Reason.ENGINE_ABORT_UNKNOWN,
            Reason.ENGINE_UNREACHABLE,
            Reason.STREAM_CUT,
            Reason.PROTOCOL_ERROR,
            Reason.GATEWAY_ERROR,
            Reason.CLIENT_ERROR,
            Reason.APPLICATION_ERROR,
        ),
        OutcomeKind.FAILED,
    ),
}
"""The one outcome to which each reason belongs; a test asserts that the map is total."""
