"""What kind of stops a window has: periodic, growing, begun by certain arrivals, at first uses, or one long one.

Only stops that streams share count, and that no long prompt's prefill and no lag of the gateway explains.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.first_uses import first_uses
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.loop_work import loop_work
from tailrace.diagnose.shared_stops import SharedStops, shared_stops
from tailrace.diagnose.window import Window, once_a_window
from tailrace.stats.rank_correlation import spearman

__all__ = ["MIN_PERIODIC", "StopKind", "StopPattern", "Triggers", "beat_of", "enough_on_beat", "stop_pattern"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

MIN_STOPS: Final = 3
MIN_PERIODIC: Final = 6
FEW_PERIODIC: Final = 4
TIGHT: Final = 0.08
"""Largest distance of each time between a few stops from their mean: three times between stops at random are so even
once in three hundred cases."""
OFF_BEAT: Final = 0.15
"""Largest distance to the nearest whole number of periods, for a stop to be on the beat."""
ON_BEAT: Final = 0.8
BY_CHANCE: Final = 0.35
"""Of times between stops at random, about the share that lies so near to the best of a few periods."""
SOME_BEAT: Final = 0.6
RATIO: Final = (1.15, 1.35)
"""A collector that runs when the heap has grown by a quarter stops the process at times in this ratio."""
TRIGGERED: Final = 0.7
ABOVE_CHANCE: Final = 1.5
BEYOND: Final = 3.1
"""Deviations: once in a thousand cases."""
SCALES: Final = 0.5
WEIGHT: Final = 1 / 3
"""Of the time in shared stops, the least that must lie outside prefills for arrivals to be what begins them."""
SLACK_MS: Final = 60.0
LONG_STALL_MS: Final = 5_000.0
FIRST_USES: Final = 0.8


class StopKind(StrEnum):
    """The pattern that fits; the more particular one where two do."""

    NONE = "none"
    PERIODIC = "periodic"
    GROWING = "growing"
    GRAMMAR = "grammar"
    TRIGGERED = "triggered"
    FIRST_USE = "first_use"
    WEDGE = "wedge"
    OTHER = "other"


class Triggers(NamedTuple):
    """Arrivals at which stops begin."""

    share: float
    """Of the stops, those that begin with an arrival whose own first token comes after them."""
    chance: float
    """The share that arrivals at any time would give."""
    size: str
    """What the stops' length grows with: `prompt tokens`, `bytes`, `seconds of audio`; empty where with nothing."""
    correlation: float
    sizes: Floats
    """Of the trigger of each stop (NaN without one), in the unit of `size`."""
    rows: NDArray[np.int64]
    """Row of `every` that triggered each stop, -1 without one."""
    new_shape: float
    """Of the stops, those whose trigger is the first of its length (by powers of two) in the window."""


class StopPattern(NamedTuple):
    """The unexplained stops of a window and what they have in common."""

    kind: StopKind
    stops: SharedStops
    chosen: Mask
    explains: Floats
    """By row of `done` (ms)."""
    period_s: float
    on_beat: float
    growth_ms_per_s: float
    """Slope of the stops' length over time; 0 where they do not grow in a line."""
    ratio: float
    """Median ratio of the successive times between stops; NaN where they have none."""
    triggers: Triggers

    @property
    def n(self) -> int:
        """How many stops."""
        return int(self.chosen.sum())

    @property
    def ms(self) -> Floats:
        """Their lengths (ms)."""
        return self.stops.ms[self.chosen]


@once_a_window
def stop_pattern(window: Window) -> StopPattern:
    """The pattern of the unexplained shared stops."""
    stops = shared_stops(window)
    chosen = stops.unexplained
    begin, length = stops.begin[chosen] / 1e9, stops.ms[chosen]
    period, beat = beat_of(begin, length)
    growth = _growth(begin, length)
    ratio = _ratio(begin)
    triggers = _triggers(window, stops, chosen)
    pattern = StopPattern(StopKind.NONE, stops, chosen, stops.by_row, period, beat, growth, ratio, triggers)
    return pattern._replace(kind=_kind(window, pattern))


