"""An engine on a machine that takes something away: clocks that fall, processes that stand still, shapes to compile.

The scheduler is `simulate.engine` as it is; only what a step costs changes with time. A run of equal steps is skipped
up to the next change, so that a calm engine costs what it costs without wear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from tailrace.simulate.cost import PS_PER_S, Chunk, ClosedFormCost
from tailrace.simulate.engine import Engine
from tailrace.simulate.incidents.site import Site, Wear
from tailrace.simulate.knobs import knobs_from
from tailrace.simulate.presets import preset

_LONGEST_PAUSE: Final = 0.5
"""Of the time between two pauses."""
_MS: Final = 1_000_000_000
"""Picoseconds in a millisecond."""


class _Cost:
    """A step cost with what is added to it now."""

    __slots__ = ("_base", "_position", "_shapes", "_shift", "compiled_ps", "ctx_ps", "extra_ps", "jit_ps")

    def __init__(self, jit_ps: int, position_ps: int) -> None:
        self._position = position_ps
        self._shapes: set[int] = set()
        self._shift = 0
        self.jit_ps = jit_ps
        self.extra_ps = 0
        self.compiled_ps = 0
        """Time spent compiling so far."""
        self.ctx_ps: int | None = None

    def use(self, base: ClosedFormCost, engine: Engine, extra_ps: int) -> None:
        """From the next step on: `base`, and once `extra_ps`."""
        self._base = base
        self.extra_ps = extra_ps
        self._shift = self._position * engine.decoding_prompts() if self._position else 0
        # Of the context only what was generated counts: the prompts are taken out again.
        self.ctx_ps = None if extra_ps or base.ctx_ps is None else base.ctx_ps + self._position

    def decode_ps(self, decodes: int) -> int:
        return self._base.decode_ps(decodes) - self._shift

    def step_ps(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> int:
        total = self._base.step_ps(decodes, context, chunks) + self.extra_ps
        total += self._position * context - self._shift
        if self.jit_ps and chunks:
            shape = sum(chunk for chunk, _ in chunks).bit_length()
            if shape not in self._shapes:
                self._shapes.add(shape)
                total += self.jit_ps
                self.compiled_ps += self.jit_ps
        return total


class WornEngine:
    """One replica's core. Times in picoseconds; `horizon_s` is how far the schedule of what happens must reach."""

    def __init__(self, site: Site, rng: np.random.Generator, *, window_s: float, horizon_s: float) -> None:
        wear = site.wear
        chosen = preset(site.preset)
        knobs = knobs_from(chosen.knobs, site.knobs)
        self._calm = chosen.cost()
        self._worn = worn_cost(site.preset, wear, wear.compute, wear.memory)
        self._cold = worn_cost(site.preset, wear, wear.compute * wear.ramp, wear.memory * wear.ramp)
        self._wear = wear
        self._cost = _Cost(round(wear.jit_ms * _MS), round(wear.position_us * 1e6))
        self.engine = Engine(knobs, self._cost)
        self.pauses = _pauses(wear, rng, window_s, horizon_s)
        """All pauses, of whichever process: (begin, length)."""
        self._core = self.pauses if wear.pause_in == "core" else []
        if wear.hang_at:
            self._core = sorted(
                [*self._core, (round(wear.hang_at * window_s * PS_PER_S), round(wear.hang_s * PS_PER_S))]
            )
        self._next = 0
        self.episodes = _episodes(wear, rng, horizon_s)
        """(begin, end) of the time in which compute, memory and host are what the wear says."""
        self._episode = 0
        self._cold_until = 0
        self.stopped_ps = 0
        """Time in which the core stood still so far."""
        self.end: int | None = None
        """When what is planned ends."""

    def plan(self, until: int | None) -> int | None:
        """As `Engine.plan`: decide what comes next, at most up to the first step boundary at or after `until`."""
        engine = self.engine
        start = engine.next_start
        if start is None:
            self.end = engine.plan(skip=True, until=until)
            return self.end
        idle = start - engine.now
        extra = 0
        while self._next < len(self._core) and self._core[self._next][0] <= start:
            at, length = self._core[self._next]
            self._next += 1
            extra += max(0, at + length - start) if idle else length
        self.stopped_ps += extra
        base, change = self._pace(start, idle)
        if self._next < len(self._core):
            change = min(change, self._core[self._next][0])
        self._cost.use(base, engine, extra)
        bound = change if until is None else min(until, change)
        # What changes before the step begins has been taken in; an idle engine would stop at it.
        self.end = engine.plan(skip=not extra, until=bound if bound > start else start + 1)
        return self.end

    def commit(self) -> None:
        """What was planned is done."""
        self.end = None
        self.engine.commit()

    @property
    def core_busy_ps(self) -> int:
        """Time in which the accelerator worked so far: steps, less what the core stood still or compiled in them."""
        return self.engine.counters.busy_ps - self.stopped_ps - self._cost.compiled_ps

    def worn_at(self, at: int) -> bool:
        """Whether an episode is on at `at`."""
        return any(begin <= at < end for begin, end in self.episodes)

    def _pace(self, start: int, idle: int) -> tuple[ClosedFormCost, int]:
        """What a step costs that begins at `start`, and until when that holds."""
        wear = self._wear
        never = 1 << 62
        if wear.idle_s:
            if idle >= wear.idle_s * PS_PER_S:
                self._cold_until = start + round(wear.ramp_s * PS_PER_S)
            if start < self._cold_until:
                return self._cold, self._cold_until
        while self._episode < len(self.episodes) and self.episodes[self._episode][1] <= start:
            self._episode += 1
        if self._episode == len(self.episodes):
            return self._calm, never
        begin, end = self.episodes[self._episode]
        return (self._worn, end) if begin <= start else (self._calm, begin)


