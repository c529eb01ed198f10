from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.engine_head import AnswerHead, EngineHead, EngineHeads
from tailrace.gateway.forward import forward_request, length_line, onward_head, own_head
from tailrace.gateway.head import (
    HOP_BY_HOP,
    HeadError,
    check_head,
    chunk,
    connection_tokens,
    deadline_of,
    end_to_end,
    status_line,
)

TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_0123456789", min_size=1, max_size=20)
VALUE = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
HEADERS = st.lists(st.tuples(TOKEN.map(str.encode), VALUE.map(str.encode)), max_size=12)


class Parsed:
    """llhttp's reading of what we wrote."""

    def __init__(self, data: bytes, kind: type = httptools.HttpRequestParser) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.complete = 0
        self.parser = kind(self)
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete += 1


def forwarded(method: bytes, headers: list, body: bytes, *, read: bool = True, api_key: str | None = None) -> bytes:
    onward = onward_head(method, b"/v1/completions", headers, authority=b"engine:8000", read=read, api_key=api_key)
    framing = length_line(method, body)
    return forward_request(onward, body, request_id="r1", traceparent=b"00-a-b-00", framing=framing)


@given(HEADERS, st.binary(max_size=50))
def test_a_forwarded_request_is_one_request_whatever_the_headers(headers: list, body: bytes) -> None:
    data = forwarded(b"POST", headers, body)
    seen = Parsed(data)
    assert seen.complete == 1
    assert seen.body == body
    names = [name for name, _ in seen.headers]
    assert names.count(b"host") == names.count(b"content-length") == names.count(b"x-request-id") == 1
    assert not HOP_BY_HOP & set(names)
    assert dict(seen.headers)[b"host"] == b"engine:8000"
    kept = {name.lower() for name, _ in headers}
    assert set(names) <= kept | {b"host", b"content-length", b"x-request-id", b"traceparent", b"via"}


@given(HEADERS)
def test_order_and_repetition_of_headers_are_kept(headers: list) -> None:
    kept = end_to_end(headers, frozenset())
    assert kept == [pair for pair in headers if pair in kept]


def test_what_connection_names_is_dropped_but_never_what_frames_the_message() -> None:
    headers = [
        (b"Connection", b"keep-alive, X-Mine, Content-Length, Host, Authorization"),
        (b"X-Mine", b"1"),
        (b"Content-Type", b"a/b"),
        (b"Authorization", b"k"),
        (b"X-Other", b"2"),
    ]
    assert [name for name, _ in end_to_end(headers, frozenset())] == [b"Content-Type", b"Authorization", b"X-Other"]
    assert connection_tokens(b"Close , TE") == [b"close", b"te"]


@pytest.mark.parametrize(
    ("version", "headers", "status"),
    [
        ("1.1", [], 400),
        ("1.1", [(b"Host", b"a"), (b"host", b"a")], 400),
        ("1.1", [(b"Host", b"")], 400),
        ("1.1", [(b"Host", b"a b")], 400),
        ("1.1", [(b"Host", b"a@b")], 400),
        ("1.1", [(b"Host", b"a"), (b"Transfer-Encoding", b"gzip, chunked")], 501),
        ("1.1", [(b"Host", b"a"), (b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"chunked")], 400),
        ("1.1", [(b"Host", b"a"), (b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"1")], 400),
        ("1.0", [(b"Transfer-Encoding", b"chunked")], 400),
    ],
)
def test_heads_that_must_not_be_forwarded(version: str, headers: list, status: int) -> None:
    with pytest.raises(HeadError) as caught:
        check_head(version, headers)
    assert caught.value.status == status


def test_sound_heads_pass() -> None:
    assert check_head("1.0", []) == {}
    assert check_head("1.1", [(b"HOST", b"[::1]:80"), (b"A", b"1"), (b"a", b"2")]) == {b"host": b"[::1]:80", b"a": b"1"}


def test_an_api_key_of_the_backend_replaces_the_clients() -> None:
    data = forwarded(b"POST", [(b"Authorization", b"Bearer client")], b"{}", api_key="engine")
    assert [value for name, value in Parsed(data).headers if name == b"authorization"] == [b"Bearer engine"]


