"""When a lane next has a free place: the wait of the next arrival, from what runs, what waits and how fast it drains.

Two views of a lane, and the one that has been right lately is believed:

* *pipeline*: places become free one after the other, at the rate at which the lane as a whole gets work done. True of
  an engine whose prefills queue for one token budget; deep queues average out in either view.
* *slots*: each running request goes on by itself, and ends when its own work is done. True of a lane of a few long
  requests, where a mean of past service times knows nothing: what counts is what those that run have left.

The head of the queue waits for the next place (`_heads`); whoever stands behind it waits for the work ahead as well,
at the rate of the lane. The caller says what is ahead, so that any order of the queue will do.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tailrace.govern.foretold import Foretold
from tailrace.govern.prediction_error import ErrorSummary
from tailrace.govern.residual_life import ResidualLife
from tailrace.govern.work_line import Key
from tailrace.govern.work_price import WorkPrice
from tailrace.model.thresholds import S

FEW_PLACES: Final = 8
"""Up to so many running requests are looked at one by one; with more, their mean says the same."""
_GAP_NS: Final = 250_000_000
"""A place that is taken again within this time was wanted all along."""
_VOTE: Final = 0.08
"""Weight of the newest release when the two views are judged."""
_MIN_NS: Final = 100_000.0
"""Nothing is known to less than this; it keeps logarithms finite."""
_ENOUGH_RELEASES: Final = 5
_LEAVING: Final = 0.02
"""Weight of the newest of those that left the queue, with a place or without."""
_DRIFT: Final = 0.2
_STEADY: Final = (0.33, 2.5)
"""Of exponential lives a moving mean of this weight leaves these bounds about once in 300."""
_FADED: Final = 0.02
_OUTLIER: Final = 4.0
"""A single request that took so many times what was expected of it, or more, is one, and no change."""


class WaitPrediction(msgspec.Struct, frozen=True):
    """How long the next arrival waits for its place. `low` and `high` hold about 80 % of the actual waits."""

    expected_ns: int
    low_ns: int
    high_ns: int

    @property
    def retry_after_s(self) -> int:
        """The same for `Retry-After`: whole seconds, rounded up, at least 1."""
        return max(1, -(-self.expected_ns // S))


class _Running:
    __slots__ = ("since", "work")

    def __init__(self, work: float, since: int) -> None:
        self.work = work
        self.since = since


class WaitModel:
    """One lane. Work is in the unit of `work`; all times are monotonic ns, never before an earlier call's.

    Tell it `started` and `freed` of every running request, `resize` when the limit changes, and it predicts once a
    request has been served. `foretold` and `left` let it hear how true its predictions for the refused were.
    """

    __slots__ = (
        "_drift",
        "_error_pipeline",
        "_error_slots",
        "_foretold",
        "_free_since",
        "_guess",
        "_heads_at",
        "_heads_known",
        "_last_release",
        "_limit",
        "_lives",
        "_rate_ns",
        "_rate_work",
        "_releases",
        "_running",
        "_running_work",
        "_served_ns",
        "_served_work",
        "_spacing",
        "_stay",
        "_steady",
        "_weight",
        "price",
    )

    def __init__(self, limit: int) -> None:
        self.price = WorkPrice()
        """Learns from whoever tells it how long finished requests took; it turns tokens into work."""
        self._running: dict[str, _Running] = {}
        self._running_work = 0.0
        # Of places: how long one is held for a unit of work.
        self._served_work = 0.0
        self._served_ns = 0.0
        self._lives = ResidualLife()
        self._drift = 1.0
        # Of the lane: how much work ends while all places are taken.
        self._rate_work = 0.0
        self._rate_ns = 0.0
        self._releases = 0
        self._spacing = ResidualLife()
        self._last_release: int | None = None
        self._free_since: int | None = None
        self._steady = False
        """Whether all places have been taken since the last release."""
        self._guess: tuple[float, float] | None = None
        self._error_pipeline = self._error_slots = 0.5
        self._heads_at = 0
        self._heads_known: tuple[float, float] | None = None
        self._foretold = Foretold()
        self._stay = 1.0
        """Share of those who wait that get a place in the end."""
        self._limit = 1
        self._weight = 0.0
        self.resize(limit)

    # -- what happens in the lane

    def resize(self, limit: int) -> None:
        """The lane has so many places now."""
        limit = max(1, limit)
        if limit != self._limit or not self._weight:
            self._limit = limit
            # Memory of the rate: two to three rounds of all places, and no less than a dozen releases. Shorter is
            # noise, longer is late where the mix changes.
            self._weight = 1.0 - 1.0 / (10.0 + 2.5 * limit)
            self._steady = False
            self._heads_known = None

    def bind(self, running: int) -> None:
        """Something else than its places (tokens, a total, the engine) holds the lane at so many for the moment.

        Unlike with `resize`, what was learnt of its rate goes on: such a bound moves with every request.
        """
        running = max(1, running)
        if running != self._limit:
            self._limit = running
            self._heads_known = None

    def rescale(self, ratio: float) -> None:
        """From now on work is told in another unit: what was 1 is `ratio`. So it is when lengths that were guessed
        become known: without this, times learnt against guesses would be applied to work that is not guessed.
        """
        for request in self._running.values():
            request.work *= ratio
        self._running_work *= ratio
        self._served_work *= ratio
        self._rate_work *= ratio
        self._heads_known = None
        self._guess = None

    def work(self, prompt_tokens: int, output_tokens: int) -> float:
        """What a request is worth here, in output tokens."""
        return self.price.work(prompt_tokens, output_tokens)

    def started(self, request_id: str, work: float, now: int) -> None:
        """A request has got a place."""
        self._running[request_id] = _Running(max(work, 1.0), now)
        self._running_work += max(work, 1.0)
        self._heads_known = None
        if len(self._running) >= self._limit:
            free_since = self._free_since
            self._steady = free_since is not None and now - free_since <= _GAP_NS
            if free_since is not None and not self._steady:
                self._foretold.unwanted(free_since)
            self._free_since = None
            if self._steady and self._releases >= _ENOUGH_RELEASES and len(self._running) <= FEW_PLACES:
                # To be judged at the next release; with more places there is one view only.
                self._guess = self._heads(now)

    def freed(self, request_id: str, now: int, *, served: bool = True) -> None:
        """A running request has ended. One that was cut short is not `served`: it says nothing of how long work takes,
        but its place is free all the same.
        """
        request = self._running.pop(request_id, None)
        if request is None:
            return
        if not self._running:
            self._running_work = 0.0  # no drift of a sum of floats
        else:
            self._running_work -= request.work
        self._heads_known = None
        if self._free_since is not None:
            self._foretold.unwanted(self._free_since)
        took = float(max(now - request.since, 1))
        if served:
            self._served_work = self._served_work * self._weight + request.work
            self._served_ns = self._served_ns * self._weight + took
            self._judge(took / (request.work * self._slot_ns()))
            self._release(request.work, now, served=True)
        elif self._served_work:
            # Only what was done of it was work, and its end says nothing of when others end.
            self._release(min(request.work, took / self._slot_ns()), now, served=False)
        self._foretold.released(now)

    def _judge(self, life: float) -> None:
        """One lasted `life` times what was expected. Where that is far off again and again, something has changed (the
        engine's pace, or how lengths are predicted): what was learnt before counts little from here on.
        """
        self._lives.add(life)
        self._drift += _DRIFT * (min(life, _OUTLIER) - self._drift)
        if not _STEADY[0] < self._drift < _STEADY[1]:
            self._lives = ResidualLife()
            self._served_work *= _FADED
            self._served_ns *= _FADED * self._drift
            self._rate_work *= _FADED
            self._rate_ns *= _FADED * self._drift
            self._drift = 1.0

    def _release(self, work: float, now: int, *, served: bool) -> None:
        last = self._last_release
        if self._steady and last is not None:
            gap = float(max(now - last, 1))
            self._rate_work = self._rate_work * self._weight + work
            self._rate_ns = self._rate_ns * self._weight + gap
            self._releases += 1
            if served:
                self._spacing.add(gap / (work * self._lane_ns()))
            if served and self._guess is not None:
                actual = math.log(max(gap, _MIN_NS))
                pipeline, slots = self._guess
                self._error_pipeline += _VOTE * (abs(actual - math.log(pipeline)) - self._error_pipeline)
                self._error_slots += _VOTE * (abs(actual - math.log(slots)) - self._error_slots)
        self._guess = None
        self._steady = False
        self._last_release = self._free_since = now

    # -- predictions

    def predict(
        self, ahead_work: float, ahead_requests: int, now: int, *, passed: float = 0.0, patience_ns: float = math.inf
    ) -> WaitPrediction | None:
        """The wait of an arrival behind `ahead_requests` waiting ones that are worth `ahead_work` together.

        `passed`: the share of the lane's pace, below 1, that others take who will come later and go first (see
        `overtaking`); `patience_ns`: when they no longer may.

        `None` until a request has been served: a guess would be no better than the caller's own default.
        """
        if not self._served_work:
            return None
        free = self._limit - len(self._running)
        if free > ahead_requests:
            return WaitPrediction(0, 0, 0)
        place_ns = self._rate_per_work()
        # Some of those ahead will leave without a place: their clients, or their budgets, do not wait so long.
        expected = ahead_work * self._stay * place_ns
        if free <= 0:
            known = self._heads_known
            if known is None or now - self._heads_at > max(1_000_000, int(min(known) / 32)):
                known = self._heads_known = self._heads(now)
                self._heads_at = now
            expected += known[0] if self._error_pipeline <= self._error_slots else known[1]
            if free < 0:
                # The limit was lowered: so many places more must become free before one counts.
                expected += -free * (self._running_work / len(self._running)) * place_ns
        if passed:
            expected = min(expected / (1.0 - passed), max(expected, patience_ns))
        low, high = self._foretold.range(ahead_requests + 1)
        return WaitPrediction(round(expected), round(expected * low), round(expected * high))

    def duration(self, work: float) -> WaitPrediction | None:
        """How long a request of so much work holds its place: from admission to its end. `None` until enough ended.

        The range is that in which 80 % of the last hundred lay, each against what its own work made one expect.
        """
        lives = self._lives.range(0.1, 0.9)
        if lives is None:
            return None
        expected = work * self._slot_ns()
        low, high = min(lives[0], 1.0), max(lives[1], 1.0)
        return WaitPrediction(round(expected), round(expected * low), round(expected * high))

    def foretell(self, prediction: WaitPrediction, ahead_requests: int, now: int, *, key: Key | None = None) -> None:
        """Somebody was told `prediction` and sent away: measure when a place would have been theirs.

        `key`: where they would have stood, where the queue has one order and `given` tells who got a place.
        """
        if len(self._running) >= self._limit:
            places = ahead_requests + 1 + len(self._running) - self._limit
            self._foretold.tell(prediction.expected_ns, prediction.low_ns, prediction.high_ns, places, key, now)

    def left(self, since: int) -> None:
        """One that had waited since `since` left the queue without a place: those after it move up."""
        self._stay -= _LEAVING * self._stay
        self._foretold.moved_up(since)

    @property
    def awaits(self) -> bool:
        """Whether `given` has anybody to tell."""
        return bool(self._foretold.papers)

    def given(self, key: Key, now: int, *, by_age: bool = False) -> None:
        """A place was given to one that waited at `key`; `by_age`: out of turn, because it had waited for longest."""
        self._foretold.given(key, now, by_age=by_age)

    def answered(self, predicted: WaitPrediction, actual_ns: int, places: int = 1) -> None:
        """One that waited behind `places` - 1 others has got its place after `actual_ns`."""
        self._stay += _LEAVING * (1.0 - self._stay)
        self._foretold.answered(predicted.expected_ns, predicted.low_ns, predicted.high_ns, places, actual_ns)

    @property
    def error(self) -> ErrorSummary:
        """The error of predicted waits of more than a second against when a place was free."""
        return self._foretold.error.summary()

    @property
    def place_ns(self) -> float:
        """How long the lane takes for a unit of work, while all places are taken; 0 while that is not known."""
        return self._rate_per_work() if self._served_work else 0.0

    # -- inside

    def _slot_ns(self) -> float:
        """For how long one place is held for a unit of work."""
        return self._served_ns / self._served_work

    def _lane_ns(self) -> float:
        """The time between releases for a unit of work released."""
        return self._rate_ns / self._rate_work

    def _rate_per_work(self) -> float:
        if self._releases >= _ENOUGH_RELEASES:
            return self._lane_ns()
        return self._slot_ns() / self._limit

    def _heads(self, now: int) -> tuple[float, float]:
        """How long until the next place is free (ns, above 0), as a pipeline and as slots see it."""
        running = self._running
        few = len(running) <= FEW_PLACES
        slot_ns = self._slot_ns()
        nearest = self._running_work / len(running)
        slots = math.inf
        if few:
            # The first of independent lives to end. For Weibull lives of one shape and scales f_i the first has the
            # scale (sum f_i^-shape)^(-1/shape), and 1 / cv^1.08 is a Weibull's shape to within 3 % for cv 0.2..1.
            shape = min(max(self._lives.spread, 0.1) ** -1.08, 8.0)
            least = math.inf
            total = 0.0
            for request in running.values():
                whole = request.work * slot_ns
                rest = max(whole * self._lives.after((now - request.since) / whole), _MIN_NS)
                total += (rest / 1e9) ** -shape
                if rest < least:
                    least, nearest = rest, request.work
            slots = max(total ** (-1.0 / shape) * 1e9, _MIN_NS)
        if self._releases < _ENOUGH_RELEASES:
            if few:
                return slots, slots
            alone = max(nearest * slot_ns / self._limit, _MIN_NS)
            return alone, alone
        gap = nearest * self._lane_ns()
        last = self._last_release
        age = 0.0 if last is None else (now - last) / gap
        pipeline = max(gap * self._spacing.after(age), _MIN_NS)
        return pipeline, slots if few else pipeline
