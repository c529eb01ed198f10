"""Histograms whose buckets cannot answer what the objectives ask, and the option that mends them.

A bucket says that values lie between two bounds, never where. An objective of 80 ms inside a bucket from 75 to 100 ms
can be neither met nor missed; a phase whose first bucket ends at 300 ms has no percentiles below that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from tailrace.engines.advice.case import Case
from tailrace.engines.coarse_buckets import SCALES, TOKEN_SCALES
from tailrace.engines.histogram_delta import bucket_around
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence

_COARSE_START: Final = 0.1
"""A phase histogram that begins above this many seconds hides the phases of every healthy request."""


class _Family(msgspec.Struct, frozen=True):
    key: str
    """vLLM's name of the family, as `--custom-histogram-buckets` takes it."""
    metrics: tuple[str, ...]
    objectives: tuple[str, ...]
    usual: tuple[float, ...]
    """Bounds that vLLM 0.32.0 and its forerunners have unless told otherwise (s)."""
    fine: tuple[float, ...]


_TTFT: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_TOKEN: Final = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_PHASE: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)

_VLLM: Final = (
    _Family("time_to_first_token", ("vllm:time_to_first_token_seconds",), ("ttft",), _TTFT, SCALES),
    _Family(
        "inter_token_latency",
        (
            "vllm:request_time_per_output_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",  # up to 0.11
        ),
        ("tpot", "chunk_gap", "itl"),
        _TOKEN,
        TOKEN_SCALES,
    ),
    _Family(
        "request_latency",
        (
            "vllm:e2e_request_latency_seconds",
            "vllm:request_queue_time_seconds",
            "vllm:request_prefill_time_seconds",
            "vllm:request_decode_time_seconds",
        ),
        ("e2e", "queue"),
        _PHASE,
        SCALES,
    ),
)
_SGLANG: Final = (
    _Family(
        "--bucket-time-to-first-token",
        ("sglang:time_to_first_token_seconds",),
        ("ttft",),
        (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0),
        SCALES,
    ),
    _Family(
        "--bucket-inter-token-latency",
        ("sglang:inter_token_latency_seconds", "sglang:request_time_per_output_token_seconds"),
        ("tpot", "chunk_gap", "itl"),
        (
            0.002,
            0.004,
            0.006,
            0.008,
            0.01,
            0.015,
            0.02,
            0.025,
            0.03,
            0.035,
            0.04,
            0.06,
            0.08,
            0.1,
            0.2,
            0.4,
            0.6,
            0.8,
            1.0,
        ),
        TOKEN_SCALES,
    ),
    _Family(
        "--bucket-e2e-request-latency",
        ("sglang:e2e_request_latency_seconds",),
        ("e2e",),
        (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0),
        SCALES,
    ),
)


_LOOKED_AT: Final = {True: "vLLM 0.32.0", False: "SGLang 0.5.23"}
"""Whose bounds stand in where there is no scrape."""


def judge_buckets(case: Case) -> Iterator[CheckFinding]:
    """Every family of histograms against the objectives; one option that mends all of them."""
    if case.vllm:
        families: Sequence[_Family] = _VLLM
    elif case.engine == "sglang":
        families = _SGLANG
    else:
        return
    if case.scrape is None and case.vllm and case.at_least("0.32.0") is False:
        case.need("the buckets of this version's histograms: give its address, or a saved scrape of /metrics")
        return
    wanted: dict[str, list[float]] = {}
    said: list[tuple[str, Evidence]] = []
    for family in families:
        bounds, source, name = _bounds(case, family)
        targets = sorted(
            {
                bound / 1e9
                for metric, quantiles in case.objectives.bounds.items()
                if metric.rpartition("/")[2] in family.objectives
                for bound in quantiles.values()
            }
        )
        for target in targets:
            around = bucket_around(bounds, target) if bounds else None
            if around is not None:
                low, high = around
                until = "no end" if math.isinf(high) else f"{high * 1e3:g} ms"
                text = f"the objective of {target * 1e3:g} ms lies between {low * 1e3:g} ms and {until} of {name}"
                evidence = Evidence(f"{name}: bucket {low * 1e3:g} ms to {until}", source, name, target * 1e3, "ms")
                said.append((text, evidence))
                wanted.setdefault(family.key, []).extend(targets)
        if bounds and bounds[0] > _COARSE_START:
            first = f"{bounds[0] * 1e3:g} ms"
            text = (
                f"{name} and its like begin at {first}: no percentile below that exists, and p99 of a quiet engine "
                f"reads just under {first} for ever"
            )
            evidence = Evidence(f"{name}: first bucket ends at {first}", source, name, bounds[0] * 1e3, "ms")
            said.append((text, evidence))
            wanted.setdefault(family.key, []).extend(targets)
    if not said:
        return
    can = not case.vllm or case.at_least("0.32.0") is not False
    statement = "; ".join(text for text, _ in said)
    yield case.finding(
        "METRIC_BUCKETS_COARSE",
        Weight.WARNING,
        f"The engine's own histograms cannot tell whether the objectives are met: {statement}.",
        subject="--custom-histogram-buckets" if case.vllm else "--bucket-…",
        evidence=[evidence for _, evidence in said],
        advice=_option(case, families, wanted)
        if can
        else "This version has fixed buckets: take percentiles from the gateway (`tailrace serve`), and from the "
        "engine only means (_sum / _count).",
        effect="Percentiles exist where the objectives are; an alert at the objective can be trusted.",
        price="One time series more for each bucket, metric and label set; history before and after does not join.",
        verify=f"tailrace check {case.url or 'URL'} after the restart",
    )


def _bounds(case: Case, family: _Family) -> tuple[Sequence[float], str, str]:
    """(bounds, where they come from, the metric that has them)."""
    if case.scrape is not None:
        for metric in family.metrics:
            histogram = case.scrape.histogram(metric)
            if histogram is not None and histogram.bounds:
                return histogram.bounds, f"metric:{metric}", metric
        return (), "", family.metrics[0]  # the engine does not export it: nothing to read, nothing to mend
    return family.usual, f"default of {_LOOKED_AT[case.vllm]}", family.metrics[0]


def _option(case: Case, families: Sequence[_Family], wanted: dict[str, list[float]]) -> str:
    fitted = {
        family.key: sorted(map(float, {*family.fine, *wanted[family.key]}))
        for family in families
        if family.key in wanted
    }
    if case.vllm:
        # One option for all families: a second one on the command line would replace the first.
        on = "On vLLM itself: " if case.engine == "simulated" else ""
        return f"{on}--custom-histogram-buckets '{json.dumps(fitted, separators=(',', ':'))}'"
    return " ".join(f"{key} {' '.join(f'{bound:g}' for bound in bounds)}" for key, bounds in fitted.items())
