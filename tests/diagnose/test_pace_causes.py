"""The engine's pace against the window before; a batcher's groups, a cap that is counted."""

import msgspec
import numpy as np
import pytest

from tailrace.diagnose.caps import counted_cap
from tailrace.diagnose.causes.scheduler.batcher_wait import BatcherWait
from tailrace.diagnose.equal_work import equal_pace
from tailrace.diagnose.expected_pace import grown_pace, slow_episodes
from tailrace.diagnose.record_evidence.batcher_groups import batcher_in_groups
from tailrace.diagnose.window import Window
from tailrace.model.finding import Level
from tailrace.store.table import RecordTable
from tests.diagnose.altered import S, calm, restamped, stamps
from tests.diagnose.simulated import MS, evidence


def window(records):
    return Window(RecordTable.from_records(records))


def paced(records, factor, when=lambda _: True):
    """Tokens of those that start when it holds come so many times as slowly."""
    out = []
    for record in records:
        at = stamps(record)
        hit = when((record.start_unix_ns - records[0].start_unix_ns) / S)
        out.append(restamped(record, at[0] + (at - at[0]) * (factor if hit else 1.0)))
    return out


def test_a_slower_engine_with_more_under_way_is_slower_all_the_same():
    old, slow = window(calm(rate=4.0, n=300)), window(paced(calm(2, rate=4.0, n=300), 5.0))
    found = grown_pace(old, slow)
    assert found is not None
    assert found.company_b > 2 * found.company_a
    assert found.ratio == pytest.approx(5.0, rel=0.25)
    assert grown_pace(old, window(calm(2, rate=4.0, n=300))) is None, "as fast as before"
    # The near miss: more is asked, so more is under way.
    assert grown_pace(old, window(paced(calm(2, rate=9.0, n=300), 5.0))) is None


def test_stretches_in_which_all_are_slower():
    def hot(second):
        return 20.0 <= second < 30.0

    old, now = window(calm(rate=4.0, n=300)), window(paced(calm(2, rate=4.0, n=300), 2.5, hot))
    found = slow_episodes(old, now)
    assert found is not None
    assert found.stretches <= 2
    assert found.ratio > 1.8
    assert found.outside == pytest.approx(1.0, abs=0.15)
    rng = np.random.default_rng(5)
    lot = rng.random(400) < 0.2
    # One in five by lot, at no particular time: their own reason, and no stretch.
    mixed = [
        one if hit else other for one, other, hit in zip(paced(calm(2, n=300), 2.5), calm(2, n=300), lot, strict=False)
    ]
    assert slow_episodes(old, window(mixed)) is None
    assert slow_episodes(now, now) is None, "the window before has them as well"


def paced_at(records, factor, stretches):
    """Whatever decodes in one of these `stretches` (s) is so many times as slow meanwhile; what lies outside is not."""
    zero = min(record.start_unix_ns for record in records) / S
    knots = np.array([edge for pair in stretches for edge in pair])
    out = []
    for record in records:
        at = stamps(record) / S
        start = record.start_unix_ns / S - zero
        late, before = [at[0]], start + at[0]
        for gap in np.diff(at).tolist():
            slow = np.searchsorted(knots, before, side="right") % 2 == 1
            late.append(late[-1] + gap * (factor if slow else 1.0))
            before = start + late[-1]
        out.append(restamped(record, np.array(late) * S))
    return out


def summaries(records):
    return window([msgspec.structs.replace(record, timeline=None) for record in records])


def test_stretches_that_are_shorter_than_the_answers_in_them():
    # Many of those that decode there have most of their tokens elsewhere, and a usual gap of elsewhere.
    lengthy = {"rate": 3.0, "n": 400, "output": (100, 280)}
    old, usual = summaries(calm(**lengthy)), calm(2, **lengthy)
    now = summaries(paced_at(usual, 4.0, [(20, 26), (40, 46), (60, 66), (80, 86), (100, 106)]))
    found = slow_episodes(old, now)
    assert found is not None
    assert 3 <= found.stretches <= 5
    assert 20 <= found.seconds <= 40
    assert found.outside == pytest.approx(1.0, abs=0.15)
    assert slow_episodes(old, summaries(usual)) is None
    rng = np.random.default_rng(5)
    lot = rng.random(len(usual)) < 0.3
    mixed = [one if hit else other for one, other, hit in zip(paced(usual, 2.5), usual, lot, strict=True)]
    assert slow_episodes(old, summaries(mixed)) is None, "three in ten by lot, at no particular time"


def test_prefills_that_share_their_steps_are_not_compared():
    def with_prefill(records, ms, waited):
        return [
            msgspec.structs.replace(
                r, prefill_ns=int(ms * MS), queue_ns=int(waited * MS), queue_engine_ns=int(waited * MS)
            )
            for r in records
        ]

    old = window(with_prefill(calm(rate=1.0, n=300), 20, 2))
    slow = equal_pace(old, window(with_prefill(calm(2, rate=1.0, n=300), 40, 4)), "prefill")
    assert slow is None or slow.change > 0.5
    assert equal_pace(old, window(with_prefill(calm(2, rate=1.0, n=300), 40, 400)), "prefill") is None


def batched(window_ms, *, told="reported(metrics.queue_time_ms)", fixed=True, seed=3, n=300, rate=8.0):
    """Each first request of a group waits for `window_ms`, the others for the rest of it."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1000.0 / rate, n))
    out, until = [], -1.0
    for record, start in zip(calm(seed, n=n), at.tolist(), strict=True):
        if start > until:
            until = start + (window_ms if fixed else window_ms * rng.uniform(0.1, 1.9))
        wait = int((until - start) * MS)
        moved = msgspec.structs.replace(record, start_unix_ns=int(1.7e18) + int(start * MS))
        out.append(
            msgspec.structs.replace(
                restamped(moved, stamps(moved) + wait),
                queue_ns=wait,
                queue_engine_ns=wait,
                stage_sources={**record.stage_sources, "queue": told},
            )
        )
    return out


def test_groups_that_leave_a_batcher_together():
    finding = batcher_in_groups(BatcherWait(), evidence(batched(400, rate=20.0)))
    assert (finding.code, finding.level) == ("SCHED_BATCHER_WAIT", Level.CONSISTENT)
    assert "groups" in finding.statement
    assert BatcherWait().judge(evidence(batched(400, fixed=False))) is None, "a wait of no length in particular"
    assert BatcherWait().judge(evidence(batched(400, told="inferred(steps)"))) is None, "a queue that nobody reported"


def test_a_cap_is_counted_from_queue_times():
    def capped(cap, n=300, serve_ms=800.0):
        free, out, start = [0.0] * cap, [], 0.0
        rng = np.random.default_rng(1)
        for record in calm(n=n):
            start += float(rng.exponential(serve_ms / cap * 0.85))
            place = int(np.argmin(free))
            wait = max(free[place] - start, 0.0)
            at = np.linspace(wait + 10.0, wait + serve_ms, 20) * MS
            free[place] = start + wait + serve_ms
            moved = msgspec.structs.replace(record, start_unix_ns=int(1.7e18) + int(start * MS))
            moved = restamped(moved, at)
            out.append(msgspec.structs.replace(moved, queue_ns=int(wait * MS), queue_engine_ns=int(wait * MS)))
        return window(out)

    found = counted_cap(capped(12))
    assert found is not None
    assert found.size == pytest.approx(12, abs=2)
    assert counted_cap(window(calm(n=300))) is None, "nobody waits"
