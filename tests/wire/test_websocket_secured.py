"""WebSocket sessions where there is more than TCP: TLS on both sides, Unix sockets, leaving while nobody reads."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import aiohttp
import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.certificates import Authority, Pair
from tests.wire.sockets import BINARY, CLOSE, TEXT, Engines, aiohttp_engine, closing, dial, echo, frame, offer
from tests.wire.stand import run, stand


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def leaf(authority: Authority) -> Pair:
    return authority.issue("server")


def serving(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    return context


@pytest.mark.needs("openssl")
def test_sessions_cross_tls_on_both_sides(authority: Authority, leaf: Pair) -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(
            engines.script,
            tls={"cert": leaf.cert, "key": leaf.key},
            engine_at={"tls": serving(leaf)},
            backend={"tls": {"ca": authority.cert}},
            websocket={"message_bytes": 1_000_000},
        ) as s:
            s.client_options = {"tls": ssl.create_default_context(cafile=authority.cert)}
            assert s.gateway.url.startswith("https://")
            # A proper end, by either side.
            for count, engine_first in enumerate((False, True), start=1):
                socket, _, _ = await dial(s)
                engine = await engines.next()
                first, second = (engine, socket) if engine_first else (socket, engine)
                await first.send(BINARY, b"x" * 300_000)
                assert await second.next() == (0x82, b"x" * 300_000)
                await first.send(CLOSE, closing(4000, "done"))
                assert await second.closed() == (4000, "done")
                await second.send(CLOSE, closing(4000))
                assert await first.closed() == (4000, "")
                assert (await s.record(count)).outcome is OutcomeKind.COMPLETED
            # An engine that dies, a message that is too large, a client that dies.
            socket, _, _ = await dial(s)
            (await engines.next()).kill()
            assert (await socket.closed())[0] == 1011
            await s.record(3)
            socket, _, _ = await dial(s)
            engine = await engines.next()
            socket.writer.write(socket.frame(BINARY, b"x" * 1_000_001))
            assert (await engine.closed())[0] == 1009
            assert (await socket.closed())[0] == 1009
            await s.record(4)
            socket, _, _ = await dial(s)
            engine = await engines.next()
            left = time.monotonic()
            socket.kill()
            assert await engine.closed() == (1001, "the client is gone")
            assert time.monotonic() - left < 0.05
            assert (await s.record(5)).reason is Reason.CLIENT_DISCONNECT

    run(test())


@pytest.mark.needs("openssl")
def test_slow_ends_are_paced_through_tls(authority: Authority, leaf: Pair) -> None:
    piece, pieces = b"z" * 65_536, 300

    async def test() -> None:
        engines = Engines()
        async with stand(
            engines.script,
            tls={"cert": leaf.cert, "key": leaf.key},
            engine_at={"tls": serving(leaf)},
            backend={"tls": {"ca": authority.cert}},
        ) as s:
            s.client_options = {"tls": ssl.create_default_context(cafile=authority.cert)}
            socket, _, _ = await dial(s)
            engine = await engines.next()
            for sender, receiver in ((engine, socket), (socket, engine)):

                async def flood() -> None:
                    for _ in range(pieces):
                        await sender.send(BINARY, piece)  # noqa: B023

                receiver.writer.transport.pause_reading()  # type: ignore[attr-defined]
                flooding = asyncio.ensure_future(flood())
                await asyncio.sleep(0.3)
                assert not flooding.done()
                receiver.writer.transport.resume_reading()  # type: ignore[attr-defined]
                for _ in range(pieces):
                    first, payload = await receiver.next()
                    assert first == 0x82
                    assert len(payload) == len(piece)
                await flooding
            await socket.send(CLOSE, closing(1000))
            await engine.closed()
            await engine.send(CLOSE, closing(1000))
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


def test_a_real_client_and_a_real_server_over_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    async def test() -> None:
        async with (
            aiohttp_engine(echo) as url,
            stand(listen=f"unix:{path}", backends=[{"url": url, "metrics_url": url + "/metrics"}]) as s,
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
        ):
            async with session.ws_connect("http://gateway/v1/realtime") as ws:
                await ws.send_str("hello")
                assert await ws.receive_str() == "hello"
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


def test_a_client_on_a_unix_socket_is_seen_to_leave_from_the_queue(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    async def test() -> None:
        engines = Engines()
        lanes = [{"name": "default", "running": 1}]
        async with stand(engines.script, listen=f"unix:{path}", lanes=lanes, budgets={"queue": "10s"}) as s:
            first, _, _ = await dial(s)
            await first.send(TEXT, b"hold")
            waiting = await s.client()
            await waiting.send(offer() + frame(BINARY, b"x" * 150_000, mask=b"abcd"))
            await s.until(lambda: s.gateway.lanes.snapshot(0)["default"]["queued"] == 1)
            left = time.monotonic()
            waiting.abort()
            assert (await s.record()).died_in == "queue"
            assert time.monotonic() - left < 0.2

    run(test())
