"""What a refusal would have waited: the p-th slot from then on, sooner for each that leaves the queue before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.outcome import Reason
from tailrace.model.thresholds import S
from tailrace.simulate.free_slots import FreeSlots, RefusedTry
from tailrace.simulate.lane_figures import refusal_figures


def refused(at: int, position: int, *, predicted: int | None = None, lane: str = "a") -> RefusedTry:
    return RefusedTry(
        at_ns=at,
        request_id=f"r{at}",
        lane=lane,
        reason=Reason.PREDICTED_WAIT,
        position=position,
        predicted_wait_ns=predicted,
        retry_after_s=1,
        http_status=429,
    )


def test_the_place_says_which_slot_would_have_been_its_own():
    slots = FreeSlots()
    for name in "xyz":
        slots.queued("a", name)
    slots.refused(refused(10, 4))
    slots.queued("a", "later")
    for at, name in ((20, "x"), (30, "y"), (40, "z")):
        slots.granted("a", name, at)
    assert slots.refusals[0].free_at_ns is None
    slots.granted("a", "later", 50)
    assert slots.refusals[0].wait_ns == 40


def test_who_leaves_before_it_moves_it_up_and_who_leaves_behind_it_does_not():
    slots = FreeSlots()
    slots.queued("a", "before")
    slots.refused(refused(10, 2))
    slots.queued("a", "behind")
    slots.gone("a", "behind")
    slots.queued("a", "next")
    slots.gone("a", "before")
    assert slots.refusals[0].free_at_ns is None, "moving up is no slot"
    slots.granted("a", "next", 30)
    assert slots.refusals[0].free_at_ns == 30


def test_a_lane_where_nobody_waits_has_a_slot_for_whoever_comes():
    slots = FreeSlots()
    slots.refused(refused(10, 3))
    slots.refused(refused(11, 3, lane="b"))
    slots.queued("b", "x")
    slots.open("a", 25)
    slots.open("b", 26)  # somebody waits there: the slot is not for a newcomer
    assert slots.refusals[0].free_at_ns == 25
    assert slots.refusals[1].free_at_ns is None


@given(st.lists(st.sampled_from("qgrol"), max_size=60))
def test_a_slot_never_comes_before_its_refusal_and_comes_once(steps):
    slots = FreeSlots()
    waiting: list[str] = []
    seen: dict[int, int] = {}
    for now, step in enumerate(steps, 1):
        if step == "q":
            waiting.append(f"q{now}")
            slots.queued("a", waiting[-1])
        elif step == "r":
            slots.refused(refused(now, len(waiting) + 1))
        elif step == "g" and waiting:
            slots.granted("a", waiting.pop(0), now)
        elif step == "l" and waiting:
            slots.gone("a", waiting.pop(0))
        elif step == "o" and not waiting:
            slots.open("a", now)
        for i, refusal in enumerate(slots.refusals):
            if refusal.free_at_ns is not None:
                assert refusal.free_at_ns >= refusal.at_ns
                assert seen.setdefault(i, refusal.free_at_ns) == refusal.free_at_ns


def test_the_error_is_a_share_of_the_actual_wait_and_short_waits_are_not_judged():
    told = []
    for predicted, actual in ((3 * S, 2 * S), (2 * S, 4 * S), (S, S // 2), (None, 5 * S)):
        one = refused(0, 1, predicted=predicted)
        one.free_at_ns = actual
        told.append(one)
    told.append(refused(0, 1, predicted=S))
    figures = refusal_figures(told)
    assert (figures.n, figures.with_retry_after, figures.judged) == (5, 5, 2)
    assert figures.median_error == pytest.approx(0.5)
    assert figures.median_bias == pytest.approx(0.0)
    assert refusal_figures([]).median_error is None
