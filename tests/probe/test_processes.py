"""One load from several processes: the whole plan once, one run file, and an end whoever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import uvloop

from tailrace.model.errors import InputError
from tailrace.model.measurement import ClientHealth
from tailrace.probe.generator import Share
from tailrace.probe.merge import Part, joint_health
from tailrace.probe.processes import WORKER
from tailrace.probe.progress import Progress
from tailrace.probe.protocol import Ended, Inflow, Start, Stop, encode, read_from_worker, read_to_worker
from tailrace.probe.run import run_bench
from tailrace.probe.shares import load_of, processes_for
from tailrace.store.run_file import read_run
from tailrace.workload.arrivals import ArrivalKind
from tests.children import Child, child_env, tailrace_command
from tests.probe.raw_server import Call, RawServer, serving
from tests.probe.running import run, spec_for

TLS = Path(__file__).parent / "tls"


async def steady(call: Call) -> None:
    await call.answer(gap_s=0.02)


def children_of(pid: int) -> list[int]:
    """Its workers, by what their command lines say."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            if WORKER in command and int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return sorted(found)


def alive(pid: int) -> bool:
    """Whether it still runs; a zombie that nobody has waited for does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(done: Callable[[], bool], timeout_s: float = 25.0) -> None:
    end = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


# -- the same run, whoever sends it


def test_three_processes_send_the_plan_of_one(tmp_path: Path):
    spec = spec_for("", rate=200, kind=ArrivalKind.POISSON, requests=90, seed=3, mix="a=5-50/2-9", warmup_requests=12)
    results, ids = [], []
    for count in (1, 3):
        with serving(RawServer(Call.answer)) as server:
            one = run(msgspec.structs.replace(spec, url=server.url, nonce="n"), tmp_path, processes=count)
            results.append(one)
            ids.append(sorted(call.headers["x-request-id"] for call in server.calls))
    alone, together = results
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 102

    def plan(result):
        return sorted((r.request_id, r.run_offset_ns, r.max_tokens) for r in result.records)

    assert plan(alone) == plan(together)
    assert together.counters["sent"] == 90
    assert together.counters["warm_up"] == 12
    assert together.counters["processes"] == 3
    assert [one.limited for one in together.summary.client.processes].count(True) <= 3
    assert len(together.summary.client.processes) == 3
    assert {sample.process for sample in together.run.health} == {0, 1, 2}
    assert list(tmp_path.iterdir()) == [tmp_path / "probe.run"], "part files are merged and gone"


def test_the_records_of_several_processes_are_in_the_order_of_their_ends(tmp_path: Path):
    with serving(RawServer(steady)) as server:
        result = run(spec_for(server.url, concurrency=6, requests=30, mix="a=5/2-6"), tmp_path, processes=2)
    ends = [(r.run_offset_ns or 0) + (r.connect_ns or 0) + r.e2e_ns for r in result.records]
    assert ends == sorted(ends)
    starts = [r.start_unix_ns for r in result.records]
    # Offsets of both parts count from one begin: the order by the wall clock is the order by offset.
    by_offset = [s for _, s in sorted((r.run_offset_ns or 0, r.start_unix_ns) for r in result.records)]
    assert max(abs(a - b) for a, b in zip(sorted(starts), by_offset, strict=True)) < 50_000_000


def test_progress_of_several_processes_is_one(tmp_path: Path):
    seen: list[Progress] = []
    with serving(RawServer(steady)) as server:
        spec = spec_for(server.url, concurrency=4, requests=None, duration_ns=1_500_000_000, mix="a=5/8")
        result = run(spec, tmp_path, processes=2, on_progress=seen.append)
    assert seen[0].phase == "look"
    assert max(one.in_flight for one in seen) == 4
    assert seen[-1].done == len(result.records)
    assert seen[-1].ttft_p50_ms is not None
    assert [one.sent for one in seen] == sorted(one.sent for one in seen)


# -- ends


def start(server: RawServer, out: Path, *more: str) -> Child:
    load = ("--concurrency", "4", "--output-tokens", "8", "--duration", "60", "--processes", "2")
    return Child(tailrace_command("bench", server.url, *load, "--out", str(out), "--json", *more))


@pytest.mark.long("starts a command that starts two processes, and waits for their load", timeout=60)
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.tier("ci"))])
def test_a_signal_ends_all_of_them_and_keeps_what_was_measured(tmp_path: Path, number: signal.Signals):
    out = tmp_path / "a.run"
    with serving(RawServer(steady)) as server:
        bench = start(server, out)
        try:
            until(lambda: len(server.calls) > 20)
            workers = children_of(bench.pid)
            assert len(workers) == 2
            bench.signal(number)
            began = time.monotonic()
            assert bench.wait(20) == 130, bench.stderr
            assert time.monotonic() - began < 5
            until(lambda: not any(alive(pid) for pid in workers), 3)
        finally:
            bench.kill()
    read = read_run(out)
    assert read.trailer is not None
    assert read.trailer.interrupted
    assert len(read.records) > 10
    assert read.trailer.n == len(read.records) == json.loads(bench.stdout)["n"]


@pytest.mark.long("starts a command that starts two processes, and waits for their load", timeout=60)
def test_a_lost_part_is_said_counted_and_no_verdict_is_given(tmp_path: Path):
    out = tmp_path / "a.run"
    with serving(RawServer(steady)) as server:
        bench = start(server, out, "--duration", "3")
        try:
            until(lambda: len(server.calls) > 20)
            time.sleep(0.8)  # what it measured is on disk half a second later
            os.kill(children_of(bench.pid)[1], signal.SIGKILL)
            assert bench.wait(25) == 3, bench.stderr
        finally:
            bench.kill()
    summary = json.loads(bench.stdout)
    assert summary["client"]["limited"]
    assert "process 2 of 2: it was lost (killed by signal 9)" in summary["client"]["why"]
    read = read_run(out)
    assert read.trailer is not None
    assert read.trailer.counters["parts_lost"] == 1
    assert len(read.records) > 10


@pytest.mark.long("starts a command that starts two processes, and waits for their load", timeout=60)
def test_a_killed_parent_leaves_no_children(tmp_path: Path):
    with serving(RawServer(steady)) as server:
        bench = start(server, tmp_path / "a.run")
        try:
            until(lambda: len(server.calls) > 20)
            workers = children_of(bench.pid)
            assert len(workers) == 2
            os.kill(bench.pid, signal.SIGKILL)
            until(lambda: not any(alive(pid) for pid in workers), 3)
        finally:
            bench.kill()
    parts = [read_run(tmp_path / f"a.run.part-{i}") for i in (1, 2)]
    assert all(part.trailer is not None and part.trailer.interrupted for part in parts), "what they had is whole"
    assert sum(len(part.records) for part in parts) > 10


def test_the_look_at_a_tls_target_is_handed_on(tmp_path: Path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    with serving(RawServer(Call.answer), tls=context) as server:
        result = run(spec_for(server.url, verify_tls=False, concurrency=2, requests=6), tmp_path, processes=2)
    assert (len(result.records), result.summary.errors) == (6, {})


def test_a_target_that_is_none_leaves_no_processes_and_no_files(tmp_path: Path):
    with pytest.raises(InputError):
        uvloop.run(run_bench(spec_for("http://127.0.0.1:9"), out=tmp_path / "a.run", processes=2))
    assert children_of(os.getpid()) == []
    assert list(tmp_path.iterdir()) == []


def worker(**given: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", WORKER]
    return subprocess.run(command, capture_output=True, timeout=15, env=child_env(), check=False, **given)


def test_a_worker_whose_starter_is_gone_before_it_began_ends():
    done = worker(input=b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_worker_that_somebody_starts_by_hand_says_what_it_is():
    done = worker(stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"must be pipes" in done.stderr


# -- how many


@pytest.mark.parametrize(
    ("load", "cores", "expected"),
    [
        ({"concurrency": 8}, 16, 1),
        ({"concurrency": 128, "mix": "a=50/100"}, 16, 1),
        ({"concurrency": 2000, "mix": "a=50/100"}, 16, 10),
        ({"concurrency": 2000, "mix": "a=50/100"}, 4, 4),
        ({"rate": 500, "mix": "a=50/8"}, 16, 1),
        ({"rate": 4000, "mix": "a=50/1"}, 16, 6),
        ({"rate": 4000, "mix": "a=50/1", "requests": 2}, 16, 2),
    ],
)
def test_auto_follows_the_load_and_the_processors(load: dict, cores: int, expected: int):
    assert processes_for(spec_for("http://10.0.0.9:8000", **({"requests": 10**6} | load)), available=cores) == expected


def test_a_target_on_this_machine_keeps_a_processor():
    spec = spec_for("http://localhost:8000", rate=4000, mix="a=50/100", requests=10**6)
    assert processes_for(spec, available=2) == 1
    assert processes_for(msgspec.structs.replace(spec, url="http://10.0.0.9"), available=2) == 2
    assert load_of(spec) == (400_000.0, 4000.0)


@pytest.mark.parametrize("asked", [-1, 3])
def test_a_number_that_cannot_be_is_refused(asked: int):
    with pytest.raises(InputError):
        processes_for(spec_for("http://h", concurrency=2), asked)


# -- what is said between them


def test_messages_survive_any_split():
    said = [Start(at_ns=5), Stop(), Start(at_unix_ns=7)]
    data = b"".join(encode(one) for one in said)
    for cut in range(len(data)):
        inflow = Inflow()
        heard = [*inflow.feed(data[:cut]), *inflow.feed(data[cut:])]
        assert [read_to_worker(one) for one in heard] == said


def test_a_share_comes_back_as_it_was():
    share = Share(n=3, began_ns=5, last_end_ns=9, client=ClientHealth(limited=True, why="x"), counters={"sent": 3.0})
    (message,) = Inflow().feed(encode(Ended(share=share)))
    assert read_from_worker(message) == Ended(share=share)


def test_a_length_that_is_none_is_refused():
    with pytest.raises(ValueError, match="none of this protocol"):
        list(Inflow().feed(b"HTTP/1.1 200 OK"))


def test_the_run_is_limited_if_any_process_is():
    quiet, busy = ClientHealth(cpu_s=1.0, late_sends=1), ClientHealth(limited=True, why="late", cpu_s=2.0, late_sends=2)
    parts = [
        Part(number=i, path=Path(), share=Share(n=0, client=client)) for i, client in enumerate((quiet, busy, quiet))
    ]
    joint = joint_health(parts)
    assert (joint.limited, joint.why, joint.cpu_s, joint.late_sends) == (True, "process 2 of 3: late", 4.0, 4)
    assert joint.processes == [quiet, busy, quiet]
    assert not joint_health([parts[0], parts[2]]).limited
