"""New clients of a gateway that has much else to do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
from tests.wire.certificates import Authority
from tests.wire.client import chat_body, request
from tests.wire.stand import Stand, run, stand

CLIENTS = 200


@contextmanager
def connecting(port: int, count: int = CLIENTS) -> Iterator[list[socket.socket]]:
    """Clients whom the kernel has let in before the gateway's loop could look."""
    clients = []
    for _ in range(count):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", port))
        clients.append(client)
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


async def _iterations_until(s: Stand, count: int) -> int:
    """How often the loop went round until so many clients were accepted."""
    rounds = 0
    while len(s.gateway.connections) < count:
        rounds += 1
        assert rounds < 10 * CLIENTS
        await asyncio.sleep(0)
    return rounds


def test_a_burst_of_clients_is_not_accepted_one_an_iteration() -> None:
    # An iteration takes tens of milliseconds while a thousand streams flow: one client each, and the last of these
    # would be read after seconds.
    async def test() -> None:
        async with stand() as s:
            with connecting(s.gateway.port):
                assert await _iterations_until(s, CLIENTS) < CLIENTS // 4
            await s.until(lambda: not s.gateway.connections)

    run(test())


def test_clients_of_a_burst_are_served_like_others() -> None:
    async def test() -> None:
        async with stand() as s:
            loop = asyncio.get_running_loop()
            with connecting(s.gateway.port, 40) as clients:
                await _iterations_until(s, 40)
                for client in clients:
                    await loop.sock_sendall(client, request(chat_body()))
                for client in clients:
                    assert (await loop.sock_recv(client, 4096)).startswith(b"HTTP/1.1 200")
                await s.until(lambda: len(s.records.all) == 40)
            await s.until(lambda: not s.gateway.connections)

    run(test())


def test_a_burst_on_a_unix_socket(tmp_path: Path) -> None:
    async def test() -> None:
        async with stand(listen=f"unix:{tmp_path / 'g.sock'}") as s:
            loop = asyncio.get_running_loop()
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(CLIENTS)]
                for client in clients:
                    client.connect(str(tmp_path / "g.sock"))
                    client.setblocking(False)
                assert await _iterations_until(s, CLIENTS) < CLIENTS // 4
                for client in clients[-20:]:
                    await loop.sock_sendall(client, request(chat_body()))
                for client in clients[-20:]:
                    assert (await loop.sock_recv(client, 4096)).startswith(b"HTTP/1.1 200")
                await s.until(lambda: len(s.records.all) == 20)
            await s.until(lambda: not s.gateway.connections)

    run(test())


@pytest.mark.needs("openssl")
def test_a_burst_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    leaf = authority.issue("gateway")
    trusting = ssl.create_default_context(cafile=authority.cert)

    async def test() -> None:
        async with stand(tls={"cert": leaf.cert, "key": leaf.key}) as s:
            clients = await asyncio.gather(*(s.client(tls=trusting) for _ in range(40)))
            replies = await asyncio.gather(*(client.ask(request(chat_body())) for client in clients))
            assert {reply.status for reply in replies} == {200}
            assert s.gateway.counters.connections_total == 40

    run(test())


def test_a_burst_of_clients_above_the_limit_is_refused_with_503() -> None:
    async def test() -> None:
        async with stand(limits={"connections": 10}) as s:
            with connecting(s.gateway.port, 30):
                await s.until(lambda: s.gateway.counters.connections_total == 30)
                assert len(s.gateway.connections) == 10
                assert s.gateway.counters.connections_refused == 20
            await s.until(lambda: not s.gateway.connections)

    run(test())


def test_a_gateway_that_has_stopped_takes_nobody() -> None:
    async def test() -> None:
        gateway = Gateway(
            config_from({"listen": "127.0.0.1:0", "backends": [{"url": "http://127.0.0.1:9"}]}), _Nowhere()
        )
        await gateway.start()
        await gateway.close(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", gateway.port)

    run(test())


class _Nowhere:
    def put(self, record: object) -> bool:
        return True


@pytest.mark.parametrize(("soft", "connections"), [(256, 1000), (256, 20)])
def test_the_soft_limit_of_open_files_is_raised_as_far_as_it_is_needed(soft: int, connections: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    code = (
        "import json, resource; from tailrace.app.open_files import raise_open_files\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {min(hard, 4096) if hard > 0 else 4096}))\n"
        f"room = raise_open_files({connections})\n"
        "print(json.dumps([room, *resource.getrlimit(resource.RLIMIT_NOFILE)]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    room, now, _ = json.loads(ended.stdout)
    assert room == connections
    assert now == max(soft, 2 * connections + 200)


def test_a_hard_limit_that_is_too_low_is_told() -> None:
    code = (
        "import resource; from tailrace.app.open_files import raise_open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400)); print(raise_open_files(1000))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ended.stdout) == 100
