"""What an engine says of each finished request, in its log (TGI, TEI) or its spans: time in the queue, before it, and
requests with a grammar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Observed, Rows
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["grammar_in_served", "preprocess_in_served", "queue_in_served"]

LEAST: Final = 10
FEWEST: Final = 3
"""Traces: few are kept, and those for being slow."""
SHARE: Final = 0.5
"""Of the whole time: a request that waited longer than this was not served slowly."""
TIMES: Final = 3.0
LEAST_MS: Final = 100.0
CLEAR_MS: Final = 1000.0
"""So far apart two of either kind are no chance."""
EVEN: Final = 1.3


def _tables(observed: Observed) -> list[Rows]:
    """Logs of finished requests with their time in the queue; no table of a load generator."""
    return [rows for rows in observed.table("requests") if rows.has("queue") and rows.has("e2e")] + [
        _of_spans(rows) for rows in observed.table("spans") if rows.has("queue_ms") and rows.has("e2e_ms")
    ]


def _of_spans(rows: Rows) -> Rows:
    """The engine's spans as finished requests, under the names that its log has."""
    chosen = np.isfinite(rows.numbers("queue_ms")) & np.isfinite(rows.numbers("e2e_ms"))
    columns = {ours: rows.numbers(theirs)[chosen] for ours, theirs in (("queue", "queue_ms"), ("e2e", "e2e_ms"))}
    lines = None if rows.lines is None else rows.lines[chosen]
    return Rows(kind="requests", columns=columns, clock=rows.clock, lines=lines, place=rows.place)


