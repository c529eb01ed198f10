"""Small lives of an engine, drawn by hand: which mark does an admission belong to?

Times are milliseconds; `decoder` is a neighbour whose tokens mark the steps.
"""

from collections.abc import Sequence

import pytest

from tailrace.measure.engine_timings import NO_TIMINGS
from tailrace.measure.inference.budget_votes import WHOLE, BudgetVotes, steps_of
from tailrace.measure.inference.neighbours import Neighbours
from tailrace.measure.inference.scene import Heard, Scene
from tailrace.measure.inference.waits import Method, Quality, Split, Wait, WaitModel

MS = 1_000_000


def heard(sent: float, stamps: Sequence[float] = (), *, tokens: int | None = None, dense: bool = True) -> Heard:
    at = [round(stamp * MS) for stamp in stamps]
    return Heard(round(sent * MS), at[0] if at else None, at[-1] if at else None, at, tokens=tokens, dense=dense)


def asked(me: Heard, tokens: int, cached: int | None = 0) -> Wait:
    return Wait(heard=me, prompt_tokens=tokens, cached_tokens=cached)


def model(budget: int = 1000) -> WaitModel:
    return WaitModel(budget=budget)


def ms(split: Split | None) -> tuple[float, float]:
    assert split is not None
    return split.queue_ns / MS, split.prefill_ns / MS


DECODER = heard(-500, [-400, *range(0, 100, 10), 190, 290, 330, *range(340, 500, 10)])
"""Steps of 10 ms, but those that end at 190, 290 and 330 carry prefills."""


def test_a_prompt_of_one_step_waited_until_the_step_before():
    me = heard(83, [190, 290, 330])
    found = model().split(asked(me, 900), Scene([DECODER, me]))
    assert ms(found) == (7, 100)
    assert found is not None
    assert found.method is Method.BOUNDARIES


def test_a_prompt_of_several_steps():
    me = heard(83, [330, 340])
    assert ms(model().split(asked(me, 2300), Scene([DECODER, me]))) == (7, 240)


def test_the_rest_of_the_step_of_the_one_ahead_was_ours():
    ahead = heard(82, [290, 330], tokens=1700)
    me = heard(83, [330, 340])
    # 1,700 and 900 tokens in steps of 1,000: the second had 700 of the one ahead, and 299 of ours.
    assert ms(model().split(asked(me, 900), Scene([DECODER, ahead, me]))) == (107, 140)


def test_there_was_no_rest_where_whole_prompts_are_computed():
    ahead = heard(82, [290, 330], tokens=1700)
    me = heard(83, [330, 340])
    assert ms(model(WHOLE).split(asked(me, 900), Scene([DECODER, ahead, me]))) == (207, 40)


def test_a_full_engine_admits_later():
    # Nothing of 100 tokens takes from 90 to 330: it waited for a place, and was computed in the last step.
    me = heard(83, [330, 340])
    assert ms(model().split(asked(me, 100), Scene([DECODER, me]))) == (207, 40)


def test_nobody_there_is_no_queue_once_the_cost_is_known():
    learner = model()
    for n in range(12):
        one = heard(n * 1000, [n * 1000 + 60 + n % 2])
        learner.split(asked(one, 1000), Scene([one]))
    me = heard(20_000, [20_060])
    found = learner.split(asked(me, 1000), Scene([me]))
    assert ms(found) == (0, 60)
    hidden = heard(30_000, [30_300])
    found = learner.split(asked(hidden, 1000), Scene([hidden]))
    assert found is not None
    assert found.error_ns > 200 * MS, "a wait that no such prefill takes"
    assert found.timings(Quality()).prefill_ns is None


def test_nothing_is_said_of_the_first_requests():
    me = heard(0, [60])
    assert model().split(asked(me, 1000), Scene([me])) is None


def test_strangers_make_an_empty_scene_mean_nothing():
    learner = model()
    for n in range(12):
        one = heard(n * 1000, [n * 1000 + 60])
        learner.split(asked(one, 1000), Scene([one]))
    me = heard(20_000, [20_060])
    assert learner.split(asked(me, 1000), Scene([me]), partial=True) is None


def test_a_stream_of_merged_tokens_marks_nothing():
    sparse = heard(-500, [-400, 0, 40, 80, 190, 330, 400], dense=False)
    me = heard(83, [190, 330])
    assert model().split(asked(me, 900), Scene([sparse, me])) is None


def test_a_chain_of_witnesses():
    early = heard(-500, [-400, 60, 70, 80, 90])
    late = heard(-100, [90, 190, 290])
    me = heard(63, [290, 330])
    scene = Scene([early, late, me])
    marks, scatter = scene.marks(me, 100)
    assert [mark // MS for mark in marks] == [290, 190, 90, 80, 70, 60]
    assert scatter == 0


def test_an_unknown_share_of_the_cache_widens_the_error():
    # Blocked, and 2,300 tokens take one step or three: who says?
    me = heard(3, [330, 340])
    known = model().split(asked(me, 2300), Scene([DECODER, me]))
    unknown = model().split(asked(me, 2300, None), Scene([DECODER, me]))
    assert known is not None
    assert unknown is not None
    assert known.error_ns <= 10 * MS < 90 * MS <= unknown.error_ns
    assert unknown.timings(Quality()) is NO_TIMINGS


def test_truth_widens_what_is_stated():
    learner = model()
    me = heard(83, [190, 290, 330])
    scene = Scene([DECODER, me])
    before = learner.split(asked(me, 900), scene)
    assert before is not None
    for _ in range(30):
        learner.check(before, before.queue_ns - 40 * MS, before.prefill_ns + 40 * MS)
    after = learner.split(asked(me, 900), scene)
    assert after is not None
    assert after.error_ns >= 40 * MS > before.error_ns


def test_each_stage_is_shown_by_its_own_quality():
    split = Split(900 * MS, 60 * MS, 30 * MS, Method.BOUNDARIES)
    shown = split.timings(Quality())
    assert (shown.queue_ns, shown.prefill_ns) == (900 * MS, None)
    assert shown.sources["queue"] == "inferred(step boundaries, ±30 ms)"


@pytest.mark.parametrize("budget", [512, 2048, 8192, WHOLE])
def test_the_budget_is_learnt_from_counted_steps(budget: int):
    votes = BudgetVotes()
    assert votes.plausible() == []
    for n in range(60):
        tokens = 200 + 1200 * n
        votes.note(tokens, steps_of(tokens, budget, 5), 5)
    assert votes.plausible() == [budget]


def test_a_changed_budget_outvotes_the_old_one():
    votes = BudgetVotes()
    for budget in (512, 2048):
        for n in range(400):
            tokens = 200 + 100 * (n % 60)
            votes.note(tokens, steps_of(tokens, budget, 0), 0)
    assert votes.plausible() == [2048]


def test_steps_that_no_budget_explains_give_none():
    votes = BudgetVotes()
    for n in range(100):
        votes.note(1000 + n, 1 + n * 7 % 5, 0)
    assert votes.plausible() == []


def test_neighbours_are_bounded_and_say_what_they_forgot():
    kept = Neighbours(most=3, most_stamps=100)
    for n in range(5):
        kept.add(heard(n * 10, [n * 10 + 5, n * 10 + 8]))
    assert len(kept) == 3
    assert kept.forgotten_until == 18 * MS
    kept.add(Heard(0, 1, 2, list(range(98))))
    assert len(kept) <= 2
    kept.forget(10**12)
    assert len(kept) == 0
