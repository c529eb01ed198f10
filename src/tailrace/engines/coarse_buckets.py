"""Whether an engine's own histograms can tell if an objective was met, and the option that mends it where they cannot.

An objective of 500 ms inside a bucket from 0.4 to 0.6 s cannot be checked: how many of the values in that bucket met it
nobody knows. What can be said is between which two shares the attainment lies.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tailrace.engines.histogram_delta import HistogramDelta, bucket_around
from tailrace.engines.tallies import TIMINGS
from tailrace.model.thresholds import S

_SCALES: Final = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.8,
    1,
    1.5,
    2,
    2.5,
    5,
    10,
    20,
    40,
    80,
    160,
)
_TOKEN_SCALES: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, 40)
_NOUNS: Final = {"ttft": "ttft", "tpot": "tpot", "chunk_gap": "itl", "e2e": "e2e"}
"""Metric of an objective -> the noun whose histogram is nearest to it."""
VLLM_SINCE: Final = "0.32"
"""The version that first takes `--custom-histogram-buckets`."""


class Coarse(msgspec.Struct, frozen=True, kw_only=True):
    """One objective beside the buckets of the engine's histogram."""

    objective: str
    """`ttft_p99`, with its lane where it is a lane's own."""
    bound_s: float
    noun: str
    metric: str
    bucket: tuple[float, float] | None
    """The bucket that holds the bound in its inside; `None` where one ends there."""
    attainment: tuple[float, float] | None
    """Between which shares met it in the window; `None` where nothing was observed."""
    n: float
    remedy: str = ""

    @property
    def text(self) -> str:
        """For people."""
        bound = f"{self.bound_s * 1e3:g} ms"
        if self.bucket is None:
            said = f"{self.objective} = {bound} can be read exactly from {self.metric}"
            if self.attainment is not None:
                said += f": {self.attainment[0]:.2%} of {self.n:g} met it"
            return said
        low, high = self.bucket
        span = f"[{low:g}, {'inf' if high == math.inf else f'{high:g}'}] s"
        said = f"{self.objective} = {bound} lies inside the bucket {span} of {self.metric}"
        if self.attainment is None:
            return f"{said}: whether it was met could not be said"
        return f"{said}: of {self.n:g}, between {self.attainment[0]:.2%} and {self.attainment[1]:.2%} met it"

    def view(self) -> dict[str, Any]:
        """For JSON."""
        out: dict[str, Any] = {
            "objective": self.objective,
            "bound_ms": self.bound_s * 1e3,
            "metric": self.metric,
            "exact": self.bucket is None,
            "n": round(self.n),
            "attainment": None if self.attainment is None else list(self.attainment),
            "text": self.text,
        }
        if self.bucket is not None:
            low, high = self.bucket
            out["bucket_ms"] = [low * 1e3, None if high == math.inf else high * 1e3]
            out["remedy"] = self.remedy
        return out


def check_objectives(
    timings: Mapping[str, HistogramDelta],
    objectives: Iterable[tuple[str, str, int]],
    *,
    names: Mapping[str, str],
    engine: str = "",
) -> list[Coarse]:
    """Every objective for whose metric the engine keeps a histogram.

    `objectives` are (name as shown, metric, bound in ns); `timings` and `names` by noun.
    """
    asked = list(objectives)
    out = []
    for name, metric, bound_ns in asked:
        noun = _NOUNS.get(metric, "")
        delta = timings.get(noun)
        if delta is None or not delta.seen.bounds:
            continue
        bound = bound_ns / S
        bucket = bucket_around(delta.seen.bounds, bound)
        out.append(
            Coarse(
                objective=name,
                bound_s=bound,
                noun=noun,
                metric=names.get(noun, ""),
                bucket=bucket,
                attainment=delta.share_at_most(bound),
                n=delta.n,
            )
        )
    coarse = {one.noun for one in out if one.bucket is not None}
    wanted = {
        noun: [ns / S for _, other, ns in asked if _NOUNS.get(other) == noun]
        # vLLM's option replaces the one before it on a command line: it has to be written with all families at once.
        for noun in sorted(coarse)
    }
    return [
        one if one.bucket is None else msgspec.structs.replace(one, remedy=remedy(one.noun, wanted, engine=engine))
        for one in out
    ]


def remedy(noun: str, wanted_s: Mapping[str, Sequence[float]], *, engine: str = "") -> str:
    """The engine's option that makes the buckets of `noun` fine enough, with the values of `wanted_s` among the bounds.

    Where the engine has one option for all histograms, it speaks of all nouns in `wanted_s`. Empty where it has none.
    """
    timing = TIMINGS[noun]
    if engine in {"vllm", "simulated"} and timing.family:
        families: dict[str, set[float]] = {}
        for each in sorted({noun, *wanted_s}):
            family = TIMINGS[each].family
            if family:
                families.setdefault(family, set()).update(_bounds(each, wanted_s.get(each, ())))
        spelled = json.dumps({name: sorted(bounds) for name, bounds in families.items()}, separators=(",", ":"))
        return f"--custom-histogram-buckets '{spelled}' (vLLM {VLLM_SINCE} and later)"
    if engine == "sglang" and timing.option:
        bounds = sorted(_bounds(noun, wanted_s.get(noun, ())))
        return f"{timing.option} {' '.join(f'{bound:g}' for bound in bounds)}"
    return ""


def _bounds(noun: str, wanted_s: Sequence[float]) -> set[float]:
    scales = _TOKEN_SCALES if noun in {"itl", "tpot"} else _SCALES
    return {*scales, *(_round(value) for value in wanted_s if value > 0)}


def _round(value: float) -> float:
    return float(f"{value:.3g}")
