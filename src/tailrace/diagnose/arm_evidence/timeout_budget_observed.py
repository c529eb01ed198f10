"""CLIENT_TIMEOUT_BUDGET: the client gives less time than its answer takes at the speed of one stream."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.asked import TAIL_FIRST, figure, per_request, told
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["timeout_budget_observed"]

_TIMEOUT: Final = re.compile(r"time ?out|deadline|max[ _]time|abort[ _]after|gives? up after", re.IGNORECASE)
_NOT_CLIENT: Final = re.compile(
    r"probe|proxy|nginx|upstream|idle|keep.?alive|gateway|ingress|server|liveness|readiness|connect", re.IGNORECASE
)
_CLIENT: Final = re.compile(r"client|request|read|http|sdk|openai|total", re.IGNORECASE)
AT_THE_TIMER: Final = 0.03


class _Pace(NamedTuple):
    """Time for one token of one stream."""

    ms: float
    words: str
    evidence: list[Evidence]


def timeout_budget_observed(cause: Cause, observed: Observed) -> Finding | None:
    """The budget of the longest answer against the timer."""
    timeout = _timeout(observed)
    tokens = _tokens(observed)
    pace = _pace(observed)
    if timeout is None:
        return _in_rows(cause, observed)
    seconds, timer = timeout
    if tokens is None or pace is None:
        return _incomplete(cause, observed, seconds, timer, tokens, pace)
    ttft = _ttft(observed)
    needed = (tokens[0] * pace.ms + ttft[0]) / 1000.0
    if needed <= seconds:
        return None
    ages = _ages(observed)
    fits = None if not ages else sum(abs(age / seconds - 1.0) <= AT_THE_TIMER for age in ages) / len(ages)
    if fits is not None and fits < 0.5:
        return None
    served = (seconds * 1000.0 - ttft[0]) / pace.ms
    return cause.finding(
        statement=f"An answer of {number(tokens[0])} tokens takes {_about(needed)} s at the speed of one stream "
        f"({pace.words}), and the client gives up after {number(seconds)} s.",
        evidence=[
            evidence_of_setting(timer),
            tokens[1],
            *pace.evidence,
            *ttft[1],
            Evidence(f"{pace.words}: {number(pace.ms, 'ms')} a token", "computed", "tpot", round(pace.ms, 3), "ms"),
            Evidence(
                f"needed: {_about(needed)} s; given: {number(seconds)} s, in which {served:.0f} tokens come",
                "computed",
                "needed_s",
                round(needed, 2),
                "s",
            ),
        ],
        explains_ms=None,
        relation=f"{number(tokens[0])} tokens x {number(pace.ms, 'ms')} = {_about(needed)} s > {number(seconds)} s",
        n=len(ages),
        advice=f"Set the timeout from the token budget (at least {number(1.2 * needed)} s for {number(tokens[0])} "
        "tokens), "
        "stream and time the gap between tokens instead of the whole, or cap the answer at "
        f"{max(int(served), 1)} tokens (max_tokens) for this timeout.",
        price="A longer timeout holds a connection and a place in the batch longer; a cap cuts answers.",
        verify=f"tailrace bench http://localhost:8000 --rate 1 --output-tokens {int(tokens[0])} --duration 60 --out "
        "after.run",
        disproof_checked=[
            f"{fits:.0%} of {len(ages)} aborts lie at the timeout" if fits is not None else "ages of the aborts unknown"
        ],
    )


def _about(value: float) -> str:
    """A computed number as far as its inputs carry it: three digits."""
    return f"{value:.3g}" if value < 1e3 else f"{value:.0f}"


_PER_STREAM: Final = re.compile(r"stream|user|request", re.IGNORECASE)
_GONE: Final = re.compile(r"abort|cancel|timed? ?out (?:%|share)|fail", re.IGNORECASE)


def _is_timer(value: Quoted) -> bool:
    client = _TIMEOUT.search(value.label) is not None and _NOT_CLIENT.search(value.label) is None
    return client and value.unit in {"s", "ms"}


def _in_rows(cause: Cause, observed: Observed) -> Finding | None:
    """Rows that tell timeout, length and speed of a stream: those that cannot end in time, and that do not."""
    for arm in observed.arms:
        timer = next((v for v in arm.values.values() if _is_timer(v)), None)
        tokens, speed = figure(arm, "output_tokens"), figure(arm, "decode_tok_s", "output_tok_s")
        gap = figure(arm, "tpot", "itl")
        each = gap.value if gap is not None and gap.unit == "ms" else None
        if each is None and speed is not None and speed.value > 0 and _PER_STREAM.search(speed.label):
            each = 1000.0 / speed.value
        running = figure(arm, "running", "concurrency")
        if each is None and speed is not None and speed.value > 0 and running is not None and running.value >= 1:
            each = 1000.0 * running.value / speed.value  # what all make together, by stream
        if timer is None or tokens is None or each is None:
            continue
        seconds = timer.value if timer.unit == "s" else timer.value / 1e3
        needed = tokens.value * each / 1e3
        if needed <= seconds:
            continue
        gone = next((v for v in arm.values.values() if _GONE.search(v.label) and v is not timer), None)
        pace = gap if gap is not None else speed
        return cause.finding(
            statement=f"{arm.name}: an answer of {number(tokens.value)} tokens takes {number(needed)} s at "
            f"{number(each, 'ms')} a token, and the client gives up after {number(seconds)} s.",
            evidence=[evidence_of(arm, item) for item in (timer, tokens, pace, gone) if item is not None]
            + [
                Evidence(
                    f"needed: {number(needed)} s; given: {number(seconds)} s",
                    "computed",
                    "needed_s",
                    round(needed, 2),
                    "s",
                )
            ],
            explains_ms=None,
            relation=f"{number(tokens.value)} tokens x {number(each, 'ms')} = {number(needed)} s > {number(seconds)} s",
            n=1,
            advice=f"Set the timeout from the token budget (at least {number(1.2 * needed)} s here), stream and time "
            "the gap between tokens instead of the whole, or cap the answer at "
            f"{max(int(seconds * 1e3 / each), 1)} tokens.",
            price="A longer timeout holds a connection and a place in the batch longer; a cap cuts answers.",
            verify=f"tailrace bench http://localhost:8000 --rate 1 --output-tokens {int(tokens.value)} --duration 60 "
            "--out after.run",
            missing=[] if gone is not None else ["how many requests the client gave up, and at which age"],
            disproof_checked=[f"{gone.label} {gone.value:g}"] if gone is not None else [],
        )
    return None


def _incomplete(
    cause: Cause,
    observed: Observed,
    seconds: float,
    timer: Setting,
    tokens: tuple[float, Evidence] | None,
    pace: _Pace | None,
) -> Finding | None:
    """Aborts at the timer without the rest of the budget."""
    ages = _ages(observed)
    if len(ages) < 3 or sum(abs(age / seconds - 1.0) <= AT_THE_TIMER for age in ages) < 0.8 * len(ages):
        return None
    missing = []
    if tokens is None:
        missing.append("tokens of the answers (max_tokens, output tokens)")
    if pace is None:
        missing.append("time a token of one stream (TPOT, or tokens/s and running requests)")
    return cause.finding(
        statement=f"{len(ages)} requests were given up at the client's timeout of {number(seconds)} s; whether their "
        "answers could have fitted is not known.",
        evidence=[
            evidence_of_setting(timer),
            Evidence(f"{len(ages)} aborts at {number(seconds)} s", "ages", "aborts", float(len(ages))),
        ],
        explains_ms=None,
        relation=f"age of the aborts = {number(seconds)} s",
        n=len(ages),
        advice="Set the timeout from the token budget: tokens x time a token.",
        price="A longer timeout holds a connection longer.",
        verify="tailrace bench http://localhost:8000 --rate 1 --duration 60 --out after.run",
        missing=missing,
    )


def _timeout(observed: Observed) -> tuple[float, Setting] | None:
    found = [
        (item, ms / 1000.0)
        for item in told(observed)
        if item.number
        and _TIMEOUT.search(item.name.replace("_", " "))
        and not _NOT_CLIENT.search(item.name.replace("_", " "))
        and (ms := in_unit(item.number, item.unit or "s", "ms"))
    ]
    found.sort(key=lambda pair: not _CLIENT.search(pair[0].name.replace("_", " ")))
    return (found[0][1], found[0][0]) if found else None


def _tokens(observed: Observed) -> tuple[float, Evidence] | None:
    best: tuple[float, Evidence] | None = None
    for arm in observed.arms:
        found = per_request(arm, "output_tokens", ("p99", "p95", "max", "p50", "mean", ""))
        if found is not None and found[0] and (best is None or found[0] > best[0]):
            best = found[0], evidence_of(arm, found[1])
    for name in ("output_tokens", "max_tokens", "osl", "max_new_tokens", "max_completion_tokens", "expected_tokens"):
        item = observed.setting(name)
        if item is not None and item.number:
            top = item.value[-1] if isinstance(item.value, list) and item.value else item.number
            if best is None:
                best = float(top), evidence_of_setting(item)
    return best


def _pace(observed: Observed) -> _Pace | None:
    for arm in observed.arms:
        tpot = figure(arm, "tpot", "itl", stats=TAIL_FIRST)
        if tpot is not None and tpot.value > 0:
            return _Pace(tpot.value, f"TPOT {number(tpot.value, 'ms')}", [evidence_of(arm, tpot)])
    stated = next((item for item in told(observed) if re.match(r"(?:tpot|itl)", item.name) and item.number), None)
    if stated is not None and stated.number:
        ms = in_unit(stated.number, stated.unit or "ms", "ms")
        if ms:
            return _Pace(ms, f"TPOT {number(ms, 'ms')}", [evidence_of_setting(stated)])
    rate, running = _rate(observed), _running(observed)
    if rate is None or running is None or rate[0] <= 0 or running[0] <= 0:
        return None
    each = rate[0] / running[0]
    if not each:
        return None
    return _Pace(
        1000.0 / each,
        f"{number(rate[0])} tok/s / {number(running[0])} running = {_about(each)} tok/s a stream",
        [rate[1], running[1]],
    )


def _rate(observed: Observed) -> tuple[float, Evidence] | None:
    return _measured(
        observed,
        ("output_tok_s", "decode_tok_s"),
        ("tok_s", "output_tok_s", "gen_tok_s", "generation_tok_s", "throughput_tok_s"),
    )


def _running(observed: Observed) -> tuple[float, Evidence] | None:
    return _measured(
        observed, ("running", "concurrency"), ("running", "engine_running", "num_running", "concurrency", "in_flight")
    )


def _measured(observed: Observed, quantities: tuple[str, ...], names: tuple[str, ...]) -> tuple[float, Evidence] | None:
    """Of an arm, else as stated, else the median of a log's readings under load."""
    for arm in observed.arms:
        value = figure(arm, *quantities)
        if value is not None:
            return value.value, evidence_of(arm, value)
    item = next((item for name in names if (item := observed.setting(name)) is not None and item.number), None)
    if item is not None and item.number is not None:
        return item.number, evidence_of_setting(item)
    for name in quantities:
        for series in observed.of_series(name):
            values = series.values[np.nan_to_num(series.values) > 0]
            if values.size:
                middle = float(np.median(values))
                return middle, Evidence(
                    f"{name.replace('_', ' ')} {number(middle)} (median of {values.size} readings)",
                    str(series.place),
                    name,
                    middle,
                )
    return None


def _ttft(observed: Observed) -> tuple[float, list[Evidence]]:
    arms: list[Arm] = observed.arms
    for arm in arms:
        value = figure(arm, "ttft", stats=("p50", "mean", "", "p95"))
        if value is not None:
            return value.value, [evidence_of(arm, value)]
    return 0.0, []


def _ages(observed: Observed) -> list[float]:
    """Ages (s) at which requests failed or were given up."""
    out: list[float] = []
    for item in told(observed):
        if re.search(
            r"(?:abort|failure|fail|timeout|disconnect|cancel)\w*_(?:ages?|at)|ages?_(?:of_)?(?:abort|fail)", item.name
        ):
            values = item.value if isinstance(item.value, list) else [item.value]
            scale = in_unit(1.0, item.unit or "s", "ms")
            out += [float(value) * (scale or 1000.0) / 1000.0 for value in values if isinstance(value, (int, float))]
    for rows in observed.table("requests"):
        if not rows.has("status"):
            continue
        ages = (rows.numbers("t_last_ms") - rows.numbers("t_send_ms")) / 1000.0
        out += [
            float(age)
            for age, status in zip(ages, rows.texts("status"), strict=True)
            if status in ("timeout", "cancelled") and np.isfinite(age)
        ]
    return out
