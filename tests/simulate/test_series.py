"""Closed forms of a run of steps, against counting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.simulate.series import blocks_for, length_of, steps_to, steps_within
from tailrace.simulate.step_log import StepLog

DURATIONS = st.integers(1, 10**11)
RISES = st.sampled_from([0, 1, 7, 86_900, 22_000_000])


@given(st.integers(1, 10**16), DURATIONS, RISES)
def test_steps_to_is_the_least_that_reaches(gap, first, rise):
    steps = steps_to(gap, first, rise)
    assert steps >= 1
    assert length_of(steps, first, rise) >= gap
    assert steps == 1 or length_of(steps - 1, first, rise) < gap


@given(st.integers(0, 60), DURATIONS, RISES)
def test_length_is_the_sum_of_the_steps(steps, first, rise):
    assert length_of(steps, first, rise) == sum(first + rise * k for k in range(steps))


GROW = st.lists(st.integers(0, 5), min_size=1, max_size=16).filter(any)


@given(GROW, st.data(), st.integers(0, 100))
def test_blocks_are_counted_by_cycle(grow, data, steps):
    phase = data.draw(st.integers(0, len(grow) - 1))
    assert blocks_for(grow, phase, steps) == sum(grow[(phase + k) % len(grow)] for k in range(steps))


@given(GROW, st.data(), st.integers(0, 200))
def test_steps_within_stops_before_the_first_that_does_not_fit(grow, data, free):
    phase = data.draw(st.integers(0, len(grow) - 1))
    steps = steps_within(grow, phase, free)
    assert blocks_for(grow, phase, steps) <= free < blocks_for(grow, phase, steps + 1)


@given(st.lists(st.tuples(st.integers(1, 40), DURATIONS, RISES, st.integers(0, 10**9)), min_size=1), st.data())
def test_the_step_log_gives_every_end_back(runs, data):
    log = StepLog()
    now = step = 0
    ends = [0]
    for count, first, rise, idle in runs:
        now += idle
        log.add(step, now, first, rise, count)
        for k in range(count):
            now += first + rise * k
            ends.append(now)
        step += count
    first = data.draw(st.integers(1, step))
    last = data.draw(st.integers(first, step))
    assert log.ends(first, last).tolist() == ends[first : last + 1]
    assert log.end_of(first) == ends[first]
    log.forget(first - 1)
    assert log.ends(first, last).tolist() == ends[first : last + 1]
    log.forget(step)
    assert len(log) == 0