def queue_in_served(cause: Cause, observed: Observed) -> Finding | None:
    """More than half of the slow requests' time is queue, for requests of every kind."""
    for rows in _tables(observed):
        queue, whole = rows.numbers("queue"), rows.numbers("e2e")
        known = ~np.isnan(queue) & (whole > 0)
        least = FEWEST if rows.has("queue") and not rows.has("compute") else LEAST
        if known.sum() < least or grammar_in_served(cause, observed) is not None:
            continue
        slow = np.flatnonzero(known)[np.argsort(whole[known])[-max(1, int(known.sum()) // 10) :]]
        share = float(queue[slow].sum() / whole[slow].sum())
        median = float(np.median(queue[known]))
        if share < SHARE or float(queue[slow].mean()) < LEAST_MS:
            continue
        top = int(slow[-1])
        count = int(known.sum())
        return cause.finding(
            statement=f"Requests wait before they are computed: {share:.0%} of the slowest requests' time is queue "
            f"({queue[top]:,.0f} of {whole[top]:,.0f} ms in the worst).",
            evidence=[
                Evidence(
                    f"queue {queue[top]:,.0f} ms of {whole[top]:,.0f} ms",
                    str(rows.line_of(top)),
                    "queue",
                    float(queue[top]),
                    "ms",
                ),
                Evidence(
                    f"{share:.0%} of the time of the slowest {slow.size} is queue",
                    rows.place.source,
                    "queue_share",
                    share,
                ),
                Evidence(f"median queue {median:,.0f} ms (n = {count})", rows.place.source, "queue_p50", median, "ms"),
            ],
            explains_ms=float(queue[slow].mean()),
            relation=f"{queue[slow].sum():,.0f} / {whole[slow].sum():,.0f} ms = {share:.0%} > {SHARE:.0%}",
            n=count,
            advice="First the limits (vLLM --max-num-seqs, TGI --max-batch-total-tokens and --max-concurrent-requests, "
            "TEI --max-batch-tokens): if "
            "the time per token is flat as they rise, raise them. If it rises, shed load at the gateway (queued "
            "limit and "
            "429), shorten outputs, and only then add a replica, which takes minutes to load.",
            price="Refused requests must be tried again by their clients; a larger batch makes each token a little "
            "slower.",
            verify="tailrace bench http://localhost:8000 --sweep rate=1,2,4,8 --duration 30",
            missing=[
                "how many requests came and were served in the same time (arrivals), or the running and waiting gauges"
            ],
            disproof_checked=[f"the queue's median is {median:,.0f} ms, not only its tail"],
            action=Action.SHED,
        )
    return None


def preprocess_in_served(cause: Cause, observed: Observed) -> Finding | None:
    """More than half of the slow requests' time is spent before the queue: validation, tokenising."""
    for rows in observed.table("requests"):
        before, whole = rows.numbers("preprocess"), rows.numbers("e2e")
        known = ~np.isnan(before) & (whole > 0)
        if known.sum() < LEAST or grammar_in_served(cause, observed) is not None:
            continue
        slow = np.flatnonzero(known)[np.argsort(whole[known])[-max(1, int(known.sum()) // 10) :]]
        share = float(before[slow].sum() / whole[slow].sum())
        median = float(np.median(before[known]))
        if share < SHARE or float(before[slow].mean()) < LEAST_MS:
            continue
        top, count = int(slow[-1]), int(known.sum())
        rest = whole - before
        return cause.finding(
            statement=f"Requests are slow before the model sees them: {share:.0%} of the slowest requests' time is "
            f"validation and tokenising ({before[top]:,.0f} of {whole[top]:,.0f} ms in the worst).",
            evidence=[
                Evidence(
                    f"{before[top]:,.0f} ms of {whole[top]:,.0f} ms before the queue",
                    str(rows.line_of(top)), "preprocess", float(before[top]), "ms",
                ),
                Evidence(
                    f"{share:.0%} of the time of the slowest {slow.size} is validation and tokenising",
                    rows.place.source, "preprocess_share", share,
                ),
                Evidence(
                    f"median {median:,.0f} ms, of all the rest {np.median(rest[known]):,.0f} ms (n = {count})",
                    rows.place.source, "preprocess_p50", median, "ms",
                ),
            ],
            explains_ms=float(before[slow].mean()),
            relation=f"{before[slow].sum():,.0f} / {whole[slow].sum():,.0f} ms = {share:.0%} > {SHARE:.0%}",
            n=count,
            advice="Give tokenising more workers (TEI --tokenization-workers, TGI --validation-workers) and the "
            "container more CPU (is it throttled? cpu.stat); see whether the fast tokeniser is used, and whether "
            "inputs are cut before they come. "
            "The accelerator and its limits are not what waits.",
            price="Each worker holds a tokeniser and wants a core.",
            verify="tailrace diagnose server.log  # after the change: this stage is small",
            disproof_checked=[f"the stage's median is {median:,.0f} ms, not only its tail"],
            action=Action.FIX,
        )  # fmt: skip
    return None


def grammar_in_served(cause: Cause, observed: Observed) -> Finding | None:
    """Requests with a grammar wait far longer than those without, at the same time per token."""
    for rows in _tables(observed):
        before = np.nan_to_num(rows.numbers("preprocess"), nan=0.0)
        # TGI compiles a grammar in its validation, before the queue.
        for words, wait in (("queue", rows.numbers("queue")), ("validation and queue", rows.numbers("queue") + before)):
            found = _of_grammar(cause, rows, wait, words)
            if found is not None:
                return found
    return None


def _of_grammar(cause: Cause, rows: Rows, queue: NDArray[np.float64], words: str) -> Finding | None:
    kind = np.array(rows.texts("grammar"))
    known = ~np.isnan(queue)
    with_, without = known & (kind == "yes"), known & (kind == "no")
    few = min(int(with_.sum()), int(without.sum()))
    if few < FEWEST and not (few > 1 and queue[with_].min() > TIMES * queue[without].max() + CLEAR_MS):
        return None
    slow, fast = (float(np.median(queue[part])) for part in (with_, without))
    if slow < TIMES * fast or slow - fast < LEAST_MS:
        return None
    pace = [_median(rows.numbers("tpot"), part) for part in (with_, without)]
    told = pace[0] is not None and pace[1] is not None
    even = told and max(pace) <= EVEN * min(pace)  # type: ignore[type-var,operator]
    top = int(np.flatnonzero(with_)[np.argmax(queue[with_])])
    facts = [
        Evidence(
            f"{words} {slow:,.0f} ms with a grammar (median, n = {int(with_.sum())})",
            str(rows.line_of(top)),
            "queue",
            slow,
            "ms",
        ),
        Evidence(f"{fast:,.0f} ms without (n = {int(without.sum())})", rows.place.source, "queue_plain", fast, "ms"),
    ]
    if told:
        facts.append(
            Evidence(
                f"time per token {pace[0]:.1f} ms with, {pace[1]:.1f} ms without: decode is "
                f"{'equal' if even else 'not equal'}",
                rows.place.source, "tpot", pace[0], "ms",
            )
        )  # fmt: skip
    return cause.finding(
        statement=f"Requests with a grammar (structured output) wait {slow:,.0f} ms before they are computed, "
        "and those "
        f"without {fast:,.0f} ms.",
        evidence=facts,
        explains_ms=slow - fast,
        relation=f"{slow:,.0f} / {fast:,.0f} ms = {slow / max(fast, 1e-9):.1f} x with a grammar",
        n=int(with_.sum() + without.sum()),
        advice="Cache compiled grammars and reuse one schema (the same text) for many requests, compile off the "
        "request's "
        "path, try another backend (vLLM --structured-outputs-config, SGLang --grammar-backend), simplify the "
        "schema.",
        price="Another backend may not know every feature of a schema.",
        verify=(
            "tailrace bench http://localhost:8000 --rate 5 --duration 60 --out plain.run && tailrace "
            "compare plain.run schema.run  # schema.run: the same with --extra-body and a "
            "response_format"
        ),
        missing=([] if told else ["the time per token of both kinds"])
        + ([] if few >= FEWEST else [f"more requests with a grammar: {few} were seen"]),
        rivals=[] if even or not told else ["COMPUTE_KERNEL_REGRESSION"],
        disproof_checked=["plain requests are not slow"],
    )


def _median(values: NDArray[np.float64], part: NDArray[np.bool_]) -> float | None:
    found = values[part]
    found = found[~np.isnan(found)]
    return float(np.median(found)) if found.size else None
