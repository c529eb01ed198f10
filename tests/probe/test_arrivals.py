"""Arrivals on a real socket: a rate that changes with time, and workers who come in one after the other."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tailrace.model.thresholds import MS, S
from tailrace.store.run_file import read_run
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload
from tailrace.workload.shape_text import parse_shape
from tests.children import health_code
from tests.probe.raw_server import Call, RawServer, serving
from tests.probe.running import run, spec_for
from tests.probe.test_command import bench as command


def test_a_rate_over_time_is_sent_as_it_is_planned(tmp_path: Path):
    shape = parse_shape("20 for 500ms, 100 for 300ms, 20")
    workload = Workload(arrivals=Arrivals(kind=ArrivalKind.CONSTANT, shape=shape), mix=parse_mix("a=10/1"))
    with serving(RawServer(Call.answer)) as server:
        result = run(spec_for(server.url, workload=workload, requests=None, duration_ns=S), tmp_path)
    at = sorted(record.run_offset_ns or 0 for record in result.records)
    # 10 in the first half second, 30 in the spike, 4 in what is left; exactly, as the rate's integral says.
    assert [sum(a * MS <= one < b * MS for one in at) for a, b in ((0, 500), (500, 800), (800, 1000))] == [10, 30, 4]
    assert at[10] == 500 * MS
    header = result.run.header.arrival
    assert (header.kind, header.rate, header.shape) == ("constant", None, "20 for 0.5s, 100 for 0.3s, 20")


def test_workers_come_in_over_time(tmp_path: Path):
    flying: list[tuple[float, int]] = []
    now = [0]

    async def script(call: Call) -> None:
        now[0] += 1
        flying.append((time.monotonic(), now[0]))
        await asyncio.sleep(0.03)
        await call.answer()
        now[0] -= 1

    arrivals = Arrivals(kind=ArrivalKind.CLOSED, shape=parse_shape("1..4 over 900ms"), concurrency=4)
    workload = Workload(arrivals=arrivals, mix=parse_mix("a=10/1"))
    with serving(RawServer(script)) as server:
        spec = spec_for(server.url, workload=workload, requests=None, duration_ns=1300 * MS)
        began = time.monotonic()
        result = run(spec, tmp_path)
    first = flying[0][0]
    for number, due in ((1, 0.0), (2, 0.3), (3, 0.6), (4, 0.9)):
        reached = next(at for at, count in flying if count >= number) - first
        assert due - 0.05 < reached < due + 0.3, (number, reached)
    assert max(count for _, count in flying) == 4
    assert time.monotonic() - began < 15
    assert "coming in as '1..4 over 0.9s'" in " ".join(result.run.header.notes)


def test_parts_share_the_workers_who_come_in(tmp_path: Path):
    arrivals = Arrivals(kind=ArrivalKind.CLOSED, shape=parse_shape("1..3 over 400ms"), concurrency=3)
    workload = Workload(arrivals=arrivals, mix=parse_mix("a=10/1"))

    async def script(call: Call) -> None:
        await asyncio.sleep(0.02)
        await call.answer()

    connections = []
    for index in (0, 1):
        with serving(RawServer(script)) as server:
            run(spec_for(server.url, workload=workload, part=(index, 2), requests=None, duration_ns=600 * MS), tmp_path)
            connections.append(len({call.connection for call in server.calls}))
    assert connections == [2, 1]


def test_a_trace_that_is_too_short_plays_again_and_the_run_says_so(tmp_path: Path):
    trace = tmp_path / "t.csv"
    trace.write_text("time,prompt_tokens,output_tokens,model\n0,20,2,a\n0.1,30,3,b\n0.2,20,2,a\n")
    with serving(RawServer(Call.answer)) as server:
        done = command(
            server.url, "--trace", str(trace), "--duration", "800ms", "--out", "a.run", "--json", cwd=tmp_path
        )
    assert done.returncode == health_code(tmp_path / "a.run"), done.stderr
    run = read_run(tmp_path / "a.run")
    at = sorted((record.run_offset_ns or 0) // MS for record in run.records)
    assert at == [0, 100, 200, 300, 400, 500, 600, 700]  # rounds of 0.3 s: one mean gap after the last request
    assert {record.lane for record in run.records} == {"a", "b"}
    assert any("is played 2.7 times" in note for note in run.header.notes)
