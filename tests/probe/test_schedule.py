"""The load itself: an open loop keeps its times whatever happens, a closed loop keeps its workers busy."""

from __future__ import annotations

import asyncio
import json
import resource
import shlex
import subprocess
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import uvloop

from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, S
from tailrace.probe.health import HealthSampler, check_open_files
from tailrace.probe.progress import Progress
from tailrace.probe.run import run_bench
from tailrace.store.run_file import read_run
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.plan import Workload
from tailrace.workload.trace import TraceRow
from tests.children import child_env, tailrace_command
from tests.probe.raw_server import Call, RawServer, serving
from tests.probe.running import run, spec_for


async def hog(busy_s: float, free_s: float) -> None:
    """Block the loop for part of the time."""
    while True:
        time.sleep(busy_s)  # noqa: ASYNC251  (the point)
        await asyncio.sleep(free_s)


def test_the_rate_is_kept_while_the_loop_is_busy(tmp_path: Path):
    """Relative sleeps lose most of their rate here; absolute times lose none, and the lateness is on record."""

    async def main() -> None:
        hogging = asyncio.ensure_future(hog(0.006, 0.006))
        try:
            await run_bench(spec_for(server.url, rate=200, requests=300), out=tmp_path / "a.run")
        finally:
            hogging.cancel()

    with serving(RawServer(Call.answer)) as server:
        uvloop.run(main())
    read = read_run(tmp_path / "a.run")
    records = sorted(read.records, key=lambda r: r.run_offset_ns or 0)
    late = np.array([r.intended_to_sent_ns for r in records]) / MS
    assert [r.run_offset_ns for r in records] == [round(i * S / 200) for i in range(300)]
    assert (late >= 0).all()
    # No drift: the end is no later than the beginning was.
    assert np.median(late[-100:]) < np.median(late[:100]) + 30
    assert read.trailer is not None
    assert read.trailer.client.late_send_p99_ms is not None


async def _freeze(call: Call, until: list[float]) -> None:
    """A server that stands still for half a second after its first request."""
    if not until:
        until.append(time.monotonic() + 0.5)
    await asyncio.sleep(max(0.0, until[0] - time.monotonic()))
    await call.answer()


def test_an_open_loop_waits_for_no_answer(tmp_path: Path):
    until: list[float] = []
    with serving(RawServer(lambda call: _freeze(call, until))) as server:
        frozen = run(spec_for(server.url, rate=50, requests=50), tmp_path)
    slow = sum((r.ttft_ns or 0) > 100 * MS for r in frozen.records)
    assert slow >= 15  # everybody who came in the half second, about 20 of them
    assert max(r.intended_to_sent_ns or 0 for r in frozen.records) < 250 * MS
    until.clear()
    with serving(RawServer(lambda call: _freeze(call, until))) as server:
        closed = run(spec_for(server.url, requests=50), tmp_path)
    assert sum((r.ttft_ns or 0) > 100 * MS for r in closed.records) == 1  # a closed loop asks one of them only
    assert closed.summary.from_schedule == {}


def test_a_cap_on_an_open_loop_shows_in_the_latency_from_the_schedule(tmp_path: Path):
    async def script(call: Call) -> None:
        await asyncio.sleep(0.05)
        await call.answer()

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, rate=40, requests=40, concurrency=1), tmp_path)
        assert len({call.connection for call in server.calls}) == 1
    send, schedule = result.summary.metrics["e2e_ms"], result.summary.from_schedule["e2e_ms"]
    assert send.mean is not None
    assert schedule.mean is not None
    assert send.mean < 90
    assert schedule.mean > 4 * send.mean
    # Waiting for a slot that was asked for is not the client being late.
    assert result.run.trailer is not None
    assert (result.run.trailer.client.late_send_p99_ms or 0) < 100


def test_arrivals_do_not_depend_on_the_target(tmp_path: Path):
    async def slow(call: Call) -> None:
        await asyncio.sleep(0.1)
        await call.answer()

    offsets = []
    for script in (Call.answer, slow):
        with serving(RawServer(script)) as server:
            spec = spec_for(server.url, rate=100, kind=ArrivalKind.POISSON, requests=60, seed=5, mix="a=5-50/2,b=9/3")
            result = run(spec, tmp_path)
        offsets.append(sorted((r.run_offset_ns, r.lane, r.max_tokens) for r in result.records))
    assert offsets[0] == offsets[1]


def test_parts_of_a_run_are_the_whole_run(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        results = [
            run(spec_for(server.url, rate=100, requests=41, mix="a=5-50/2-9", part=part), tmp_path)
            for part in ((0, 1), (0, 3), (1, 3), (2, 3))
        ]
    planned = [sorted((r.run_offset_ns, r.max_tokens) for r in result.records) for result in results]
    assert sorted(chain(*planned[1:])) == planned[0]
    assert [len(one) for one in planned] == [41, 14, 14, 13]


def test_a_closed_loop_keeps_its_workers_busy(tmp_path: Path):
    flying, most = [0], [0]

    async def script(call: Call) -> None:
        flying[0] += 1
        most[0] = max(most[0], flying[0])
        await asyncio.sleep(0.02)
        await call.answer()
        flying[0] -= 1

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, concurrency=5, requests=50), tmp_path)
    assert most[0] == 5
    assert result.summary.n == 50
    assert result.summary.client.connections_opened == 5


def test_a_duration_ends_the_sending_and_waits_for_the_answers(tmp_path: Path):
    async def script(call: Call) -> None:
        await asyncio.sleep(0.3)
        await call.answer()

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, rate=20, requests=None, duration_ns=S), tmp_path)
    assert result.summary.n == 20
    assert result.summary.errors == {}


