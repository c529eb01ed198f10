"""When the engine's slot is free after a cancel: found by looking, absent where it cannot be proved."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.cancels import Cancel, CancelWatch
from tailrace.model.engine_state import EngineState
from tailrace.model.outcome import Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import Incoming, token
from tests.wire.stand import run, stand
from tests.wire.test_admin import admin_of

MS = 1_000_000
PERIOD = 1_000 * MS


class Looked:
    """A watch beside a made-up engine, in made-up time."""

    def __init__(self, *ours: int) -> None:
        self.ours = list(ours)
        self.woken = 0
        self.ended: list[Cancel] = []
        self.watch = CancelWatch(lambda: self.ours, wake=self._wake, period_ns=PERIOD)
        self.watch.on_slot = self.ended.append

    def _wake(self) -> None:
        self.woken += 1

    def cancel(self, at: int, *, sent: int = 0, metrics: bool = True, name: str = "a") -> Cancel:
        self.watch.add(
            request_id=name,
            reason=Reason.CLIENT_DISCONNECT,
            stage="decode",
            since=at,
            sent=sent,
            closed=at + 1000,
            metrics=metrics,
        )
        return self.watch.recent[-1]

    def scrape(self, at: int, running: int | None, waiting: int | None = 0) -> None:
        self.watch.scraped(EngineState(at_ns=at, running=running, waiting=waiting), at - MS, at)


def test_the_fall_is_the_first_of_two_looks_that_show_it() -> None:
    looked = Looked(1, 2)
    cancel = looked.cancel(100 * MS, sent=3)
    assert looked.woken == 1
    looked.scrape(105 * MS, 3)
    looked.scrape(112 * MS, 2)
    assert cancel.slot_ns is None
    looked.scrape(120 * MS, 2)
    assert cancel.slot_ns == 12 * MS
    assert looked.ended == [cancel]
    assert looked.watch.find("a") is cancel


def test_one_look_may_be_feigned_by_a_request_that_is_just_ending() -> None:
    looked = Looked(1, 2)
    cancel = looked.cancel(100 * MS)
    looked.scrape(105 * MS, 3)
    looked.scrape(112 * MS, 2)
    looked.ours = [1]  # the other one ended: what was counted were it and the cancelled one
    looked.scrape(120 * MS, 2)
    assert cancel.slot_ns is None
    looked.scrape(130 * MS, 1)
    looked.scrape(140 * MS, 1)
    assert cancel.slot_ns == 30 * MS


def test_a_usual_scrape_before_the_cancel_shows_that_it_was_counted() -> None:
    looked = Looked(5)
    looked.scrape(50 * MS, 1)
    looked.ours = []
    cancel = looked.cancel(100 * MS, sent=5)
    looked.scrape(105 * MS, 0)
    looked.scrape(110 * MS, 0)
    assert cancel.slot_ns == 5 * MS


def test_what_was_never_counted_is_not_called_free() -> None:
    looked = Looked()
    cancel = looked.cancel(100 * MS, sent=99 * MS)
    looked.scrape(105 * MS, 0)
    assert cancel.slot_ns is None
    assert "never seen" in cancel.unseen
    assert looked.ended == [cancel]


def test_others_at_the_engine_leave_it_unknown() -> None:
    looked = Looked(1)
    cancel = looked.cancel(100 * MS)
    for at in range(105, 1200, 50):
        looked.scrape(at * MS, 9)
    assert cancel.slot_ns is None
    assert "did not fall" in cancel.unseen


def test_requests_sent_since_it_was_counted_prove_nothing() -> None:
    looked = Looked(1)
    cancel = looked.cancel(100 * MS)
    looked.scrape(105 * MS, 2)
    looked.ours = [1, 106 * MS]  # a new one, which the engine may not count yet
    looked.scrape(110 * MS, 2)
    looked.scrape(115 * MS, 2)
    assert cancel.slot_ns is None
    looked.scrape(120 * MS, 1)
    looked.scrape(125 * MS, 1)
    assert cancel.slot_ns == 20 * MS


def test_an_answer_to_an_earlier_question_says_nothing() -> None:
    looked = Looked()
    cancel = looked.cancel(100 * MS)
    looked.watch.scraped(EngineState(at_ns=101 * MS, running=0, waiting=0), 99 * MS, 101 * MS)
    assert (cancel.slot_ns, cancel.unseen) == (None, "")


def test_without_counts_it_is_absent_at_once() -> None:
    looked = Looked()
    cancel = looked.cancel(100 * MS, metrics=False)
    assert cancel.unseen
    assert looked.ended == [cancel]
    assert looked.woken == 0
    other = looked.cancel(100 * MS)
    looked.watch.scraped(None, 101 * MS, 102 * MS)  # the scrape failed
    assert other.unseen == ""
    looked.watch.scraped(None, 1300 * MS, 1300 * MS)
    assert other.unseen


def test_however_many_leave_the_engine_is_asked_in_bursts() -> None:
    looked = Looked()
    looked.cancel(100 * MS)
    looked.scrape(110 * MS, 0)  # settled
    looked.cancel(900 * MS)  # before the engine has had a usual period to itself
    assert "not looked at" in looked.ended[-1].unseen
    assert looked.watch.pause_s(1.0, 0.0) == 1.0
    looked.cancel(2200 * MS)
    assert looked.woken == 2
    pauses = []
    while sum(pauses) < 1.0:
        pauses.append(looked.watch.pause_s(1.0, 0.0))
    assert len(pauses) < 30
    assert pauses[0] < 0.006
    assert looked.watch.pause_s(1.0, 0.01) == 0.2  # an expensive scrape is asked for less often


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4)), max_size=30))
def test_it_always_ends_and_never_before_its_cancel(looks: list[tuple[int, int, int]]) -> None:
    looked = Looked(1)
    cancels = [looked.cancel(100 * MS, name=str(index)) for index in range(3)]
    at = 100 * MS
    for running, waiting, alive in looks:
        at += 30 * MS
        looked.ours = list(range(1, alive + 1))
        looked.scrape(at, running, waiting)
    looked.scrape(at + 1200 * MS, 0)
    assert len(looked.ended) == 3
    for cancel in cancels:
        assert (cancel.slot_ns is None) == bool(cancel.unseen)
        assert cancel.slot_ns is None or cancel.slot_ns > 0


def test_on_the_wire() -> None:
    """An engine that frees its slot 60 ms after its client left, by its own metrics."""
    inside = 0

    async def script(incoming: Incoming) -> None:
        nonlocal inside
        inside += 1
        await incoming.sse(token())
        await incoming.until_gone()
        await asyncio.sleep(0.06)
        inside -= 1

    class Metrics(dict[str, bytes]):
        def __getitem__(self, path: str) -> bytes:
            return b"vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n" % inside

    async def test() -> None:
        side: Any = Metrics({"/metrics": b""})
        async with stand(script, side=side) as s, admin_of(s.gateway) as admin:
            await s.until(lambda: s.gateway.backends.first.engine.watch.counts)
            scrapes = s.gateway.backends.first.engine.watch.scrapes
            stays = await s.client()
            await stays.send(request(chat_body()))
            client = await s.client()
            await client.send(request(chat_body()))
            await client.head()
            await client.next_chunk()
            await s.until(lambda: inside == 2)
            client.abort()
            record = await s.record()
            await s.until(lambda: (found := s.gateway.backends.first.cancels.find(record.request_id)) and found.slot_ns)
            _, cancels = await admin.get("/cancels")
            (cancel,) = cancels["cancels"]
            assert cancel["request_id"] == record.request_id
            assert cancel["cancel_upstream_ms"] == record.cancel_upstream_ns / 1e6
            assert 55 < cancel["cancel_slot_ms"] < 200
            _, public = await admin.get(f"/records/{record.request_id}")
            assert public["cancel_slot_ms"] == cancel["cancel_slot_ms"]
            assert 2 <= s.gateway.backends.first.engine.watch.scrapes - scrapes < 30
            quiet = s.gateway.backends.first.engine.watch.scrapes
            await asyncio.sleep(0.3)
            assert s.gateway.backends.first.engine.watch.scrapes == quiet  # the burst is over with its last cancel

    run(test())
