"""Clients that leave by plan: they close their connection, and are no error."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.thresholds import MS
from tailrace.workload.arrivals import Arrivals
from tailrace.workload.leave import Leave
from tailrace.workload.length import Fixed
from tailrace.workload.mix import TrafficClass
from tailrace.workload.plan import Workload
from tailrace.workload.traits import Traits
from tests.probe.raw_server import HEAD, Call, RawServer, chunk, serving, token
from tests.probe.running import run, spec_for


def leaving(url: str, *leaves: Leave, tokens: int = 30, **more):
    mix = [TrafficClass(name="a", prompt=Fixed(10), output=Fixed(tokens), traits=Traits(leaves=list(leaves)))]
    return spec_for(url, workload=Workload(arrivals=Arrivals(concurrency=2), mix=mix), **more)


class Watch:
    """Streams slowly, and counts how often its client had gone before the end."""

    def __init__(self) -> None:
        self.gone = 0

    async def __call__(self, call: Call) -> None:
        try:
            await call.answer(gap_s=0.004)
        except ConnectionError:
            self.gone += 1
            raise
        if call.writer.transport.is_closing():
            self.gone += 1


def test_after_tokens(tmp_path: Path):
    watch = Watch()
    with serving(RawServer(watch)) as server:
        result = run(leaving(server.url, Leave(share=0.5, tokens=5), requests=30), tmp_path)
    left = [r for r in result.records if r.reason is Reason.LEFT_AS_PLANNED]
    stayed = [r for r in result.records if r.outcome is OutcomeKind.COMPLETED]
    assert len(left) + len(stayed) == 30
    assert 7 <= len(left) <= 23
    assert {r.outcome for r in left} == {OutcomeKind.CANCELLED}
    # One read may bring more than one event on a busy machine.
    assert all(5 <= r.output_tokens < 30 for r in left)
    assert all(r.output_tokens == 30 for r in stayed)
    assert watch.gone == len(left), "each closed its connection"
    assert server.connections >= len(left)
    summary = result.summary
    assert (summary.n, summary.errors) == (len(stayed), {})
    assert summary.metrics["ttft_ms"].n == len(stayed)
    assert summary.work is not None
    assert summary.work.leaves is not None
    assert summary.work.leaves.n == len(left)
    assert summary.work.leaves.ttft_p50_next_ms is not None
    assert result.counters["left_as_planned"] == len(left)


def test_after_a_time(tmp_path: Path):
    with serving(RawServer(Watch())) as server:
        result = run(leaving(server.url, Leave(after_ns=60 * MS), tokens=200, requests=6), tmp_path)
    assert {r.reason for r in result.records} == {Reason.LEFT_AS_PLANNED}
    assert all(59 * MS <= r.e2e_ns < 400 * MS for r in result.records)
    assert (result.summary.n, result.summary.errors) == (0, {})


def test_before_the_first_byte(tmp_path: Path):
    async def silent(call: Call) -> None:
        await asyncio.sleep(5)
        await call.answer()

    with serving(RawServer(silent)) as server:
        result = run(leaving(server.url, Leave(after_ns=30 * MS), requests=4), tmp_path)
    assert {r.reason for r in result.records} == {Reason.LEFT_AS_PLANNED}
    assert all(r.ttft_ns is None for r in result.records)


def test_an_answer_that_is_whole_by_then_is_not_left(tmp_path: Path):
    with serving(RawServer(Call.answer)) as server:
        spec = leaving(server.url, Leave(share=0.5, tokens=50), Leave(share=0.5, after_ns=20_000 * MS), tokens=4)
        result = run(spec, tmp_path)
    assert {r.outcome for r in result.records} == {OutcomeKind.COMPLETED}
    assert result.summary.work is not None
    assert result.summary.work.leaves is None


def test_a_server_that_fails_first_is_still_an_error(tmp_path: Path):
    async def cut(call: Call) -> None:
        await call.send(HEAD, chunk(token()))
        await asyncio.sleep(0.02)
        call.close()

    with serving(RawServer(cut)) as server:
        result = run(leaving(server.url, Leave(tokens=10), requests=4), tmp_path)
    assert result.summary.errors == {"stream_cut": 4}


@pytest.mark.parametrize("stream", [True, False])
def test_the_run_ends_in_time_when_everybody_leaves(stream: bool, tmp_path: Path):
    async def endless(call: Call) -> None:
        await call.answer(tokens=100_000, gap_s=0.002)

    with serving(RawServer(endless, look=Call.answer if stream else whole_answer)) as server:
        spec = leaving(server.url, Leave(after_ns=50 * MS), stream=stream, requests=4)
        result = run(spec, tmp_path)
    assert {r.reason for r in result.records} == {Reason.LEFT_AS_PLANNED}


async def whole_answer(call: Call) -> None:
    from tests.probe.raw_server import whole

    message = {"role": "assistant", "content": "x"}
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    await call.send(
        whole(200, {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})
    )