def test_a_get_has_no_length_and_a_post_without_a_body_has() -> None:
    def forward(method: bytes) -> list[bytes]:
        data = forwarded(method, [], b"", read=False)
        return [name for name, _ in Parsed(data).headers]

    assert b"content-length" not in forward(b"GET")
    assert b"content-length" in forward(b"POST")


def test_chunks_and_status_lines() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
    assert status_line(200) == b"HTTP/1.1 200 OK\r\n"
    assert status_line(799).startswith(b"HTTP/1.1 799 ")


@given(HEADERS, st.integers(200, 599).filter(lambda status: status not in (204, 304)))
def test_an_answers_head_never_brings_two_lengths_or_our_names(headers: list, status: int) -> None:
    said = [*headers, (b"X-Request-Id", b"theirs"), (b"Content-Length", b"3")]
    head = AnswerHead(EngineHead(status, said), said)
    assert head.content_length is not None
    out = head.render([b"x-request-id: ours\r\n"], framing=b"content-length: 3\r\n", keep_alive=False)
    seen = Parsed(out + b"abc", httptools.HttpResponseParser)
    names = [name for name, _ in seen.headers]
    assert names.count(b"x-request-id") == 1
    assert names.count(b"content-length") == 1
    assert dict(seen.headers)[b"connection"] == b"close"


def test_our_own_head_says_when_to_come_back() -> None:
    head = own_head(429, 2, [b"x-request-id: r\r\n"], keep_alive=True, retry_after_s=7)
    assert b"retry-after: 7\r\n" in head
    assert b"connection" not in head
    assert Parsed(head + b"{}", httptools.HttpResponseParser).body == b"{}"


def test_heads_of_one_kind_are_read_once_and_rendered_each_with_its_own_length_and_date() -> None:
    heads = EngineHeads()

    def said(length: bytes, date: bytes, mark: bytes = b"a") -> list:
        return [(b"Server", b"x"), (b"Date", date), (b"X-Mark", mark), (b"Content-Length", length)]

    first = heads.read(200, said(b"3", b"Sun"))
    assert heads.read(200, said(b"14", b"Mon")) is first
    out = AnswerHead(first, said(b"14", b"Mon")).render([], framing=b"content-length: 14\r\n", keep_alive=True)
    assert out == b"HTTP/1.1 200 OK\r\nServer: x\r\nX-Mark: a\r\ndate: Mon\r\ncontent-length: 14\r\n\r\n"
    other = heads.read(200, said(b"3", b"Sun", b"b"))
    assert other is not first
    assert b"X-Mark: b" in other.lines
    assert heads.read(404, said(b"3", b"Sun")).status == 404


@given(HEADERS, HEADERS, st.integers(200, 599))
def test_a_remembered_head_is_never_given_for_another(first: list, second: list, status: int) -> None:
    heads = EngineHeads()
    heads.read(status, first)
    known, fresh = heads.read(status, second), EngineHead(status, second)
    assert (known.lines, known.kind, known.length_at, known.date_at) == (
        fresh.lines,
        fresh.kind,
        fresh.length_at,
        fresh.date_at,
    )


def test_white_space_behind_a_value_is_none_of_it() -> None:
    named = check_head("1.1", [(b"Host", b"x"), (b"X-Deadline-Ms", b"50 \t"), (b"x-lane", b"fast ")])
    assert (named[b"x-deadline-ms"], named[b"x-lane"]) == (b"50", b"fast")
    assert deadline_of(named, 7) == 50_000_007


@pytest.mark.parametrize(("raw", "ms"), [(b"1500.0", 1500), (b"0.9", 0), (b"00050", 50)])
def test_a_deadline_may_have_a_fraction(raw: bytes, ms: int) -> None:
    assert deadline_of({b"x-deadline-ms": raw}, 0) == ms * 1_000_000


@pytest.mark.parametrize("raw", [b"", b"-5", b"+5", b"1e3", b"NaN", b"1.", b".5", b"1.5.5", b"\xb2", b"9" * 13])
def test_what_is_no_number_is_no_deadline(raw: bytes) -> None:
    assert deadline_of({b"x-deadline-ms": raw}, 0) is None
