"""`tailrace top`: what it makes of an admin port, and what it says when there is none. Real sockets, real child."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

import tailrace
from tailrace.app.top import GatewayWatch, admin_url
from tailrace.export.jsonl import encode_lines
from tailrace.model.errors import InputError, TargetError
from tests.web.traffic import busy_live, realistic_records

ENV = {**os.environ, "PYTHONPATH": str(Path(tailrace.__file__).parents[1]), "COLUMNS": "140", "TERM": "xterm-256color"}


class Admin:
    """An admin port over a list of records, as the gateway's answers."""

    def __init__(self, records, *, token: str = "") -> None:
        self.records = records
        self.token = token
        self.asked: list[str] = []
        self.streams: list[dict[str, Any]] = list(busy_live()["streams"])
        self.degradation: list[dict[str, Any]] = [{"enabled": False}]
        self.canary: dict[str, Any] | None = None
        self.health: dict[str, Any] = {
            "status": "ok",
            "upstream": "http://10.0.0.5:8000",
            "started_unix_ns": time.time_ns() - 400 * 10**9,
            "in_flight": 31,
            "loop_lag_ms": 0.4,
            "engine": {"engine": "vllm", "version": "0.11.0", "evidence": "", "reachable": True},
            "store": {"acknowledged": 7, "dropped.normal": 4, "dropped.slow": 0},
        }

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        app = web.Application()
        for path in ("/healthz", "/lanes", "/streams", "/degradation", "/canary", "/records"):
            app.router.add_get(path, self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            assert site._server is not None
            yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"error": {"message": "a bearer token is needed"}}, status=401)
        states: dict[str, dict[str, Any]] = {
            "/healthz": self.health,
            "/lanes": {"lanes": busy_live()["lanes"]},
            "/streams": {"streams": self.streams},
            "/degradation": {"degradation": self.degradation},
            "/canary": {"configured": self.canary is not None, "canary": self.canary},
        }
        if request.path in states:
            return web.json_response(states[request.path])
        since, limit = int(request.query["since"]), int(request.query["limit"])
        found = [record for record in self.records if record.start_unix_ns > since]
        found.sort(key=lambda record: record.start_unix_ns + record.e2e_ns)
        return web.Response(body=b"".join(encode_lines(found[-limit:])))


def run(url: str, *args: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrace", "top", url, *args]
    return subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=timeout, check=False)


async def in_child(url: str, *args: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, url, *args)


def test_one_frame_answers_first():
    admin = Admin(realistic_records(900, span_s=50))

    async def scenario() -> None:
        async with admin.served() as url:
            done = await in_child(url, "--once")
        assert done.returncode == 0, done.stderr
        text = done.stdout.replace("\u00a0", " ")
        assert re.search(r"\d+\.\d\d requests/s", text)
        assert "in flight 31" in text
        assert "4 RECORDS DROPPED (normal 4)" in text
        assert re.search(r"TTFT +8\d\d +\d+ ms", text)
        assert "Where the time to first token went" in text
        assert re.search(r"around p99 +n \d+ +[a-z]+ ", text)
        assert "q queue.engine" in text
        assert re.search(r"long_document +4 of 4 +3 of 32 +1.83 s", text)
        assert text.index("9.40 s") < text.index("4.70 s")  # the oldest in flight first
        assert re.search(r"\d\d:\d\d:\d\d +(slow: stall|slow: ttft|\w+( \w+)?: \w+ in \w+) ", text)
        assert "\x1b" not in done.stdout  # no colour codes in a pipe

    asyncio.run(scenario())


def test_what_is_given_up_and_where_the_canary_stands():
    """What the ladder refuses looks like an overload that is not there, where nobody says that it is up."""
    plain, steered = Admin(realistic_records(50)), Admin(realistic_records(50))
    rungs = [{"name": "batch", "on": True}, {"name": "cap", "on": False}]
    steered.degradation = [{"enabled": False}, {"enabled": True, "rungs": rungs}]
    steered.canary = {"state": "rolled_back", "share": 0.0, "decision": "time to first token is 31% longer"}

    async def scenario() -> None:
        async with plain.served() as one, steered.served() as other:
            before, after = await in_child(one, "--once"), await in_child(other, "--once")
        assert "degraded: batch; why: GET /degradation" in after.stdout
        assert "canary: rolled_back, 0% of the sessions: time to first token is 31% longer" in after.stdout
        assert "degraded" not in before.stdout
        assert "canary" not in before.stdout

    asyncio.run(scenario())


