"""Answers without an end, of absurd size, or broken below the level of events: each ends in bound, rightly named."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tailrace.model.errors import TargetError
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.thresholds import MS
from tests.probe.raw_server import END, HEAD, Call, RawServer, chunk, last, serving, token, whole
from tests.probe.running import Result, run, spec_for

TLS = Path(__file__).parent / "tls"
Script = Callable[[Call], Awaitable[None]]
BLOCK = b"x" * 65536


def numbered(call: Call) -> int:
    return int(call.headers["x-request-id"].rpartition("-")[2])


def beside_a_sound_one(script: Script, folder: Path, **limits: float) -> tuple[Result, float]:
    """Two requests: the first one meets `script`, the second a sound answer. The result and how long the run took."""

    async def either(call: Call) -> None:
        await (script(call) if numbered(call) == 0 else call.answer())

    began = time.monotonic()
    with serving(RawServer(either)) as server:
        result = run(spec_for(server.url, requests=2, **limits), folder)
    took = time.monotonic() - began
    bad, good = sorted(result.records, key=lambda record: int(record.request_id.rpartition("-")[2]))
    assert good.outcome is OutcomeKind.COMPLETED
    assert result.summary.errors == {bad.reason.value: 1}
    assert result.summary.metrics["ttft_ms"].n == 1
    result.run.records[:] = [bad]
    return result, took


async def forever(call: Call, data: bytes, pause_s: float = 0.0) -> None:
    while True:
        await call.send(data)
        await asyncio.sleep(pause_s)


async def endless_tokens(call: Call) -> None:
    await call.send(HEAD)
    await forever(call, chunk(token()), 0.005)


async def endless_comments(call: Call) -> None:
    await call.send(HEAD)
    await forever(call, chunk(b": ping\n\n" * 50), 0.005)


async def endless_event(call: Call) -> None:
    await call.send(HEAD, chunk(token()), chunk(b"data: "))
    await forever(call, chunk(BLOCK))


async def giant_event(call: Call) -> None:
    await call.send(HEAD, chunk(token()), chunk(token("w" * (9 << 20))), chunk(last(2)), END)


async def endless_header(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\nx-long: ")
    await forever(call, BLOCK)


async def many_headers(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\n")
    await forever(call, b"x: y\r\n" * 1000)


async def dripping_head(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\n")
    await forever(call, b"x: y\r\n", 0.03)


async def endless_trailers(call: Call) -> None:
    await call.send(HEAD, chunk(token()), chunk(token()), b"0\r\n")
    await forever(call, b"x: y\r\n" * 1000)


async def endless_chunk_extension(call: Call) -> None:
    await call.send(HEAD, chunk(token()), b"5;")
    await forever(call, BLOCK)


async def endless_json(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    await forever(call, chunk(BLOCK))


async def endless_error(call: Call) -> None:
    await call.send(b"HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n")
    await forever(call, chunk(BLOCK))


async def compressed(call: Call) -> None:
    await call.send(whole(200, gzip.compress(token() + last(1)), "text/event-stream", "content-encoding: gzip\r\n"))


async def bare_redirect(call: Call) -> None:
    await call.send(whole(302, b"", more="location: https://elsewhere.example/v1\r\n"))


async def switching(call: Call) -> None:
    await call.send(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
    await asyncio.sleep(5)


async def shorter_than_said(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n" + token())
    call.writer.close()


async def negative_chunk(call: Call) -> None:
    await call.send(HEAD, chunk(token()), b"-5\r\nhello\r\n")


async def huge_chunk_size(call: Call) -> None:
    await call.send(HEAD, chunk(token()), b"f" * 40 + b"\r\n")


async def both_lengths(call: Call) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\n"
    await call.send(head + token())


@pytest.mark.parametrize(
    ("script", "reason", "died_in", "tokens", "words"),
    [
        (endless_event, Reason.PROTOCOL_ERROR, "decode", 1, "larger than 8388608 bytes"),
        (giant_event, Reason.PROTOCOL_ERROR, "decode", 1, "larger than 8388608 bytes"),
        (endless_header, Reason.PROTOCOL_ERROR, "prefill", None, "headers are longer"),
        (many_headers, Reason.PROTOCOL_ERROR, "prefill", None, "headers are longer"),
        (endless_trailers, Reason.PROTOCOL_ERROR, "decode", 2, "headers are longer"),
        (endless_json, Reason.PROTOCOL_ERROR, "prefill", None, "longer than 64 MiB"),
        (endless_error, Reason.ENGINE_ERROR, "prefill", None, "xxxx"),
        (compressed, Reason.PROTOCOL_ERROR, "prefill", None, "compressed (gzip)"),
        (bare_redirect, Reason.PROTOCOL_ERROR, "prefill", None, "https://elsewhere.example/v1"),
        (switching, Reason.PROTOCOL_ERROR, "prefill", None, "switch protocols"),
        (shorter_than_said, Reason.STREAM_CUT, "decode", 1, "closed"),
        (negative_chunk, Reason.PROTOCOL_ERROR, "decode", 1, "no HTTP"),
        (huge_chunk_size, Reason.PROTOCOL_ERROR, "decode", 1, "no HTTP"),
        (both_lengths, Reason.PROTOCOL_ERROR, "prefill", None, "no HTTP"),
    ],
)
def test_what_cannot_be_read_ends_at_once(
    script: Script, reason: Reason, died_in: str, tokens: int | None, words: str, tmp_path: Path
):
    """Long before any timeout: the default one is five minutes, and an answer without an end would hold its place."""
    result, took = beside_a_sound_one(script, tmp_path, total_ms=60_000)
    (record,) = result.records
    assert (record.reason, record.died_in, record.output_tokens) == (reason, died_in, tokens)
    assert words in record.error
    assert took < 15


@pytest.mark.parametrize(
    ("script", "died_in", "some"),
    [
        (endless_tokens, "decode", True),
        (endless_comments, "prefill", False),
        (dripping_head, "prefill", False),
        (endless_chunk_extension, "decode", True),
    ],
)
def test_what_goes_on_for_ever_ends_at_its_bound(script: Script, died_in: str, *, some: bool, tmp_path: Path):
    result, took = beside_a_sound_one(script, tmp_path, total_ms=700)
    (record,) = result.records
    assert (record.outcome, record.reason) == (OutcomeKind.TIMED_OUT, Reason.TOTAL_TIMEOUT)
    assert (record.died_in, record.budget) == (died_in, "total")
    assert bool(record.output_tokens) == some
    assert record.e2e_ns is not None
    assert 700 * MS <= record.e2e_ns < 3000 * MS
    assert took < 10


def test_a_record_of_a_stream_without_an_end_is_bounded(tmp_path: Path):
    async def flood(call: Call) -> None:
        await call.send(HEAD)
        await forever(call, chunk(token() * 400))

    result, _ = beside_a_sound_one(flood, tmp_path, total_ms=1500)
    (record,) = result.records
    assert record.timeline is not None
    assert (record.output_tokens or 0) > 5_000
    assert len(record.timeline.at_ns) <= (1 << 16) + 16
    assert (tmp_path / "probe.run").stat().st_size < 8 << 20


def test_resets_are_counted_and_cost_nobody_else(tmp_path: Path):
    """One request in twenty is answered with a reset, half of them in mid-stream."""
    requests = 200

    async def script(call: Call) -> None:
        number = numbered(call)
        if number % 20:
            await call.answer(tokens=3)
            return
        if number % 40:
            await call.send(HEAD, chunk(token()))
            await asyncio.sleep(0.02)
        sock = call.writer.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        call.close()

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, requests=requests, concurrency=10), tmp_path)
    assert result.summary.errors == {"stream_cut": requests // 20}
    assert result.summary.metrics["ttft_ms"].n == requests - requests // 20
    cut = [record for record in result.records if record.outcome is OutcomeKind.FAILED]
    assert {int(record.request_id.rpartition("-")[2]) % 20 for record in cut} == {0}
    assert sorted({(record.died_in, record.output_tokens) for record in cut}, key=str) == [
        ("decode", 1),
        ("prefill", None),
    ]


def test_a_half_closed_connection_is_read_to_its_end_and_not_used_again(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(HEAD, chunk(token()))
        await asyncio.sleep(0.02)
        await call.send(chunk(token()), chunk(last(2)), END)
        call.writer.write_eof()
        await asyncio.sleep(0.3)

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, requests=3), tmp_path)
    assert result.summary.errors == {}
    assert {record.chunk_gap_count for record in result.records} == {1}


def test_a_server_that_accepts_and_says_nothing(tmp_path: Path):
    """Not even the connection is answered for: the kernel accepts, the process never reads."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(TargetError, match=r"no answer within 0\.5 s"):
            run(spec_for(url, total_ms=500), tmp_path)
        assert time.monotonic() - began < 5
    assert list(tmp_path.iterdir()) == [], "nothing was measured, so nothing is left"


