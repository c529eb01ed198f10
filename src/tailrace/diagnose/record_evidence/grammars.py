"""MIX_STRUCTURED_OUTPUT: requests with a grammar are slow, or make the others slow."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.equal_work import pace_of
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.stop_pattern import StopKind, stop_pattern
from tailrace.diagnose.window import Window, tail_of
from tailrace.model.finding import Evidence, Finding

__all__ = ["grammar_in_records"]

Floats = NDArray[np.float64]
LEAST: Final = 8
SLOWER: Final = 1.5
LEAST_MS: Final = 50.0
EQUAL: Final = 1.3
PACE: Final = 1.25
EXCLUSIVE: Final = 0.6


class _Found(NamedTuple):
    explains: float
    facts: list[Evidence]
    relation: str
    statement: str
    n: int


def grammar_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Their own first tokens; their own pace; the stops that begin with them."""
    if cause.cannot_run(evidence):
        return None
    window = evidence.now
    grammar = window.done.column("grammar").astype(bool)
    ways = (_first_tokens(window, grammar), _stops(window, grammar), _pace(window, grammar))
    found = max((way for way in ways if way is not None), key=lambda way: way.explains, default=None)
    if found is None or not cause.carries(evidence, found.explains):
        return None
    share = float(grammar.mean())
    return cause.finding(
        statement=found.statement,
        evidence=[
            *found.facts,
            Evidence(
                f"{share:.0%} of the requests ask for structured output", "record:grammar", "share", round(share, 4)
            ),
        ],
        explains_ms=found.explains,
        relation=found.relation,
        n=found.n,
        advice="Keep compiled grammars (equal schemas compile once), compile off the path of the engine's steps, "
        "try "
        "the other backend (vLLM --structured-outputs-config.backend xgrammar|guidance, SGLang --grammar-backend), "
        "simplify the schema, and give such requests a lane of their own.",
        price="A lane of their own makes them wait longer; another backend may support fewer schemas.",
        verify=evidence.verify_command + "  # the same requests without response_format: equal",
        disproof_checked=[found.relation],
    )