def test_json_is_one_object_with_units_in_its_names():
    admin = Admin(realistic_records(700, span_s=50))

    async def scenario() -> None:
        async with admin.served() as url:
            done = await in_child(url, "--json")
        assert done.returncode == 0, done.stderr
        frame = json.loads(done.stdout)
        assert frame["schema"] == 1
        assert frame["summary"]["n"] == 700
        assert set(frame["summary"]["metrics"]) == {"ttft_ms", "tpot_ms", "e2e_ms"}
        assert [group["name"] for group in frame["stages"]["groups"]] == ["mean", "p50", "p99"]
        assert frame["dropped"] == {"normal": 4, "slow": 0}
        assert not frame["simulated"]

    asyncio.run(scenario())


def test_each_look_asks_only_for_what_may_have_ended_since():
    admin = Admin(realistic_records(300, span_s=50))
    admin.streams = [{"request_id": "old", "age_ms": 30_000.0, "stage": "decode"}]

    async def scenario() -> None:
        async with admin.served() as url, GatewayWatch(url, window_s=60) as watch:
            first = await watch.look()
            assert first.summary.n == 300
            late = realistic_records(10, seed=8, span_s=0.1)
            # It began half a minute ago and ends now: a poller that asked only for new starts would miss it.
            late.append(
                msgspec.structs.replace(late[0], request_id="old", start_unix_ns=time.time_ns() - late[0].e2e_ns)
            )
            admin.records += late
            second = await watch.look()
            assert second.summary.n == 311
            third = await watch.look()
            assert third.summary.n == 311
        asked = [int(path.split("since=")[1].split("&")[0]) for path in admin.asked if path.startswith("/records")]
        now = time.time_ns()
        assert now - asked[0] > 100 * 10**9
        assert 25 * 10**9 < now - asked[1] < 45 * 10**9

    asyncio.run(scenario())


def test_requests_leave_the_window():
    admin = Admin(realistic_records(200, span_s=50, now_unix_ns=time.time_ns() - 30 * 10**9))

    async def scenario() -> None:
        async with admin.served() as url, GatewayWatch(url, window_s=60) as watch:
            frame = await watch.look()
            now = time.time_ns()
            expected = sum(row.start_unix_ns + row.e2e_ns >= now - 60 * 10**9 for row in admin.records)
            assert 0 < expected < 200
            assert frame.summary.n == pytest.approx(expected, abs=2)
            assert len(watch._records) == frame.summary.n

    asyncio.run(scenario())


def test_a_simulated_engine_is_called_so():
    admin = Admin([msgspec.structs.replace(row, model="llama3-8b-simulated") for row in realistic_records(5, span_s=5)])

    async def scenario() -> None:
        async with admin.served() as url:
            done = await in_child(url, "--once")
        assert "simulated engine" in done.stdout

    asyncio.run(scenario())


def test_foreign_text_does_not_steer_the_terminal():
    evil = "\x1b[2J\x1b]0;owned\x07[bold red]x[/]"
    admin = Admin([msgspec.structs.replace(row, lane=evil, request_id=f"{evil}{n}", slow=["ttft"])
                   for n, row in enumerate(realistic_records(20, span_s=5))])  # fmt: skip
    admin.streams = [{"request_id": evil, "lane": evil, "model": evil, "stage": evil, "age_ms": 1.0}]

    async def scenario() -> None:
        async with admin.served() as url:
            done = await in_child(url, "--once")
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert "\x07" not in done.stdout
        assert "?[2J?]0;owned?[bold red]x[/]" in done.stdout

    asyncio.run(scenario())


def test_an_empty_gateway_prints_a_frame():
    admin = Admin([])
    admin.streams = []

    async def scenario() -> None:
        async with admin.served() as url:
            done = await in_child(url, "--once")
        assert done.returncode == 0, done.stderr
        assert "No request has completed in this window." in done.stdout

    asyncio.run(scenario())


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_nobody_there(free_port):
    assert "nobody listens there" in one_sentence(run(f"127.0.0.1:{free_port}", "--once"))


def test_not_a_url():
    assert "is no URL" in one_sentence(run("not a url", "--once"))


