"""The step that an engine's own queue time leaves out, shown by the neighbours' tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.engine_timings import EngineTimings
from tailrace.measure.inference.handover import with_handover
from tailrace.measure.inference.scene import Heard, Scene
from tailrace.model.thresholds import MS

SENT = 1000 * MS
SAID = EngineTimings(
    queue_ns=300 * MS, prefill_ns=200 * MS, sources={"queue": "reported(metrics.queue_time_ms)", "prefill": "reported"}
)


def neighbour(*ends_ms: int) -> Scene:
    """One stream that decodes: its tokens end steps so many milliseconds after the request was sent."""
    stamps = [SENT - 50 * MS, *(SENT + end * MS for end in ends_ms)]
    return Scene([Heard(SENT - 400 * MS, stamps[0], stamps[-1] + 10_000 * MS, stamps)])


def handed(rest_ms: float, scene: Scene) -> EngineTimings:
    return with_handover(SAID, SENT, 500 * MS + round(rest_ms * MS), scene)


def test_the_rest_of_the_running_step_is_queue():
    got = handed(1200, neighbour(1195, 1220, 1245))
    assert got.queue_ns == 1500 * MS
    assert got.prefill_ns == SAID.prefill_ns
    assert got.sources["queue"] == "inferred(metrics.queue_time_ms + end of the running step)"
    assert got.sources["prefill"] == "reported"


def test_no_step_ended_meanwhile():
    assert handed(80, neighbour(125)).queue_ns == 380 * MS


def test_a_rest_beyond_the_steps_is_not_hidden_in_them():
    got = handed(400, neighbour(30, 60, 90))
    assert got.queue_ns == 390 * MS, "up to the third step; 310 ms stay unattributed"


def test_nothing_is_added_without_a_witness():
    silent = Scene([Heard(SENT - 400 * MS, None, SENT + 5000 * MS)])
    assert handed(1200, silent) is SAID


def test_nothing_is_added_where_nobody_was_with_the_engine():
    over = Scene([Heard(SENT - 400 * MS, SENT - 300 * MS, SENT - 100 * MS, [SENT - 300 * MS, SENT - 100 * MS])])
    assert handed(1200, over) is SAID
    assert handed(1200, Scene([])) is SAID


def test_what_sending_and_reading_takes_is_no_step():
    assert handed(1.9, neighbour(1)) is SAID


def test_an_engine_that_said_only_half_is_left_alone():
    half = EngineTimings(prefill_ns=200 * MS)
    assert with_handover(half, SENT, 900 * MS, neighbour(700)) is half


def test_the_first_tokens_of_others_mark_steps_too():
    waiting = Heard(SENT - 10 * MS, SENT + 700 * MS, SENT + 900 * MS, [SENT + 700 * MS])
    assert handed(705, Scene([waiting])).queue_ns == 1005 * MS


@given(
    rest=st.integers(0, 5000),
    ends=st.lists(st.integers(1, 5000), min_size=1, max_size=6, unique=True).map(sorted),
)
def test_never_more_than_was_left(rest, ends):
    got = handed(rest, neighbour(*ends))
    assert SAID.queue_ns <= got.queue_ns <= SAID.queue_ns + rest * MS