# -- TLS


def context() -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    return found


def test_tls_to_a_port_that_speaks_none_and_the_other_way_round(tmp_path: Path):
    def refuse(listener: socket.socket) -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as plain:
        threading.Thread(target=refuse, args=(plain,), daemon=True).start()
        url = f"https://127.0.0.1:{plain.getsockname()[1]}"
        with pytest.raises(TargetError, match="TLS failed"):
            run(spec_for(url, verify_tls=False, total_ms=2000), tmp_path)
        socket.create_connection(plain.getsockname()[:2]).close()  # lets the thread end
    with serving(RawServer(Call.answer), tls=context()) as secret, pytest.raises(TargetError, match="no answer"):
        run(spec_for(secret.url.replace("https:", "http:"), total_ms=2000), tmp_path)


def test_a_handshake_that_never_ends_is_bound_like_a_connect(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(TargetError, match=r"no connection within 0\.4 s"):
            run(spec_for(url, connect_ms=400, verify_tls=False), tmp_path)
        assert time.monotonic() - began < 4


def test_tls_that_is_torn_in_mid_stream_is_a_cut(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(HEAD, chunk(token()))
        await asyncio.sleep(0.05)
        await (call.send(chunk(token()), chunk(last(2)), END) if numbered(call) else asyncio.sleep(0))
        if not numbered(call):
            call.close()

    with serving(RawServer(script), tls=context()) as server:
        result = run(spec_for(server.url, requests=3, verify_tls=False), tmp_path)
    assert result.summary.errors == {"stream_cut": 1}
    (cut,) = [record for record in result.records if record.outcome is OutcomeKind.FAILED]
    assert (cut.died_in, cut.output_tokens) == ("decode", 1)
