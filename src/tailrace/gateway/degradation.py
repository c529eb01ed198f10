"""The degradation ladder at work in one process: what it measures of requests, and what its rungs do to them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tailrace.gateway.aliases import with_model
from tailrace.gateway.config import Config
from tailrace.gateway.happenings import HappeningKind
from tailrace.gateway.routes import RouteKind
from tailrace.gateway.verdict import Phase, Verdict
from tailrace.govern.ladder import Ladder, Signal, StepEvent
from tailrace.govern.ladder_signals import LadderSignals
from tailrace.govern.restraint import UNRESTRAINED, Restraint
from tailrace.govern.rungs import Rung
from tailrace.govern.stream_guard import GapAction
from tailrace.govern.token_limits import ALL_LANES
from tailrace.model.gap_event import GapEvent
from tailrace.model.outcome import OutcomeKind, Reason

if TYPE_CHECKING:
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.gateway import Gateway
    from tailrace.measure.ledger import RequestLedger

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 10
"""Sweeps between two looks at the signals: half a second."""
_OF_LANES: Final = frozenset({Signal.QUEUE_WAIT, Signal.PREDICTED_WAIT})
"""Signals of lanes that are full; the others are of an engine, or of this process."""
_IN_VAIN: Final = (OutcomeKind.TIMED_OUT, OutcomeKind.CANCELLED)
_LEAST_SHARE: Final = 0.05
_LOOKED_AT: Final = 1024
"""Requests in flight whose ages are read; of more, every n-th: a look at 10,000 would hold every stream for 7 ms."""


class Degradation:
    """Exists only while the configuration has it enabled."""

    def __init__(self, gateway: Gateway, config: Config, now: int) -> None:
        self._gateway = gateway
        self.ladder = Ladder(config.degradation.policy())
        self._shares: dict[str, float] = {}
        """Lane -> what is left of its running limit on `batch`; set as that rung is taken."""
        self.apply(config, now)
        gateway.gaps.listeners.append(self._gap)

    def apply(self, config: Config, now: int) -> None:
        """A new configuration: the ladder keeps the rungs that both have."""
        section = config.degradation
        policies = {policy.name: policy for policy in config.lane_policies()}
        names = [name for name, policy in policies.items() if policy.priority <= 0]
        watched = names if section.lanes is None else section.lanes
        self._watched = {name: policies[name].objectives for name in watched}
        self._signals = LadderSignals(self._watched, window_ns=int(section.window))
        self._processes = config.workers
        self._grace_ns = int(section.cached_for)
        steps = [self.ladder.replace(section.policy(), now), self.ladder.pin(section.pin, now)]
        if any(steps):
            self._stepped(next(event for event in reversed(steps) if event is not None), now)

    def close(self, now: int) -> None:
        """It is switched off: nothing is given up any more."""
        self._gateway.gaps.listeners.remove(self._gap)
        self._gateway.shaping.caps.lift(ALL_LANES)
        self._late_answers(0, on=False)
        self._gateway.lanes.degrade(UNRESTRAINED, {}, now)

    # -- what requests tell

    def admitted(self, exchange: GatewayExchange, body: bytes, now: int) -> bytes:
        """A request goes to an engine now; returns its body as the rungs in force leave it."""
        ledger = exchange.ledger
        tail = self._signals.lane(exchange.lane)
        if tail is not None:
            tail.waited(now - (now if ledger.queued is None else ledger.queued), now)
            self._signals.answered(now, refused=False)
        effects = self.ladder.effects
        if not effects.rungs:
            return body
        applied = set(effects.for_everybody())
        cap, shortest = effects.cap_tokens, effects.shrink_tokens
        # Set as the body was read; both may have been lower by the configuration alone.
        if cap is not None and ledger.capped_to == max(1, cap // max(ledger.n, ledger.best_of, ledger.beam)):
            applied.add(Rung.CAP)
        if shortest is not None and ledger.truncated_from is not None and ledger.truncated_from > shortest:
            applied.add(Rung.SHRINK)
        if effects.models and exchange.route.kind is RouteKind.READ and exchange.upload is None:
            smaller = effects.models.get(ledger.model)
            if smaller is not None:
                body = with_model(body, smaller)
                ledger.requested_model = ledger.requested_model or ledger.model
                ledger.model = smaller
                applied.add(Rung.SMALLER_MODEL)
        ledger.degradation = ",".join(rung for rung in effects.rungs if rung in applied)
        return body

    def first_token(self, exchange: GatewayExchange, now: int) -> None:
        """Its first token is here."""
        tail = self._signals.lane(exchange.lane)
        if tail is not None:
            tail.first_token(now - exchange.received, now)

    def ended(self, ledger: RequestLedger, verdict: Verdict, now: int) -> None:
        """It is over. One that ended in vain waited at least as long as that."""
        if verdict.reason is Reason.DEGRADED:
            ledger.degradation = Rung.REFUSE.value
            if ledger.lane in self._watched:
                self._signals.answered(now, refused=True)
            return
        tail = self._signals.lane(ledger.lane)
        if tail is None or verdict.outcome not in _IN_VAIN:
            return
        if ledger.admitted is None and ledger.queued is not None:
            tail.waited(now - ledger.queued, now)
        if ledger.stream and ledger.client_first_token is None:
            tail.gave_up(now - ledger.received, now)

    def _gap(self, event: GapEvent) -> None:
        if event.action != GapAction.WARN:
            self._signals.gap(event.at)

    # -- the ladder

    def look(self, now: int) -> None:
        """Judge the signals, and take or leave a rung where they say so."""
        without_token, waiting = self._ages(now)
        gateway = self._gateway
        states = [backend.engine.watch.state(now) for backend in gateway.backends if not backend.shut]
        read = self._signals.read(
            now,
            without_token=without_token,
            waiting=waiting,
            predicted={name: gateway.lanes.predicted_wait_ns(name, now) for name in self._watched},
            engines=[state for state in states if state is not None],
            loop_lag_ns=gateway.loop_lag_ns,
        )
        event = self.ladder.look(read, now)
        if event is not None:
            self._stepped(event, now)
        else:
            self._keep_up(now)

    def _ages(self, now: int) -> tuple[Mapping[str, Sequence[int]], Mapping[str, Sequence[int]]]:
        """Lane -> ages of those without a token, and of those in its queue (ns)."""
        without_token: dict[str, list[int]] = {name: [] for name in self._watched}
        waiting: dict[str, list[int]] = {name: [] for name in self._watched}
        in_flight = self._gateway.in_flight
        for exchange in islice(in_flight.values(), 0, None, max(1, len(in_flight) // _LOOKED_AT)):
            if exchange.lane in without_token and exchange.waits_for_token:
                without_token[exchange.lane].append(now - exchange.received)
                if exchange.phase is Phase.QUEUED and exchange.ledger.queued is not None:
                    waiting[exchange.lane].append(now - exchange.ledger.queued)
        return without_token, waiting

    def _stepped(self, event: StepEvent, now: int) -> None:
        self._signals.stepped(now)
        up = event.step > event.before
        if event.signal is None:
            why = "an operator pinned it" if event.cause == "pinned" else "the configuration has changed"
        else:
            why = f"{event.signal.value} is {event.value:.3g}, {event.threshold:.3g} is its threshold"
        taken = "is taken" if up else "is left"
        text = f"{event.rung.value} {taken}, step {event.step} of {len(self.ladder.policy.rungs)}: {why}"
        log.warning("degradation: %s", text)
        self._gateway.happenings.note(HappeningKind.DEGRADATION, f"degradation: {text}")
        on = Rung.BATCH in self.ladder.effects.rungs
        if on and not self._shares:
            self._shares = self._smaller_batches(event.signal, now)
        elif not on:
            self._shares = {}
        effects, caps = self.ladder.effects, self._gateway.shaping.caps
        if effects.cap_tokens is None and effects.shrink_tokens is None:
            caps.lift(ALL_LANES)
        else:
            caps.set(ALL_LANES, output_cap=effects.cap_tokens, prompt_to=effects.shrink_tokens)
        self._enforce(now)

    def _smaller_batches(self, signal: Signal | None, now: int) -> dict[str, float]:
        """What is left of each lane's limit.

        Where the engine is late: so much that the lanes together run `limit_factor` of what runs now, as a limit that
        nobody reaches would be lowered to no effect. Where requests wait in a lane, its limit is what binds, and the
        others may have room: `limit_factor` of every limit. A share of what runs would make lanes wait that nobody
        presses, and their waits would take the next rungs.
        """
        lanes = self._gateway.lanes.snapshot(now)
        limit = sum(lane["running_limit"] for lane in lanes.values())
        total = self._gateway.config.total_running
        limit = (limit if total is None else min(limit, total)) / self._processes
        busy = min(1.0, sum(lane["running"] for lane in lanes.values()) / max(1.0, limit))
        if signal in _OF_LANES or self._waits_in_lanes():
            busy = 1.0
        share = max(_LEAST_SHARE, self.ladder.effects.limit_factor * busy)
        if total is not None:
            # The total is not scaled: the lanes' limits must come down to it first.
            share *= min(1.0, total / max(1, sum(lane["running_limit"] for lane in lanes.values())))
        return dict.fromkeys(lanes, share)

    def _waits_in_lanes(self) -> bool:
        """Whether a late first token was late because of its lane: those waits are a part of it."""
        ladder = self.ladder
        return any(
            ladder.signals.get(name, 0.0) > bounds.leave
            for name, bounds in ladder.policy.thresholds.items()
            if name in _OF_LANES
        )

    def _late_answers(self, grace_ns: int, *, on: bool) -> None:
        if self._gateway.cache is not None:
            cache = self._gateway.cache.cache
            cache.grace_ns, cache.give_late = grace_ns, on

    def _enforce(self, now: int) -> None:
        self._keep_up(now)
        self._gateway.lanes.degrade(self._restraint(now), self._shares, now)

    def _keep_up(self, now: int) -> None:
        """What refused clients are told moves on with time, and the cache may be a new one."""
        rungs, effects = self.ladder.policy.rungs, self.ladder.effects
        self._late_answers(self._grace_ns if Rung.CACHED in rungs else 0, on=effects.stale_answers)
        self._gateway.lanes.admission.restraint = self._restraint(now)

    def _restraint(self, now: int) -> Restraint:
        return Restraint(self.ladder.effects, now + self.ladder.back_in_ns(now)) if self.ladder.step else UNRESTRAINED

    def view(self, now: int) -> dict[str, Any]:
        """Where the ladder stands, why, and how it came there."""
        return {"enabled": True, "lanes": list(self._watched), **self.ladder.view(now)}
