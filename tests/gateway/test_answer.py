from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.answer import Answer
from tailrace.gateway.engine_head import EngineHead


class Wire:
    """Collects what leaves, and reads it as a client's parser does."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.complete = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def read(self) -> Wire:
        parser = httptools.HttpResponseParser(self)
        for data in self.writes:
            parser.feed_data(data)
        self.status = parser.get_status_code()
        return self

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


SSE = [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")]


def begin(answer: Answer, status: int, headers: list[tuple[bytes, bytes]], *, sse: bool) -> None:
    answer.begin(EngineHead(status, headers), headers, sse=sse)


def _answer(*, version: str = "1.1", head_only: bool = False) -> tuple[Answer, Wire]:
    wire = Wire()
    return Answer(wire, head_only=head_only, version=version), wire


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(0, 10))
def test_whatever_the_pieces_the_body_arrives_whole(pieces: list[bytes], released_after: int) -> None:
    answer, wire = _answer()
    begin(answer, 200, SSE, sse=True)
    for number, data in enumerate(pieces):
        if number == released_after:
            answer.release()
        answer.body(data)
    answer.end()
    wire.read()
    assert wire.complete
    assert wire.body == b"".join(pieces)
    assert wire.headers[b"transfer-encoding"] == b"chunked"


def test_nothing_leaves_before_the_head_is_released_and_then_it_leaves_in_one_write() -> None:
    answer, wire = _answer()
    begin(answer, 200, SSE, sse=True)
    assert answer.body(b"data: 1\n\n") == 0
    assert answer.holding
    assert wire.writes == []
    answer.release()
    assert len(wire.writes) == 1
    assert not answer.holding
    assert answer.first_write_ns is not None
    assert answer.body(b"data: 2\n\n") >= answer.first_write_ns


def test_a_held_answer_can_still_become_another_one() -> None:
    answer, wire = _answer()
    begin(answer, 200, SSE, sse=True)
    answer.body(b"data: {}\n\n")
    answer.refuse(503, b'{"error":1}', retry_after_s=3)
    wire.read()
    assert (wire.status, wire.body, wire.headers[b"retry-after"]) == (503, b'{"error":1}', b"3")
    assert answer.status == 503


def test_a_plain_answer_keeps_its_length_or_gets_one() -> None:
    for headers in ([(b"Content-Length", b"2")], [(b"Transfer-Encoding", b"chunked")]):
        answer, wire = _answer()
        begin(answer, 200, headers, sse=False)
        answer.body(b"{}")
        answer.end()
        wire.read()
        assert wire.headers[b"content-length"] == b"2"
        assert wire.complete


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_has_no_framing(status: int) -> None:
    answer, wire = _answer()
    begin(answer, status, [], sse=False)
    answer.end()
    wire.read()
    assert wire.complete
    assert b"transfer-encoding" not in wire.headers
    assert b"content-length" not in wire.headers


def test_head_says_the_length_and_sends_nothing() -> None:
    answer, wire = _answer(head_only=True)
    begin(answer, 200, [(b"Content-Length", b"50")], sse=False)
    answer.end()
    assert wire.writes[0].endswith(b"\r\n\r\n")
    assert b"content-length: 50\r\n" in wire.writes[0]
    answer, wire = _answer(head_only=True)
    answer.refuse(404, b"{}")
    assert wire.writes[0].endswith(b"\r\n\r\n")


def test_http_1_0_is_ended_by_closing() -> None:
    answer, wire = _answer(version="1.0")
    begin(answer, 200, SSE, sse=True)
    answer.body(b"data: 1\n\n")
    answer.release()
    answer.end()
    assert answer.keep_alive is False
    assert wire.writes == [wire.writes[0]]
    assert wire.writes[0].endswith(b"connection: close\r\n\r\ndata: 1\n\n")
