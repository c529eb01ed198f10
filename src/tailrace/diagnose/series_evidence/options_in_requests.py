"""MIX_DECODING_OPTIONS from a table of requests: those that ask for several answers or beams are the slow ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.observed import Observed, Rows
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["options_in_requests"]

Floats = NDArray[np.float64]
LEAST: Final = 3
WORSE: Final = 1.3
ALIKE: Final = 1.3
"""Answers of both kinds are of one length, to this factor."""
BEYOND: Final = 1.3
"""So many times more than the sequences alone explain."""
_OPTION: Final = re.compile(
    r"^(?:best_?of|num_?beams|beams?|beam_?(?:width|size)|n_?(?:samples|completions|best)|num_return_sequences)$"
)


def options_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """Medians of requests with one sequence and with several, at answers of equal length."""
    for rows in observed.table("requests"):
        for name in rows.columns:
            found = _by(cause, rows, name) if _OPTION.match(name.lower()) else None
            if found is not None:
                return found
    return None


def _time(rows: Rows) -> tuple[str, Floats]:
    """(in words, ms): the time per token where it is told, which lengths of answers do not move; else the whole."""
    for words, names in (("a token", ("tpot_ms", "tpot")), ("", ("e2e_ms", "e2e"))):
        name = next((name for name in names if rows.has(name)), "")
        if name:
            return words, rows.numbers(name)
    return "", np.full(len(rows), np.nan)


def _by(cause: Cause, rows: Rows, name: str) -> Finding | None:
    asked = rows.numbers(name)
    per, took = _time(rows)
    known = np.isfinite(asked) & np.isfinite(took) & (took > 0)
    many, one = known & (asked > 1), known & (asked <= 1)
    if min(int(many.sum()), int(one.sum())) < LEAST:
        return None
    slow, fast = float(np.median(took[many])), float(np.median(took[one]))
    tokens = rows.numbers("output_tokens")
    lengths = [float(np.median(tokens[part & np.isfinite(tokens)])) if np.isfinite(tokens[part]).any() else float("nan")
               for part in (many, one)]  # fmt: skip
    even = bool(np.isfinite(lengths).all()) and max(lengths) <= ALIKE * max(min(lengths), 1.0)
    if slow < WORSE * fast or (np.isfinite(lengths).all() and not even):
        return None
    usual = float(np.median(asked[many]))
    place = str(rows.place) or "requests"
    words = f"{name} {usual:g}"
    shown = [f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in (slow, fast)]
    unit = f"ms {per}".strip()
    more = (
        f" More than the {usual:g} sequences explain: the option leaves a faster path as well, which one is not shown."
        if slow / fast > BEYOND * usual
        else ""
    )
    queue = rows.numbers("queue_ms") if rows.has("queue_ms") else rows.numbers("queue")
    waits = [float(np.nanmedian(queue[part])) for part in (many, one)] if np.isfinite(queue[many | one]).any() else []
    checked = ["answers are of one length in both kinds"] if even else []
    checked += [f"queue {waits[0]:.3g} and {waits[1]:.3g} ms (medians)"] if waits and np.isfinite(waits).all() else []
    return cause.finding(
        statement=f"Requests with {words} take {shown[0]} {unit} and those with one sequence {shown[1]} {unit} "
        f"(medians, {slow / fast:.3g} x): the decoding options differ, and each answer costs that much more "
        f"work.{more}",
        evidence=[
            Evidence(f"{words}: {shown[0]} {unit} (n = {int(many.sum())})", place, name, round(slow, 1), "ms"),
            Evidence(f"one sequence: {shown[1]} {unit} (n = {int(one.sum())})", place, "plain", round(fast, 1), "ms"),
        ],
        explains_ms=slow - fast if not per else None,
        relation=f"{slow:.4g} / {fast:.4g} = {slow / fast:.3g}",
        n=int(known.sum()),
        advice="Limit n, best_of, beams and logprobs at the gateway, or give requests that use them a lane of their "
        "own with a small running limit; count sequences, not requests, against max_num_seqs.",
        price="Requests with such options wait in their lane, or are refused.",
        verify=again(),
        missing=[] if even else ["the tokens of each answer: they must be alike in both kinds"],
        disproof_checked=checked,
    )