def _peers(window: Window, grammar: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Plain requests whose prompts are about as long as theirs."""
    known = ~np.isnan(window.tokens)
    theirs = window.tokens[grammar & known]
    if not theirs.size:
        return ~grammar
    low, high = np.quantile(theirs, (0.05, 0.95))
    near = ~grammar & known & (window.tokens >= low / 1.5) & (window.tokens <= high * 1.5)
    return near if near.sum() >= LEAST else ~grammar


def _first_tokens(window: Window, grammar: NDArray[np.bool_]) -> _Found | None:
    ttft = window.done.ms("ttft")
    known = ~np.isnan(ttft)
    mine, others = grammar & known, _peers(window, grammar) & known
    if min(mine.sum(), others.sum()) < LEAST:
        return None
    slow, plain = (float(np.median(ttft[rows])) for rows in (mine, others))
    high, usual = (float(np.quantile(ttft[rows], 0.9)) for rows in (mine, others))
    # A cache of compiled grammars leaves the median as it was: then the slow ones among them tell.
    if not (slow >= SLOWER * plain and slow - plain >= LEAST_MS) and not (
        high >= 2.0 * usual and high - usual >= 2 * LEAST_MS
    ):
        return None
    gaps = pace_of(window)
    ratio = _ratio(gaps[grammar], gaps[~grammar])
    if ratio is not None and ratio > EQUAL:
        return None
    excess = np.where(mine, np.maximum(ttft - plain, 0.0), 0.0)
    explains = window.in_tail(np.minimum(excess, window.lost.total))
    tail = window.tail
    exclusive = float(grammar[tail].mean()) if tail.size else 0.0
    if exclusive < max(EXCLUSIVE, 1.2 * float(grammar[window.interactive].mean())):
        return None
    itl = f", ITL x {ratio:.2f}" if ratio is not None else ""
    return _Found(
        explains,
        [
            Evidence(
                f"TTFT p50 {slow:.0f} ms, p90 {high:.0f} ms with a grammar (n = {int(mine.sum())}); {plain:.0f} ms and "
                f"{usual:.0f} ms without one at about equal prompts (n = {int(others.sum())})",
                "record:grammar, record:ttft_ns",
                "grammar_ttft_ms",
                round(slow, 1),
                "ms",
            ),
            Evidence(
                f"{exclusive:.0%} of the slowest requests have a grammar", "record:grammar", "tail", round(exclusive, 4)
            ),
            *(
                [
                    Evidence(
                        f"their usual gap is x {ratio:.2f} that of the others",
                        "record:chunk_gap_p50_ns",
                        "gap_ratio",
                        round(ratio, 3),
                    )
                ]
                if ratio is not None
                else []
            ),
        ],
        f"TTFT with / without a grammar = {slow:.0f} / {plain:.0f} ms at p50, {high:.0f} / {usual:.0f} ms at p90{itl}",
        f"Only requests for structured output wait for their first token: p90 {high:.0f} ms with a grammar, "
        f"{usual:.0f} ms without one; {exclusive:.0%} of the slowest requests have one.",
        int(mine.sum()),
    )


def _stops(window: Window, grammar: NDArray[np.bool_]) -> _Found | None:
    if not window.stalls.row.size:
        return None
    pattern = stop_pattern(window)
    if pattern.kind is not StopKind.GRAMMAR:
        return None
    used = pattern.triggers.rows[pattern.triggers.rows >= 0]
    with_one = float(window.every.column("grammar").astype(bool)[used].mean())
    explains = window.in_tail(pattern.explains)
    usual = float(grammar.mean())
    middle = float(np.median(pattern.ms))
    return _Found(
        explains,
        [
            Evidence(
                f"{pattern.n} stops that all streams share, {middle:.0f} ms each (median), outside every long prefill",
                "timeline",
                "stops",
                float(pattern.n),
            ),
            Evidence(
                f"{with_one:.0%} of them begin when a request with a grammar arrives; {usual:.0%} of all have one",
                "timeline, record:grammar",
                "triggered",
                round(with_one, 4),
            ),
        ],
        f"stops that begin with a grammar / stops = {with_one:.0%}, grammar share {usual:.0%}",
        f"Requests for structured output stop everybody: {pattern.n} times the streams stand still together, and "
        f"{with_one:.0%} of these stops begin when a request with a grammar arrives.",
        pattern.n,
    )


def _pace(window: Window, grammar: NDArray[np.bool_]) -> _Found | None:
    gaps = pace_of(window)
    ratio = _ratio(gaps[grammar], gaps[~grammar])
    if ratio is None or ratio < PACE:
        return None
    tokens = np.nan_to_num(window.done.column("output_tokens"), nan=0.0)
    plain, mine = float(np.nanmedian(gaps[~grammar])), float(np.nanmedian(gaps[grammar]))
    slow = tail_of(np.nan_to_num(gaps, nan=0.0))
    explains = float(np.where(grammar, (mine - plain) * tokens, 0.0)[slow].mean())
    return _Found(
        explains,
        [
            Evidence(
                f"a token takes {mine:.1f} ms with a grammar, {plain:.1f} ms without one (medians)",
                "record:grammar, record:chunk_gap_p50_ns",
                "grammar_pace_ms",
                round(mine, 2),
                "ms",
            )
        ],
        f"gap with / without a grammar = {mine:.1f} / {plain:.1f} ms = {ratio:.2f}",
        f"Tokens of structured output are slow: {mine:.1f} ms each with a grammar, {plain:.1f} ms without one at the "
        "same time.",
        int(grammar.sum()),
    )


def _ratio(a: Floats, b: Floats) -> float | None:
    a, b = a[~np.isnan(a)], b[~np.isnan(b)]
    if min(a.size, b.size) < LEAST or float(np.median(b)) <= 0:
        return None
    return float(np.median(a) / np.median(b))
