"""Unix sockets and IPv6 on both sides."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from pathlib import Path

import pytest

from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
from tailrace.model.errors import ConfigError, InputError
from tailrace.model.outcome import OutcomeKind
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, Incoming
from tests.wire.stand import Records, run, stand
from tests.wire.test_pool import arrives, hang_up


async def _whole(incoming: Incoming) -> None:
    if incoming.method == "GET":  # metrics under the engine's prefix
        await incoming.reply({}, 404)
    elif incoming.json.get("stream"):
        await incoming.stream(3, gap=0.01)
    else:
        await incoming.completion()


def test_a_unix_socket_on_both_sides(tmp_path: Path) -> None:
    side = {"/metrics": b"vllm:num_requests_running 1\n"}

    async def test() -> None:
        path = tmp_path / "gateway.sock"
        async with stand(
            _whole, side=side, listen=f"unix:{path}", engine_at={"socket_path": str(tmp_path / "Engine.sock")}
        ) as s:
            assert s.gateway.url == f"unix:{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            client = await s.client()
            for _ in range(2):
                reply = await client.ask(request(chat_body()))
                assert (reply.end, reply.tokens, reply.body.endswith(DONE)) == ("chunked", 3, True)
                assert (await client.ask(request(chat_body(stream=False)))).status == 200
            assert s.engine.requests[0].headers["host"] == "localhost"
            assert len({incoming.connection for incoming in s.engine.requests}) == 1
            await s.until(lambda: s.gateway.backends.first.engine.name == "vllm")  # the metrics came by the socket, too
            await s.record(4)
            assert {record.outcome for record in s.records.all} == {OutcomeKind.COMPLETED}
        assert not path.exists()

    run(test())


def test_a_cancel_crosses_unix_sockets_within_50_ms(tmp_path: Path) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()
        gone.append(time.monotonic())

    gone: list[float] = []

    async def test() -> None:
        async with stand(
            script, listen=f"unix:{tmp_path}/g.sock", engine_at={"socket_path": str(tmp_path / "e.sock")}
        ) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await s.until(lambda: bool(s.engine.requests))
            left = time.monotonic()
            client.abort()
            await s.until(lambda: bool(gone))
            assert gone[0] - left < 0.05

    run(test())


def test_a_request_that_crosses_the_close_of_a_unix_socket_is_sent_once_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with stand(_whole, engine_at={"socket_path": str(tmp_path / "e.sock")}) as s:
            client = await s.client()
            await client.ask(request(chat_body(stream=False)))
            hang_up(s.engine.requests[0])
            arrives(s, request(chat_body(stream=False)))
            assert (await client.reply()).status == 200
            assert (await s.record(2)).attempts == 2

    run(test())


def test_the_percent_encoded_form_has_room_for_a_prefix(tmp_path: Path) -> None:
    path = str(tmp_path / "e.sock")

    async def test() -> None:
        url = f"http+unix://{path.replace('/', '%2F')}/team/v1"
        async with stand(_whole, engine_at={"socket_path": path}, backend={"url": url}) as s:
            assert (await s.ask(request(chat_body(stream=False)))).status == 200
            assert s.engine.requests[-1].target == "/team/v1/chat/completions"

    run(test())


def test_an_engine_whose_socket_is_not_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with stand(_whole, backend={"url": f"unix:{tmp_path}/none.sock"}) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            assert reply.status == 503
            assert "none.sock" in reply.json["error"]["message"]

    run(test())


def _gateway(listen: str, **more: object) -> Gateway:
    plain = {"listen": listen, "backends": [{"url": "http://127.0.0.1:1"}], "scrape": {"period": "60s"}, **more}
    return Gateway(config_from(plain), Records())


def test_whose_socket_file_it_is(tmp_path: Path) -> None:
    path = tmp_path / "g.sock"

    async def refused(listen: str) -> str:
        gateway = _gateway(listen)
        with pytest.raises(InputError) as caught:
            await gateway.start()
        await gateway.close(0)
        return str(caught.value)

    async def test() -> None:
        with socket.socket(socket.AF_UNIX) as dead:  # what a killed process leaves
            dead.bind(str(path))
        first = _gateway(f"unix:{path}", listen_mode="600")
        await first.start()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "in use" in await refused(f"unix:{path}")
        assert path.exists()  # the refused one took nothing away
        # Another has replaced the file meanwhile: it is not ours to take away.
        path.unlink()
        path.touch()
        await first.close(0)
        assert path.exists()
        assert "no socket" in await refused(f"unix:{path}")
        assert "No such file" in await refused(f"unix:{tmp_path}/none/g.sock")
        assert "cannot listen" in await refused(f"unix:{tmp_path}/{'x' * 120}.sock")
        if os.getuid() != 0:
            assert "ermission" in await refused("unix:/g.sock")

    run(test())


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"listen": "unix:relative.sock"}, "names no socket"),
        ({"listen": "unix:"}, "names no socket"),
        ({"listen": "unix:/g.sock", "tls": {"cert": "x"}}, "has no TLS"),
        ({"listen_mode": "rw"}, "no mode"),
        ({"backends": [{"url": "unix:e.sock"}]}, "names no socket"),
        ({"backends": [{"url": "http+unix://e.sock"}]}, "names no socket"),
        ({"backends": [{"url": "http+unix://%2Fe.sock?x"}]}, "names no socket"),
        ({"backends": [{"url": "http://h", "tls": {}}]}, "not reached by TLS"),
    ],
)
def test_addresses_that_are_none(config: dict, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        config_from({"backends": [{"url": "http://h"}], **config})


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_ipv6_on_both_sides() -> None:
    async def test() -> None:
        async with stand(_whole, listen="[::1]:0", engine_at={"host": "::1"}) as s:
            assert s.gateway.url.startswith("http://[::1]:")
            client = await s.client()
            assert (await client.ask(request(chat_body()))).end == "chunked"
            assert (await client.ask(request(chat_body(stream=False)))).status == 200
            assert s.engine.requests[0].headers["host"] == s.engine.url.removeprefix("http://")
            assert s.engine.requests[0].headers["host"].startswith("[::1]:")
            options = [
                connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                for connection in (*s.gateway.connections, *s.gateway.backends.first.pool.open)
                if connection.transport is not None
            ]
            assert len(options) == 2
            assert all(options)
            await asyncio.sleep(0)

    run(test())
