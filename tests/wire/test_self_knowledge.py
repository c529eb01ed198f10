"""What the gateway knows of itself and of its two connections, in its records and metrics."""

from __future__ import annotations

import asyncio
import socket
import sys
import time

import pytest

from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.hop import read_tcp
from tailrace.model.outcome import OutcomeKind
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, Incoming, chunk, finish, token
from tests.wire.stand import run, stand

HOPS = ("upstream_rtt_ns", "upstream_retransmits", "client_rtt_ns", "client_retransmits")
linux = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is Linux's")


async def _answers(incoming: Incoming) -> None:
    if incoming.json.get("stream"):
        await incoming.stream(5, gap=0.002)
    else:
        await incoming.completion()


@linux
@pytest.mark.parametrize("stream", [True, False])
def test_both_hops_are_read_of_a_request_that_is_kept(*, stream: bool) -> None:
    async def test() -> None:
        async with stand(_answers) as s:
            client = await s.client()
            for _ in range(2):  # a new and a reused connection
                await client.ask(request(chat_body(stream=stream)))
            await s.record(2)
            for record in s.records.all:
                assert record.upstream_rtt_ns is not None
                assert 0 < record.upstream_rtt_ns < 200e6
                assert record.upstream_rtt_var_ns is not None
                assert record.client_rtt_ns is not None
                assert 0 < record.client_rtt_ns < 200e6
                assert (record.upstream_retransmits, record.client_retransmits) == (0, 0)
            assert set(s.gateway.hindsight.rtt_ns) == {"upstream", "client"}

    run(test())


def test_a_request_that_is_not_kept_costs_no_system_call() -> None:
    async def test() -> None:
        async with stand(_answers, records={"sample": 0.0}) as s:
            await s.ask(request(chat_body()))
            record = await s.record()
            assert record.keep_reason == ""
            assert [getattr(record, name) for name in HOPS] == [None] * 4
            assert not s.gateway.hindsight.rtt_ns

    run(test())


@linux
def test_hops_are_read_of_a_request_whose_client_has_left_too() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token())
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await client.head()
            client.close()
            record = await s.record()
            assert record.outcome is OutcomeKind.CANCELLED
            assert record.client_rtt_ns is not None
            assert record.upstream_rtt_ns is not None

    run(test())


def test_a_socket_that_is_no_tcp_or_is_closed_has_no_reading() -> None:
    async def test() -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        assert read_tcp(transport) is None
        transport.abort()
        theirs.close()
        await asyncio.sleep(0.01)
        assert read_tcp(transport) is None
        assert read_tcp(None) is None

    run(test())


@linux
def test_reading_costs_microseconds() -> None:
    async def test() -> None:
        async with stand() as s:
            await s.client()
            await s.until(lambda: bool(s.gateway.connections))
            (connection,) = s.gateway.connections
            began = time.process_time()
            for _ in range(5000):
                assert read_tcp(connection.transport) is not None
            assert (time.process_time() - began) / 5000 < 50e-6  # 2.6 us on the machine where it was written

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_every_record_has_lag_overhead_queue_and_connection(*, stream: bool) -> None:
    async def test() -> None:
        async with stand(_answers, records={"sample": 0.0}) as s:
            client = await s.client()
            for _ in range(2):
                await client.ask(request(chat_body(stream=stream)))
            await s.record(2)
            for record in s.records.all:
                assert record.loop_lag_ns is not None
                assert record.gateway_overhead_ns is not None
                assert 0 < record.gateway_overhead_ns < 50e6
                assert record.queue_gateway_ns is not None
                assert record.pool_wait_ns is None
            assert [record.connection_reused for record in s.records.all] == [False, True]
            assert s.records.all[0].connect_ns is not None
            assert s.records.all[1].connect_ns is None

    run(test())


def test_a_loop_that_is_held_up_is_in_the_record() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.stream(6, gap=0.1)

    async def test() -> None:
        async with stand(script) as s:
            asking = asyncio.ensure_future(s.ask(request(chat_body())))
            await s.until(lambda: bool(s.engine.requests))
            await asyncio.sleep(0.12)
            time.sleep(0.3)  # noqa: ASYNC251  (the fault)
            await asking
            record = await s.record()
            assert record.loop_lag_ns is not None
            assert 200e6 < record.loop_lag_ns < 2e9
            assert s.gateway.live()["loop_lag_max_ms"] > 200

    run(test())


def test_a_request_that_ends_in_the_turn_after_the_pause_has_it_too() -> None:
    """All that came meanwhile is read before the sweeper's timer runs."""

    async def script(incoming: Incoming) -> None:
        await incoming.sse(token())
        await asyncio.sleep(0.1)
        time.sleep(0.3)  # noqa: ASYNC251  (the fault: engine, gateway and client share this loop)
        incoming.writer.write(b"".join(map(chunk, (token(), finish(), DONE))) + b"0\r\n\r\n")

    async def test() -> None:
        async with stand(script) as s:
            await s.ask(request(chat_body()))
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            assert record.loop_lag_ns is not None
            assert 200e6 < record.loop_lag_ns < 2e9

    run(test())


def test_the_process_s_cpu_use_is_measured_once_a_second() -> None:
    async def test() -> None:
        async with stand(_answers) as s:
            await s.until(lambda: s.gateway.hindsight.cpu is not None)
            quiet = s.gateway.hindsight.cpu
            s.gateway.hindsight.cpu = None
            until = time.process_time() + 0.6
            while time.process_time() < until:  # noqa: ASYNC110  (to be busy is the point)
                await asyncio.sleep(0)
            await s.until(lambda: s.gateway.hindsight.cpu is not None)
            busy = s.gateway.hindsight.cpu
            assert quiet is not None
            assert busy is not None
            assert busy > quiet
            await s.ask(request(chat_body()))
            assert (await s.record()).gateway_cpu is not None

    run(test())


def test_metrics_of_the_hops_are_fed_from_records() -> None:
    async def test() -> None:
        metrics = GatewayMetrics()
        async with stand(_answers, limits={"upstream_connections": 1}) as s:
            s.gateway._desk.observer = metrics
            await asyncio.gather(*(s.ask(request(chat_body())) for _ in range(3)))
        text = metrics.render()[0].decode()
        assert 'tailrace_connect_seconds_count{lane="default"} 1.0' in text
        assert 'tailrace_pool_wait_seconds_count{lane="default"} 2.0' in text
        assert 'tailrace_gateway_overhead_seconds_count{lane="default"} 3.0' in text
        assert 'tailrace_stage_part_seconds_count{lane="default",part="queue.gateway"} 3.0' in text

    run(test())
