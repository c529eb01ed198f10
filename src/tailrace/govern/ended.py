"""A request that has finished, and what is learnt from it once its real length is known."""

from __future__ import annotations

from tailrace.govern.lane_state import LaneState, Running
from tailrace.govern.lane_turns import LaneTurns
from tailrace.govern.length_model import LengthModel


class Ended:
    """What of a finished request is still to be learnt."""

    __slots__ = ("_at", "_completed", "_lane", "_running")

    def __init__(self, lane: LaneState, running: Running, at: int, *, completed: bool) -> None:
        self._lane = lane
        self._running = running
        self._at = at
        self._completed = completed

    def learn(self, lengths: LengthModel, turns: LaneTurns, prompt_tokens: int | None, output_tokens: int) -> None:
        """Put right what its tenant and its lane were charged; of a completed one, learn for those that come."""
        lane, running = self._lane, self._running
        demand = running.demand
        lane.output_tokens += output_tokens
        prompt = demand.prompt if prompt_tokens is None else prompt_tokens
        surplus = prompt + output_tokens - demand.tokens
        lane.queue.correct(running.tenant, surplus)
        turns.correct(lane, surplus)
        turns.place(lane)
        if not self._completed:
            return
        lane.observe(running, output_tokens, self._at)
        each = output_tokens // running.sequences
        predicted = lengths.observe(lane.policy.name, running.model, prompt, running.max_tokens, each)
        if lane.guesses and predicted is not None and predicted.n:
            # The first that would no longer be guessed: until now all work was counted in another unit.
            lane.guesses = False
            if not demand.known:
                lane.waits.rescale(lane.waits.work(demand.prompt, predicted.tokens) / demand.work)
        lane.waits.price.observe(prompt, each, self._at - running.since)
