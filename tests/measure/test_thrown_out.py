"""Which stream an engine threw out, by the steps that it missed while its neighbours went on."""

from __future__ import annotations

import random

import pytest

from tailrace.measure.inference.scene import Heard, Scene
from tailrace.measure.inference.thrown_out import may_have_been, preemptions
from tailrace.model.thresholds import MS

STEP = 20 * MS


def stream(steps: list[int]) -> Heard:
    stamps = [step * STEP for step in steps]
    return Heard(stamps[0] - 5 * STEP, stamps[0], stamps[-1], stamps)


def judged(me: list[int], *others: list[int], **more: object) -> int:
    mine = stream(me)
    return preemptions(mine, Scene([mine, *(stream(other) for other in others)]), gap_p50_ns=STEP, **more)


ALL = list(range(10, 60))
OUT = [step for step in ALL if not 30 <= step < 42]


def test_steps_missed_beside_a_neighbour():
    assert judged(OUT, ALL) == 1


def test_twice():
    assert judged([step for step in OUT if not 50 <= step < 55], ALL) == 2


def test_all_stop_together():
    """The engine or its host stood still."""
    assert judged(OUT, OUT) == 0


def test_alone_nothing_is_known():
    assert judged(OUT) == 0


def test_a_slow_client_is_no_preemption():
    assert judged(OUT, ALL, blocked=[(31 * STEP, 40 * STEP)]) == 0


def test_one_late_answer_is_no_preemption():
    assert judged([step for step in ALL if not 30 <= step < 32], ALL) == 0


def test_bundles_of_a_neighbour_are_one_step():
    mine = stream(OUT)
    bundle = Heard(0, 10 * STEP, 60 * STEP, sorted([*(n * STEP for n in OUT), *(35 * STEP + n for n in range(6))]))
    assert preemptions(mine, Scene([mine, bundle]), gap_p50_ns=STEP) == 0


@pytest.mark.parametrize(
    ("largest", "median", "worth"), [(None, None, False), (59, 20, False), (60, 20, True), (5, 0, False)]
)
def test_only_wide_gaps_are_looked_at(largest, median, worth):
    assert may_have_been(largest, median) is worth


def test_many_streams_over_many_seeds():
    """Each of eight streams is thrown out or not; jitter of a fifth of a step; exactly those are found."""
    for seed in range(20):
        draw = random.Random(seed)
        outs = [draw.random() < 0.4 for _ in range(8)]
        if all(outs):
            outs[0] = False
        streams = []
        for out in outs:
            low = draw.randrange(20, 40)
            steps = [step for step in ALL if not (out and low <= step < low + 8)]
            stamps = [step * STEP + draw.randrange(STEP // 5) for step in steps]
            streams.append(Heard(0, stamps[0], stamps[-1], stamps))
        scene = Scene(streams)
        assert [preemptions(one, scene, gap_p50_ns=STEP) == 1 for one in streams] == outs
