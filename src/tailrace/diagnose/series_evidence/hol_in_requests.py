"""Short requests that wait behind long ones, in a table of requests: their times to the first token are alike."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Action, Evidence, Finding, Level
from tailrace.stats.quantiles import needed, supported
from tailrace.stats.rank_correlation import spearman

__all__ = ["Split", "hol_in_requests", "split_by_length"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
APART: Final = 3.0
"""Long prompts have at least so many times the tokens of short ones."""
LEAST: Final = 3
ALIKE: Final = 0.7
ALONG: Final = 0.6
"""Rank correlation of the short ones' time to the first token with the tokens ahead of them."""
WAITED: Final = 3.0
"""The short ones must be so many times slower than what their own tokens take at the rate seen."""
GAP: Final = 1.5
"""Between the longest short prompt and the shortest long one: lengths without a hole are one class."""
LEAST_MS: Final = 200.0
"""Without stamps: the slowest short ones are so much slower than the fastest, or nobody waited …"""
LATE_MS: Final = 2000.0
"""… unless even the fastest of them is so late that all must have."""


class Split(NamedTuple):
    """Requests in two classes by their prompts."""

    short: Mask
    long: Mask
    short_tokens: float
    long_tokens: float


def split_by_length(tokens: Floats) -> Split | None:
    """At the widest gap (as a ratio) between neighbours; `None` where none is wide, or a class has below three."""
    known = np.unique(tokens[np.isfinite(tokens) & (tokens > 0)])
    ratios = known[1:] / known[:-1]
    if not ratios.size or float(ratios.max()) < GAP:
        return None
    place = int(np.argmax(ratios))
    with np.errstate(invalid="ignore"):
        short, long = tokens <= known[place], tokens >= known[place + 1]
    if min(short.sum(), long.sum()) < LEAST:
        return None
    low, high = float(np.median(tokens[short])), float(np.median(tokens[long]))
    return Split(short, long, low, high) if high >= APART * low else None


def hol_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """Of the tables of requests the first in which short prompts wait for long ones."""
    for rows in observed.table("requests"):
        found = _of(cause, rows)
        if found is not None:
            return found
    return None


def _of(cause: Cause, rows: Rows) -> Finding | None:
    tokens, ttft = rows.numbers("prompt_tokens"), rows.numbers("ttft_ms")
    ok = np.array([status == "ok" for status in rows.texts("status")], dtype=bool)
    fine = ok & np.isfinite(ttft) & (ttft >= 0)
    split = split_by_length(np.where(fine, tokens, np.nan))
    if split is None or len(set(rows.texts("arm"))) > 1:
        return None
    short, long = ttft[split.short], ttft[split.long]
    p = 0.99 if supported(0.99, min(short.size, long.size)) else 1.0
    slow_short, slow_long = float(np.quantile(short, p)), float(np.quantile(long, p))
    missing = []
    ahead = rate = drained = None
    if rows.has("t_send_ms"):
        ahead = _tokens_ahead(rows, fine)
        rate, drained = _drain(rows, fine)
    else:
        missing.append("when each request was sent, to see how much was ahead of the short ones")
        quick = float(short.min())
        if quick < LATE_MS and slow_short < max(WAITED * quick, quick + LEAST_MS):
            return None  # none of the short ones waited
    alike = slow_short >= ALIKE * slow_long
    along = _rank(ttft[split.short], ahead[split.short]) if ahead is not None else None
    if not alike and (along is None or along < ALONG):
        return None
    alone_ms = split.short_tokens / rate * 1e3 if rate else None
    if alone_ms is not None and float(np.median(short)) < WAITED * alone_ms:
        return None  # the short ones are as fast as their own tokens let them be
    if not alike and ahead is not None and rate:
        expected = float(np.median(ahead[split.short])) / rate * 1e3
        if float(np.median(short)) < 0.5 * expected:
            return None  # they overtake what is ahead of them
    name = "max" if p == 1.0 else "p99"
    return _found(
        cause, rows, split, (short, long), (slow_short, slow_long), name, rate, drained, alone_ms, along, missing
    )


def _tokens_ahead(rows: Rows, fine: Mask) -> Floats:
    """Prompt tokens sent before each request that had no first token yet when it was sent, its own left out."""
    send, first = rows.numbers("t_send_ms"), rows.numbers("t_first_ms")
    tokens = np.nan_to_num(rows.numbers("prompt_tokens"), nan=0.0)
    fine = fine & np.isfinite(send)
    out = np.zeros(len(rows))
    order = np.argsort(send[fine], kind="stable")
    index = np.flatnonzero(fine)[order]
    begun = send[index]
    done = np.argsort(first[index], kind="stable")
    sent_tokens = np.concatenate([[0.0], np.cumsum(tokens[index])])
    done_at = first[index][done]
    done_tokens = np.concatenate([[0.0], np.cumsum(tokens[index][done])])
    before = np.arange(index.size)
    finished = np.searchsorted(done_at, begun, side="right")
    out[index] = sent_tokens[before] - done_tokens[np.minimum(finished, before)]
    return np.maximum(out, 0.0)


