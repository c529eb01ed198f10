"""The engine's metrics, read while a run goes on and beside it."""

import asyncio
import time

import pytest

from tailrace.engines.registry import adapter
from tailrace.probe.engine_scrape import Scraping, read_scrape
from tailrace.probe.progress import Progress
from tests.probe.raw_server import RawServer, serving, whole
from tests.probe.running import run, spec_for

MS = 1_000_000


def page(running, waiting=2):
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} {waiting}\n'
        "vllm:kv_cache_usage_perc 0.25\n"
    ).encode()


def stand(script, metrics):
    async def get(call):
        if call.path == "/metrics":
            await metrics(call)
        elif call.path != "/v1/models":
            await call.send(whole(404, {}))

    return RawServer(script, on_get=get)


async def slow(call):
    await call.answer(tokens=10, gap_s=0.05)


def test_states_are_read_during_the_run_and_count_from_its_begin(tmp_path):
    async def metrics(call):
        await call.send(whole(200, page(call.number), "text/plain"))

    with serving(stand(slow, metrics)) as server:
        result = run(spec_for(server.url, requests=4, scrape_ns=100 * MS, warmup_requests=1), tmp_path)
    states = result.run.states
    assert len(states) >= 5
    assert states[0].waiting == 2
    assert states[0].kv_usage == 0.25
    assert states[0].names["running"] == "vllm:num_requests_running"
    assert [one.at_ns for one in states] == sorted(one.at_ns for one in states)
    assert states[0].at_ns < 0, "the warm-up came before"
    last = max((one.run_offset_ns or 0) + one.e2e_ns for one in result.records)
    assert 0 < states[-1].at_ns < last + 300 * MS
    assert result.counters["engine_scrapes"] == len(states)


def test_a_server_without_metrics_is_not_asked_again_and_the_run_says_so(tmp_path):
    async def metrics(call):
        await call.send(whole(404, {}))

    with serving(stand(slow, metrics)) as server:
        result = run(spec_for(server.url, scrape_ns=20 * MS), tmp_path)
        assert server.gets.count("/metrics") <= 1
    assert result.run.states == []
    assert result.run.trailer is not None
    assert result.run.trailer.notes == [
        "engine state: the server has no metrics of an engine; --metrics-url names another place"
    ]


def test_off_is_off(tmp_path):
    async def metrics(call):
        await call.send(whole(200, page(1), "text/plain"))

    with serving(stand(slow, metrics)) as server:
        result = run(spec_for(server.url, scrape_ns=0), tmp_path)
    assert result.run.states == []
    assert result.run.trailer is not None
    assert result.run.trailer.notes == []


def test_metrics_at_another_place(tmp_path):
    async def metrics(call):
        await call.send(whole(200, page(5), "text/plain"))

    async def nothing(call):
        raise AssertionError("no request belongs here")

    async def none(call):
        await call.send(whole(404, {}))

    with serving(stand(slow, none)) as server, serving(stand(nothing, metrics)) as other:
        result = run(spec_for(server.url, scrape_ns=50 * MS, metrics_url=other.url), tmp_path)
        assert set(other.gets) == {"/metrics"}
    assert {one.running for one in result.run.states} == {5}


@pytest.mark.parametrize("how", ["hangs", "endless", "garbage", "nobody"])
def test_metrics_that_misbehave_never_touch_the_load(tmp_path, how):
    async def metrics(call):
        if how == "hangs":
            await asyncio.sleep(60)
        elif how == "endless":
            await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                await call.send(b"5\r\nxxxx\n\r\n")
                await asyncio.sleep(0.001)
        else:
            await call.send(whole(200, bytes(range(256)) * 50, "text/plain"))

    async def none(call):
        await call.send(whole(404, {}))

    with serving(stand(slow, none)) as server, serving(stand(slow, metrics)) as other:
        if how == "nobody":
            other.stop_listening()
        began = time.monotonic()
        result = run(spec_for(server.url, requests=2, scrape_ns=20 * MS, metrics_url=other.url), tmp_path)
        assert time.monotonic() - began < 20  # of the 60 s that the metrics hang
    assert len(result.records) == 2
    assert not any(one.reason for one in result.records)
    assert result.run.states == []


def test_only_one_scrape_is_under_way_at_a_time(tmp_path):
    under_way = most = 0

    async def metrics(call):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.15)
        under_way -= 1
        await call.send(whole(200, page(1), "text/plain"))

    with serving(stand(slow, metrics)) as server:
        run(spec_for(server.url, scrape_ns=10 * MS), tmp_path)
    assert most == 1


def test_states_of_before_the_measured_part_wait_for_its_begin():
    taken = []
    scrapes = Scraping(taken.append)
    engine = adapter("vllm")
    now = time.monotonic_ns()
    scrapes.state(read_scrape(page(1), now, engine))
    scrapes.watch(Progress(phase="warm-up"))
    assert taken == []
    scrapes.watch(Progress(phase="measuring", elapsed_s=0.5))
    assert [one.running for one in taken] == [1]
    assert 400 * MS < taken[0].at_ns < 60_000 * MS


def test_only_the_adapters_lines_of_a_long_page_are_read():
    lines = [b'vllm:other_bucket{le="%d"} %d' % (n, n) for n in range(20_000)]
    body = b"\n".join([*lines, page(7)])
    began = time.process_time()
    state = read_scrape(body, 5, adapter("vllm"))
    took = time.process_time() - began
    assert state.running == 7
    assert state.at_ns == 5
    assert took < 0.05


def test_several_processes_have_one_scraper(tmp_path):
    async def metrics(call):
        await call.send(whole(200, page(3), "text/plain"))

    with serving(stand(slow, metrics)) as server:
        spec = spec_for(server.url, requests=8, concurrency=2, scrape_ns=100 * MS)
        result = run(spec, tmp_path, processes=2)
        # One more in the look, and one for the facts of the engine.
        assert server.gets.count("/metrics") <= result.counters["engine_scrapes"] + 4
    assert len(result.run.states) >= 4
    assert result.run.states[0].at_ns < result.run.states[-1].at_ns
    assert result.run.header.conditions.engine == "vllm"
