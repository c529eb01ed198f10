"""SCHED_PREFILL_STEALS_DECODE from a log that tells batches of prefill and of decode apart (SGLang): many prefill
batches in a row, and one step of decoding between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.kv_cache import KV_FULL, thrown_out
from tailrace.diagnose.observed import Observed, Series
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["prefill_runs"]

Floats = NDArray[np.float64]
IN_A_ROW: Final = 5
RUNS: Final = 2
COVERED: Final = 0.5
"""Share of the time between two decode lines that the prefill batches between them take."""
CRAWL: Final = 1.0
"""Tokens a second and stream below which nobody calls it streaming."""
ALONE: Final = 0.3


class _Runs(NamedTuple):
    """Between decode lines in a row, by line."""

    counts: Floats
    tokens: Floats
    """Of one batch (median)."""
    seconds: Floats
    """Prefill time of each run."""
    between: Floats
    """Time between the decode lines (s); NaN without stamps."""
    running: Floats
    made: Floats
    kv: float
    rate: float
    batch: float
    first: str
    last: str


def prefill_runs(cause: Cause, observed: Observed) -> Finding | None:
    """Runs of prefill batches fill the time, and a stream makes less than a token a second meanwhile."""
    runs = max(_all(observed), key=lambda one: float(one.counts.sum()), default=None)
    if runs is None:
        return None
    pace = runs.made / np.maximum(runs.running, 1.0)
    usual, each = float(np.median(pace)), runs.batch / runs.rate
    count, took = float(np.median(runs.counts)), float(np.median(runs.seconds))
    covered = runs.seconds / runs.between
    known = np.isfinite(covered)
    if usual >= CRAWL or (known.any() and float(np.median(covered[known])) < COVERED):
        return None
    low, high = float(runs.running.min()), float(runs.running.max())
    rivals, missing, checked = [], [], [f"KV usage at most {runs.kv:.0%}"] if np.isfinite(runs.kv) else []
    if not np.isfinite(runs.kv):
        missing.append("KV usage (token usage) of the same lines")
    elif runs.kv >= KV_FULL:
        rivals.append("SCHED_KV_PREEMPTION")
    gone = len(thrown_out(observed))
    checked.append(f"{gone} lines of retraction")
    if gone:
        rivals.append("SCHED_KV_PREEMPTION")
    if runs.counts.size < RUNS:
        missing.append("a second run of prefill batches between decode lines")
    made = f"{float(runs.made.min()):.4g} to {float(runs.made.max()):.4g}"
    good = 2 ** max(8, int(np.floor(np.log2(max(0.25 * runs.rate, 256.0)))))
    return cause.finding(
        statement=f"Prefill batches starve decoding: between two decode lines lie {count:.0f} prefill batches of "
        f"{runs.batch:.0f} tokens, {each:.2f} s each and {took:.1f} s together at {runs.rate:.0f} tok/s; {low:.0f} to "
        f"{high:.0f} streams share {made} tok/s meanwhile, {usual:.2g} each.",
        evidence=[
            Evidence(
                f"{count:.0f} prefill batches in a row (median of {runs.counts.size} runs, at most "
                f"{float(runs.counts.max()):.0f})",
                f"{runs.first} to {runs.last}", "prefill_batches", count,
            ),
            Evidence(
                f"{runs.batch:.0f} / {runs.rate:.0f} tok/s = {each:.2f} s a batch; {count:.0f} x {each:.2f} s = "
                f"{took:.1f} s",
                "computed", "run_s", took, "s",
            ),
            Evidence(
                f"{low:.0f} to {high:.0f} running requests make {made} tok/s together: {usual:.2g} tok/s each",
                runs.last, "tok_s_per_stream", usual, "tok/s",
            ),
        ],
        explains_ms=took * 1e3,
        relation=f"{count:.0f} x {runs.batch:.0f} / {runs.rate:.0f} = {took:.1f} s between steps of decoding; "
        f"{float(np.median(runs.made)):.4g} / {float(np.median(runs.running)):.0f} = {usual:.2g} tok/s a stream",
        n=int(runs.counts.sum()),
        advice="Bound how many prefill batches may come in a row, or mix chunks of prefill into the steps of decoding "
        f"(SGLang: --enable-mixed-chunk, --chunked-prefill-size {good}: {good}/{runs.rate:.0f} = "
        f"{good / runs.rate:.2f} s; vLLM: chunked prefill with a smaller --max-num-batched-tokens), raise "
        "--schedule-conservativeness to admit less at once, or disaggregate prefill.",
        price="The first token of those who wait comes later, because decoding takes steps again.",
        verify="tailrace diagnose sglang.log",
        missing=missing,
        rivals=list(dict.fromkeys(rivals)),
        disproof_checked=checked,
    )  # fmt: skip


def _all(observed: Observed) -> list[_Runs]:
    out = []
    for tokens in observed.of_series("new_tokens", line="prefill"):
        labels = {key: value for key, value in tokens.labels.items() if key != "line"}

        def beside(name: str, line: str, labels: dict[str, str] = labels, one: Series = tokens) -> Series | None:
            found = observed.of_series(name, line=line, **labels)
            return next((item for item in found if item.place == one.place and item.lines is not None), None)

        made, running = beside("output_tok_s", "decode"), beside("running", "decode")
        if made is None or running is None or tokens.lines is None or len(made) != len(running):
            continue
        found = _runs(tokens, made, running, beside("prompt_tok_s", "prefill"), beside("kv_usage", "prefill"))
        if found is not None:
            out.append(found)
    return out


def _runs(tokens: Series, made: Series, running: Series, speed: Series | None, usage: Series | None) -> _Runs | None:
    if tokens.lines is None or made.lines is None:
        return None
    edges = made.lines
    place = np.searchsorted(edges, tokens.lines)
    timed = tokens.clock is not None and tokens.axis == "time"
    rates = speed.values if speed is not None and len(speed) == len(tokens) else np.full(len(tokens), np.nan)
    rows = []
    for k in range(1, edges.size):
        inside = np.flatnonzero(place == k)
        if inside.size < IN_A_ROW:
            continue
        spent = float(tokens.values[inside].sum())
        between = float(made.at[k] - made.at[k - 1]) if timed else float("nan")
        rate = float(np.nanmedian(rates[inside])) if np.isfinite(rates[inside]).any() else float("nan")
        if not rate > 0:
            span = float(tokens.at[inside[-1]] - tokens.at[inside[0]]) if timed else float("nan")
            rate = spent / span * (inside.size - 1) / inside.size if span > 0 else float("nan")
        if rate > 0:
            rows.append((inside.size, spent, spent / rate, between if between > 0 else float("nan"), k, rate))
    if not rows:
        return None
    counts, spent_, seconds, between_, ks, rates_ = (
        np.array(column, dtype=float) for column in zip(*rows, strict=True)
    )
    index = ks.astype(int)
    return _Runs(
        counts=counts,
        tokens=spent_,
        seconds=seconds,
        between=between_,
        running=running.values[index],
        made=made.values[index],
        kv=float(np.nanmax(usage.values)) if usage is not None and len(usage) else float("nan"),
        rate=float(np.median(rates_)),
        batch=float(np.median(tokens.values)),
        first=str(tokens.line_of(0)),
        last=str(made.line_of(int(index[-1]))),
    )
