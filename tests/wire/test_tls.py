"""TLS on both sides: who is trusted, which protocol, how it ends, and that nothing of the relay's promises is lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
from tailrace.model.errors import ConfigError, InputError
from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.certificates import Authority, Pair, openssl
from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, chunk, finish, token
from tests.wire.stand import Records, Stand, run, stand

pytestmark = pytest.mark.needs("openssl")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def leaf(authority: Authority) -> Pair:
    return authority.issue("server")


def trusting(authority: Authority, own: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.cert)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


def serving(pair: Pair, clients: Authority | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    if clients is not None:
        context.load_verify_locations(clients.cert)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def tls_of(pair: Pair, **more: str) -> dict[str, str]:
    return {"cert": pair.cert, "key": pair.key, **more}


async def _whole(incoming: Incoming) -> None:
    if incoming.method == "GET":
        await incoming.reply({"object": "list"})
    elif incoming.json.get("stream"):
        await incoming.stream(3, gap=0.01)
    else:
        await incoming.completion()


# -- the data port


def test_requests_of_every_kind_over_tls_on_both_sides(authority: Authority, leaf: Pair) -> None:
    async def test() -> None:
        async with stand(
            _whole, tls=tls_of(leaf), engine_at={"tls": serving(leaf)}, backend={"tls": {"ca": authority.cert}}
        ) as s:
            assert s.gateway.url.startswith("https://")
            s.client_options = {"tls": trusting(authority)}
            client = await s.client()
            session = client.writer.get_extra_info("ssl_object")
            assert session.selected_alpn_protocol() == "http/1.1"
            assert session.version() == "TLSv1.3"
            for _ in range(2):
                reply = await client.ask(request(chat_body()))
                assert (reply.end, reply.tokens, reply.body.endswith(DONE)) == ("chunked", 3, True)
                assert (await client.ask(request(chat_body(stream=False)))).status == 200
            await client.send(request(chat_body(stream=False)) * 3)
            assert [(await client.reply()).status for _ in range(3)] == [200] * 3
            assert len({incoming.connection for incoming in s.engine.requests}) == 1
            # The metrics are asked over the same trust.
            await s.until(
                lambda: (
                    s.gateway.backends.first.engine.watch.scrapes > 0
                    and s.gateway.backends.first.engine.watch.error != ""
                )
            )
            assert "404" in s.gateway.backends.first.engine.watch.error
            await s.record(7)
            assert {record.outcome for record in s.records.all} == {OutcomeKind.COMPLETED}

    run(test())


def test_tls_1_1_and_plain_http_are_refused(leaf: Pair) -> None:
    async def test() -> None:
        async with stand(_whole, tls=tls_of(leaf)) as s:
            plain = await s.client()
            plain.writer.write(request(chat_body()))
            assert await plain.closed()
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            old.set_ciphers("ALL:@SECLEVEL=0")
            old.minimum_version = ssl.TLSVersion.TLSv1
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await s.client(tls=old)
            assert s.engine.requests == []
            assert not s.gateway.connections

    with pytest.warns(DeprecationWarning, match="TLSv1"):
        run(test())


def test_client_certificates(authority: Authority, leaf: Pair, tmp_path: Path) -> None:
    strangers = Authority(tmp_path, "Strangers")

    async def asked(s: Stand, own: Pair | None) -> int | None:
        try:
            client = await s.client(tls=trusting(authority, own))
            return (await client.ask(request(chat_body(stream=False)))).status
        except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
            return None  # TLS 1.3 tells a client only after its handshake

    async def test() -> None:
        async with stand(_whole, tls=tls_of(leaf, client_ca=authority.cert)) as s:
            assert await asked(s, authority.issue("client", "DNS:client")) == 200
            assert await asked(s, None) is None
            assert await asked(s, strangers.issue("stranger", "DNS:stranger")) is None
            assert len(s.engine.requests) == 1

    run(test())


def test_a_renewed_certificate_serves_new_connections_and_ends_no_stream(authority: Authority, tmp_path: Path) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD + chunk(token()))
        await asyncio.wait_for(renewed.wait(), 10)
        await incoming.chunks(token(), finish(), DONE)
        await incoming.end()

    renewed = asyncio.Event()
    first, second = authority.issue("first"), authority.issue("second")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(pair: Pair) -> None:
        shutil.copy(pair.cert, cert)
        shutil.copy(pair.key, key)

    def name(client: RawClient) -> str:
        return client.writer.get_extra_info("peercert")["subject"][0][0][1]

    async def test() -> None:
        install(first)
        async with stand(script, tls={"cert": str(cert), "key": str(key)}) as s:
            s.client_options = {"tls": trusting(authority)}
            client = await s.client()
            assert name(client) == "first"
            await client.send(request(chat_body()))
            await s.until(lambda: bool(s.engine.requests))
            # A half-written renewal changes nothing.
            shutil.copy(second.key, key)
            with pytest.raises(ConfigError, match="does not belong"):
                s.gateway.reconfigure(s.gateway.config)
            assert name(await s.client()) == "first"
            install(second)
            s.gateway.reconfigure(s.gateway.config)
            assert name(await s.client()) == "second"
            renewed.set()
            reply = await client.reply()
            assert (reply.end, reply.tokens) == ("chunked", 2)
            without = config_from({"listen": "127.0.0.1:0", "backends": [{"url": "http://127.0.0.1:1"}]})
            without.backends, without.scrape = s.gateway.config.backends, s.gateway.config.scrape
            with pytest.raises(InputError, match="while serving"):
                s.gateway.reconfigure(without)

    run(test())


def test_sighup_reads_the_certificate_again(
    authority: Authority, tmp_path: Path, start_tailrace: Any, free_port: int
) -> None:
    first, second = authority.issue("old"), authority.issue("new")
    cert, key, file = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "tailrace.yaml"
    file.write_text(
        json.dumps(
            {
                "listen": "127.0.0.1:0",
                "admin": "127.0.0.1:0",
                "tls": {"cert": str(cert), "key": str(key)},
                "backends": [{"url": f"http://127.0.0.1:{free_port}"}],
                "records": {"dir": str(tmp_path / "data")},
            }
        )
    )

    def name() -> str:
        with (
            socket.create_connection(("127.0.0.1", port), 5) as raw,
            trusting(authority).wrap_socket(raw, server_hostname="127.0.0.1") as secure,
        ):
            subject: Any = secure.getpeercert()["subject"]  # type: ignore[index]
            return subject[0][0][1]

    shutil.copy(first.cert, cert)
    shutil.copy(first.key, key)
    child = start_tailrace("serve", "-c", str(file), "--json")
    assert child.ready["url"].startswith("https://")
    port = int(child.ready["url"].rpartition(":")[2])
    assert name() == "old"
    shutil.copy(second.cert, cert)
    shutil.copy(second.key, key)
    os.kill(child.ready["pid"], signal.SIGHUP)
    until = time.monotonic() + 5
    while name() != "new":
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["close_notify alone", "FIN alone", "both", "reset"])
def test_every_way_to_leave_stops_the_engine_within_50_ms(authority: Authority, leaf: Pair, how: str) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD + chunk(token()))
        await incoming.until_gone()
        gone.append(time.monotonic())

    gone: list[float] = []

    async def test() -> None:
        async with stand(script, tls=tls_of(leaf)) as s:
            loop = asyncio.get_running_loop()
            raw = socket.create_connection(("127.0.0.1", s.gateway.port))
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            secure = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            raw.setblocking(False)

            async def pump(step: Any) -> Any:
                while True:
                    try:
                        result = step()
                    except ssl.SSLWantReadError:
                        await loop.sock_sendall(raw, outgoing.read())
                        incoming.write(await loop.sock_recv(raw, 65536))
                    else:
                        await loop.sock_sendall(raw, outgoing.read())
                        return result

            await pump(secure.do_handshake)
            await pump(lambda: secure.write(request(chat_body())))
            assert b"200 OK" in await pump(lambda: secure.read(65536))
            left = time.monotonic()
            if how in ("close_notify alone", "both"):
                with pytest.raises(ssl.SSLWantReadError):
                    secure.unwrap()
                await loop.sock_sendall(raw, outgoing.read())
            if how in ("FIN alone", "both"):
                raw.shutdown(socket.SHUT_WR)
            if how == "reset":
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                raw.close()
            await s.until(lambda: bool(gone))
            raw.close()
            assert gone[0] - left < 0.05
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)

    run(test())


def test_a_slow_reader_over_tls_is_backpressured_with_bounded_memory(authority: Authority, leaf: Pair) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        data = chunk(token("x" * 4000))
        try:
            while True:
                await incoming.send(data)
                sent.append(len(data))
        except ConnectionError:
            pass

    sent: list[int] = []

    async def test() -> None:
        async with stand(
            script, tls=tls_of(leaf), engine_at={"tls": serving(leaf)}, backend={"tls": {"ca": authority.cert}}
        ) as s:
            client = await s.client(tls=trusting(authority), receive_buffer=4096)
            await client.send(request(chat_body()))
            await s.until(lambda: len(sent) > 10)
            await asyncio.sleep(0.5)
            before = sum(sent)
            await asyncio.sleep(0.3)
            assert sum(sent) == before  # the engine is stopped
            assert before < 12_000_000  # both kernels' buffers, the two TLS layers', and ours
            (connection,) = s.gateway.connections
            assert connection.blocked_since is not None
            assert connection.transport is not None
            assert connection.transport.get_write_buffer_size() < 1_000_000
            client.abort()
            record = await s.record()
            assert record.outcome is OutcomeKind.CANCELLED
            assert record.client_blocked_ns > 300_000_000
            assert record.response_ns is not None
            assert record.response_ns > 200_000_000

    run(test())


def test_a_fast_reader_over_tls_is_never_called_blocked(authority: Authority, leaf: Pair) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.stream(200)

    async def test() -> None:
        async with stand(script, tls=tls_of(leaf)) as s:
            s.client_options = {"tls": trusting(authority)}
            assert (await s.ask(request(chat_body()))).tokens == 200
            assert (await s.record()).client_blocked_ns == 0

    run(test())


def test_a_refused_upload_over_tls_gets_its_answer(authority: Authority, leaf: Pair) -> None:
    async def test() -> None:
        async with stand(tls=tls_of(leaf), limits={"body_bytes": 100_000}) as s:
            client = await s.client(tls=trusting(authority))
            await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n")
            for _ in range(20):
                client.writer.write(b"x" * 10_000)
                await asyncio.sleep(0)
            assert (await client.reply()).status == 413

    run(test())


def test_a_handshake_that_does_not_get_on_holds_no_request(leaf: Pair) -> None:
    async def test() -> None:
        async with stand(tls=tls_of(leaf)) as s:
            client = await s.client()
            client.writer.write(b"\x16\x03\x01\x02\x00")
            await asyncio.sleep(0.1)
            assert not s.gateway.connections  # it is none before it can ask
            client.abort()

    run(test())


# -- the engine's side


def test_an_engine_is_trusted_only_with_its_authority_and_name(authority: Authority, tmp_path: Path) -> None:
    named = authority.issue("named", "DNS:engine.internal")

    async def outcome(backend: dict[str, Any]) -> tuple[int, str]:
        async with stand(_whole, engine_at={"tls": serving(named)}, backend=backend) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            if reply.status != 200:
                assert s.engine.requests == []
                assert (await s.record()).reason is Reason.ENGINE_UNREACHABLE
            return reply.status, reply.json.get("error", {}).get("message", "")

    async def test() -> None:
        ca = authority.cert
        status, message = await outcome({})
        assert (status, "certificate is not accepted" in message) == (503, True)
        status, message = await outcome({"tls": {"ca": ca}})
        assert (status, "127.0.0.1" in message) == (503, True)
        assert await outcome({"tls": {"ca": ca, "server_name": "engine.internal"}}) == (200, "")
        status, message = await outcome({"tls": {"ca": ca, "server_name": "other.internal"}})
        assert (status, "other.internal" in message) == (503, True)
        assert await outcome({"tls": {"verify": False}}) == (200, "")

    run(test())


def test_an_engine_that_demands_a_certificate_gets_ours(authority: Authority, leaf: Pair) -> None:
    own = authority.issue("gateway", "DNS:gateway")

    async def test() -> None:
        engine = {"tls": serving(leaf, authority)}
        async with stand(
            _whole, engine_at=engine, backend={"tls": {"ca": authority.cert, "cert": own.cert, "key": own.key}}
        ) as s:
            assert (await s.ask(request(chat_body(stream=False)))).status == 200
        async with stand(_whole, engine_at=engine, backend={"tls": {"ca": authority.cert}}) as s:
            assert (await s.ask(request(chat_body(stream=False)))).status in (502, 503)

    run(test())


def test_a_cancel_reaches_an_engine_behind_tls_within_50_ms(authority: Authority, leaf: Pair) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()
        gone.append(time.monotonic())

    gone: list[float] = []

    async def test() -> None:
        async with stand(script, engine_at={"tls": serving(leaf)}, backend={"tls": {"ca": authority.cert}}) as s:
            for number in range(1, 4):
                client = await s.client()
                await client.send(request(chat_body()))
                await s.until(lambda number=number: len(s.engine.requests) == number)
                left = time.monotonic()
                client.abort()
                await s.until(lambda number=number: len(gone) == number)
                assert gone[-1] - left < 0.05

    run(test())


def test_a_client_that_leaves_behind_a_full_pipeline_over_tls_is_noticed(authority: Authority, leaf: Pair) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()
        gone.append(time.monotonic())

    gone: list[float] = []

    async def test() -> None:
        async with stand(script, tls=tls_of(leaf)) as s:
            client = await s.client(tls=trusting(authority))
            await client.send(request(chat_body(stream=False)) * 100)
            await s.until(lambda: bool(s.engine.requests))
            await asyncio.sleep(0.05)
            left = time.monotonic()
            client.abort()
            await s.until(lambda: bool(gone))
            assert gone[0] - left < 0.05
            await s.until(lambda: not s.gateway.in_flight)

    run(test())


# -- files


@pytest.mark.parametrize(
    ("tls", "what"),
    [
        ({"cert": "{dir}/none.pem"}, "none.pem' cannot be read: No such file"),
        ({"cert": "{cert}", "key": "{dir}/none.key"}, "none.key' cannot be read"),
        ({"cert": "{cert}"}, "is no certificate and key in PEM form"),
        ({"cert": "{cert}", "key": "{other}"}, "does not belong to the certificate"),
        ({"cert": "{junk}", "key": "{key}"}, "junk.pem' with"),
        ({"cert": "{cert}", "key": "{locked}"}, "locked.key' is encrypted"),
        ({"cert": "{cert}", "key": "{key}", "client_ca": "{junk}"}, "junk.pem' holds no certificate"),
        ({"cert": "{cert}", "key": "{key}", "client_ca": "{dir}"}, "cannot be read: Is a directory"),
    ],
)
def test_a_file_that_does_not_do_is_named(
    authority: Authority, leaf: Pair, tmp_path: Path, tls: dict[str, str], what: str
) -> None:
    (tmp_path / "junk.pem").write_text("hello")
    locked = str(tmp_path / "locked.key")
    openssl("ec", "-in", leaf.key, "-aes256", "-passout", "pass:x", "-out", locked)
    names = {
        "dir": str(tmp_path),
        "cert": leaf.cert,
        "key": leaf.key,
        "other": authority.issue("other").key,
        "junk": str(tmp_path / "junk.pem"),
        "locked": locked,
    }
    given = {name: value.format(**names) for name, value in tls.items()}
    config = config_from({"tls": given, "backends": [{"url": "http://127.0.0.1:1"}]})
    with pytest.raises(ConfigError, match=what) as caught:
        Gateway(config, Records())
    assert "tls" in str(caught.value)
    engine = {"ca" if name == "client_ca" else name: value for name, value in given.items()}
    config = config_from({"backends": [{"url": "https://127.0.0.1:1", "tls": engine}]})
    with pytest.raises(ConfigError, match=what) as caught:
        Gateway(config, Records())
    assert "backends[0].tls" in str(caught.value)
