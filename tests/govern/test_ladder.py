"""The ladder as a state machine: up under pressure, back when calm, one rung at a time, and it never flaps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.ladder import Ladder, LadderPolicy, Signal, StepEvent, Threshold
from tailrace.govern.rungs import DEFAULT_RUNGS, NOTHING_GIVEN_UP, Rung, RungSettings
from tailrace.model.thresholds import MS, S

LOOK = 500 * MS
POLICY = LadderPolicy(
    thresholds={Signal.TTFT: Threshold(1.0, 0.6), Signal.KV_USAGE: Threshold(0.95, 0.8)},
    confirm_ns=S,
    dwell_ns=3 * S,
    calm_ns=5 * S,
)
TOP = len(DEFAULT_RUNGS)
LOUD = {Signal.TTFT: 1.2}
CALM = {Signal.TTFT: 0.3}


def looks(ladder: Ladder, signals: dict[Signal, float | None], count: int, at: int = 0) -> int:
    """`count` looks at the same signals; the time after the last."""
    for _ in range(count):
        ladder.look(signals, at)
        at += LOOK
    return at


def at_the_top(policy: LadderPolicy = POLICY) -> tuple[Ladder, int]:
    ladder = Ladder(policy)
    now = 0
    while ladder.step < len(policy.rungs):
        now = looks(ladder, LOUD, 1, now)
    return ladder, now


def test_nothing_is_given_up_at_first() -> None:
    ladder = Ladder(POLICY)
    assert ladder.effects == NOTHING_GIVEN_UP
    looks(ladder, CALM, 100)
    assert (ladder.step, list(ladder.events)) == (0, [])


def test_rungs_are_taken_in_their_order_and_add_up() -> None:
    ladder = Ladder(POLICY)
    seen = []
    now = 0
    for _ in range(60):
        if ladder.look(LOUD, now):
            seen.append((ladder.effects.rungs, ladder.effects.limit_factor, ladder.effects.cap_tokens))
        now += LOOK
    settings = RungSettings()
    assert seen == [
        (DEFAULT_RUNGS[:1], settings.limit_factor, None),
        (DEFAULT_RUNGS[:2], settings.limit_factor, settings.cap_tokens),
        (DEFAULT_RUNGS[:3], settings.limit_factor, settings.cap_tokens),
        (DEFAULT_RUNGS, settings.limit_factor, settings.cap_tokens),
    ]
    assert ladder.effects.low_waits
    assert ladder.effects.refuses(10)
    assert not ladder.effects.refuses(0)


def test_each_step_says_when_and_why() -> None:
    ladder = Ladder(POLICY)
    looks(ladder, {Signal.TTFT: 0.9, Signal.KV_USAGE: 0.99}, 4)
    assert list(ladder.events) == [
        StepEvent(at_ns=S, step=1, before=0, rung=Rung.BATCH, signal=Signal.KV_USAGE, value=0.99, threshold=0.95)
    ]
    view = ladder.view(2 * S)
    assert view["events"][0]["ago_ms"] == 1000
    assert view["rungs"][:2] == [{"name": "batch", "on": True}, {"name": "cap", "on": False}]
    assert view["signals"]["kv_usage"] == {"value": 0.99, "enter": 0.95, "leave": 0.8, "presses": True}


def test_one_spike_moves_nothing() -> None:
    ladder = Ladder(POLICY)
    now = looks(ladder, CALM, 10)
    ladder.look({Signal.TTFT: 50.0}, now)
    looks(ladder, CALM, 100, now + LOOK)
    assert not ladder.events


def test_values_between_the_thresholds_hold_the_rung() -> None:
    ladder = Ladder(POLICY)
    now = looks(ladder, LOUD, 4)
    looks(ladder, {Signal.TTFT: 0.8}, 1000, now)
    assert ladder.step == 1


def test_what_nobody_knows_presses_nobody() -> None:
    ladder, now = at_the_top()
    looks(ladder, {Signal.TTFT: None, Signal.KV_USAGE: None}, 200, now)
    assert ladder.step == 0
    looks(ladder, {Signal.LOOP_LAG_MS: 1e9}, 200, now)  # not in its policy
    assert ladder.step == 0


def test_calm_takes_every_rung_back_within_its_bound() -> None:
    ladder, now = at_the_top()
    began = now
    while ladder.step:
        now = looks(ladder, CALM, 1, now)
        assert now - began <= TOP * (POLICY.calm_ns + 2 * LOOK)
    assert ladder.effects == NOTHING_GIVEN_UP


def test_a_rung_that_was_left_too_early_is_held_longer() -> None:
    """Overload that goes away only because of the rung: without patience it would flap for ever."""
    policy = LadderPolicy(
        rungs=(Rung.CAP,), thresholds={Signal.TTFT: Threshold(1.0, 0.6)}, dwell_ns=S, calm_ns=2 * S, confirm_ns=S
    )
    ladder = Ladder(policy)
    now, length = 0, 600 * S
    while now < length:
        ladder.look(CALM if ladder.step else LOUD, now)
        now += LOOK
    stays = [b.at_ns - a.at_ns for a, b in pairwise(ladder.events) if a.step == 1]
    assert stays[0] <= 2 * S + 2 * LOOK
    assert stays[-1] >= policy.longest_calm_ns
    assert stays == sorted(stays)
    # It is on nearly always, which is what the load needs.
    assert sum(stays) > 0.8 * length


def test_after_a_lasting_calm_patience_is_normal_again() -> None:
    ladder = Ladder(POLICY)
    now = looks(ladder, LOUD, 4)
    now = looks(ladder, CALM, 12, now)  # left, and pressed again at once
    now = looks(ladder, LOUD, 4, now)
    assert ladder.step == 1
    assert ladder.back_in_ns(now) > POLICY.calm_ns
    now = looks(ladder, CALM, 400, now)
    assert ladder.step == 0
    now = looks(ladder, LOUD, 4, now)
    assert ladder.step == 1
    assert ladder.back_in_ns(now) <= POLICY.calm_ns


def test_who_is_refused_is_told_when_the_rung_can_be_left() -> None:
    ladder, now = at_the_top()
    assert ladder.back_in_ns(now) == POLICY.calm_ns
    ladder.look(CALM, now)
    assert ladder.back_in_ns(now + 2 * S) == POLICY.calm_ns - 2 * S


def test_a_pin_holds_against_all_signals_and_is_let_go() -> None:
    ladder = Ladder(POLICY)
    event = ladder.pin(2, 0)
    assert event is not None
    assert (event.cause, event.rung, event.signal) == ("pinned", Rung.CAP, None)
    now = looks(ladder, LOUD, 100)
    assert ladder.step == 2
    now = looks(ladder, CALM, 100, now)
    assert ladder.step == 2
    assert ladder.pin(2, now) is None
    ladder.pin(None, now)
    assert not ladder.pinned
    looks(ladder, CALM, 100, now)
    assert ladder.step == 0
    with pytest.raises(ValueError, match="steps 0 to 4, not 5"):
        ladder.pin(5, now)


def test_a_rung_that_was_left_in_vain_is_taken_again_without_the_dwell() -> None:
    policy = LadderPolicy(rungs=(Rung.CAP,), dwell_ns=20 * S, calm_ns=30 * S, confirm_ns=S)
    ladder = Ladder(policy)
    now = looks(ladder, LOUD, 4)
    assert ladder.step == 1
    while ladder.step:
        now = looks(ladder, CALM, 1, now)
    looks(ladder, LOUD, 4, now)
    assert ladder.step == 1
    assert ladder.events[-1].at_ns - ladder.events[-2].at_ns <= policy.confirm_ns + 2 * LOOK


def test_requests_that_the_ladder_itself_refuses_keep_it_where_it_is() -> None:
    ladder, now = at_the_top(LadderPolicy())
    refusing = {**CALM, Signal.TURNED_AWAY: 0.3}
    now = looks(ladder, refusing, ladder.policy.longest_calm_ns // LOOK, now)
    assert ladder.step == TOP
    assert ladder.view(now)["signals"]["turned_away"]["enter"] is None
    looks(ladder, {**CALM, Signal.TURNED_AWAY: 0.0}, 500, now)
    assert ladder.step == 0


def test_its_own_refusals_alone_do_not_keep_it_for_ever() -> None:
    """What it holds back may be more than an idle engine could serve only as long as it is never tried."""
    ladder, now = at_the_top(LadderPolicy())
    now = looks(ladder, {**CALM, Signal.TURNED_AWAY: 0.4}, ladder.policy.longest_calm_ns // LOOK + 2, now)
    assert ladder.step == TOP - 1
    looks(ladder, {**CALM, Signal.TURNED_AWAY: 0.0}, 500, now)
    assert ladder.step == 0


def test_another_policy_keeps_the_rungs_that_both_have() -> None:
    ladder, now = at_the_top()
    event = ladder.replace(LadderPolicy(rungs=(Rung.BATCH, Rung.CAP, Rung.CACHED, Rung.REFUSE)), now)
    assert event is not None
    assert (event.cause, event.step, event.before, event.rung) == ("policy", 2, 4, Rung.LOW_WAITS)
    assert ladder.replace(ladder.policy, now) is None
    assert ladder.step == 2
    assert len(ladder.events) == 5
    looks(ladder, CALM, 200, now)
    assert ladder.step == 0


def test_optional_rungs() -> None:
    policy = LadderPolicy(
        rungs=(Rung.SHRINK, Rung.CACHED, Rung.SMALLER_MODEL),
        settings=RungSettings(shrink_tokens=100, models={"big": "small"}),
    )
    effects = Ladder(policy)._effects[3]
    assert (effects.shrink_tokens, effects.stale_answers, effects.models) == (100, True, {"big": "small"})
    # None of the three touches a request that it does not change.
    assert effects.for_everybody() == ()


# -- properties

values = st.floats(0, 3) | st.none()
signals_ = st.fixed_dictionaries({Signal.TTFT: values, Signal.KV_USAGE: st.floats(0, 1) | st.none()})
rungs_ = st.permutations(list(Rung)).flatmap(lambda all_: st.integers(1, len(all_)).map(lambda n: tuple(all_[:n])))


@given(rungs_, st.lists(st.tuples(signals_, st.integers(1, 4000 * MS)), max_size=200))
def test_it_never_skips_a_rung_and_never_moves_within_the_dwell(
    rungs: tuple[Rung, ...], looked: list[tuple[dict[Signal, float | None], int]]
) -> None:
    policy = LadderPolicy(rungs=rungs, thresholds=POLICY.thresholds, confirm_ns=S, dwell_ns=3 * S, calm_ns=5 * S)
    ladder = Ladder(policy)
    now = 0
    for signals, wait in looked:
        before = ladder.step
        event = ladder.look(signals, now)
        assert abs(ladder.step - before) <= 1
        assert (event is None) == (ladder.step == before)
        if event is not None:
            assert event.rung is rungs[max(ladder.step, before) - 1]
            assert event.signal is None or event.value == signals[event.signal]
            pressed = any(
                value is not None and value >= policy.thresholds[name].enter for name, value in signals.items()
            )
            assert pressed == (ladder.step > before)
        assert ladder.effects.rungs == rungs[: ladder.step]
        now += wait
    for one, other in pairwise(ladder.events):
        assert other.before == one.step
        retreat = one.step < one.before and other.step > other.before
        assert other.at_ns - one.at_ns >= (policy.confirm_ns if retreat else policy.dwell_ns)


@given(
    st.floats(0.61, 0.99),
    st.lists(st.floats(-0.38, 0.38), min_size=50, max_size=300),
    st.integers(0, TOP),
)
def test_noise_within_the_band_moves_nothing(middle: float, noise: list[float], step: int) -> None:
    """Whatever moves between the thresholds, at any step: the ladder stays where it is."""
    ladder = Ladder(POLICY)
    ladder.pin(step, 0)
    ladder.pin(None, 0)
    moves = len(ladder.events)
    now = 0
    for more in noise:
        ladder.look({Signal.TTFT: min(0.99, max(0.61, middle + more))}, now)
        now += LOOK
    assert len(ladder.events) == moves
    assert ladder.step == step


@given(st.lists(st.sampled_from([0.0, 0.5, 0.7, 0.99, 1.0, 2.0]), min_size=100, max_size=400))
def test_noise_across_the_band_cannot_make_it_flap(noise: list[float]) -> None:
    """Turns are bounded, however wild the signal is: down takes a whole calm, up a confirmation."""
    ladder = Ladder(POLICY)
    now = 0
    for value in noise:
        ladder.look({Signal.TTFT: value}, now)
        now += LOOK
    turns = sum(1 for one, other in pairwise(ladder.events) if (one.step > one.before) != (other.step > other.before))
    assert turns <= 2 * now / (POLICY.calm_ns + POLICY.confirm_ns) + 1
    for one, other in pairwise(ladder.events):
        if other.step < other.before:
            assert other.at_ns - one.at_ns >= POLICY.calm_ns


@given(st.lists(st.tuples(signals_, st.integers(1, 4000 * MS)), max_size=100), st.integers(1, 1000 * MS))
def test_it_always_leaves_when_calm(looked: list[tuple[dict[Signal, float | None], int]], look: int) -> None:
    """From wherever chaos left it, calm takes it to nothing within the declared bound."""
    ladder = Ladder(POLICY)
    now = 0
    for signals, wait in looked:
        ladder.look(signals, now)
        now += wait
    per_rung = max(POLICY.dwell_ns, POLICY.longest_calm_ns)
    until = now + ladder.step * (per_rung + 2 * look) + look
    while ladder.step:
        ladder.look({Signal.TTFT: 0.6}, now)  # exactly on the threshold is calm
        now += max(look, 50 * MS)
        assert now <= until + ladder.step * 100 * MS + 200 * MS


@given(st.integers(1, 1000 * MS), st.floats(1.0, 100.0))
def test_steady_pressure_reaches_the_top_within_its_bound(look: int, value: float) -> None:
    look = max(look, 50 * MS)
    ladder = Ladder(POLICY)
    now = 0
    per_rung = POLICY.confirm_ns + POLICY.dwell_ns + 2 * look
    while ladder.step < TOP:
        ladder.look({Signal.TTFT: value}, now)
        now += look
        assert now <= (ladder.step + 1) * per_rung
