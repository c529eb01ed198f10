"""Figures of a serving layer with instances and a batcher (Triton and its like), whatever they were read from."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
import numpy as np

from tailrace.diagnose.arms.asked import as_share, condition, figure, number_stated, told
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Evidence

__all__ = ["Known", "ServerFigures", "server_figures"]


class Known(NamedTuple):
    """A number and where it stands."""

    value: float
    evidence: Evidence


class ServerFigures(NamedTuple):
    """What is known of one model; times in ms, shares 0 to 1."""

    instances: Known | None
    executing: Known | None
    waiting: Known | None
    gpu: Known | None
    queue: Known | None
    compute: Known | None
    delay: Known | None
    """How long the batcher waits for a fuller batch."""
    load: Known | None
    """Requests in flight of the measurement (1: no load)."""
    rate: Known | None


def server_figures(observed: Observed, *, busiest: bool = False) -> ServerFigures:
    """The figures, from arms first, then statements, then gauges. `busiest`: of several arms the one in which requests
    wait the longest stands before the others.
    """
    if busiest:
        waits = [figure(arm, "queue", "waiting", stats=("p50", "mean", "", "p99")) for arm in observed.arms]
        order = sorted(
            range(len(waits)), key=lambda place: -(item.value if (item := waits[place]) is not None else -1.0)
        )
        observed = msgspec.structs.replace(observed, arms=[observed.arms[place] for place in order])
    return ServerFigures(
        instances=_setting(observed, r"\binstances?\b(?! ?name)|instance (?:count|group)|model copies")
        or _condition(observed, r"\binstances?\b|instance count"),
        executing=_figure(observed, "running")
        or _setting(observed, r"^(?:executing|running|in execution|busy instances)$")
        or _series(observed, "running"),
        waiting=_figure(observed, "waiting")
        or _setting(observed, r"^(?:waiting|queued|pending|queue depth|queue size)\b")
        or _series(observed, "waiting"),
        gpu=_figure(observed, "gpu_util")
        or _share(observed, r"gpu util|gpu busy|device util")
        or _series(observed, "gpu_util"),
        queue=_figure(observed, "queue")
        or _duration(observed, r"queue (?:time|duration|mean|us|ms|p50|p95)|^queue")
        or _of_requests(observed, "queue_ms"),
        compute=_figure(observed, "compute") or _duration(observed, r"compute|inference time|execution time"),
        delay=_duration(
            observed,
            r"(?:max )?queue delay|batch(?:er|ing)? (?:delay|window|timeout|wait)|batch delay|preferred delay|"
            r"max batch delay",
        )
        or _worded(observed, r"queue[_ ]delay|batch\w*[_ ](?:delay|window|timeout)"),
        load=_condition(observed, r"\bconcurrency\b|in flight")
        or _setting(observed, r"^(?:request |max )?concurrency$"),
        rate=_figure(observed, "req_s") or _setting(observed, r"^(?:req s|rps|throughput|infer s|offered rps)$"),
    )


def _of_requests(observed: Observed, column: str) -> Known | None:
    """The median over a table of requests."""
    for rows in observed.table("requests"):
        values = rows.numbers(column)
        values = values[np.isfinite(values)]
        if values.size:
            middle = float(np.median(values))
            words = f"{column.removesuffix('_ms')} {number(middle, 'ms')} (median of {values.size} requests)"
            return Known(middle, Evidence(words, str(rows.place), column, middle, "ms"))
    return None


def _figure(observed: Observed, quantity: str) -> Known | None:
    for arm in observed.arms:
        found = figure(arm, quantity, stats=("p50", "mean", "", "p95", "p99", "max"))
        if found is not None:
            return Known(found.value, evidence_of(arm, found))
    return None


def _condition(observed: Observed, words: str) -> Known | None:
    for arm in observed.arms:
        found = condition(arm, words)
        if found is not None:
            return Known(
                found,
                Evidence(
                    f"{arm.name}: {re.sub(r'[^a-z ]', '', words.split('|', maxsplit=1)[0])[1:].strip()} {found:g}",
                    str(arm.place) or "form",
                    "",
                    found,
                ),
            )
    return None


def _setting(observed: Observed, words: str) -> Known | None:
    found = number_stated(observed, words)
    return None if found is None or found.number is None else Known(found.number, evidence_of_setting(found))


def _share(observed: Observed, words: str) -> Known | None:
    found = number_stated(observed, words)
    if found is None or found.number is None:
        return None
    share = as_share(found.number, found.unit)
    return Known(share, evidence_of_setting(found))


def _duration(observed: Observed, words: str) -> Known | None:
    """A stated time; a name that carries no unit is a question, not a value."""
    for item in told(observed):
        name = item.name.replace("_", " ")
        if item.number is None or not re.search(words, name, re.IGNORECASE):
            continue
        unit = item.unit or next(
            (
                end
                for end in ("us", "ms", "s")
                if re.search(rf"\b{end}$|microseconds$" if end == "us" else rf"\b{end}$", name)
            ),
            "",
        )
        ms = in_unit(item.number, unit, "ms") if unit else None
        if ms is not None:
            return Known(ms, Evidence(f"{name}: {number(ms, 'ms')}", str(item.place) or "form", item.name, ms, "ms"))
    return None


def _worded(observed: Observed, words: str) -> Known | None:
    for arm in observed.arms:
        for value in arm.values.values():
            if re.search(words, f"{value.label} {value.quantity}", re.IGNORECASE):
                ms = in_unit(value.value, value.unit, "ms") if value.unit else None
                if ms is not None:
                    return Known(ms, evidence_of(arm, value))
    return None


def _series(observed: Observed, name: str) -> Known | None:
    for series in observed.of_series(name):
        values = series.values[np.isfinite(series.values)]
        if values.size:
            middle = float(np.median(values))
            return Known(
                middle,
                Evidence(
                    f"{name} {number(middle)} (median of {values.size} readings)", str(series.place), name, middle
                ),
            )
    return None