def worn_cost(name: str, wear: Wear, compute: float, memory: float) -> ClosedFormCost:
    """The preset's cost with these shares of FLOP/s and bandwidth; host overheads as the wear says."""
    chosen = preset(name)
    machine = chosen.accelerator
    slowed = msgspec.structs.replace(
        machine,
        flops=machine.flops * compute,
        bandwidth=machine.bandwidth * memory,
        step_s=machine.step_s * wear.host,
        prefill_step_s=machine.prefill_step_s * wear.host,
        seq_s=machine.seq_s * wear.host,
    )
    return ClosedFormCost(chosen.model, slowed)


def _pauses(wear: Wear, rng: np.random.Generator, window_s: float, horizon_s: float) -> list[tuple[int, int]]:
    if not wear.pause_every_s or not wear.pause_ms:
        return []
    count = int(horizon_s / wear.pause_every_s * 1.5) + 8
    if wear.pause_regular:
        gaps = wear.pause_every_s * rng.normal(1.0, 0.03, count)
    else:
        gaps = rng.exponential(wear.pause_every_s, count)
    at = np.cumsum(gaps) - gaps[0] * rng.random()
    at = at[(at > 0) & (at < horizon_s)]
    length = wear.pause_ms * rng.lognormal(0.0, 0.15, at.size) * (1 + wear.pause_growth * np.minimum(at, window_s))
    # A process that stands still for longer than it runs between two pauses is down.
    length = np.minimum(length, _LONGEST_PAUSE * wear.pause_every_s * 1e3)
    return [(round(a * PS_PER_S), round(b * _MS)) for a, b in zip(at.tolist(), length.tolist(), strict=True)]


def _episodes(wear: Wear, rng: np.random.Generator, horizon_s: float) -> list[tuple[int, int]]:
    if (wear.compute, wear.memory, wear.host) == (1.0, 1.0, 1.0):
        return []
    if not wear.every_s:
        return [(0, 1 << 62)]
    begins = np.arange(rng.random() * wear.every_s, horizon_s, wear.every_s)
    lasts = np.minimum(wear.for_s * rng.lognormal(0.0, 0.2, begins.size), 0.9 * wear.every_s)
    return [
        (round(a * PS_PER_S), round((a + b) * PS_PER_S)) for a, b in zip(begins.tolist(), lasts.tolist(), strict=True)
    ]