def _drain(rows: Rows, fine: Mask) -> tuple[float | None, tuple[float, float] | None]:
    """(prompt tokens a second while prompts were computed, (tokens, seconds))."""
    send, first = rows.numbers("t_send_ms")[fine], rows.numbers("t_first_ms")[fine]
    tokens = rows.numbers("prompt_tokens")[fine]
    seconds = float(first.max() - send.min()) / 1e3
    slowest = float((first - send).max()) / 1e3
    if float(send.max() - send.min()) / 1e3 < 0.1 * slowest:
        seconds = slowest  # all came at once: the last one's wait is the time in which all were computed
    whole = float(np.nansum(tokens))
    return (whole / seconds, (whole, seconds)) if seconds > 0 else (None, None)


def _rank(one: Floats, other: Floats) -> float | None:
    """Spearman's correlation; `None` for too few requests, or where one of them does not vary."""
    if one.size < LEAST + 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return spearman(one, other)


def _found(
    cause: Cause,
    rows: Rows,
    split: Split,
    times: tuple[Floats, Floats],
    slow: tuple[float, float],
    name: str,
    rate: float | None,
    drained: tuple[float, float] | None,
    alone_ms: float | None,
    along: float | None,
    missing: list[str],
) -> Finding:
    short, long = times
    n = short.size + long.size
    place = str(rows.place)
    many, few = f"{split.long_tokens:.0f}", f"{split.short_tokens:.0f}"
    a, b = f"{slow[0]:.0f}", f"{slow[1]:.0f}"
    evidence = [
        Evidence(
            text=f"TTFT {name} of {short.size} short prompts ({few} tokens): {a} ms",
            source=place,
            name="ttft_short",
            value=slow[0],
            unit="ms",
        ),
        Evidence(
            text=f"TTFT {name} of {long.size} long prompts ({many} tokens): {b} ms",
            source=place,
            name="ttft_long",
            value=slow[1],
            unit="ms",
        ),
    ]
    relation = [f"short {name} {a} ms / long {name} {b} ms = {slow[0] / max(slow[1], 1e-9):.2f}"]
    if drained is not None and rate is not None:
        relation.append(f"{drained[0]:.0f} tokens / {drained[1]:.2f} s = {rate:.0f} tok/s")
        evidence.append(
            Evidence(
                text=f"{drained[0]:.0f} prompt tokens drained in {drained[1]:.2f} s: {rate:.0f} tok/s",
                source=place,
                name="drain_rate",
                value=rate,
                unit="tok/s",
            )
        )
    if along is not None:
        evidence.append(
            Evidence(
                text=f"the short ones' TTFT follows the tokens ahead of them (rank correlation {along:.2f})",
                source=place,
                name="rank_correlation",
                value=along,
            )
        )
    alone = f"{alone_ms:.0f}" if alone_ms is not None else ""
    if alone:
        evidence.append(
            Evidence(
                text=f"alone, {few} tokens take {alone} ms at that rate",
                source=place,
                name="ttft_alone",
                value=alone_ms,
                unit="ms",
            )
        )
    size = f"n = {n}"
    if name == "max":
        size += f", so the p99 is the maximum ({needed(0.99)} samples a class would support one)"
    evidence.append(Evidence(text=size, source=place, name="n", value=float(n)))
    shorter = _shorter(
        split, rate, float(np.nansum(rows.numbers("prompt_tokens"))), int(long.size), float(np.median(long))
    )
    return cause.finding(
        statement=f"Short prompts wait behind long ones: {short.size} short prompts of {few} tokens need as long for "
        "their "
        f"first token ({name} {a} ms) as {long.size} long ones of {many} ({b} ms)"
        + (f"; alone they would take {alone} ms." if alone else "."),
        evidence=evidence,
        explains_ms=float(np.median(short)) - (alone_ms or 0.0),
        relation="; ".join(relation),
        n=n,
        advice="Give long prompts a lane of their own (Tailrace: `match: {min_prompt_tokens: …}` with few running), "
        "or take "
        "the shortest first with a bounded wait for the long ones (`order: shortest_first`; vLLM: "
        "`--scheduling-policy priority`, `--long-prefill-token-threshold`, chunked prefill), and limit inputs. Context "
        f"engineering: {shorter}",
        price="Long prompts wait longer: bound their wait. A trimmed context may cost answers' quality.",
        verify=(
            "tailrace bench http://localhost:8000 --rate 2 --mix 'short:0.9,long:0.1' --duration 120 "
            "--out after.run && tailrace compare before.run after.run"
        ),
        missing=missing,
        disproof_checked=[
            f"the short ones' TTFT is not independent of the queue ahead: correlation {along:.2f}"
            if along is not None
            else "how the short ones' TTFT follows the queue could not be computed",
        ],
        action=Action.TUNE,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _shorter(split: Split, rate: float | None, whole: float, longs: int, ttft_ms: float) -> str:
    """What half of the long prompts' tokens would change, at the same rate."""
    if rate is None:
        return shorter_prompts(tokens=split.long_tokens, ttft_ms=ttft_ms)
    half = split.long_tokens / 2
    return (
        shorter_prompts(tokens=split.long_tokens, rate=rate).removesuffix(".")
        + f", and all of this drains in {(whole - longs * half) / rate:.3g} s instead of {whole / rate:.3g} s."
    )