def test_a_server_that_is_no_gateway():
    async def scenario() -> None:
        async def hello(_: web.Request) -> web.Response:
            return web.json_response({"status": "ok"})

        app = web.Application()
        app.router.add_get("/healthz", hello)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]
        try:
            with pytest.raises(TargetError, match="not as a gateway does"):
                async with GatewayWatch(f"127.0.0.1:{port}") as watch:
                    await watch.look()
        finally:
            await runner.cleanup()

    asyncio.run(scenario())


def test_a_socket_that_speaks_no_http():
    async def scenario() -> None:
        async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(shout, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(TargetError, match=r"no HTTP|hung up"):
                async with GatewayWatch(f"127.0.0.1:{port}") as watch:
                    await watch.look()

    asyncio.run(scenario())


def test_a_guarded_port_asks_for_its_token():
    admin = Admin([], token="sesame")

    async def scenario() -> None:
        async with admin.served() as url:
            done = await in_child(url, "--once")
            assert "--token" in one_sentence(done)
            done = await in_child(url, "--once", "--token", "sesame")
            assert done.returncode == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:9480", "http://127.0.0.1:9480"),
        ("localhost", "http://localhost"),
        ("http://[::1]:9480/", "http://[::1]:9480"),
        ("https://host.example:1/lanes?x=1", "https://host.example:1"),
    ],
)
def test_addresses_as_people_type_them(text, url):
    assert admin_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://x", "http://", "http://x:99999", "http://x:0", "http://[::1"])
def test_addresses_that_are_none(text):
    with pytest.raises(InputError):
        admin_url(text)


def read_until(fd: int, wanted: bytes, seconds: float) -> bytes:
    seen = b""
    deadline = time.monotonic() + seconds
    while wanted not in seen:
        left = deadline - time.monotonic()
        assert left > 0, f"{wanted!r} never came: {seen[-500:]!r}"
        if select.select([fd], [], [], left)[0]:
            try:
                chunk = os.read(fd, 1 << 16)
            except OSError:
                break
            if not chunk:
                break
            seen += chunk
    return seen


@pytest.mark.long("a child in a terminal, watched over several refreshes")
def test_live_it_says_when_the_gateway_goes_away_and_leaves_the_terminal_clean(tmp_path):
    """A child with a real terminal; its gateway is a second child that is stopped under it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = tmp_path / "admin.py"
    script.write_text(
        "import asyncio, sys\n"
        "from aiohttp import web\n"
        "from tests.app.test_top import Admin\n"
        "from tests.web.traffic import realistic_records\n"
        "admin = Admin(realistic_records(50, span_s=5))\n"
        "app = web.Application()\n"
        "app.router.add_get('/{any:.*}', admin._answer)\n"
        f"web.run_app(app, host='127.0.0.1', port={port}, print=lambda *_: print('up', flush=True))\n"
    )
    root = str(Path(__file__).parents[2])
    env = ENV | {"PYTHONPATH": f"{ENV['PYTHONPATH']}:{root}"}
    gateway = subprocess.Popen([sys.executable, str(script)], env=env, stdout=subprocess.PIPE)
    child = None
    try:
        assert gateway.stdout is not None
        assert gateway.stdout.readline().strip() == b"up"
        main, side = pty.openpty()
        termios.tcsetwinsize(side, (45, 140))
        before = termios.tcgetattr(side)
        # The terminal becomes the child's own, so that Ctrl-C reaches it as it reaches a person's command.
        start = (
            "import fcntl, runpy, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
            f"sys.argv = ['tailrace', 'top', '127.0.0.1:{port}', '--every', '0.3'];"
            "runpy.run_module('tailrace', run_name='__main__')"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", start], stdin=side, stdout=side, stderr=side, env=ENV, start_new_session=True
        )
        seen = read_until(main, b"requests/s", 30)
        assert b"\x1b[?1049h" in seen  # the alternate screen: nothing of ours stays in the scrollback
        gateway.send_signal(signal.SIGKILL)
        gateway.wait(10)
        read_until(main, b"does not answer since", 20)
        os.write(main, b"\x03")
        rest = read_until(main, b"\x1b[?1049l", 10)
        assert b"Traceback" not in rest
        assert child.wait(10) == 0
        assert termios.tcgetattr(side) == before
        os.close(main)
        os.close(side)
    finally:
        for process in (gateway, child):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(10)
        if gateway.stdout is not None:
            gateway.stdout.close()
