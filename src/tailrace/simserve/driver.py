"""Real time for the engine: each step's tokens are written when the simulated step ends.

The schedule is absolute: the next step begins where the last one ended, however late the event loop woke, so delays
of the loop do not add up. A loop that was stopped for longer than a second (a suspended process) does not compute
in the meantime either: the clock is moved on by the time lost.
"""

from __future__ import annotations

import asyncio

from tailrace.simserve.answer import Answer
from tailrace.simserve.metrics import EngineMetrics
from tailrace.simulate.cost import PS_PER_S
from tailrace.simulate.engine import Engine
from tailrace.simulate.request import SimRequest, State

_FROZEN_S = 1.0
# uvloop rounds a timer to the nearest millisecond; half a millisecond more makes it never early, and at most 1 ms late.
_ROUNDING_S = 0.0005


class Driver:
    """Owns the engine and its clock."""

    def __init__(self, engine: Engine, metrics: EngineMetrics, *, stream_interval: int = 1) -> None:
        self.engine = engine
        self.metrics = metrics
        self.stream_interval = stream_interval
        self.live: dict[SimRequest, Answer] = {}
        """Answers that are waiting or running."""
        self.lag_s = 0.0
        """The largest lateness of a step's tokens since start."""
        self._loop = asyncio.get_running_loop()
        self._zero = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._planned = False
        self._last_arrival = 0

    def now(self) -> int:
        """Picoseconds since start."""
        return int((self._loop.time() - self._zero) * PS_PER_S)

    def submit(self, answer: Answer) -> None:
        """A request arrives now."""
        # Moving the clock on after a freeze may leave an earlier stamp ahead of it; arrivals stay in order.
        self._last_arrival = answer.request.arrival = max(self.now(), self._last_arrival)
        self.live[answer.request] = answer
        self.engine.submit(answer.request)
        if not self._planned:
            self._plan()
            self._arm()

    def abort(self, answer: Answer) -> None:
        """The client has left; the engine notices at the next step boundary."""
        if self.live.pop(answer.request, None) is not None:
            self.engine.abort(answer.request, self.now())

    def close(self) -> None:
        """Stop the clock; answers under way end incomplete."""
        if self._timer is not None:
            self._timer.cancel()
        for answer in list(self.live.values()):
            if not answer.done.done():
                answer.done.set_result(False)
        self.live.clear()

    def _plan(self) -> None:
        self._planned = self.engine.plan() is not None
        self._collect()

    def _arm(self) -> None:
        if self._planned:
            delay = self._zero + self.engine.step_end / PS_PER_S - self._loop.time()
            self._timer = self._loop.call_later(max(delay, 0) + _ROUNDING_S, self._wake)

    def _wake(self) -> None:
        self._timer = None
        late = self._loop.time() - self._zero - self.engine.step_end / PS_PER_S
        if late > _FROZEN_S:
            self._zero += late
        elif late > self.lag_s:
            self.lag_s = late
        now = self.now()
        while self._planned and self.engine.step_end <= now:
            self._complete()
            self._plan()
        self._arm()

    def _complete(self) -> None:
        """End the step: its tokens go out, in order of admission."""
        engine = self.engine
        emitting = engine.emitting()
        tokens = engine.planned_tokens()
        engine.commit()
        end = engine.now
        live = self.live
        interval = self.stream_interval
        gaps: dict[int, int] = {}
        for request in emitting:
            answer = live.get(request)
            if answer is None:
                continue
            if answer.tokens:
                gap = end - answer.last_at
                gaps[gap] = gaps.get(gap, 0) + 1
            else:
                self.metrics.first_token(request)
            answer.token(end, interval)
        self.metrics.step(tokens, gaps)
        self._collect()

    def _collect(self) -> None:
        ended = self.engine.ended
        if not ended:
            return
        for request in ended:
            answer = self.live.pop(request, None)
            if answer is None:
                continue
            completed = request.state == State.FINISHED
            if completed:
                self.metrics.finished(request, answer.ask.finish_reason, answer.ask.max_tokens)
            if not answer.done.done():
                answer.done.set_result(completed)
        ended.clear()
