"""A canary's life: it gets a share, is compared, widens step by step, or is rolled back. A state machine.

`hear` finished requests, `look` now and then; `takes` says where a request goes. Commands are an operator's. Whoever
holds it acts on the events that come back and has nothing else to do: a rollback is that `takes` says no from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tailrace.govern.canary_comparison import STEP_ALPHA, Comparison, Rows
from tailrace.govern.canary_policy import CanaryPolicy, CanaryState, Finding, Observation
from tailrace.govern.canary_power import foresee
from tailrace.govern.canary_words import plain, say, strongest
from tailrace.govern.route_share import place
from tailrace.model.thresholds import S
from tailrace.stats.sequential import epoch_alpha, student_z

_EVENTS: Final = 50
_ENDED: Final = frozenset({CanaryState.PROMOTED, CanaryState.ROLLED_BACK, CanaryState.ABORTED})
_RATE_WINDOW_NS: Final = 60 * S
_RATE_LEAST_NS: Final = 10 * S


class CanaryEvent(NamedTuple):
    """Something that an operator wants to know."""

    at_ns: int
    kind: str
    """`started`, `widened`, `held`, `regressed`, `rolled_back`, `promoted`, `paused`, `pinned`, `resumed`, ..."""
    share: float
    text: str


class CanaryError(ValueError):
    """A command that cannot be followed now; the text says why and what can."""


class Canary:
    """One canary. `now` is a monotonic clock in ns; it never goes back."""

    def __init__(self, policy: CanaryPolicy, now: int, *, paused: bool = False) -> None:
        self.policy = policy
        self.state = CanaryState.PAUSED if paused else CanaryState.RUNNING
        self.step = 0
        self.share = policy.steps[0]
        self.epoch = 0
        """Collections of evidence so far; each spends its part of the alpha."""
        self.events: deque[CanaryEvent] = deque(maxlen=_EVENTS)
        self.findings: list[Finding] = []
        """Of the last look."""
        self.decision = ""
        """Why it stands where it stands, in words."""
        self.comparison: Comparison
        self.recent: Comparison | None = None
        """The present window, once the step is older than one."""
        self.windows = 0
        """Windows so far; a quarter of the alpha is theirs."""
        self.step_began = now
        self.began = now
        self.heard = [0, 0]
        """Finished requests since the start: stable, canary."""
        self.changes: dict[str, int] = {}
        """Events by kind, since the start."""
        self._next_look = now
        self._guard = ""
        self._told = ""
        self._arrivals: deque[tuple[int, int]] = deque()
        self._begin_epoch(now)
        student_z(1.0, 1.0)  # loads what the tests need: a fifth of a second now, not between two chunks later
        text = f"the canary begins with {self.share:.0%} of the traffic"
        if policy.declared_rate is not None:
            text += f"; {self.foresight(now)['text']}"
        self._tell(now, "started", text)

    # -- routing

    def takes(self, key: str) -> bool:
        """Whether the request of session `key` (its own id, where it has none) goes to the canary."""
        return self.share > 0.0 and (self.share >= 1.0 or place(key, self.policy.name) < self.share)

    # -- evidence

    def hear(self, observation: Observation, now: int) -> None:
        """One finished request of either route. Costs about a microsecond; the counting is `look`'s."""
        self.heard[observation.canary] += 1
        if self.state not in _ENDED and now >= self.comparison.began:
            self.comparison.hear(observation, now)
            if self.recent is not None:
                self.recent.hear(observation, now)

    def hear_rows(self, rows: Rows, now: int) -> None:
        """Many at once, in the order of `Observation`'s fields."""
        canary = int(rows[:, 0].sum())
        self.heard[0] += len(rows) - canary
        self.heard[1] += canary
        if self.state not in _ENDED and now >= self.comparison.began:
            self.comparison.hear_rows(rows, now)
            if self.recent is not None:
                self.recent.hear_rows(rows, now)

    def watch(self, kv_usage: float | None, gpu_utilization: float | None) -> None:
        """The canary's backends as they are now (the fullest of them); None where it cannot be read."""
        policy = self.policy
        most = policy.gpu_utilization
        self._guard = ""
        if kv_usage is not None and kv_usage > policy.kv_usage:
            self._guard = f"its KV cache is {kv_usage:.0%} full, {policy.kv_usage:.0%} is allowed"
        elif gpu_utilization is not None and most is not None and gpu_utilization > most:
            self._guard = f"its GPU is {gpu_utilization:.0%} busy, {most:.0%} is allowed"

    def look(self, now: int) -> list[CanaryEvent]:
        """Judge the evidence, where that is due; what changed."""
        if now < self._next_look:
            return []
        self._next_look = now + self.policy.look_ns
        self._arrivals.append((now, sum(self.heard)))
        while now - self._arrivals[0][0] > _RATE_WINDOW_NS:
            self._arrivals.popleft()
        if self.state in _ENDED or now < self.comparison.began:
            return []
        before = len(self.events), self.events[-1]
        self.findings = self.comparison.judge(now)
        decided = [finding for finding in self.findings if finding.decided]
        lately = [] if decided else self._lately(now)
        if decided:
            self._regressed(decided, now)
        elif lately:
            self._regressed(lately, now, lately=True)
        elif now - self.step_began >= self.policy.hold_ns:
            self._held(now)
        return [self.events[-1]] if (len(self.events), self.events[-1]) != before else []

    def _lately(self, now: int) -> list[Finding]:
        """What decides within the present window alone; begins the next window where this one is over."""
        policy, recent = self.policy, self.recent
        decided: list[Finding] = []
        if recent is not None:
            decided = [finding for finding in recent.judge(now) if finding.decided]
        since = self.comparison.began if recent is None else recent.began
        if not decided and now - since >= policy.recent_ns:
            self.windows += 1
            self.recent = Comparison(policy, epoch_alpha(policy.alpha * (1.0 - STEP_ALPHA), self.windows), now)
        return decided

    def _regressed(self, decided: Sequence[Finding], now: int, *, lately: bool = False) -> None:
        worst = strongest(decided)
        assert worst is not None
        text = f"after {(now - self.step_began) / S:.0f} s at {self.share:.0%}: {say(worst)}"
        if lately and self.recent is not None:
            text += f"; in the last {(now - self.recent.began) / S:.0f} s alone"
        others = [finding.test for finding in decided if finding is not worst]
        if others:
            text += f"; also {', '.join(others)}"
        if self.state is CanaryState.PINNED:
            if self._told != worst.test:
                self._told = worst.test
                self._tell(now, "regressed", f"{text}; it is pinned, so nothing is done")
            return
        self.state, self.share = CanaryState.ROLLED_BACK, 0.0
        self._tell(now, "rolled_back", text)

    def _held(self, now: int) -> None:
        policy = self.policy
        requests = self.comparison.requests[1]
        if self.state is not CanaryState.RUNNING:
            return
        if requests < policy.min_requests:
            self._hold_back(now, "requests", f"only {requests} of its {policy.min_requests} requests have ended")
        elif self._guard:
            self._hold_back(now, "guard", self._guard)
        else:
            worst = strongest(self.findings)
            why = "" if worst is None else f"; nearest to a regression: {say(worst)}"
            held = (
                f"{(now - self.step_began) / S:.0f} s and {requests} requests at {self.share:.0%} without a regression"
            )
            self.step += 1
            self.share = policy.steps[self.step] if self.step < len(policy.steps) else 1.0
            if self.share >= 1.0:
                self.state = CanaryState.PROMOTED
                self._tell(now, "promoted", f"{held}{why}")
                return
            self._begin_step(now)
            self._tell(now, "widened", f"to {self.share:.0%}: {held}{why}")

    def _hold_back(self, now: int, what: str, why: str) -> None:
        if self._told != what:
            self._told = what
            self._tell(now, "held", f"the hold at {self.share:.0%} is over, but {why}")

    # -- commands

    def pin(self, share: float, now: int) -> None:
        """Set the share by hand: it stays, whatever the comparison says."""
        if not 0.0 <= share <= 1.0:
            raise CanaryError(f"{share} is no share: give a number from 0 to 1, for example 0.25")
        self.state, self.share = CanaryState.PINNED, share
        self._begin_step(now)
        self._tell(now, "pinned", f"at {share:.0%} by an operator")

    def pause(self, now: int) -> None:
        """Keep the share; still compared, still rolled back, not widened."""
        if self.state in _ENDED:
            raise CanaryError(f"it is {self.state}: there is nothing to pause; `resume` begins anew")
        if self.state is not CanaryState.PAUSED:
            self.state = CanaryState.PAUSED
            self._tell(now, "paused", f"at {self.share:.0%} by an operator")

    def resume(self, now: int, *, anew: bool = False) -> None:
        """Go on with the step whose share this is; one that has ended begins anew with its first step (`anew`: any)."""
        if self.state is CanaryState.RUNNING and not anew:
            return
        policy = self.policy
        if self.state in _ENDED or anew:
            self.step = 0
            self.share = policy.steps[0]
            self._begin_step(now)
        elif self.state is CanaryState.PINNED:
            self.step = next((i for i, share in enumerate(policy.steps) if share >= self.share), len(policy.steps) - 1)
            if self.share != policy.steps[self.step]:
                self.share = policy.steps[self.step]
                self._begin_step(now)
        self.state = CanaryState.PROMOTED if self.share >= 1.0 else CanaryState.RUNNING
        self._tell(now, "resumed", f"at {self.share:.0%} by an operator")

    def promote(self, now: int) -> None:
        """Everything to the canary, now."""
        self.state, self.share, self.step = CanaryState.PROMOTED, 1.0, len(self.policy.steps) - 1
        self._tell(now, "promoted", "by an operator")

    def abort(self, now: int) -> None:
        """Nothing to the canary, now."""
        self.state, self.share = CanaryState.ABORTED, 0.0
        self._tell(now, "aborted", "by an operator")

    def revise(self, policy: CanaryPolicy, now: int) -> None:
        """Another policy for the same experiment (a reload): where it stands stays, and so does its evidence.

        A step whose share the new policy does not have goes on as the first step that is no smaller.
        """
        previous, self.policy = self.policy, policy
        self.comparison.policy = policy
        if self.recent is not None:
            self.recent.policy = policy
        if previous.steps != policy.steps and self.state in {CanaryState.RUNNING, CanaryState.PAUSED}:
            self.step = next((i for i, share in enumerate(policy.steps) if share >= self.share), len(policy.steps) - 1)
            if policy.steps[self.step] != self.share:
                self.share = policy.steps[self.step]
                self._begin_step(now)
                if self.share >= 1.0:
                    self.state = CanaryState.PROMOTED

    # -- views

    def rate(self, now: int) -> float | None:
        """Finished requests a second, of both routes, over the last minute; None before 10 s are seen."""
        if not self._arrivals or now - self._arrivals[0][0] < _RATE_LEAST_NS:
            return None
        at, heard = self._arrivals[0]
        return (sum(self.heard) - heard) / ((now - at) / S)

    def foresight(self, now: int) -> dict[str, Any]:
        """What this step can find and how long it takes: from the measured rate, before that from the declared one."""
        measured = self.rate(now)
        rate = measured or self.policy.declared_rate
        if rate is None:
            return {"text": "no traffic was seen and none declared (`requests_per_s`): nothing can be foreseen yet"}
        comparison = self.comparison
        out = foresee(
            self.policy,
            rate,
            self.share,
            epoch=self.epoch,
            spread=comparison.spread,
            deff=None if comparison.spread is None else comparison.deff,
        )
        out["rate_source"] = "measured" if measured else "declared"
        return out

    def view(self, now: int) -> dict[str, Any]:
        """Everything that is known, as plain data."""
        stable, canary = self.comparison.requests
        requests, tokens = self.comparison.output
        means = [float(tokens[arm] / requests[arm]) if requests[arm] else None for arm in (0, 1)]
        worst = strongest(self.findings)
        return {
            "name": self.policy.name,
            "state": str(self.state),
            "share": self.share,
            "step": self.step,
            "steps": list(self.policy.steps),
            "step_age_s": (now - self.step_began) / S,
            "hold_s": self.policy.hold_ns / S,
            "min_requests": self.policy.min_requests,
            "alpha": self.policy.alpha,
            "alpha_of_step": self.comparison.alpha,
            "epoch": self.epoch,
            "compared": {"stable": stable, "canary": canary},
            "finished": {"stable": self.heard[0], "canary": self.heard[1]},
            "output_tokens_mean": {"stable": means[0], "canary": means[1]},
            "decision": self.decision,
            "held_back_by": self._guard or None,
            "nearest": None if worst is None else worst.test,
            "tests": [plain(finding) for finding in self.findings],
            "foresight": self.foresight(now),
            "events": [
                {"age_s": (now - event.at_ns) / S, "kind": event.kind, "share": event.share, "text": event.text}
                for event in self.events
            ],
        }

    # -- inside

    def _begin_step(self, now: int) -> None:
        self.step_began = now
        self._told = ""
        self._begin_epoch(now)

    def _begin_epoch(self, now: int) -> None:
        self.epoch += 1
        began = now + self.policy.settle_ns
        self.comparison = Comparison(self.policy, epoch_alpha(self.policy.alpha * STEP_ALPHA, self.epoch), began)
        self.recent = None
        self.findings = []

    def _tell(self, now: int, kind: str, text: str) -> None:
        self.decision = f"{kind.replace('_', ' ')} {text}" if kind != "started" else text
        self.changes[kind] = self.changes.get(kind, 0) + 1
        self.events.append(CanaryEvent(now, kind, self.share, text))
