"""METRIC_IDLE_ARTIFACT: a rate in a log was averaged over time in which nothing ran."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.load import Load, loads
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["IdleArtifact"]

LOW: Final = 0.5
"""Of the next line: the first line after idle time says less than this."""
STEADY: Final = 0.5
"""Of the best of the other lines: one below it is slow by itself, and the artefact is not the whole complaint."""
FEWEST_LINES: Final = 3
PAUSE: Final = 5.0
"""Times the usual distance of two lines."""
PAUSE_S: Final = 10.0
"""At least; engines that log every step leave gaps of a second or two that are none."""
FAR_OFF: Final = 0.1
"""Of the next line's rate at the same load: the tokens were counted over the pause as well."""
Marks = NDArray[np.bool_]


class _First(NamedTuple):
    load: Load
    row: int
    rate: float
    next: float


class IdleArtifact(Cause):
    """The first decode line after idle time is far below the next one, and nothing else is wrong."""

    code: ClassVar[str] = "METRIC_IDLE_ARTIFACT"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("decode lines before and after an idle time",)
    disproof: ClassVar[str] = "The low rate persists on the second line."
    action: ClassVar[Action] = Action.NONE
    ends: ClassVar[bool] = True

    def observe(self, observed: Observed) -> Finding | None:
        """First lines after idle time that say less than half of the next; alone in what they say."""
        found = [first for load in loads(observed) for first in _firsts(load)]
        if not found:
            return None
        trouble = _trouble(observed, found)
        lows = ", ".join(f"{first.rate:g}" for first in found[:6])
        steady = [value for load in {id(first.load): first.load for first in found}.values() for value in _steady(load)]
        low, high = min(steady), max(steady)
        steady_words = f"{low:g} to {high:g}" if high > low else f"{high:g}"
        return self.finding(
            statement=f"The low rates ({lows} tok/s) are no slow decoding: each is the first line after idle "
            "time, and its "
            f"rate counts the pause. All other lines say {steady_words} tok/s.",
            evidence=[
                *(
                    Evidence(
                        text=f"{first.rate:g} tok/s in the first decode line after idle, {first.next:g} tok/s "
                        "in the next one",
                        source=first.load.where(first.row),
                        name="output_tok_s",
                        value=first.rate,
                        unit="tok/s",
                    )
                    for first in found[:6]
                ),
                Evidence(
                    text=f"the other {len(steady)} lines say {steady_words} tok/s",
                    source=found[0].load.place.source,
                    name="steady",
                    value=round(float(np.median(steady)), 2),
                    unit="tok/s",
                ),
            ],
            explains_ms=None,
            relation=f"{found[0].rate:g}/{found[0].next:g} = {found[0].rate / found[0].next:.3f} < {LOW:g} on "
            "the first line only",
            n=len(found),
            advice="Leave out the first decode line after an idle time; take the rate of the lines that follow, or the "
            "client's own time per output token.",
            price="None.",
            verify="tailrace bench http://localhost:8000 --concurrency 1 --duration 30",
            missing=[] if not trouble else [f"what else is wrong: {trouble}"],
            disproof_checked=[f"the second line is back at {first.next:g} tok/s" for first in found[:3]],
            level=Level.CONSISTENT if not trouble else Level.SUSPECTED,
        )


def _firsts(load: Load) -> list[_First]:
    """Lines that the reader marked (SGLang), or that follow a line with nothing running (vLLM), far below the next."""
    made, running = load.get("output_tok_s"), load.get("running")
    marked = _marked(load)
    if not marked.any():
        return []
    out = []
    for index in np.flatnonzero(marked):
        after = int(index) + 1
        if after >= len(load) or marked[after] or np.isnan(made[after]) or running[after] < running[index]:
            continue
        if 0 <= made[index] < LOW * made[after]:
            out.append(_First(load, int(index), float(made[index]), float(made[after])))
    return out


def _marked(load: Load) -> Marks:
    """Lines that the reader marked, and those far below the next one of the same load behind a pause that is many times
    the usual distance of two lines.
    """
    made, running = load.get("output_tok_s"), load.get("running")
    out: Marks = load.get("after_idle") == 1
    if len(load) < FEWEST_LINES:
        return out
    begins = np.zeros(len(load), dtype=bool)
    usual = load.interval
    begins[1:] = np.diff(load.at) > (max(PAUSE * usual, PAUSE_S) if np.isfinite(usual) else np.inf)
    with np.errstate(invalid="ignore"):
        far_off = (made[:-1] > 0) & (made[:-1] < FAR_OFF * made[1:]) & (running[:-1] == running[1:])
    out[:-1] |= begins[:-1] & far_off
    return out


def _steady(load: Load) -> list[float]:
    made = load.get("output_tok_s")
    return [float(value) for value in made[~_marked(load) & ~np.isnan(made)]]


def _trouble(observed: Observed, found: list[_First]) -> str:
    """What else the evidence shows: then the artefact explains a line and not the complaint."""
    for kind in ("retracted", "preempted", "jit", "error", "died"):
        if observed.of_kind(kind):
            return f"lines of kind {kind}"
    if any(load.has("waiting") and float(np.nanmax(load.get("waiting"))) > 0 for load in loads(observed)):
        return "requests wait"
    for first in found:
        values = _steady(first.load)
        running = first.load.get("running")[~_marked(first.load)]
        if np.ptp(running[~np.isnan(running)]) == 0 and min(values) < STEADY * max(values):
            return "later lines are slow, too"
    if observed.rows or observed.arms or observed.histograms:
        return "the other evidence speaks of requests, which this does not explain"
    return ""
