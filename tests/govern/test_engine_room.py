from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.engine_room import EngineRoom, EngineRoomPolicy
from tailrace.model.engine_state import EngineState
from tailrace.model.thresholds import MS, S


def state(at: int, running: int = 0, waiting: int = 0, kv: float | None = None) -> EngineState:
    return EngineState(at_ns=at, running=running, waiting=waiting, kv_usage=kv)


def fill(room: EngineRoom, now: int, most: int = 10_000) -> int:
    """How many may be sent at once."""
    count = 0
    while count < most and room.room(now):
        room.sent()
        count += 1
    return count


def test_absent_and_stale_metrics_count_as_full_but_one_may_always_go():
    room = EngineRoom(EngineRoomPolicy(stale_ns=2 * S))
    assert not room.room(0)
    assert room.room(0, in_flight=0)
    room.hear(state(S), S)
    assert room.room(2 * S)
    assert not room.room(3 * S + 1)
    assert room.room(3 * S + 1, in_flight=0)
    assert "old" in room.why_not(4 * S)


def test_an_engine_that_queues_or_runs_out_of_blocks_has_no_room():
    room = EngineRoom(EngineRoomPolicy(max_waiting=4, max_kv_usage=0.9))
    room.hear(state(1, running=50, waiting=5), 1)
    assert not room.room(2)
    assert "wait in the engine" in room.why_not(2)
    # The first that ends makes the queue there as short as it may be, the second makes room.
    room.ended()
    assert not room.room(2)
    room.ended()
    assert room.room(2)
    room.hear(state(3, running=50, waiting=0, kv=0.95), 3)
    assert not room.room(4)
    assert "KV" in room.why_not(4)


def test_after_a_good_reading_no_herd_is_let_in():
    room = EngineRoom(EngineRoomPolicy(max_waiting=4))
    room.hear(state(1, running=50, waiting=3, kv=0.5), 1)
    # Its batch is full at 50: one more may wait there, and one more for each that ends.
    assert fill(room, 2) == 1
    room.ended()
    assert fill(room, 2) == 1
    assert "were sent since" in room.why_not(2)
    # A reading that was heard before is no news.
    room.hear(state(1, running=50, waiting=3, kv=0.5), 3)
    assert not room.room(3)


def test_an_engine_whose_batch_was_never_full_doubles_with_every_reading():
    room = EngineRoom(EngineRoomPolicy(max_waiting=4))
    sent = running = 0
    for reading in range(6):
        room.hear(state(reading * S + 1, running=running, kv=0.0), reading * S + 1)
        sent = fill(room, reading * S + 2)
        running += sent
    assert running >= 256
    assert sent <= running


def test_blocks_that_are_nearly_gone_bound_what_may_be_sent():
    room = EngineRoom(EngineRoomPolicy(max_waiting=4, max_kv_usage=0.9))
    room.hear(state(1, running=80, kv=0.8), 1)
    # A hundredth of the blocks a request: ten more.
    assert 9 <= fill(room, 2) <= 10


def test_in_a_loop_with_an_engine_the_queue_there_stays_short_and_its_batch_full():
    """An engine of 32 seats, read once a second; a hundred requests want in at any time."""
    room = EngineRoom(EngineRoomPolicy(max_waiting=4))
    running = waiting = 0
    queues, busy = [], []
    now = 0
    for tick in range(2000):
        now = tick * 10 * MS
        if tick % 100 == 0:
            room.hear(state(now, running=running, waiting=waiting), now)
        if tick % 2 == 0 and running:  # 50 a second end
            running -= 1
            room.ended()
        while room.room(now, running + waiting):
            room.sent()
            waiting += 1
        moved = min(waiting, 32 - running)
        running, waiting = running + moved, waiting - moved
        if tick > 600:
            queues.append(waiting)
            busy.append(running)
    assert max(queues) <= 8
    assert sum(busy) / len(busy) > 28


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("hear"), st.integers(0, 300), st.integers(0, 20), st.floats(0, 1)),
            st.tuples(st.just("sent"), st.just(0), st.just(0), st.just(0.0)),
            st.tuples(st.just("ended"), st.just(0), st.just(0), st.just(0.0)),
        ),
        max_size=60,
    )
)
def test_whatever_happens_one_may_go_when_none_is_in_flight_and_a_reading_beyond_a_bound_leaves_no_room(events):
    room = EngineRoom(EngineRoomPolicy(max_waiting=4, max_kv_usage=0.9))
    now = 0
    for what, running, waiting, kv in events:
        now += MS
        if what == "hear":
            room.hear(state(now, running, waiting, kv), now)
            over = waiting > 4 or (running > 0 and kv > 0.91)
            assert not (over and room.room(now))
        elif what == "sent":
            room.sent()
        else:
            room.ended()
        assert room.room(now, 0)
        assert bool(room.why_not(now)) is not room.room(now)
