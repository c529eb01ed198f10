"""`tailrace bench` as a command: what it prints, its exit codes, and Ctrl-C at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.store.run_file import read_run
from tests.children import child_env, health_code, tailrace_command
from tests.probe.raw_server import HEAD, Call, RawServer, chunk, error, serving, token


def bench(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*tailrace_command("bench"), *args],
        capture_output=True,
        text=True,
        timeout=20,
        cwd=cwd,
        env=child_env(),
        check=False,
    )


QUICK = ("--requests", "6", "--concurrency", "2", "--output-tokens", "5")


def test_json_is_the_contract_and_nothing_else(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        done = bench(server.url, *QUICK, "--json", "--out", "a.run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    assert {
        "schema",
        "run",
        "n",
        "requests_per_s",
        "tokens_per_s",
        "goodput_per_s",
        "errors",
        "client",
        "metrics",
    } <= set(summary)
    assert (summary["schema"], summary["run"], summary["n"], summary["errors"]) == (1, "a.run", 6, {})
    assert {"limited", "why"} <= set(summary["client"]), "said also when nothing is wrong"
    named = {"ttft_ms", "ttft_content_ms", "chunk_gap_ms", "itl_ms", "tpot_ms", "e2e_ms", "e2e_last_token_ms"}
    assert named <= set(summary["metrics"])
    for metric in summary["metrics"].values():
        assert {"n", "mean", "min", "p50", "p90", "p95", "p99", "p999", "max", "p99_ci"} <= set(metric)
        assert metric["n"] or metric["reason"]
    run = read_run(tmp_path / "a.run")
    assert all(len(record.timeline.at_ns) == 8 for record in run.records if record.timeline)
    assert all(record.timeline for record in run.records)


def test_a_person_gets_a_table_that_leads_with_the_schedule(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        done = bench(server.url, "--rate", "50", "--requests", "40", cwd=tmp_path)
    (path,) = tmp_path.glob("bench-*.run")
    assert done.returncode == health_code(path), done.stderr
    text = done.stdout
    assert text.index("From the intended time") < text.index("From the send")
    client = "Client-limited: these numbers are not the server's" if done.returncode else "Client healthy"
    for words in ("TTFT", "p99.9", "95 %", "40 requests", client, "poisson arrivals at 50/s"):
        assert words in text
    assert "Sending real load to" in done.stderr
    assert str(path.name) in text


def test_errors_are_told_by_reason_and_in_the_servers_words(tmp_path: Path):
    async def script(call: Call) -> None:
        await (call.send(error(429, "slow down please")) if call.number % 2 else call.answer())

    with serving(RawServer(script)) as server:
        done = bench(server.url, *QUICK, "--fail-on", "errors", cwd=tmp_path)
    assert done.returncode == 1
    assert "rate_limited 3" in done.stdout
    assert "slow down please" in done.stdout


def test_nothing_completed_is_no_crash(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.send(error(500, "broken"))

    with serving(RawServer(script)) as server:
        human = bench(server.url, *QUICK, cwd=tmp_path)
        machine = bench(server.url, *QUICK, "--json", cwd=tmp_path)
    assert (human.returncode, machine.returncode) == (0, 0)
    assert "engine_error 6" in human.stdout
    assert json.loads(machine.stdout)["metrics"]["ttft_ms"]["n"] == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("http://127.0.0.1:1",), "no answer from http://127.0.0.1:1"),
        (("ftp://x",), "no http:// or https:// URL"),
        (("x", "--rate", "0"), "--rate"),
        (("x", "--mix", "nobody:1"), "no class 'nobody'"),
        (("x", "--duration", "soon"), "--duration"),
        (("x", "--arrival", "constant"), "arrivals need a rate"),
        (("x", "--rate", "1", "--arrival", "uniform"), "no 'uniform' arrivals"),
        (("x", "--requests", "0"), "--requests"),
        (("x", "--trace", "missing.csv"), "missing.csv"),
        (("x", "--header", "nonsense"), "--header"),
        (("x", "--header", "Content-Length: 3"), "set by the load generator"),
        (("x", "--extra-body", "[1]"), "--extra-body"),
        (("x", "--mix", "short", "--prompt-tokens", "5"), "only one of"),
        (("x", "--objective", "ttft=1s"), "--objective"),
        (("x", "--out", "."), "is a directory"),
        (("x", "--fail-on", "p99"), "--fail-on"),
        (("x", "--warmup", "x"), "--warmup"),
        (("x", "--burstiness", "2", "--rate", "1", "--arrival", "poisson"), "--burstiness"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(args: tuple[str, ...], said: str, tmp_path: Path):
    done = bench(*args, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.startswith("tailrace bench: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_known_before_any_load(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        done = bench(server.url, *QUICK, "--out", "no/such/place.run", cwd=tmp_path)
    assert done.returncode == 2
    assert "--out" in done.stderr
    assert server.calls == []


def test_a_limited_client_exits_3(tmp_path: Path):
    async def slow(call: Call) -> None:
        await asyncio.sleep(1)
        await call.answer()

    with serving(RawServer(slow)) as server:
        command = ["bash", "-c", 'ulimit -n 80; exec "$@"', "-", *tailrace_command("bench"), server.url]
        command += ["--rate", "200", "--requests", "60", "--json", "--out", "a.run"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, cwd=tmp_path, env=child_env(), check=False
        )
    assert done.returncode == 3, done.stderr
    client = json.loads(done.stdout)["client"]
    assert client["limited"]
    assert "ulimit -n" in client["why"]


# -- Ctrl-C


async def forever(call: Call) -> None:
    await call.send(HEAD)
    for _ in range(2000):
        await call.send(chunk(token()))
        await asyncio.sleep(0.02)


async def silent(call: Call) -> None:
    await asyncio.sleep(60)


def interrupt(server: RawServer, args: tuple[str, ...], folder: Path, *, when, one: int = signal.SIGINT):
    """Start a run, wait for `when`, send the signal; the process, its output and how long its end took."""
    command = [*tailrace_command("bench"), server.url, "--json", "--out", "a.run", *args]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=child_env(),
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 10
        while not when():
            assert time.monotonic() < deadline
            assert child.poll() is None, child.stderr.read() if child.stderr else ""
            time.sleep(0.01)
        began = time.monotonic()
        os.killpg(child.pid, one)
        out, err = child.communicate(timeout=10)
        took = time.monotonic() - began
        with pytest.raises(ProcessLookupError):
            os.killpg(child.pid, 0)  # nobody of the group is left
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    return child.returncode, out, err, took


@pytest.mark.parametrize("one", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("args", [("--concurrency", "3", "--duration", "60"), ("--rate", "20", "--duration", "60")])
def test_ctrl_c_keeps_what_was_measured(args: tuple[str, ...], one: int, tmp_path: Path):
    async def script(call: Call) -> None:
        await (call.answer() if call.number < 4 else forever(call))

    with serving(RawServer(script)) as server:
        # A seventh call of three at once says that the four answers have arrived.
        code, out, err, took = interrupt(server, args, tmp_path, when=lambda: len(server.calls) >= 7, one=one)
    assert (code, err) == (130, "")
    assert took < 2
    run = read_run(tmp_path / "a.run")
    assert run.trailer is not None
    assert run.trailer.interrupted
    done = [r for r in run.records if r.outcome is OutcomeKind.COMPLETED]
    cut = [r for r in run.records if r.outcome is OutcomeKind.CANCELLED]
    assert len(done) == 4
    assert len(cut) >= 2
    assert {r.reason for r in cut} == {Reason.OPERATOR}
    summary = json.loads(out)
    assert summary["n"] == len(run.records)
    assert summary["errors"] == {"operator": len(cut)}


def test_ctrl_c_while_looking(tmp_path: Path):
    with serving(RawServer(Call.answer, look=silent)) as server:
        code, out, err, took = interrupt(server, (), tmp_path, when=lambda: bool(server.gets))
    assert (code, out) == (130, "")
    assert "interrupted before the first request" in err
    assert took < 2
    assert list(tmp_path.iterdir()) == []


def _connecting(port: int) -> int:
    """How many sockets of this machine wait for an answer to their SYN from `port`."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(one[2].endswith(f":{port:04X}") and one[3] == "02" for one in lines)


