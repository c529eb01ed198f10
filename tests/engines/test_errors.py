"""The error table, row by row, and what it never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.errors import ending_of_error, engine_unreachable
from tailrace.engines.registry import ADAPTERS, adapter
from tailrace.measure.dialect import EngineFault
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import REASON_KIND, OutcomeKind, Reason


@pytest.mark.parametrize(
    ("status", "message", "kind", "reason", "stage", "retry"),
    [
        (503, "The engine is currently busy and cannot accept new requests.", "", Reason.QUEUE_FULL, "queue", True),
        (503, "The engine has reached its prefill token backlog limit.", "", Reason.TOKEN_BACKLOG, "queue", True),
        (503, "Loading model", "unavailable_error", Reason.ENGINE_LOADING, "ingress", True),
        (503, "no healthy upstream", "", Reason.QUEUE_FULL, "queue", True),
        (400, "maximum context length is 2048 tokens", "", Reason.INPUT_TOO_LONG, "preprocess", False),
        (413, "the prompt is too long", "", Reason.INPUT_TOO_LONG, "preprocess", False),
        (422, "field required", "", Reason.BAD_REQUEST, "ingress", False),
        (404, "The model `x` does not exist", "NotFoundError", Reason.UNKNOWN_MODEL, "ingress", False),
        (401, "Incorrect API key", "", Reason.UNAUTHORIZED, "ingress", False),
        (403, "forbidden", "", Reason.UNAUTHORIZED, "ingress", False),
        (429, "slow down", "", Reason.RATE_LIMITED, "ingress", True),
        (529, "Overloaded", "overloaded_error", Reason.QUEUE_FULL, "queue", True),
        (504, "upstream timed out", "", Reason.ENGINE_RUN_TIMEOUT, "prefill", False),
        (500, "Internal Server Error", "", Reason.ENGINE_ERROR, "prefill", True),
        (500, "EngineCore encountered an issue.", "", Reason.ENGINE_CRASH, "prefill", True),
        (502, "", "", Reason.ENGINE_ERROR, "prefill", True),
    ],
)
def test_http_errors(status: int, message: str, kind: str, reason: Reason, stage: str, *, retry: bool) -> None:
    ending = ending_of_error(EngineFault(message, kind, status), status=status)
    assert (ending.reason, ending.stage, ending.retry_other) == (reason, stage, retry)
    # Without a code in the body the status line decides alike.
    assert ending_of_error(EngineFault(message, kind), status=status) == ending


def test_error_frame_500_inside_a_stream_is_a_crash() -> None:
    before = ending_of_error(EngineFault("boom", code=500))
    assert (before.reason, before.stage, before.retry_other) == (Reason.ENGINE_CRASH, "prefill", True)
    after = ending_of_error(EngineFault("boom", code=500), tokens_seen=True)
    assert (after.reason, after.stage, after.retry_other) == (Reason.ENGINE_CRASH, "decode", False)


def test_unreachable() -> None:
    ending = engine_unreachable()
    assert (ending.outcome, ending.reason, ending.stage) == (OutcomeKind.FAILED, Reason.ENGINE_UNREACHABLE, "ingress")
    assert ending.retry_other


def test_a_body_that_is_no_json_keeps_its_words() -> None:
    ending = adapter("openai_compatible").error(503, b"upstream connect error: Exceeds maximum queue size")
    assert ending.reason is Reason.QUEUE_FULL


@given(
    message=st.text(max_size=30),
    kind=st.text(max_size=10),
    code=st.none() | st.integers(-5, 999),
    status=st.none() | st.integers(100, 599),
    seen=st.booleans(),
)
def test_every_error_has_one_sound_ending(
    message: str, kind: str, code: int | None, status: int | None, *, seen: bool
) -> None:
    ending = ending_of_error(EngineFault(message, kind, code), status=status, tokens_seen=seen)
    assert ending.outcome is REASON_KIND[ending.reason]
    assert ending.outcome is not OutcomeKind.COMPLETED
    assert ending.stage
    assert ending.http_status is not None
    assert 400 <= ending.http_status <= 599
    assert not (seen and ending.retry_other)


@pytest.mark.parametrize("name", ADAPTERS)
def test_done_or_finish_without_error_is_complete_everywhere(name: str) -> None:
    each = adapter(name)
    for fields in ({"done": True}, {"finish_reason": "length"}):
        summary = StreamSummary(origin_at=0, first_token_at=1, last_token_at=2, events=3, **fields)  # type: ignore[arg-type]
        assert each.judge(summary).outcome is OutcomeKind.COMPLETED
    broken = StreamSummary(origin_at=0, first_token_at=1, done=True, protocol_fault="too large")
    assert each.judge(broken).reason is Reason.PROTOCOL_ERROR
