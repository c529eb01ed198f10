"""Amendments in memory: joined to the records that the admin port shows, whichever came first."""

from __future__ import annotations

import msgspec

from tailrace.gateway.amendments import AmendmentFork, RecentAmendments
from tailrace.gateway.history import KEPT_RECORDS, History
from tailrace.model.amendment import Amendment
from tailrace.model.record import RequestRecord
from tests.store.samples import realistic


def unsplit(n: int) -> list[RequestRecord]:
    """Streams of whose wait nobody said anything."""
    out = []
    for place, one in enumerate(realistic(n, kept=0, failing=0)):
        split = sum(one.stage_ns(stage) or 0 for stage in ("queue.engine", "preprocess", "encode", "prefill"))
        out.append(
            msgspec.structs.replace(
                one,
                trace_id=f"{place:032x}",
                span_id=f"{place:016x}",
                queue_ns=(one.queue_ns or 0) - (one.queue_engine_ns or 0),
                queue_engine_ns=None,
                preprocess_ns=None,
                encode_ns=None,
                prefill_ns=None,
                parts_ns={},
                unattributed_ns=(one.unattributed_ns or 0) + split,
                stage_sources={**one.stage_sources, "unattributed": "inferred(remainder)"},
            )
        )
    return out


def span_of(record: RequestRecord, queue_ns: int = 7, **more: object) -> Amendment:
    fields: dict[str, object] = {"trace_id": record.trace_id, "parent_span_id": record.span_id, "span_id": "e", **more}
    return Amendment(received_unix_ns=1, origin="vllm span llm_request", queue_ns=queue_ns, **fields)  # type: ignore[arg-type]


def test_before_or_after_its_record_an_amendment_is_joined() -> None:
    first, second, third = unsplit(3)
    history = History()
    history.amendments.put(span_of(first))
    with history.follow() as follower:
        for record in (first, second, third):
            history.add(record)
    assert [follower.queue.get_nowait().queue_engine_ns for _ in range(3)] == [7, None, None]
    history.amendments.put(span_of(second, 9))
    assert [one.queue_engine_ns for one in history.since(None, 10)] == [7, 9, None]
    found = history.get(second.request_id)
    assert found is not None
    assert found.stage_sources["queue.engine"] == "reported(vllm span llm_request)"
    assert sum(found.stages().values()) == found.e2e_ns


def test_a_trace_of_several_requests_is_told_by_those_that_are_not_asked_for() -> None:
    first, second = unsplit(2)
    second = msgspec.structs.replace(second, trace_id=first.trace_id)
    history = History()
    history.add(first)
    history.amendments.put(span_of(first, parent_span_id="a hop that reported nothing"))
    (alone,) = history.since(None, 10)
    assert alone.stage_sources["queue.engine"] == "reported(vllm span llm_request; by its trace alone)"
    history.add(second)
    assert [one.queue_engine_ns for one in history.since(None, 1)] == [None]
    assert [one.queue_engine_ns for one in history.since(None, 2)] == [None, None]


def test_memory_is_bounded_and_the_oldest_make_room() -> None:
    records = unsplit(5)
    recent = RecentAmendments(kept=3)
    for record in records:
        assert recent.put(span_of(record))
        recent.put(Amendment(received_unix_ns=0, origin="gateway", request_id=record.request_id, cancel_slot_ns=4))
    assert (len(recent), recent.total) == (3, 10)
    amended = recent.amended(records, records)
    assert [one.queue_engine_ns for one in amended] == [None, None, None, None, 7]
    assert [one.cancel_slot_ns for one in amended] == [None, None, None, 4, 4]
    for record in records * 2:
        recent.put(span_of(record))
    assert len(recent) == len(recent._by_trace) == 3
    assert not recent._by_request
    assert KEPT_RECORDS > 5


class _Full:
    def put(self, amendment: Amendment) -> bool:
        return False


def test_a_fork_says_that_one_of_its_sinks_dropped_it() -> None:
    recent = RecentAmendments()
    (record,) = unsplit(1)
    assert AmendmentFork(recent).put(span_of(record))
    assert not AmendmentFork(_Full(), recent).put(span_of(record))
    assert len(recent) == 2