def test_ctrl_c_while_connecting(tmp_path: Path):
    with socket.socket() as listener, contextlib.ExitStack() as fillers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(4):  # a full backlog: whoever comes now waits
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        time.sleep(0.1)
        before = _connecting(port)
        server = RawServer(Call.answer)
        server.url = f"http://127.0.0.1:{port}"
        code, _, err, took = interrupt(
            server, ("--connect-timeout", "60s"), tmp_path, when=lambda: _connecting(port) > before
        )
    assert code == 130
    assert took < 2
    assert "interrupted before the first request" in err


def test_ctrl_c_while_draining(tmp_path: Path):
    with serving(RawServer(forever)) as server:
        args = ("--rate", "100", "--requests", "3")
        code, _, _, took = interrupt(server, args, tmp_path, when=lambda: len(server.calls) == 3)
    assert code == 130
    assert took < 2
    assert len(read_run(tmp_path / "a.run").records) == 3


def test_ctrl_c_in_the_warm_up(tmp_path: Path):
    with serving(RawServer(forever)) as server:
        args = ("--concurrency", "2", "--warmup", "10", "--requests", "10")
        code, out, _, took = interrupt(server, args, tmp_path, when=lambda: len(server.calls) == 2)
    assert code == 130
    assert took < 2
    assert json.loads(out)["n"] == 0


def test_a_terminal_sees_the_run_live(tmp_path: Path):
    async def script(call: Call) -> None:
        await call.answer(tokens=3, gap_s=0.3)

    controller, terminal = pty.openpty()
    try:
        with serving(RawServer(script)) as server:
            command = [*tailrace_command("bench"), server.url, "--concurrency", "2", "--duration", "4"]
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=terminal, text=True, cwd=tmp_path, env=child_env(TERM="xterm")
            )
            out, _ = child.communicate(timeout=15)
        seen = os.read(controller, 1 << 16).decode()
    finally:
        os.close(controller)
        os.close(terminal)
    (path,) = tmp_path.glob("bench-*.run")
    assert child.returncode == health_code(path), out
    assert "in flight 2" in seen
    assert "TTFT p50" in seen
    assert "From the send" in out