def _kind(window: Window, pattern: StopPattern) -> StopKind:  # noqa: C901, PLR0911  (one a kind)
    n = pattern.n
    if not n:
        return StopKind.NONE
    triggers = pattern.triggers
    uses = first_uses(window)
    if uses is not None and uses.holds:
        return StopKind.FIRST_USE
    work = loop_work(window)
    if work is not None and work.holds:
        return StopKind.TRIGGERED
    began = n >= MIN_STOPS and triggers.share >= TRIGGERED and triggers.share >= ABOVE_CHANCE * triggers.chance
    # A few stops beside many that prefills explain are the edges of such prefills: two prompts in one step.
    began = began and _weight(pattern) >= WEIGHT
    if began and _of_grammar(window, triggers):
        return StopKind.GRAMMAR
    if began and triggers.new_shape >= FIRST_USES and _used_again(window, triggers):
        return StopKind.FIRST_USE
    if began and triggers.size:
        return StopKind.TRIGGERED
    # Clients in a closed loop come on a beat as well: stops that begin with them keep theirs, and no timer's.
    theirs = began and _beyond_chance(triggers, n)
    if n >= FEW_PERIODIC and pattern.on_beat >= enough_on_beat(n - 1) and not theirs:
        return StopKind.PERIODIC
    if pattern.growth_ms_per_s > 0 or (n >= MIN_PERIODIC and RATIO[0] <= pattern.ratio <= RATIO[1]):
        return StopKind.GROWING
    if began:
        return StopKind.TRIGGERED
    if n <= 2 and float(pattern.ms.max()) >= LONG_STALL_MS:
        return StopKind.WEDGE
    return StopKind.OTHER


def _beyond_chance(triggers: Triggers, n: int) -> bool:
    """Do so many of `n` stops begin with an arrival as arrivals at any time give once in a thousand cases at most?"""
    deviation = float(np.sqrt(triggers.chance * (1.0 - triggers.chance) / n))
    return triggers.share >= triggers.chance + BEYOND * deviation


def enough_on_beat(n: int) -> float:
    """Share of `n` times between stops that must be on the beat: many need fewer, if chance gives none of it."""
    chance = BY_CHANCE + 3.0 * float(np.sqrt(BY_CHANCE * (1.0 - BY_CHANCE) / n))
    return min(ON_BEAT, max(chance, SOME_BEAT))


def _weight(pattern: StopPattern) -> float:
    """Of the time in shared stops that are not the gateway's own, the share that no prefill explains."""
    stops = pattern.stops
    ours = float(stops.ms[~stops.own].sum())
    return float(pattern.ms.sum()) / ours if ours > 0 else 0.0


def beat_of(begin: Floats, length: Floats) -> tuple[float, float]:
    """(period in s, share of the stops on its beat): the times between stops as whole multiples of one period."""
    if begin.size < MIN_PERIODIC:
        return _even(begin)
    between = np.diff(begin)
    if float(between.min()) <= 0 or float(np.median(between)) * 1e3 <= float(np.median(length)):
        return float("nan"), 0.0
    best = (float("nan"), 0.0)
    # A stop that nobody saw leaves a double interval: the shortest usual one is the period.
    for guess in np.unique(np.quantile(between, (0.1, 0.25, 0.5))).tolist():
        times = np.round(between / guess)
        times = np.where(times < 1, 1, times)
        fitted = float((between * times).sum() / (times * times).sum())
        off = np.abs(between / fitted - np.round(between / fitted))
        share = float((off <= OFF_BEAT).mean())
        if share > best[1] and float(np.median(np.round(between / fitted))) <= 3:
            best = (fitted, share)
    return best


def _even(begin: Floats) -> tuple[float, float]:
    """The same of a few stops: all times between them alike, or no beat."""
    if begin.size < FEW_PERIODIC:
        return float("nan"), 0.0
    between = np.diff(begin)
    period = float(between.mean())
    alike = period > 0 and float(np.abs(between / period - 1.0).max()) <= TIGHT
    return (period, 1.0) if alike else (float("nan"), 0.0)


def _growth(begin: Floats, length: Floats) -> float:
    """Slope (ms/s) where the length grows in a line with time, by half at the least; else 0."""
    if begin.size < MIN_PERIODIC or np.ptp(begin) == 0 or np.ptp(length) == 0:
        return 0.0
    slope, level = np.polyfit(begin, length, 1)
    r = float(np.corrcoef(begin, length)[0, 1])
    first, last = level + slope * begin[0], level + slope * begin[-1]
    return float(slope) if r >= 0.9 and last >= 1.5 * max(first, 1.0) else 0.0


