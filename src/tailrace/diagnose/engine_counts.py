"""An engine's scrapes as intervals: what its counters moved between two of them, and what its gauges stood at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.model.engine_state import EngineState

__all__ = ["Intervals", "intervals_of", "longest_run"]

Floats = NDArray[np.float64]


class Intervals(NamedTuple):
    """One entry an interval between two scrapes; NaN where a scrape has no such number, or its counter restarted."""

    end_ns: Floats
    """The later scrape on its own monotonic clock."""
    seconds: Floats
    running: Floats
    """The lower of both scrapes: what ran all the time."""
    waiting: Floats
    """Likewise."""
    kv: Floats
    """The higher of both."""
    generated: Floats
    """Tokens."""
    prompts: Floats
    """Prompt tokens computed."""
    queried: Floats
    hit: Floats
    """Of the prompt tokens asked of the prefix cache, those it had."""


def longest_run(holds: NDArray[np.bool_], seconds: Floats, *, least: int) -> tuple[float, int, int]:
    """(seconds, first, behind the last) of the longest run of at least `least` intervals for which something holds;
    (0, 0, 0) without one.
    """
    best = (0.0, 0, 0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(np.int8)))
    for low, high in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        lasted = float(seconds[low:high].sum())
        if high - low >= least and lasted > best[0]:
            best = (lasted, low, high)
    return best


def intervals_of(states: Sequence[EngineState]) -> Intervals:
    """From scrapes in order of time; empty for fewer than two."""

    def gauge(name: str) -> Floats:
        return np.array([_number(getattr(state, name)) for state in states], dtype=np.float64)

    def moved(name: str) -> Floats:
        difference = np.diff(gauge(name))
        out: Floats = np.where(difference < 0, np.nan, difference)
        return out

    at = np.array([state.at_ns for state in states], dtype=np.float64)
    running, waiting, kv = gauge("running"), gauge("waiting"), gauge("kv_usage")
    return Intervals(
        end_ns=at[1:],
        seconds=np.maximum(np.diff(at) / 1e9, 1e-9),
        running=np.fmin(running[1:], running[:-1]),
        waiting=np.fmin(waiting[1:], waiting[:-1]),
        kv=np.fmax(kv[1:], kv[:-1]),
        generated=moved("generation_tokens_total"),
        prompts=moved("prompt_tokens_total"),
        queried=moved("prefix_query_tokens_total"),
        hit=moved("prefix_hit_tokens_total"),
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