def test_warm_up_requests_are_outside_everything_and_change_nothing(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        more = {"rate": 100, "kind": ArrivalKind.POISSON, "requests": 20, "seed": 3, "mix": "a=5-50/2-9"}
        plain = run(spec_for(server.url, **more), tmp_path)
        assert len(server.calls) == 20
        warmed = run(spec_for(server.url, warmup_requests=7, **more), tmp_path)
        assert len(server.calls) == 47
        timed = run(spec_for(server.url, warmup_ns=S // 5, **more), tmp_path)
        assert len(server.calls) > 70
        closed = run(spec_for(server.url, warmup_requests=7, concurrency=2, requests=20), tmp_path)
    runs = [sorted((r.run_offset_ns, r.max_tokens) for r in one.records) for one in (plain, warmed, timed)]
    assert runs[0] == runs[1] == runs[2]
    assert [one.counters["warm_up"] for one in (plain, warmed, closed)] == [0, 7, 7]
    assert timed.counters["warm_up"] > 5
    assert closed.summary.n == 20


def test_a_trace_is_played_at_its_times(tmp_path: Path):
    rows = [TraceRow(0, 10, 2), TraceRow(100 * MS, 30, 3), TraceRow(100 * MS, 20, 4)]
    workload = Workload(arrivals=Arrivals(kind=ArrivalKind.TRACE), trace=rows)
    with serving(RawServer(Call.answer)) as server:
        result = run(spec_for(server.url, workload=workload, requests=None), tmp_path)
    got = sorted((r.run_offset_ns, r.max_tokens) for r in result.records)
    assert got == [(0, 2), (100 * MS, 3), (100 * MS, 4)]


def test_progress_comes_about_every_half_second(tmp_path: Path):
    seen: list[Progress] = []
    with serving(RawServer(Call.answer)) as server:
        run(spec_for(server.url, rate=20, requests=None, duration_ns=2 * S), tmp_path, on_progress=seen.append)
    phases = [one.phase for one in seen]
    assert phases[0] == "look"
    assert 5 <= len(seen) <= 8
    assert seen[-1].done == seen[-1].sent == 40
    assert seen[-1].ttft_p50_ms is not None
    assert [one.sent for one in seen] == sorted(one.sent for one in seen)


def test_a_dead_server_is_not_hammered(tmp_path: Path):
    async def script(call: Call) -> None:
        server.stop_listening()
        call.close()

    with serving(RawServer(script)) as server:
        result = run(spec_for(server.url, requests=None, duration_ns=S, concurrency=2), tmp_path)
    refused = [r for r in result.records if r.reason is Reason.ENGINE_UNREACHABLE]
    assert 2 <= len(refused) <= 14


# -- the client's own health


def test_a_busy_client_says_that_it_was_the_limit(tmp_path: Path):
    async def main():
        hogging = asyncio.ensure_future(hog(0.06, 0.005))
        try:
            return await run_bench(spec_for(server.url, rate=50, requests=50), out=tmp_path / "a.run")
        finally:
            hogging.cancel()

    with serving(RawServer(Call.answer)) as server:
        client = uvloop.run(main()).client
    assert client.limited
    assert "late" in client.why
    assert (client.loop_lag_p99_ms or 0) > 20


def test_requests_that_find_no_connection_make_the_client_the_limit(tmp_path: Path):
    """A process that may really open no more: 64 files are kept for other uses, 3 are left for connections."""

    async def slow(call: Call) -> None:
        await asyncio.sleep(1.0)
        await call.answer()

    file = tmp_path / "a.run"
    with serving(RawServer(slow)) as server:
        command = tailrace_command("bench", server.url, "--model", "m", "--rate", "100", "--requests", "10")
        script = f"ulimit -n 67; exec {shlex.join(command)} --json --out {file}"
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=18, env=child_env(), check=False
        )
    assert done.returncode == 3, done.stderr
    summary = json.loads(done.stdout)
    assert summary["errors"] == {"client_error": 7}
    assert summary["client"]["limited"]
    assert "ulimit -n" in summary["client"]["why"]
    trailer = read_run(file).trailer
    assert trailer is not None
    assert trailer.counters["not_sent"] == 7


def test_the_scale_of_the_client_s_delay_is_what_was_measured():
    async def main():
        sampler = HealthSampler()
        sampler.start()
        await asyncio.sleep(0.05)
        sampler.stop()
        sampler.lags_ns = [30 * MS] * 100
        return [sampler.report(ttft_p99_ms=ttft).limited for ttft in (None, 100.0, 400.0)]

    assert uvloop.run(main()) == [True, True, False]


@pytest.mark.parametrize(("lag_ms", "waited", "limited"), [(5, 0.5, False), (15, 0.5, True), (15, 0.1, False)])
def test_waiting_for_a_processor_counts_together_with_lag(lag_ms: int, waited: float, *, limited: bool):
    async def main():
        sampler = HealthSampler()
        sampler.start()
        sampler.stop()
        sampler.lags_ns = [lag_ms * MS] * 100
        sampler._began, sampler._ended, sampler._wait_spent = 1, 2 * S + 1, round(waited * 2 * S)
        return sampler.report()

    assert uvloop.run(main()).limited is limited


def test_a_run_of_a_moment_is_not_judged_by_shares_and_percentiles():
    async def main():
        sampler = HealthSampler()
        sampler.start()
        time.sleep(0.2)  # noqa: ASYNC251  (all processor, and late)
        sampler.stop()
        sampler.lags_ns = [200 * MS]
        return sampler.report()

    assert not uvloop.run(main()).limited


def test_too_few_open_files_are_known_before_the_start():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert check_open_files(10) > 10
    assert hard != resource.RLIM_INFINITY
    with pytest.raises(InputError) as caught:
        check_open_files(hard + 1)
    assert "ulimit -n" in caught.value.remedy
