"""Retries in a table of windows: attempts over the requests of clients, and errors beside them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.arms.asked import figure, told, worded
from tailrace.diagnose.arms.moments import in_order
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Counter, Observed, Quoted, Series
from tailrace.diagnose.observed.vocabulary import quantity_named
from tailrace.model.finding import Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["attempts_on_arms"]

STORM: Final = 1.2
"""Attempts a request; fewer are the odd retry."""
LEAST_READINGS: Final = 3
LEAST: Final = 50
"""Requests that a share is taken of."""
_ATTEMPTS: Final = re.compile(r"\battempts?\b|upstream (?:requests?|calls?|req/s|rps|qps)|\btries\b|"
    r"(?:requests?|calls?|req/s|rps) (?:to |at |sent )?(?:the )?(?:upstream|engine|backend)",
                              re.IGNORECASE)  # fmt: skip
_REPEATS: Final = re.compile(r"\bretr(?:y|ies|ied)\b", re.IGNORECASE)
_ASKED: Final = re.compile(
    r"client (?:requests?|calls?|req/s|rps|qps)|user requests?|unique requests?|\boriginal|\binflight client\b|"
    r"(?:requests?|calls?|req/s|rps) (?:in\b|from (?:the )?clients?|received)|"
    r"(?:incoming|inbound|edge) (?:requests?|req/s)",
    re.IGNORECASE,
)
"""Of a series, the column of the clients' requests goes by the name of those in flight."""
_RATIO: Final = re.compile(r"(?:attempts?|tries) ?(?:/|per|a) ?(?:client )?request|retry (?:ratio|factor)",
                           re.IGNORECASE)  # fmt: skip


def attempts_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """The window with the most attempts a request, against the one with the fewest; errors must not have fallen."""
    rows = [*in_order(observed), *_between(observed), *_stated(observed)]
    windows = [(ratio, arm) for arm in rows if (ratio := _ratio(arm)) is not None]
    if not windows:
        return None
    (worst, shown), at = max(windows, key=lambda item: item[0][0])
    (least, shown_least), calm = min(windows, key=lambda item: item[0][0])
    if worst <= STORM:
        return None
    errors = [_errors(arm) for arm in (calm, at)]
    rising = len(windows) > 1 and worst > least * 1.1
    missing = []
    if not rising:
        missing.append("attempts a request in a usual window")
    if errors[0] is None or errors[1] is None:
        missing.append("the errors of both windows: repeats follow them, or they follow the repeats")
    elif rising and errors[1].value <= errors[0].value:
        return None  # more attempts and fewer errors: a hedge, or a second try that helps
    evidence = [evidence_of(at, item) for item in shown]
    if rising:
        evidence += [evidence_of(calm, item) for item in shown_least]
    evidence += [evidence_of(arm, item) for arm, item in zip((calm, at), errors, strict=True) if item is not None]
    words = ""
    if rising and errors[0] is not None and errors[1] is not None:
        unit = errors[1].unit
        words = (
            f" ({least:.3g} in {calm.name}), while {quantity(errors[1])} went from {number(errors[0].value, unit)} "
            f"to {number(errors[1].value, unit)}"
        )
    relation = " / ".join(f"{item.value:g}" for item in shown) + (f" = {worst:.3g}" if len(shown) > 1 else "")
    return cause.finding(
        statement=f"Failed requests come again: {worst:.3g} attempts a request of a client in {at.name}{words}. The "
        "repeats are part of the load that makes them fail.",
        evidence=evidence,
        explains_ms=None,
        relation=f"{relation} attempts a request > {STORM}",
        n=len(windows),
        advice="Give retries a budget (a tenth of the requests), back off with jitter, do not retry what timed out in "
        "the engine's queue, and answer 429 with retry-after early.",
        price="Some requests fail at once that a lucky repeat would have saved.",
        verify="tailrace bench http://localhost:8080 --rate 5 --duration 60 --out after.run && tailrace diagnose "
        "after.run",
        missing=missing,
        disproof_checked=["the errors rise with the attempts"] if not missing else [],
    )


