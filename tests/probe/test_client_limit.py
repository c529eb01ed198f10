"""The client's judgement of itself, right in both directions: by rule, and beside processes that take every core."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.measurement import ClientHealth
from tailrace.model.thresholds import MS, S
from tailrace.probe.client_limit import ClientFacts
from tailrace.probe.event_delay import PERIOD_NS, EventDelay
from tailrace.store.run_file import read_run
from tests.children import child_env, tailrace_command
from tests.probe.raw_server import HEAD, Call, RawServer, chunk, last, serving, token, whole
from tests.probe.running import run, spec_for

QUIET = ClientFacts(
    wall_ns=10 * S,
    samples=1000,
    lag_p99_ms=2.0,
    event_delay_p99_ms=1.5,
    p99_ms=120.0,
    moved_ms=0.2,
    late_p99_ms=2.0,
    requests=500,
    kept=1.0,
    cpu_share=0.3,
    wait_share=0.03,
    not_sent=0,
)


def test_a_quiet_client_is_no_limit():
    assert QUIET.limits() == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"event_delay_p99_ms": 5.5}, "stamped 5.5 ms late"),
        ({"event_delay_p99_ms": 16.0, "p99_ms": 5000.0}, "stamped 16 ms late"),
        ({"moved_ms": 4.0}, "its own delays added 4.0 ms"),
        ({"late_p99_ms": 25.0}, "sends were 25 ms late"),
        ({"lag_p99_ms": 25.0}, "event loop ran 25 ms late"),
        ({"kept": 0.985}, "98.5% of the planned rate"),
        ({"cpu_share": 0.95}, "95% of the one core"),
        ({"wait_share": 0.3, "event_delay_p99_ms": 3.0}, "waited for a processor during 30%"),
        ({"not_sent": 3}, "3 requests were not sent"),
    ],
)
def test_each_sign_is_named(change: dict, says: str):
    (why,) = QUIET._replace(**change).limits()
    assert says in why


@pytest.mark.parametrize(
    "change",
    [
        {"event_delay_p99_ms": 9.0, "p99_ms": 400.0},  # 3 % of what was measured
        {"event_delay_p99_ms": 25.0, "p99_ms": 2000.0, "streamed": False},  # no gaps that it could touch
        {"wait_share": 0.3},  # it waits, and nothing came of it
        {"kept": 0.9, "requests": 20},  # too few to be a rate
        {"cpu_share": 0.99, "wall_ns": S // 2},
        {"event_delay_p99_ms": 300.0, "lag_p99_ms": 300.0, "samples": 10},
    ],
)
def test_what_cannot_have_changed_a_figure_is_no_limit(change: dict):
    assert QUIET._replace(**change).limits() == []


# -- event-queue delay


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(0, PERIOD_NS - 1))
def test_every_period_is_a_sample_whoever_slept(periods: list[int], late: int):
    async def main() -> EventDelay:
        return EventDelay()

    delay = asyncio.run(main())
    delay._due = now = 5 * S
    for count in periods:
        now += count * PERIOD_NS
        delay.take(now - PERIOD_NS + late, count)
    assert len(delay.delays_ns) == sum(periods)
    # A loop that stood still for n periods has delays from n periods down, not one of n.
    expected = [i * PERIOD_NS + late for count in periods for i in reversed(range(count))]
    assert delay.delays_ns == expected


def test_a_loop_that_stands_still_is_seen_as_the_events_in_it_were():
    async def main() -> tuple[EventDelay, int, int]:
        delay = EventDelay()
        delay.start()
        await asyncio.sleep(0.1)
        began = time.monotonic_ns()
        time.sleep(0.3)  # noqa: ASYNC251  (the point)
        await asyncio.sleep(0.1)
        delay.stop()
        return delay, began, time.monotonic_ns()

    delay, began, ended = uvloop.run(main())
    assert 40 <= len(delay.delays_ns) <= (ended - began) // PERIOD_NS + 30
    late = np.asarray(delay.delays_ns) / MS
    assert late.max() >= 285
    assert (late > 5).sum() >= 27, "a sample for each ten milliseconds that it stood still"
    # An event of the wake that ended the stall. When that was is the machine's to say, and where the sleep ended close
    # before a period's end, the next wake follows at once and is nearer to any later stamp.
    woke = min(seen for seen in delay._seen if seen >= began + 300 * MS)
    assert 100 * MS < delay.at(woke) < ended - began
    assert delay.at(began - S) == 0


# -- beside others


_LOAD = ("--model", "m", "--concurrency", "16", "--requests", "64", "--mix", "a=10/30", "--chars-per-token", "4")


async def steady(call: Call) -> None:
    await call.send(HEAD)
    for _ in range(30):
        await asyncio.sleep(0.02)
        await call.send(chunk(token()))
    await call.send(chunk(last(30)), b"0\r\n\r\n")


def streams(folder: Path) -> ClientHealth:
    with serving(RawServer(steady)) as server:
        return run(spec_for(server.url, concurrency=16, requests=32, mix="a=10/30"), folder).summary.client


@pytest.mark.long("a run beside processes that take every core", timeout=90)
def test_a_run_beside_processes_that_take_every_core_says_so(tmp_path: Path):
    """Its first request sent, the client becomes the least important process of this machine, for five seconds: beside
    equals the kernel would wake it in time, and nothing would be late.
    """
    out, hogs = tmp_path / "starved.run", []
    burn = "import time; end = time.monotonic() + 5\nwhile time.monotonic() < end: pass"

    def hog() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", burn])

    async def starve(call: Call) -> None:
        if not hogs:
            os.setpriority(os.PRIO_PROCESS, bench.pid, 19)
            hogs.extend(hog() for _ in range(2 * (os.cpu_count() or 1)))
        await steady(call)

    with serving(RawServer(starve)) as server:
        command = tailrace_command("bench", server.url, *_LOAD, "--processes", "1", "--out", str(out), "--json")
        bench = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_env())
        told, said = bench.communicate(timeout=80)
    for one in hogs:
        one.wait(20)
    assert bench.returncode == 3, (said, told[-2000:])
    trailer = read_run(out).trailer
    assert trailer is not None
    assert trailer.client.limited
    assert any(text in trailer.client.why for text in ("late", "waited for a processor", "added"))


def test_a_run_on_a_quiet_machine_does_not(tmp_path: Path):
    for _ in range(3):
        health = streams(tmp_path)
        if not health.limited:
            return
        # Whoever took the processors meanwhile is to blame, and the run says so rightly.
        assert (health.run_queue_wait_share or 0) > 0.02, health
    pytest.skip("others have this machine's processors: no run here is a quiet one")


@pytest.mark.parametrize("stream", [True, False])
def test_500_requests_a_second_keep_their_schedule_or_it_is_said(tmp_path: Path, *, stream: bool):
    async def answer(call: Call) -> None:
        if stream:
            await call.answer(4)
        else:
            await call.send(whole(200, {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}))

    with serving(RawServer(answer, look=answer)) as server:
        spec = spec_for(server.url, rate=500, requests=1500, mix="a=10/4", stream=stream)
        result = run(spec, tmp_path)
    health = result.summary.client
    taken = sorted((r.run_offset_ns or 0) + (r.intended_to_queued_ns or 0) for r in result.records)
    rate = (len(taken) - 1) * S / (taken[-1] - taken[0])
    assert len(taken) == 1500
    assert health.limited or abs(rate / 500 - 1) < 0.01, (rate, health)
    assert health.schedule_kept == pytest.approx(rate / 500, abs=1e-6)


def test_a_delay_beyond_its_bound_does_not_read_like_the_bound():
    (why,) = QUIET._replace(event_delay_p99_ms=5.2).limits()
    assert why == "what arrived was stamped 5.2 ms late at p99 (bound 5.0 ms)"
