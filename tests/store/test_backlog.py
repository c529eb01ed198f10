import threading

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.timeline import Timeline
from tailrace.store.backlog import Backlog, record_class
from tests.store.samples import realistic

NORMAL = msgspec.structs.replace(realistic(1, kept=0, failing=0)[0], slow=[])
SLOW = msgspec.structs.replace(NORMAL, slow=["ttft"], timeline=Timeline(at_ns=[1] * 10, kind=[0] * 10, tokens=[1] * 10))
FAILED = msgspec.structs.replace(NORMAL, outcome=OutcomeKind.FAILED, reason=Reason.STREAM_CUT)
STALLED = msgspec.structs.replace(NORMAL, stall_count=1)


def test_classes():
    assert [record_class(record) for record in (NORMAL, SLOW, FAILED, STALLED)] == ["normal", "slow", "failed", "slow"]


def test_a_full_backlog_gives_up_normal_before_slow_and_counts_both():
    backlog = Backlog(4, 1000)
    assert all(backlog.put(NORMAL) for _ in range(4))
    assert not backlog.put(NORMAL)
    assert all(backlog.put(record) for record in (SLOW, FAILED, SLOW, STALLED))
    assert backlog.dropped == {"normal": 5}
    assert not backlog.put(SLOW)
    assert not backlog.put(FAILED)
    assert backlog.dropped == {"normal": 5, "slow": 1, "failed": 1}
    assert len(backlog) == 4


def test_timelines_are_bounded_by_their_events():
    backlog = Backlog(1000, 25)
    assert backlog.put(SLOW)
    assert backlog.put(SLOW)
    assert not backlog.put(SLOW)
    assert backlog.put(FAILED), "a record without a timeline still fits"
    assert backlog.take(1) == [SLOW]
    assert backlog.put(SLOW), "what was taken has made room"


@given(st.lists(st.sampled_from([NORMAL, SLOW, FAILED, None]), max_size=60), st.integers(1, 6), st.integers(10, 60))
def test_every_record_is_taken_or_counted_and_bounds_hold(steps, capacity, events):
    backlog, put, taken = Backlog(capacity, events), [], []
    for step in steps:
        if step is None:
            taken += backlog.take(2)
        else:
            put.append(step)
            if not backlog.put(step) and record_class(step) != "normal":
                assert not backlog._normal, "a notable record was lost while a normal one stayed"
        assert len(backlog) <= capacity
    taken += backlog.take(capacity)
    for kind in ("normal", "slow", "failed"):
        arrived = sum(record_class(record) == kind for record in put)
        left = sum(record_class(record) == kind for record in taken)
        assert left + backlog.dropped.get(kind, 0) == arrived


def test_many_threads_lose_no_count():
    backlog, taken, done = Backlog(100, 10_000), [], threading.Event()

    def put():
        for _ in range(2000):
            backlog.put(NORMAL)

    def take():
        while not done.is_set() or backlog:
            taken.extend(backlog.take(50))

    taker = threading.Thread(target=take)
    putters = [threading.Thread(target=put) for _ in range(4)]
    taker.start()
    for thread in putters:
        thread.start()
    for thread in putters:
        thread.join()
    done.set()
    taker.join()
    assert len(taken) + backlog.dropped.get("normal", 0) == 8000
