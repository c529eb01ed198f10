"""The canary's state machine: commands, holds, guards, reloads; and what holds in every order of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tailrace.govern.canary import Canary, CanaryError
from tailrace.govern.canary_policy import CanaryPolicy, CanaryState
from tailrace.model.thresholds import S
from tests.govern.canary_traffic import Traffic, drive

POLICY = CanaryPolicy(hold_ns=60 * S, min_requests=100, declared_rate=20.0)


def test_a_step_waits_for_its_requests_however_long_it_is_held() -> None:
    canary = Canary(CanaryPolicy(hold_ns=60 * S, min_requests=5000), 0)
    drive(canary, Traffic(), 300, 1)
    assert canary.share == 0.1
    assert canary.state is CanaryState.RUNNING
    assert "requests have ended" in canary.decision
    assert canary.changes["held"] == 1  # told once, not at every look


def test_a_reload_holds_for_the_present_window_too() -> None:
    canary = Canary(CanaryPolicy(), 0)
    canary.look(0)
    canary.look(301 * S)
    assert canary.recent is not None
    canary.revise(CanaryPolicy(tolerance=0.5), 302 * S)
    assert canary.comparison.policy.tolerance == canary.recent.policy.tolerance == 0.5


def test_a_full_kv_cache_keeps_it_from_widening() -> None:
    canary = Canary(POLICY, 0)
    canary.watch(0.97, None)
    drive(canary, Traffic(), 120, 1)
    assert canary.share == 0.1
    assert "KV cache is 97% full" in canary.decision
    canary.watch(0.5, 0.99)
    canary.look(130 * S)
    assert canary.share == 0.25


def test_a_busy_gpu_does_so_only_where_it_is_asked() -> None:
    policy = CanaryPolicy(hold_ns=60 * S, min_requests=100, gpu_utilization=0.9)
    canary = Canary(policy, 0)
    canary.watch(None, 0.95)
    drive(canary, Traffic(), 120, 1)
    assert "GPU is 95% busy" in canary.decision


def test_paused_it_keeps_its_share_and_is_still_rolled_back() -> None:
    canary = Canary(POLICY, 0)
    canary.pause(0)
    drive(canary, Traffic(), 700, 1)
    assert canary.share == 0.1
    assert canary.state is CanaryState.PAUSED
    drive(canary, Traffic(slower=2.0), 420, 2, start_ns=700 * S)
    assert canary.state is CanaryState.ROLLED_BACK  # what began in the middle is found within a window and two minutes


def test_pinned_it_only_says_what_it_found() -> None:
    canary = Canary(POLICY, 0)
    canary.pin(0.3, 0)
    drive(canary, Traffic(slower=2.0), 100, 1)
    assert canary.state is CanaryState.PINNED
    assert canary.share == 0.3
    assert "it is pinned, so nothing is done" in canary.decision


def test_resuming_what_has_ended_begins_anew() -> None:
    canary = Canary(POLICY, 0)
    canary.abort(0)
    assert not canary.takes("anybody")
    with pytest.raises(CanaryError, match="begins anew"):
        canary.pause(S)
    canary.resume(S)
    assert (canary.state, canary.share, canary.epoch) == (CanaryState.RUNNING, 0.1, 2)


def test_promoted_it_takes_everything_and_is_not_compared() -> None:
    canary = Canary(POLICY, 0)
    canary.promote(0)
    assert all(canary.takes(str(at)) for at in range(100))
    drive(canary, Traffic(), 20, 1)
    assert canary.state is CanaryState.PROMOTED
    assert canary.view(20 * S)["compared"]["canary"] == 0


def test_a_reload_keeps_its_place_and_its_evidence() -> None:
    canary = Canary(POLICY, 0)
    drive(canary, Traffic(), 40, 1)
    before = canary.comparison.requests
    canary.revise(CanaryPolicy(hold_ns=120 * S, min_requests=100), 40 * S)
    assert canary.comparison.requests == before
    canary.revise(CanaryPolicy(steps=(0.2, 1.0)), 41 * S)
    assert (canary.share, canary.step) == (0.2, 0)
    assert canary.comparison.requests == (0, 0)


def test_what_ends_while_a_step_settles_is_not_compared() -> None:
    canary = Canary(CanaryPolicy(settle_ns=30 * S), 0)
    drive(canary, Traffic(slower=5.0), 28, 1)
    assert canary.comparison.requests == (0, 0)
    assert sum(canary.heard) > 100


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(CanaryError, match="number from 0 to 1"):
        Canary(POLICY, 0).pin(1.5, 0)


class Life(RuleBasedStateMachine):
    """Commands and traffic in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.canary = Canary(CanaryPolicy(hold_ns=10 * S, min_requests=10, recent_ns=8 * S), 0)
        self.spent = 0.0
        self.epochs: dict[int, float] = {}

    @rule(seconds=st.integers(2, 30), seed=st.integers(0, 50), slower=st.sampled_from([1.0, 1.0, 3.0]))
    def traffic(self, seconds: int, seed: int, slower: float) -> None:
        state, share = self.canary.state, self.canary.share
        drive(self.canary, Traffic(slower=slower), seconds, seed, start_ns=self.now)
        self.now += seconds * S
        after = self.canary
        if state in (CanaryState.ABORTED, CanaryState.ROLLED_BACK, CanaryState.PROMOTED, CanaryState.PINNED):
            assert (after.state, after.share) == (state, share)
        elif after.state is CanaryState.ROLLED_BACK:
            assert after.share == 0.0
        elif state is CanaryState.PAUSED:
            assert after.share == share
        else:
            assert after.share >= share

    @rule(share=st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    def pin(self, share: float) -> None:
        self.canary.pin(share, self.now)

    @rule(action=st.sampled_from(["pause", "resume", "promote", "abort"]))
    def command(self, action: str) -> None:
        try:
            getattr(self.canary, action)(self.now)
        except CanaryError:
            assert action == "pause"

    @rule()
    def watch(self) -> None:
        self.canary.watch(0.99, None)

    @invariant()
    def it_is_whole(self) -> None:
        canary = self.canary
        assert 0.0 <= canary.share <= 1.0
        assert (canary.share == 0.0) >= (canary.state in (CanaryState.ROLLED_BACK, CanaryState.ABORTED))
        assert (canary.share == 1.0) >= (canary.state is CanaryState.PROMOTED)
        self.epochs[canary.epoch] = canary.comparison.alpha
        if canary.recent is not None:
            self.epochs[-canary.windows] = canary.recent.alpha
        assert sum(self.epochs.values()) <= canary.policy.alpha
        view = canary.view(self.now)
        assert view["events"]
        assert np.isfinite([test["z"] for test in view["tests"]]).all()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
