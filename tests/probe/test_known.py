"""Known events are taken without a parser, and read exactly as with one, however the bytes are cut."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.measure.dialects import dialect_for
from tailrace.measure.meter import StreamMeter
from tailrace.probe import connection as module
from tailrace.probe.connection import Connection, Inbox
from tailrace.probe.known import KnownEvents
from tests.probe.raw_server import END, HEAD, chunk, last, token


class Reply:
    """A receiver with a meter; with `fast`, it lets known events be taken."""

    def __init__(self, *, fast: bool) -> None:
        self.meter = StreamMeter(dialect_for("/chat/completions"), origin_ns=0, timeline_limit=1 << 16)
        self.known = KnownEvents(self.meter) if fast else None
        self.bodies = 0
        self.ended = 0

    def on_first_byte(self, stamp: int) -> None: ...

    def on_head(self, status: int, headers: dict[str, str], stamp: int) -> None: ...

    def on_body(self, data: bytes, stamp: int) -> None:
        self.bodies += 1
        self.meter.feed(data, stamp)

    def on_end(self, stamp: int) -> None:
        if self.known is not None:
            self.known.leave()
        self.meter.end(stamp, clean=True)
        self.ended = stamp

    def on_lost(self, stamp: int, why: str, *, garbled: bool = False) -> None:
        raise AssertionError(why)


class Home:
    def give_back(self, connection: Connection) -> None: ...

    def forget(self, connection: Connection) -> None: ...


def deliver(reads: list[bytes], *, fast: bool, turns: list[int] | None = None) -> Reply:
    """Hand each read over at the time of its number (ms); the loop's turn ends after each, or where `turns` says."""

    async def main() -> Reply:
        reply = Reply(fast=fast)
        connection = Connection(Inbox(asyncio.get_running_loop()), Home())
        connection._receiver = reply
        for number, data in enumerate(reads):
            clock[0] = (number + 1) * 1_000_000
            connection.data_received(data)
            if turns is None or number in turns:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return reply

    clock = [0]
    before, module.monotonic_ns = module.monotonic_ns, lambda: clock[0]
    try:
        return asyncio.run(main())
    finally:
        module.monotonic_ns = before


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(['"', "\\", "é", "", "0\r\n"])


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=12),
    ascii_only=st.booleans(),
    cuts=st.lists(st.integers(0, 4000), max_size=6),
    turns=st.lists(st.integers(0, 40), max_size=40),
)
def test_any_split_reads_the_same_with_and_without(texts, ascii_only, cuts, turns):
    def event(text: str) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        said = json.dumps({"id": "c-1", "choices": [choice]}, ensure_ascii=ascii_only)
        return chunk(b"data: " + said.encode() + b"\n\n")

    whole = [HEAD, *(event(text) for text in texts), chunk(last(len(texts))), END]
    data = b"".join(whole)
    edges = set(itertools.accumulate(len(one) for one in whole)) | {cut % len(data) for cut in cuts}
    bounds = sorted({0, len(data), *edges})
    reads = [data[a:b] for a, b in itertools.pairwise(bounds)]
    slow = deliver(reads, fast=False)
    fast = deliver(reads, fast=True, turns=turns)
    assert slow.ended == fast.ended == len(reads) * 1_000_000
    assert fast.meter.summary() == slow.meter.summary()
    assert slow.meter.summary().output_tokens == len(texts)


def test_a_steady_stream_is_taken_without_the_parser():
    reads = [HEAD, *[chunk(token(f" w{i}")) for i in range(100)], chunk(last(100)) + END]
    slow, fast = deliver(reads, fast=False), deliver(reads, fast=True)
    assert fast.meter.summary() == slow.meter.summary()
    assert slow.bodies == 101
    assert fast.bodies < 8


@pytest.mark.parametrize("size", [1, 15, 16, 255, 256, 4095, 4096])
def test_a_chunk_of_any_length_is_itself(size: int):
    reads = [HEAD, *[chunk(token("x" * size)) for _ in range(6)], chunk(last(6)) + END]
    assert deliver(reads, fast=True).meter.summary() == deliver(reads, fast=False).meter.summary()
