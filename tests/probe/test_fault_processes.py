"""What happens to the process and its machine: a full disk, a clock that jumps, signals, a server that dies.

The run ends in bound, says in one sentence what happened, and what was measured until then can be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.model.errors import RunFileError
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import broken_invariants
from tailrace.model.thresholds import MS, S
from tailrace.store.run_file import Run, read_run
from tests.children import child_env, health_code, tailrace_command
from tests.probe.raw_server import HEAD, Call, RawServer, chunk, serving, token
from tests.probe.running import run, spec_for
from tests.probe.truth_server import TruthServer, serving_truth, true_metrics

pytestmark = pytest.mark.long("each starts a process or two, on a machine that may be busy", timeout=60)


def sound(run_: Run) -> Run:
    assert [broken for record in run_.records for broken in broken_invariants(record)] == []
    return run_


# -- the disk


def full_disk(target: str, out: str, folder: Path, limit: str = "") -> subprocess.CompletedProcess[str]:
    args = ("--model", "m", "--requests", "100000", "--concurrency", "4", "--output-tokens", "3", "--json")
    command = ["bash", "-c", f'{limit} exec "$@"', "-", *tailrace_command("bench", target, *args, "--out", out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=40, cwd=folder, env=child_env(), check=False)


def test_a_disk_that_fills_up_ends_the_run_and_keeps_what_it_has(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        done = full_disk(server.url, "a.run", tmp_path, limit="ulimit -f 64;")  # blocks of 1,024 bytes
        asked = len(server.calls)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a.run" in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert asked < 5_000, "the load went on without a place to write to"
    with pytest.raises(RunFileError):
        read_run(tmp_path / "a.run")
    kept = sound(read_run(tmp_path / "a.run", allow_partial=True))
    assert kept.records
    assert {record.outcome for record in kept.records} == {OutcomeKind.COMPLETED}


def test_a_device_without_room_is_told_by_its_name(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        done = full_disk(server.url, "/dev/full", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "/dev/full" in done.stderr
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


# -- the clock

JUMPING = """
import itertools, time
wall, wall_ns, jumps = time.time, time.time_ns, itertools.cycle((-7200, 0, 3600, -1, 86400))
time.time = lambda: wall() + next(jumps)
time.time_ns = lambda: wall_ns() + next(jumps) * 10**9
"""


@pytest.mark.needs("shared")
def test_a_clock_that_jumps_moves_no_duration(tmp_path: Path):
    """Every look at the wall clock is hours off the one before; only the label of when the run began may show it."""
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(JUMPING)
    env = child_env()
    env["PYTHONPATH"] = os.pathsep.join([str(shim), env["PYTHONPATH"]])
    with serving_truth(tmp_path) as truth:
        args = (
            "--model",
            "plain",
            "--rate",
            "10",
            "--arrival",
            "constant",
            "--requests",
            "20",
            "--output-tokens",
            "10",
        )
        command = tailrace_command("bench", truth.url, *args, "--warmup", "1s", "--json", "--out", "a.run")
        for _ in range(3):
            truth.reset()
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=30, cwd=tmp_path, env=env, check=False
            )
            assert done.returncode == health_code(tmp_path / "a.run"), done.stderr
            records = sound(read_run(tmp_path / "a.run")).records
            sent = {row["client_id"]: row for row in truth.sent()}
            off = [abs((r.ttft_ns or 0) / MS - true_metrics(sent[r.request_id])["ttft"]) for r in records]
            if sorted(off)[10] < 15:
                break
    assert sorted(off)[10] < 15, off
    summary = json.loads(done.stdout)
    assert (summary["n"], summary["errors"]) == (20, {})
    assert summary["requests_per_s"] == pytest.approx(20 / 2.2, rel=0.2)
    assert [record.run_offset_ns for record in records] == pytest.approx([i * S / 10 for i in range(20)], abs=1)
    walls = [record.start_unix_ns for record in records]
    assert walls != sorted(walls), "the shim did not reach the process"
    assert all(0 <= (record.intended_to_sent_ns or 0) < 2 * S for record in records)
    assert all(0 < (record.e2e_ns or 0) < 5 * S for record in records)


# -- signals


async def forever(call: Call) -> None:
    await call.send(HEAD)
    for _ in range(3000):
        await call.send(chunk(token()))
        await asyncio.sleep(0.02)


async def silent(call: Call) -> None:
    await asyncio.sleep(60)


async def some_then_forever(call: Call) -> None:
    await (call.answer() if call.number < 8 else forever(call))


@contextlib.contextmanager
def started(server: RawServer, *args: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = tailrace_command("bench", server.url, "--model", "m", "--json", "--out", "a.run", *args)
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=child_env(), start_new_session=True
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def wait_for(child: subprocess.Popen[str], when: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not when():
        assert time.monotonic() < deadline
        assert child.poll() is None, child.stderr.read() if child.stderr else ""
        time.sleep(0.01)


PHASES = {
    # arguments, what the server does to the look and to the load, and when the phase has been reached
    "look": (("--duration", "60"), silent, forever, lambda server: len(server.looks) == 1),
    "warm-up": (("--warmup", "10", "--requests", "5"), None, forever, lambda server: len(server.calls) >= 2),
    "measuring": (("--duration", "60"), None, some_then_forever, lambda server: len(server.calls) >= 10),
    "draining": (("--requests", "3", "--rate", "100"), None, forever, lambda server: len(server.calls) == 3),
}


@pytest.mark.parametrize(
    ("phase", "number", "burst"),
    [(phase, signal.SIGINT, 40) for phase in PHASES] + [(phase, signal.SIGTERM, 1) for phase in PHASES],
)
def test_a_signal_ends_every_phase(phase: str, number: signal.Signals, burst: int, tmp_path: Path):
    """Once, or as often as an impatient hand can: the end is the same, and so is what is kept."""
    args, look, script, reached = PHASES[phase]
    args = args if "--rate" in args else ("--concurrency", "2", *args)
    server = RawServer(script, look=look)
    with serving(server), started(server, *args, folder=tmp_path) as child:
        wait_for(child, lambda: reached(server))
        began = time.monotonic()
        for _ in range(burst):
            if child.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            time.sleep(0.01 if burst > 1 else 0)
        _, err = child.communicate(timeout=15)
        took = time.monotonic() - began
        with pytest.raises(ProcessLookupError):
            os.killpg(child.pid, 0)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert took < 4
    if phase == "look":
        assert list(tmp_path.iterdir()) == []
        return
    kept = sound(read_run(tmp_path / "a.run"))
    assert kept.trailer is not None
    assert kept.trailer.interrupted
    by = {kind: [record for record in kept.records if record.outcome is kind] for kind in OutcomeKind}
    assert {record.reason for record in by[OutcomeKind.CANCELLED]} <= {Reason.OPERATOR}
    assert len(by[OutcomeKind.COMPLETED]) == (8 if phase == "measuring" else 0)
    assert len(by[OutcomeKind.CANCELLED]) == {"warm-up": 0, "measuring": 2, "draining": 3}[phase]


def test_after_kill_9_the_file_is_readable_to_its_last_block(tmp_path: Path):
    server = RawServer(lambda call: call.answer(gap_s=0.005))
    args = ("--concurrency", "4", "--duration", "60", "--output-tokens", "4")
    with serving(server), started(server, *args, folder=tmp_path) as child:
        wait_for(child, lambda: len(server.calls) > 150)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(10)
    with pytest.raises(RunFileError) as caught:
        read_run(tmp_path / "a.run")
    assert caught.value
    kept = sound(read_run(tmp_path / "a.run", allow_partial=True))
    assert kept.trailer is None
    assert kept.problem
    assert len(kept.records) >= 64
    assert {record.outcome for record in kept.records} == {OutcomeKind.COMPLETED}
    assert all(record.timeline is not None and len(record.timeline.token_stamps()) > 1 for record in kept.records)


# -- several processes


TWO = ("--processes", "2", "--concurrency", "4", "--output-tokens", "4")


@pytest.mark.parametrize(("number", "burst"), [(signal.SIGINT, 40), (signal.SIGTERM, 1)])
def test_a_signal_ends_several_processes_with_one_file(number: signal.Signals, burst: int, tmp_path: Path):
    server = RawServer(some_then_forever)
    with serving(server), started(server, *TWO, "--duration", "60", folder=tmp_path) as child:
        wait_for(child, lambda: len(server.calls) >= 12)
        began = time.monotonic()
        for _ in range(burst):
            if child.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            time.sleep(0.01)
        _, err = child.communicate(timeout=15)
        took = time.monotonic() - began
        with pytest.raises(ProcessLookupError):
            os.killpg(child.pid, 0)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert took < 8
    assert [path.name for path in tmp_path.iterdir()] == ["a.run"]
    kept = sound(read_run(tmp_path / "a.run"))
    assert kept.trailer is not None
    assert kept.trailer.interrupted
    assert sum(record.outcome is OutcomeKind.COMPLETED for record in kept.records) == 8
    assert {record.reason for record in kept.records if record.reason} == {Reason.OPERATOR}


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in text.split()]


def test_a_killed_parent_leaves_no_load_behind_and_readable_parts(tmp_path: Path):
    server = RawServer(lambda call: call.answer(gap_s=0.005))
    with serving(server), started(server, *TWO, "--duration", "60", folder=tmp_path) as child:
        wait_for(child, lambda: len(server.calls) > 300)
        workers = children(child.pid)
        assert len(workers) == 2
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{one}").exists() for one in workers):
            assert time.monotonic() < deadline, "a worker goes on without its parent"
            time.sleep(0.05)
    parts = sorted(tmp_path.glob("a.run*"))
    records = [record for part in parts for record in sound(read_run(part, allow_partial=True)).records]
    assert len(records) > 200
    assert len({record.request_id for record in records}) == len(records)


def test_a_killed_worker_leaves_the_others_at_work_and_the_run_says_so(tmp_path: Path):
    server = RawServer(lambda call: call.answer(gap_s=0.005))
    with serving(server), started(server, *TWO, "--duration", "5", folder=tmp_path) as child:
        wait_for(child, lambda: len(server.calls) > 50)
        os.kill(children(child.pid)[0], signal.SIGKILL)
        out, err = child.communicate(timeout=25)
        with pytest.raises(ProcessLookupError):
            os.killpg(child.pid, 0)
    assert child.returncode == 3, err
    assert "Traceback" not in err
    summary = json.loads(out)
    assert summary["client"]["limited"]
    assert "killed by signal 9" in summary["client"]["why"]
    kept = sound(read_run(tmp_path / "a.run"))
    assert summary["n"] == len(kept.records) > 50
    assert max(record.run_offset_ns or 0 for record in kept.records) > 3 * S, "the others went on"


# -- the server


@pytest.mark.needs("shared")
def test_a_server_that_dies_and_comes_back(tmp_path: Path):
    """Streams that were under way are cut, those who come while it is away are refused, later ones are served again."""
    first = TruthServer(tmp_path / "first.jsonl")
    servers = [first]

    def die_and_return() -> None:
        # Not before some were served and two are under way: how long the load needs to begin is the machine's affair.
        for _ in range(500):
            stats = first.get("/truth/stats")
            if stats["requests"] >= 8 and stats["open"] >= 2:
                break
            time.sleep(0.01)
        time.sleep(0.1)
        first.process.kill()
        first.process.wait(10)
        time.sleep(1.0)
        servers.append(TruthServer(tmp_path / "second.jsonl", first.port))

    nurse = threading.Thread(target=die_and_return)
    nurse.start()
    try:
        result = run(
            spec_for(
                first.url, requests=None, duration_ns=6 * S, concurrency=4, mix="a=10/40", model="plain:itl_ms=10"
            ),
            tmp_path,
        )
    finally:
        nurse.join()
        for one in servers:
            one.stop()
    by_reason = {
        reason: [r for r in result.records if r.reason is reason] for reason in {r.reason for r in result.records}
    }
    assert set(by_reason) <= {Reason.NONE, Reason.STREAM_CUT, Reason.ENGINE_UNREACHABLE}
    assert 1 <= len(by_reason[Reason.STREAM_CUT]) <= 8
    assert 2 <= len(by_reason[Reason.ENGINE_UNREACHABLE]) <= 60, "a dead server is not hammered"
    away = [record.run_offset_ns or 0 for record in by_reason[Reason.ENGINE_UNREACHABLE]]
    served = [record.run_offset_ns or 0 for record in by_reason[Reason.NONE]]
    assert min(served) < min(away)
    assert max(served) > max(away)
    assert result.summary.errors == {reason.value: len(found) for reason, found in by_reason.items() if reason}
    assert result.summary.metrics["ttft_ms"].n == len(served)


@pytest.mark.needs("shared")
def test_a_thousand_connections(tmp_path: Path):
    with serving_truth(tmp_path) as truth:
        spec = spec_for(
            truth.url, requests=1000, concurrency=1000, mix="a=10/5", model="plain:ttft_ms=1500", connect_ms=20_000
        )
        result = run(spec, tmp_path)
        stats = truth.stats()
        rows = truth.sent()
    assert result.summary.errors == {}
    assert result.summary.client.connections_opened == len({row["conn"] for row in rows}) == 1000
    assert stats["peak_open"] == 1000
    assert {record.output_tokens for record in result.records} == {5}


def test_more_connections_than_files_are_refused_before_any_load(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        command = ["bash", "-c", 'ulimit -n 150; exec "$@"', "-", *tailrace_command("bench", server.url)]
        done = subprocess.run(
            [*command, "--concurrency", "200", "--requests", "200"],
            capture_output=True, text=True, timeout=30, cwd=tmp_path, env=child_env(), check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "200 connections need more open files" in done.stderr
    assert "ulimit -n 264" in done.stderr
    assert server.connections == 0
    assert list(tmp_path.iterdir()) == []
