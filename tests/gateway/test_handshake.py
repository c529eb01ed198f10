from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.handshake import accept_of, model_of, offers_websocket, refuse_offer, with_offer, wrong_answer


def test_the_example_of_the_rfc():
    assert accept_of(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    ("headers", "offers"),
    [
        ([(b"Upgrade", b"websocket"), (b"Connection", b"Upgrade")], True),
        ([(b"upgrade", b"h2c, WebSocket"), (b"connection", b"keep-alive"), (b"connection", b"UPGRADE")], True),
        ([(b"Upgrade", b"websocket")], False),
        ([(b"Upgrade", b"websockets"), (b"Connection", b"Upgrade")], False),
        ([(b"Upgrade", b"h2c"), (b"Connection", b"Upgrade, HTTP2-Settings")], False),
        ([(b"Connection", b"Upgrade")], False),
    ],
)
def test_what_offers_a_websocket(headers, offers):
    assert offers_websocket(headers) is offers


@given(st.binary(max_size=40))
def test_only_sixteen_bytes_are_a_key(key):
    headers = [(b"Sec-WebSocket-Key", base64.b64encode(key)), (b"Sec-WebSocket-Version", b"13")]
    refusal = refuse_offer(headers, {name.lower(): value for name, value in headers})
    assert (refusal is None) is (len(key) == 16)


@given(st.binary(max_size=60))
def test_no_key_raises(key):
    headers = [(b"sec-websocket-key", key), (b"sec-websocket-version", b"13")]
    refusal = refuse_offer(headers, dict(headers))
    assert refusal is None or refusal.status == 400


def test_an_answer_has_to_be_to_this_key():
    key = base64.b64encode(b"0" * 16)
    sound = [(b"Upgrade", b"WebSocket"), (b"Sec-WebSocket-Accept", accept_of(key))]
    assert wrong_answer(key, sound) == ""
    assert "not answer" in wrong_answer(base64.b64encode(b"1" * 16), sound)
    assert "missing" in wrong_answer(key, sound[:1])
    assert "not answer" in wrong_answer(key, [*sound, sound[1]])
    assert "another protocol" in wrong_answer(key, sound[1:])


def test_the_offer_is_put_into_a_head():
    head = with_offer(b"GET /v1/realtime HTTP/1.1\r\nhost: a\r\n\r\n")
    assert head == b"GET /v1/realtime HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"


@pytest.mark.parametrize(
    ("target", "model"),
    [
        (b"/v1/realtime?model=a%2Fb&x=1", "a/b"),
        (b"/v1/realtime?x=1&model=first&model=second", "first"),
        (b"/v1/realtime", ""),
        (b"/v1/realtime?model=", ""),
        (b"/v1/realtime?model=\xff", ""),
        (b"/v1/realtime?" + b"a=1&" * 200 + b"model=m", ""),
    ],
)
def test_the_model_of_a_target(target, model):
    assert model_of(target) == model
