"""Stops that all streams share and that are as long as one prefill chunk, in series: SCHED_PREFILL_STEALS_DECODE."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tailrace.diagnose.arm_evidence.steals_by_chunk import RATE
from tailrace.diagnose.arms.asked import number_stated
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.engine_settings import step_budget
from tailrace.diagnose.kv_cache import KV_FULL
from tailrace.diagnose.log_evidence.prefill import prefill_advice
from tailrace.diagnose.observed import Observed, Place, Setting
from tailrace.diagnose.series_evidence.shared_gaps import at_times, gaps_of_one, shared_gaps
from tailrace.model.finding import Evidence, Finding

__all__ = ["chunk_long_stops"]

FITS: Final = 0.2
LEAST: Final = 2
ACTIVE: Final = re.compile(r"prefill|prompt_tok_s|new_tokens|prompt_tokens_in", re.IGNORECASE)
INSIDE: Final = 0.8
"""Share of the stops at which a prompt is computed, where a column tells."""


def chunk_long_stops(cause: Cause, observed: Observed) -> Finding | None:
    """Stop = step budget / prefill rate; a column that tells of prefills must be up at the stops and down elsewhere."""
    gaps = shared_gaps(observed) or gaps_of_one(observed)
    told = _longest_prefill(observed)
    budget, rate = step_budget(observed), number_stated(observed, RATE) or told[0]
    if gaps is None or gaps.at.size < LEAST:
        return None
    step = None
    if budget is not None and rate is not None and budget.number and rate.number:
        step = 1e3 * budget.number / rate.number
    length = float(np.median(gaps.length_ms))
    fits = step is not None and abs(length / step - 1.0) <= FITS
    inside = _inside(observed, gaps.at)
    if (step is not None and not fits) or (inside is not None and inside < INSIDE) or (not fits and inside is None):
        return None
    if gaps.streams == 1 and not fits:
        return None  # one stream that stops may stop for itself
    prompt = number_stated(observed, r"^(?:long )?prompt tokens|isl|input tokens") or told[1]
    rivals, missing, checked = _kv(observed)
    shared = f" common to all {gaps.streams} streams" if gaps.streams > 1 else ""
    evidence = [
        Evidence(
            f"{gaps.at.size} stops{shared}, {gaps.length_ms.min():.0f} to "
            f"{gaps.length_ms.max():.0f} ms long, {length:.0f} ms (median); usual gap {gaps.usual_ms:.0f} ms",
            gaps.line, "stops", float(gaps.at.size),
        )
    ]  # fmt: skip
    relation = f"stops of {length:.0f} ms"
    if step is not None and budget is not None and rate is not None and budget.number and rate.number:
        relation = f"{budget.number:g} / {rate.number:g} = {step / 1e3:.2f} s; seen {length / 1e3:.2f} s"
        evidence.append(
            Evidence(
                f"{budget.name} {budget.number:g} at {rate.number:g} tok/s: {step / 1e3:.2f} s a chunk",
                str(budget.place) or "form", "chunk_ms", round(step, 1), "ms",
            )
        )  # fmt: skip
        if prompt is not None and prompt.number:
            chunks, whole = prompt.number / budget.number, prompt.number / rate.number
            evidence.append(
                Evidence(
                    f"a prompt of {prompt.number:g} tokens is {chunks:.2f} chunks and takes {whole:.1f} s",
                    str(prompt.place) or "form", "chunks", round(chunks, 2),
                )
            )  # fmt: skip
    else:
        missing.append("the step's token budget and the prefill rate (stop = budget / rate)")
    if gaps.streams == 1:
        missing.append("a second stream: whether it stops at the same moments")
    if inside is not None:
        checked.append(f"{inside:.0%} of the stops lie where a prompt is computed, and no others do")
    n = int(gaps.at.size)
    return cause.finding(
        statement=("The stream that was watched stands" if gaps.streams == 1 else f"All {gaps.streams} streams stand")
        + f" still for {length / 1e3:.2f} s at a time ({n} stops)"
        + (
            f", as long as one prefill chunk takes ({step / 1e3:.2f} s): a prompt in prefill takes the whole step."
            if step is not None
            else ", whenever a prompt is computed: its prefill takes the whole step."
        ),
        evidence=evidence,
        explains_ms=length - gaps.usual_ms,
        relation=relation,
        n=n,
        advice=prefill_advice(
            budget,
            rate.number if rate is not None and rate.number else 2048e3 / max(length, 1.0),
            prompt.number if prompt is not None else None,
        ),
        price="The first token of long prompts comes later, because each step computes less of them.",
        verify=(
            "tailrace bench http://localhost:8000 --mix 'short:0.9,long:0.1' --rate 5 --duration 60 "
            "--out after.run && tailrace diagnose after.run"
        ),
        missing=missing,
        rivals=rivals,
        disproof_checked=checked,
    )


def _longest_prefill(observed: Observed) -> tuple[Setting | None, Setting | None]:
    """(prefill rate, prompt tokens) of the longest prompt that an engine's log times; `None` where it times none."""
    best: tuple[float, float, Place] | None = None
    for rows in observed.table("requests"):
        took = rows.numbers("prefill") if rows.has("prefill") else rows.numbers("prefill_ms")
        tokens = rows.numbers("prompt_tokens") - np.nan_to_num(rows.numbers("cached_tokens"), nan=0.0)
        for row in np.flatnonzero(np.isfinite(took) & (took > 0) & (tokens > 0)):
            if best is None or tokens[row] > best[0]:
                best = float(tokens[row]), float(took[row]), rows.line_of(int(row))
    if best is None:
        return None, None
    tokens_, took_, place = best
    return (
        Setting(name="prefill_tok_s", value=round(1e3 * tokens_ / took_, 1), unit="tok/s", place=place),
        Setting(name="prompt_tokens", value=tokens_, unit="tokens", place=place),
    )


def _inside(observed: Observed, at: np.ndarray) -> float | None:
    """Share of the stops at which a column of prefill is up; `None` where no column tells, or it never changes."""
    axis = next((item for item in observed.of_series("chunk_gap") if item.labels.get("stream")), None)
    if axis is None:
        return None
    for series in observed.series:
        if not ACTIVE.search(series.name) or series.axis != axis.axis or len(series) < LEAST:
            continue
        up = np.nan_to_num(at_times(series, axis), nan=0.0) > 0
        stops = np.isin(axis.at, at)
        if up.all() or not up.any() or not stops.any():
            continue
        return float(up[stops].mean()) if float(up[~stops].mean()) < INSIDE else 0.0
    return None


def _kv(observed: Observed) -> tuple[list[str], list[str], list[str]]:
    """(rivals, missing, checked): a full cache stops streams as well."""
    series = [float(np.nanmax(item.values)) for item in observed.of_series("kv_usage") if len(item)]
    stated = next(
        (item for item in observed.settings if re.search(r"kv.*(?:usage|util|pct)|^kv$|token_usage", item.name)), None
    )
    if stated is not None:
        values = stated.value if isinstance(stated.value, list) else [stated.value]
        series += [
            float(value) / (100.0 if float(value) > 1.0 or stated.unit == "%" else 1.0)
            for value in values
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
    if not series:
        return [], ["KV usage or the preemption counter of that window"], []
    top = max(series)
    return (["SCHED_KV_PREEMPTION"] if top >= KV_FULL else []), [], [f"KV usage at most {top:.0%}"]
