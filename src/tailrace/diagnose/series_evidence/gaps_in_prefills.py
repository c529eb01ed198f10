"""SCHED_PREFILL_STEALS_DECODE from stops that all streams share, beside a table of requests: they fill prefills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.engine_settings import step_budget
from tailrace.diagnose.log_evidence.prefill import prefill_advice
from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.series_evidence.shared_gaps import SharedGaps, shared_gaps
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["gaps_in_prefills"]

FILLS: Final = 0.6
"""Of a request's time to its first token, what the stops inside it make together."""
INSIDE: Final = 0.8
"""Of all stops, those that lie in such a prefill: fewer, and something else stops the streams as well."""
LATE_S: Final = 0.1
SEVERAL_LATE_S: Final = 0.5
"""More where several stops must fit at once: a series that is read every half a second tells them so much later."""
FEWEST: Final = 2
FULL: Final = 98.0


class _Held(NamedTuple):
    row: int
    stops: list[int]


def gaps_in_prefills(cause: Cause, observed: Observed) -> Finding | None:
    """Every stop lies between the send and the first token of a request, and they fill that time.

    The two tables are of one clock where that holds: by chance no stop is as long as a prefill and at its place.
    """
    gaps = shared_gaps(observed)
    if gaps is None or gaps.axis not in ("time", "chunks"):
        return None
    for rows in observed.table("requests"):
        if rows.has("t_send_ms") and rows.has("ttft_ms") and rows.has("prompt_tokens"):
            held = _held(gaps, rows)
            if held and sum(len(one.stops) for one in held) >= INSIDE * gaps.at.size:
                return _found(cause, observed, gaps, rows, held)
    return None


def _held(gaps: SharedGaps, rows: Rows) -> list[_Held]:
    send, took = rows.numbers("t_send_ms") / 1e3, rows.numbers("ttft_ms") / 1e3
    known = np.isfinite(send) & np.isfinite(rows.numbers("prompt_tokens"))
    length = gaps.length_ms / 1e3
    # A reading stands at the end of its gap, or a moment later when it was looked at.
    slack = LATE_S + 0.1 * length
    if gaps.at.size > 1:
        slack = slack + SEVERAL_LATE_S
    out: list[_Held] = []
    used: set[int] = set()
    for row in np.argsort(-took):
        if not (known[row] and took[row] > 0):
            continue
        begin, end = send[row], send[row] + took[row]
        inside = (gaps.at - length >= begin - slack) & (gaps.at <= end + slack) & (length <= took[row] + slack)
        stops = [int(stop) for stop in np.flatnonzero(inside) if int(stop) not in used]
        total = float(length[stops].sum())
        if stops and FILLS * took[row] <= total <= took[row] + float(slack.max()):
            out.append(_Held(int(row), stops))
            used.update(stops)
    return out


def _found(cause: Cause, observed: Observed, gaps: SharedGaps, rows: Rows, held: list[_Held]) -> Finding:
    took, tokens = rows.numbers("ttft_ms") / 1e3, rows.numbers("prompt_tokens")
    names = rows.texts("id")
    held = sorted(held, key=lambda one: -took[one.row])
    evidence, relations = [], []
    for one in held[:3]:
        lengths = gaps.length_ms[one.stops] / 1e3
        size, time = float(tokens[one.row]), float(took[one.row])
        stops = f"a stop of {lengths[0]:.3f} s" if len(one.stops) == 1 else (
            f"{len(one.stops)} stops of {lengths.min():.3g} to {lengths.max():.3g} s, {lengths.sum():.3g} s together"
        )  # fmt: skip
        evidence.append(
            Evidence(
                f"prompt {names[one.row] or one.row} of {size:g} tokens: send to first token {time:.3f} s "
                f"({time * 1e3:.0f} ms), and in it {stops} in all {gaps.streams} streams",
                str(rows.line_of(one.row)),
                "prefill",
                round(time, 4),
                "s",
            )
        )
        relations.append(f"{size:g} tokens / {time:.3f} s = {size / time:,.0f} tok/s, stops {lengths.sum():.3f} s")
    outside = gaps.at.size - sum(len(one.stops) for one in held)
    longest = float(gaps.length_ms.max())
    evidence.append(
        Evidence(
            f"longest stop {longest / 1e3:.3f} s ({longest:.0f} ms), {longest / gaps.usual_ms:.0f} x the usual gap of "
            f"{gaps.usual_ms:.3g} ms",
            gaps.line,
            "gap",
            longest,
            "ms",
        )
    )
    kv = observed.number("kv_usage_pct")
    full = kv is not None and kv >= FULL
    counted = observed.delta("preemptions")
    budget = step_budget(observed)
    rate = float(np.median(tokens[[one.row for one in held]] / took[[one.row for one in held]]))
    several = len(held) >= FEWEST or len(held[0].stops) >= FEWEST
    return cause.finding(
        statement=f"All {gaps.streams} streams stand still while a long prompt is in prefill: {len(held)} "
        f"prefill{'s' if len(held) > 1 else ''} of {rate:,.0f} tok/s, and every stop of the streams lies in one and "
        f"fills it (up to {longest / 1e3:.3g} s, usual gap {gaps.usual_ms:.3g} ms).",
        evidence=evidence,
        explains_ms=longest,
        relation="; ".join(relations),
        n=int(gaps.at.size),
        advice=prefill_advice(budget, rate, float(np.nanmax(tokens)))
        if budget is not None
        else "Switch chunked prefill on, or lower the tokens of a step (max_num_batched_tokens, "
        "--chunked-prefill-size); give long prompts a lane of their own.",
        price="The first token of long prompts comes later, because each step computes less of them.",
        verify="tailrace bench http://localhost:8000 --mix 'short:0.9,long:0.1' --rate 5 --duration 60 --out after.run",
        missing=[] if several else ["a second prefill of another length: one stop may be a coincidence"],
        rivals=["SCHED_KV_PREEMPTION"] if full or counted else [],
        disproof_checked=[
            f"{outside} of {gaps.at.size} stops lie outside prefills",
            *([f"KV usage {kv:g} %"] if kv is not None else []),
        ],
    )