def _between(observed: Observed) -> list[Arm]:
    """The columns of counters as windows: what each counted between two readings of one table."""
    groups: dict[tuple[str, str, int], list[Series]] = {}
    for series in observed.series:
        if len(series) >= LEAST_READINGS and series.axis in {"time", "uptime"} and _is_counter(series):
            groups.setdefault((series.place.source, series.axis, len(series)), []).append(series)
    out = []
    for (source, axis, n), items in groups.items():
        if len(items) < 2:
            continue
        for row in range(1, n):
            at = f"{axis} {items[0].at[row - 1]:g} to {items[0].at[row]:g}"
            place = items[0].line_of(row)
            values = {}
            for one in items:
                step = float(one.values[row] - one.values[row - 1])
                if np.isfinite(step):
                    name = one.name.removesuffix("_total")
                    known = quantity_named(name.replace("_", " "))
                    quoted = Quoted(
                        quantity=known.name if known else name, value=step, unit="count",
                        label=name.replace("_", " "), place=place,
                    )  # fmt: skip
                    values[quoted.key] = quoted
            out.append(Arm(name=f"{source} {at}", label=at, values=values, place=place))
    return out


def _is_counter(series: Series) -> bool:
    """A column that only grows, from a name that is a counter's or from 0."""
    known = series.values[np.isfinite(series.values)]
    if known.size != len(series) or bool((np.diff(known) < 0).any()):
        return False
    return series.name.endswith("_total") or (known[0] == 0 and known[-1] >= LEAST)


def _stated(observed: Observed) -> list[Arm]:
    """What a form states of one window, and what the counters of two scrapes counted."""
    values: dict[str, Quoted] = {}
    for item in told(observed):
        words = item.name.replace("_", " ")
        if item.number is not None and item.unit in {"", "count"} and not re.search(r"max|limit|budget|backoff", words):
            values[words] = Quoted(quantity=words, value=item.number, unit="count", label=words, place=item.place)
    out = (
        [Arm(name="the window", label="the window", values=values, place=next(iter(values.values())).place)]
        if values
        else []
    )
    windows: dict[int, list[Counter]] = {}
    for counter in observed.counters:
        if not counter.labels and counter.delta is not None:
            windows.setdefault(counter.order, []).append(counter)
    for order, items in sorted(windows.items()):
        counted = {
            item.name: Quoted(
                quantity=item.name, value=item.delta or 0.0, unit="count", place=item.place,
                label=(item.raw or item.name).removesuffix("_total").replace("_", " "),
            )
            for item in items
        }  # fmt: skip
        name = f"window {order + 1}"
        out.append(Arm(name=name, label=name, values=counted, place=next(iter(counted.values())).place))
    return out


def _ratio(arm: Arm) -> tuple[float, list[Quoted]] | None:
    """(attempts a request, the numbers it was made of)."""
    ratio = worded(arm, _RATIO.pattern)
    if ratio is not None and 0 < ratio.value < 100:
        return ratio.value, [ratio]
    asked = worded(arm, _ASKED.pattern) or figure(arm, "n")
    attempts = worded(arm, _ATTEMPTS.pattern)
    repeats = worded(arm, _REPEATS.pattern) if attempts is None else None
    tried = attempts or repeats
    if (
        asked is None
        or tried is None
        or tried is asked
        or (asked.value < LEAST and asked.unit != "1/s")
        or tried.unit not in {"", "count", "1/s"}
    ):
        return None
    if attempts is not None:
        return (attempts.value / asked.value, [attempts, asked]) if attempts.value >= asked.value else None
    return 1.0 + tried.value / asked.value, [tried, asked]


def _errors(arm: Arm) -> Quoted | None:
    found = figure(arm, "failed_share") or figure(arm, "failed")
    return found or worded(arm, r"error|fail|5xx|50[234]")
