"""MIX_STRUCTURED_OUTPUT from a series: while requests with a grammar are there the device idles and tokens are few."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arm_evidence.grammar_on_arms import ADVICE, GRAMMAR, PRICE
from tailrace.diagnose.limits import IDLE
from tailrace.diagnose.observed import Observed, Series
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["grammar_in_series"]

LEAST: Final = 2
"""Readings of either kind."""
FELL: Final = 0.5
"""Of the throughput without grammars, at the most: less than half the device's work is done."""
_TIME: Final = re.compile(r"time|latency|ttft|compile|_ms|cache", re.IGNORECASE)


def grammar_in_series(cause: Cause, observed: Observed) -> Finding | None:
    """Readings with grammar requests against readings without, of one file."""
    for asked in observed.series:
        if not GRAMMAR.search(asked.name) or _TIME.search(asked.name):
            continue
        util = _beside(observed, asked, "gpu_util")
        made = _beside(observed, asked, "output_tok_s")
        running = _beside(observed, asked, "running")
        if util is None:
            continue
        known = np.isfinite(asked.values) & np.isfinite(util.values)
        with_, without = known & (asked.values > 0), known & (asked.values <= 0)
        if min(int(with_.sum()), int(without.sum())) < LEAST:
            continue
        idle, busy = (float(np.median(util.values[part])) for part in (with_, without))
        if not (idle <= IDLE and busy >= 2 * idle) or (running is not None and not _middle(running, with_) > 0):
            continue
        rates = [] if made is None else [_middle(made, part) for part in (without, with_)]
        if rates and not (rates[0] > 0 and rates[1] <= FELL * rates[0]):
            continue
        fell = f", throughput {rates[0]:,.0f} -> {rates[1]:,.0f} tok/s" if rates else ""
        name = asked.name.replace("_", " ")
        place = str(asked.line_of(int(np.flatnonzero(with_)[0])))
        return cause.finding(
            statement=f"While requests with a grammar are there ({name} {np.nanmedian(asked.values[with_]):g}) the "
            f"device is busy {idle:.0%} of the time, without them {busy:.0%}{fell}: the grammar (structured output) "
            "is worked on while the device waits.",
            evidence=[
                Evidence(f"GPU {idle:.0%} with {name}, {busy:.0%} without", place, "gpu_util", idle, "share"),
                *(
                    [Evidence(f"{rates[0]:.0f} -> {rates[1]:.0f} tok/s", place, "output_tok_s", rates[1])]
                    if rates
                    else []
                ),
            ],
            explains_ms=None,
            relation=f"GPU {busy:.0%} -> {idle:.0%} with {name}"
            + (f"; {rates[1]:.4g} / {rates[0]:.4g} = {rates[1] / rates[0]:.2f}" if rates else ""),
            n=int(known.sum()),
            advice=f"{ADVICE}.",
            price=PRICE,
            verify="tailrace diagnose series.csv",
            missing=["TTFT of requests with a grammar and of plain ones at the same time"],
            disproof_checked=["the device is busy while no grammar is there"],
        )
    return None


def _middle(series: Series, at: NDArray[np.bool_]) -> float:
    """The median of the readings that are known; NaN where none is."""
    values = series.values[at & np.isfinite(series.values)]
    return float(np.median(values)) if values.size else float("nan")


def _beside(observed: Observed, asked: Series, name: str) -> Series | None:
    return next(
        (one for one in observed.of_series(name) if one.place.source == asked.place.source and len(one) == len(asked)),
        None,
    )
