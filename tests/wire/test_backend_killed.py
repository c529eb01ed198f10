"""One of three engines is killed under load and started again: nobody pays for it but the requests that it had."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
from tailrace.model.outcome import OutcomeKind, Reason
from tests.children import Child, tailrace_command
from tests.wire.client import RawClient, Reply, chat_body, request
from tests.wire.stand import Records, run

pytestmark = pytest.mark.long(reason="starts engines as processes", timeout=90)

SEATS = 18


def engine_at(port: int) -> Child:
    return Child(tailrace_command("engine", "--port", str(port), "--json"))


@pytest.fixture
def engines() -> Iterator[list[Child]]:
    children = [engine_at(0) for _ in range(3)]
    try:
        yield [child.wait_ready(40) for child in children]
    finally:
        for child in children:
            child.kill()


def test_a_killed_engine_takes_only_its_own_streams_along_and_gets_traffic_again(engines: list[Child]) -> None:
    revived: list[Child] = []

    async def test() -> None:
        records = Records()
        gateway = Gateway(
            config_from(
                {
                    "listen": "127.0.0.1:0",
                    "backends": [{"name": f"e{at}", "url": engine.url} for at, engine in enumerate(engines)],
                    "scrape": {"period": "200ms"},
                    "records": {"sample": 1.0},
                    "balance": {"slow_start": "1s"},
                }
            ),
            records,
        )
        await gateway.start()
        body = chat_body(model=engines[0].ready["model"], max_tokens=40, ignore_eos=True)
        replies: list[tuple[float, Reply]] = []
        stop = False

        async def seat() -> None:
            client = await RawClient.connect(gateway.url)
            while not stop:
                replies.append((time.monotonic(), await client.ask(request(body))))
            client.close()

        async with asyncio.TaskGroup() as load:
            try:
                for _ in range(SEATS):
                    load.create_task(seat())
                while len(replies) < 2 * SEATS:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                victim = engines[1]
                theirs = {
                    exchange.ledger.request_id
                    for exchange in gateway.in_flight.values()
                    if exchange.backend.name == "e1"
                }
                assert theirs
                killed = time.monotonic()
                victim.signal(signal.SIGKILL)
                await asyncio.to_thread(victim.popen.wait, 10)
                await asyncio.sleep(1)
                revived.append(engine_at(int(victim.url.rpartition(":")[2])))
                await asyncio.to_thread(revived[0].wait_ready, 40)
                back = time.monotonic()
                gateway.flush_records()
                before = len(records.all)

                def served_again() -> int:
                    gateway.flush_records()
                    return sum(r.backend == "e1" and r.outcome is OutcomeKind.COMPLETED for r in records.all[before:])

                while served_again() < 3:
                    assert time.monotonic() - back < 15
                    await asyncio.sleep(0.05)
            finally:
                stop = True
        await gateway.close(1)
        gateway.flush_records()
        assert killed < back
        failed = [record for record in records.all if record.outcome is not OutcomeKind.COMPLETED]
        # Those that it had, and at most the few that were handed to it before its death was known.
        assert {record.backend for record in failed} <= {"e1"}
        assert {record.reason for record in failed} <= {Reason.STREAM_CUT}
        assert {record.request_id for record in failed} <= theirs
        broken = [reply for _, reply in replies if reply.error is not None or reply.status != 200]
        assert len(broken) == len(failed)
        for reply in broken:
            error = reply.error if reply.status == 200 else reply.json["error"]
            assert error["reason"] == "stream_cut"
            assert b"[DONE]" not in reply.body
        assert all(reply.end in ("chunked", "length") for _, reply in replies)
        shares = Counter(record.backend for record in records.all)
        assert min(shares["e0"], shares["e2"]) > 0.6 * max(shares["e0"], shares["e2"])

    try:
        run(test(), within=80)
    finally:
        for child in revived:
            child.kill()
