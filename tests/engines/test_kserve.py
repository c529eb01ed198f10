"""The reader of Triton's gRPC messages says what protobuf says, and survives what is none."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.kserve import (
    ASK_FINAL,
    END,
    WireError,
    error_answer,
    fault_of,
    read_answer,
    read_ask,
    read_response,
)
from tailrace.model.timeline import EventKind
from tests.kserve_messages import InferRequest, StreamResponse, answer, ask, end, wants_end, whole

NAMES = st.text(max_size=40)
FLAGS = st.none() | st.booleans()


@given(NAMES, NAMES, NAMES, FLAGS, st.none() | st.integers(0, 2**31 - 1), st.binary(max_size=300))
def test_a_request_reads_as_protobuf_wrote_it(model, request_id, text, wants, limit, other):
    message = InferRequest.FromString(ask(model, request_id, text=text, max_tokens=limit))
    if wants is not None:
        message.parameters.add(key="triton_enable_empty_final_response").value.bool_param = wants
    message.parameters.add(key="priority").value.uint64_param = 2**63
    message.parameters.add(key="temperature").value.double_param = 0.5
    message.inputs.add(name="more", datatype="UINT8", shape=[len(other), -1])
    message.raw_input_contents.append(other)
    read = read_ask(message.SerializeToString())
    assert (read.model, read.id, read.wants_final) == (model, request_id, bool(wants))
    assert read.prompt_tokens == -(-len(text.encode()) // 4)
    assert read.max_tokens == limit


@given(NAMES, FLAGS, st.none() | NAMES, st.integers(0, 600), NAMES)
def test_an_answer_reads_as_protobuf_wrote_it(request_id, final, text, size, error):
    read = read_answer(answer(request_id, final=final, text=text, size=size, error=error))
    assert (read.id, read.final, read.error) == (request_id, final, error)
    has_text = text is not None and not error
    assert read.outputs == has_text + bool(size)
    assert read.silent == (has_text and not text.strip("\0"))
    assert read.empty_final == (final is True and not read.outputs and not error)


def test_a_unary_answer_has_no_envelope():
    read = read_response(whole("r7", text="yes"))
    assert (read.id, read.outputs, read.final) == ("r7", 1, None)


@given(st.binary(max_size=200))
def test_nonsense_is_refused_or_read_but_never_more(data):
    for read in (read_ask, read_answer, read_response):
        with contextlib.suppress(WireError):
            read(data)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_a_cut_message_is_refused_or_read_but_never_more(cut, junk):
    message = ask("model", "id", text="t" * 200, triton_enable_empty_final_response=True)[:cut]
    for data in (message, message + junk):
        with contextlib.suppress(WireError):
            read_ask(data)


@pytest.mark.parametrize("data", [b"\x0a\xff", b"\x0a\x05ab", b"\xff" * 12, b"\x03", b"\x00\x01", b"\x0d\x01\x02"])
def test_a_field_that_cannot_be_is_an_error(data):
    with pytest.raises(WireError):
        read_ask(data)


def test_the_end_mark_is_asked_for_by_appending():
    for before in ({}, {"triton_enable_empty_final_response": False}, {"triton_enable_empty_final_response": True}):
        message = ask("m", "1", **before)
        assert wants_end(message + ASK_FINAL)
        assert read_ask(message).wants_final is bool(before.get("triton_enable_empty_final_response"))


def test_our_error_is_one_that_clients_read():
    message = StreamResponse.FromString(error_answer("r1", "no room: " + "x" * 300))
    assert message.error_message == "no room: " + "x" * 300
    assert message.infer_response.id == "r1"
    assert StreamResponse.FromString(error_answer("", "e")).infer_response.id == ""


def test_what_answers_mean():
    assert read_answer(answer("a")).meaning().kind is EventKind.CONTENT
    assert read_answer(answer("a", text="")).meaning().kind is EventKind.EMPTY
    assert read_answer(answer("a", text=None, size=16)).meaning().kind is EventKind.CONTENT
    assert read_answer(end("a")).meaning().kind is EventKind.EMPTY
    assert read_answer(answer(error="broken")).meaning().fault.message == "broken"
    assert END.done


def test_a_large_tensor_is_stepped_over():
    """By its length: the reader copies and walks none of it."""
    import tracemalloc

    data = answer("a", text=None, size=40_000_000)
    tracemalloc.start()
    read = read_answer(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read.outputs == 1
    assert peak < 100_000


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Request for unknown model: 'nope' is not found", 404),
        ("unexpected inference input 'IN' for model 'm'", 400),
        ("Failed to process the request(s), message: boom", None),
    ],
)
def test_a_clients_mistake_is_told_from_the_models(message, code):
    assert fault_of(message).code == code