def _ratio(begin: Floats) -> float:
    between = np.diff(begin)
    if between.size < 4 or (between <= 0).any():
        return float("nan")
    ratios = between[1:] / between[:-1]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return float(middle) if high - low < 0.2 else float("nan")


def _triggers(window: Window, stops: SharedStops, chosen: Mask) -> Triggers:
    known = account(window)
    every = window.every
    size = int(chosen.sum())
    rows = np.full(size, -1, dtype=np.int64)
    if not size:
        return Triggers(0.0, 0.0, "", 0.0, np.full(0, np.nan), rows, 0.0)
    ttft = every.ms("ttft") * 1e6
    first = np.where(np.isnan(ttft), known.end, known.start + ttft)
    candidates = np.flatnonzero(known.reached)
    order = candidates[np.argsort(known.sent[candidates], kind="stable")]
    sent = known.sent[order]
    prompt = every.column("prompt_tokens")
    weights = {
        "prompt tokens": prompt,
        "bytes": every.column("prompt_bytes"),
        "seconds of audio": every.column("audio_seconds"),
    }
    heft = np.nan_to_num(prompt, nan=0.0) + np.nan_to_num(weights["bytes"], nan=0.0) / 4.0
    slack = SLACK_MS * 1e6 + (0.0 if np.isnan(window.median_gap_ms) else window.median_gap_ms) * 1e6
    begin, end = stops.begin[chosen], stops.end[chosen]
    for i in range(size):
        low, high = np.searchsorted(sent, begin[i] - slack), np.searchsorted(sent, begin[i] + slack, side="right")
        near = order[low:high]
        near = near[first[near] >= end[i] - slack]
        if near.size:
            rows[i] = near[int(np.argmax(heft[near]))]
    with_one = rows >= 0
    span = max(float(sent[-1] - sent[0]), 1.0) if sent.size else 1.0
    chance = 1.0 - float(np.exp(-sent.size / span * 2.0 * slack))
    length = stops.ms[chosen]
    best, correlation = "", 0.0
    for name, weight in weights.items():
        have = with_one & ~np.isnan(weight[rows])
        if have.sum() < MIN_STOPS:
            continue
        value = spearman(length[have], weight[rows[have]])
        outsized = float(np.median(weight[rows[have]])) >= 4.0 * float(np.nanmedian(weight))
        if (value >= SCALES and value > correlation) or (outsized and not best):
            best, correlation = name, value
    chosen_weight = weights.get(best)
    sizes = np.where(with_one, chosen_weight[rows], np.nan) if chosen_weight is not None else np.full(size, np.nan)
    return Triggers(
        float(with_one.mean()), chance, best, correlation, sizes, rows, _new_shapes(known.sent, prompt, rows)
    )


def _new_shapes(sent: Floats, prompt: Floats, rows: NDArray[np.int64]) -> float:
    """Share of the stops whose trigger is the first of its length in the window."""
    bucket = _buckets(prompt)
    new = 0
    for row in rows[rows >= 0].tolist():
        earlier = (bucket == bucket[row]) & (sent < sent[row])
        new += bucket[row] >= 0 and not bool(earlier.any())
    return new / max(rows.size, 1)


def _used_again(window: Window, triggers: Triggers) -> bool:
    """Whether the lengths that stopped everything came again and did not."""
    bucket = _buckets(window.every.column("prompt_tokens"))
    used = triggers.rows[triggers.rows >= 0]
    return all(int((bucket == bucket[row]).sum()) >= 2 for row in used.tolist())


def _buckets(prompt: Floats) -> NDArray[np.int64]:
    out = np.full(prompt.size, -1, dtype=np.int64)
    known = ~np.isnan(prompt) & (prompt > 0)
    out[known] = np.log2(prompt[known]).astype(np.int64)
    return out


def _of_grammar(window: Window, triggers: Triggers) -> bool:
    """Whether those that begin the stops ask for structured output, and most others do not."""
    grammar = window.every.column("grammar").astype(bool)
    used = triggers.rows[triggers.rows >= 0]
    usual = float(grammar.mean())
    return 0.0 < usual < TRIGGERED and float(grammar[used].mean()) >= max(TRIGGERED, 2.0 * usual)
