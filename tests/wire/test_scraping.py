"""Scraping an engine's metrics: never in a request's way, and never half an answer."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from tailrace.gateway.scrape import EngineWatch
from tailrace.model.engine_state import EngineState
from tests.wire.client import chat_body, request
from tests.wire.stand import run, stand

MS = 1_000_000


class MetricsPort:
    """A raw port that answers every request as the test says."""

    def __init__(self, answer: Callable[[asyncio.StreamWriter], object]) -> None:
        self._answer = answer
        self.asked: list[float] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.heads: list[bytes] = []
        self.inside = 0
        self.most_inside = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                self.asked.append(time.monotonic())
                self.inside += 1
                self.most_inside = max(self.most_inside, self.inside)
                try:
                    await self._answer(writer)  # type: ignore[misc]
                finally:
                    self.inside -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def metrics_port(answer: Callable[[asyncio.StreamWriter], object]) -> AsyncIterator[MetricsPort]:
    port = MetricsPort(answer)
    server = await asyncio.start_server(port.serve, "127.0.0.1", 0)
    port.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
    try:
        yield port
    finally:
        server.close()
        for writer in port.writers:
            writer.transport.abort()
        await asyncio.sleep(0)


async def ten_seconds(writer: asyncio.StreamWriter) -> None:
    """No answer for so long, or until the test is over."""
    try:
        async with asyncio.timeout(10):
            await writer.wait_closed()
    except TimeoutError:
        await plain(writer, b"x 1\n")


async def plain(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()


def watch_of(url: str, seen: list[str], **options: object) -> EngineWatch:
    def parse(text: str, server: str, now: int) -> EngineState:
        _ = server
        seen.append(text)
        return EngineState(at_ns=now, running=1)

    def session(*, timeout_s: float, headers: object = None) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s), headers=headers)  # type: ignore[arg-type]

    times = {"period_ns": 20 * MS, "timeout_ns": 2000 * MS, "stale_ns": 3000 * MS, **options}
    return EngineWatch(url, parse=parse, session=session, **times)  # type: ignore[arg-type]


def test_slow_metrics_endpoint() -> None:
    """`/metrics` takes 10 s: no request waits for it, and nobody asks a second time meanwhile."""

    async def test() -> None:
        async with (
            metrics_port(ten_seconds) as slow,
            stand(backend={"metrics_url": slow.url}, scrape={"period": "20ms", "timeout": "15s"}) as s,
        ):
            await s.until(lambda: slow.inside == 1)
            began = time.monotonic()
            for number in range(1, 21):
                await s.ask(request(chat_body()))
                record = await s.record(number)
                assert record.running_at_admission is None, "nothing is known, so nothing is said"
            assert time.monotonic() - began < 5
            assert slow.most_inside == 1
            assert len(slow.asked) == 1
            assert s.gateway.backends.first.engine.watch.scrapes >= 1

    run(test())


def test_a_scrape_that_is_late_fails_and_the_next_one_comes() -> None:
    async def test() -> None:
        seen: list[str] = []
        async with metrics_port(ten_seconds) as port:
            watch = watch_of(port.url, seen, timeout_ns=50 * MS)
            late: list[int] = []
            watch.on_late = late.append
            watch.start()
            async with asyncio.timeout(5):
                while watch.failures < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await watch.close()
        assert watch.error == "no answer within 50 ms"
        assert len(late) == watch.failures
        assert watch.reachable is not False, "a busy engine is late, not gone"
        assert seen == []

    run(test())


def test_an_answer_in_many_pieces_is_read_whole() -> None:
    """Half a histogram read as a whole one would be a restart of the engine in the next scrape."""
    lines = [b'vllm:x_bucket{le="%d"} %d\n' % (index, index) for index in range(3000)]

    async def dribble(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(lines), 600):
            piece = b"".join(lines[at : at + 600])
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")

    async def test() -> None:
        seen: list[str] = []
        async with metrics_port(dribble) as port:
            watch = watch_of(port.url, seen)
            watch.start()
            await watch.first_answer()
            await watch.close()
        assert seen[0].encode() == b"".join(lines)
        assert b"accept-encoding: identity" in port.heads[0].lower()

    run(test())


def test_jitter_moves_the_scrapes_apart() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        await plain(writer, b"x 1\n")

    async def pauses(jitter: float) -> list[float]:
        async with metrics_port(answer) as port:
            watch = watch_of(port.url, [], period_ns=40 * MS, jitter=jitter)
            watch.start()
            async with asyncio.timeout(10):
                while len(port.asked) < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await watch.close()
        return [later - earlier for earlier, later in zip(port.asked, port.asked[1:], strict=False)]

    async def test() -> None:
        spread = await pauses(0.5)
        # Half the period to one and a half of it, evenly: its deviation is 0.29 of the period.
        assert min(spread) < 0.033
        assert max(spread) > 0.047
        assert statistics.pstdev(spread) > 0.004

    run(test())


def test_a_state_that_is_too_old_is_absent() -> None:
    seen: list[str] = []
    watch = watch_of("http://127.0.0.1:1/metrics", seen, stale_ns=3000 * MS)
    watch.latest = EngineState(at_ns=1000 * MS, running=4)
    assert watch.state(4000 * MS) is watch.latest
    assert watch.state(4001 * MS) is None
    assert watch.age_ns(4001 * MS) == 3001 * MS


def test_a_scrape_that_would_hold_the_relay_is_not_read() -> None:
    """300,000 series: reading them took 8 s, in which no stream went on."""

    async def test() -> None:
        async with metrics_port(lambda writer: plain(writer, b'a{b="1"} 1\n' * 300_000)) as port:
            seen: list[str] = []
            watch = watch_of(port.url, seen)
            watch.start()
            await watch.first_answer()
            await watch.close()
        assert seen == []
        assert "larger than 2 MiB" in watch.error

    run(test())
