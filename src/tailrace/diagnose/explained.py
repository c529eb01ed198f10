"""How much of what the tail lost its findings explain together, and which requests show each of them.

A request loses time in places (queue, first token, stalls, ...). Of each place a finding explains no more than was lost
there; two findings that explain the same place of the same request count once, as the larger of the two. So the sum
never claims more than was lost, nor the same millisecond twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.symptoms import Missed
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding, Layer, Tail
from tailrace.stats.quantiles import quantile, supported

__all__ = ["Explained", "explained", "of_the_tail"]

Floats = NDArray[np.float64]

_LOST: Final = ("gateway_queue", "engine_queue", "first_token", "stall", "response", "postprocess")
_PLACES: Final = (*_LOST, "pace", "shift")
_WAIT: Final = ("engine_queue", "first_token", "gateway_queue", "shift")
_OF_STAGE: Final[dict[str, tuple[str, ...]]] = {
    "queue.gateway": ("gateway_queue", "shift"),
    "queue.engine": ("engine_queue", "first_token", "shift"),
    "queue": _WAIT,
    "preprocess": ("first_token", "engine_queue", "shift"),
    "encode": ("first_token", "engine_queue", "shift"),
    "prefill": ("first_token", "engine_queue", "shift"),
    "decode": ("pace", "stall"),
    "postprocess": ("postprocess", "stall"),
    "response": ("response", "stall"),
}
"""Where a finding's stage loses time; any other stage: everywhere."""
_MOST: Final = 5
_SHOWS_MS: Final = 1.0


class Explained:
    """Findings with the requests that show them, and the tail."""

    def __init__(self, findings: list[Finding], tail: Tail | None, requests: dict[str, list[str]]) -> None:
        self.findings, self.tail, self.requests = findings, tail, requests


def explained(
    window: Window,
    findings: list[Finding],
    missed: Sequence[Missed] = (),
    *,
    before: Window | None = None,
    stutters: bool = False,
) -> Explained:
    """Join what ranked findings explain of the window's tail. `missed` are the objectives that it breaks, the worst
    first, `stutters` whether its streams stop: the tail speaks of what is complained of. With the window `before`, what
    the typical request waits longer for its first token than it did then is lost by all of the tail.
    """
    rows = window.tail
    if not rows.size:
        return Explained(findings, None, {})
    lost = window.lost
    places = {name: getattr(lost, name)[rows] for name in _LOST}
    places["pace"] = window.slowed[rows]
    places["shift"] = np.full(rows.size, _shift(window, before))
    together = {name: np.zeros(rows.size) for name in _PLACES}
    total = lost.total[rows] + places["pace"] + places["shift"]
    by_finding: dict[str, float] = {}
    requests: dict[str, list[str]] = {}
    names = window.done.column("request_id")[rows].astype(str)
    for finding in findings:
        if finding.layer is Layer.VALIDITY:
            continue
        theirs = _OF_STAGE.get(finding.stage) or _OF_STAGE.get(finding.stage.partition(".")[0], _PLACES)
        amount = _by_row(window, finding, rows, sum((places[name] for name in theirs), np.zeros(rows.size)))
        shown = np.zeros(rows.size)
        added = 0.0
        for name in theirs:
            part = np.minimum(amount - shown, places[name])
            shown += part
            more = np.maximum(part - together[name], 0.0)
            together[name] += more
            added += float(more.mean())
        by_finding[finding.code] = round(added, 1)
        order = np.lexsort((names, -total, -np.round(shown, 3)))
        requests[finding.code] = [str(names[row]) for row in order[:_MOST] if shown[row] >= _SHOWS_MS]
    whole = window.tail_lost_ms + float((places["pace"] + places["shift"]).mean())
    joint = min(sum(by_finding.values()), whole)
    tail = _tail(window, whole, joint, by_finding, _felt(window, places, whole, missed, stutters=stutters))
    return Explained(findings, tail, requests)


def _shift(window: Window, before: Window | None) -> float:
    """How much longer the typical request waits for its first token than before (ms), 0 where it does not."""
    if before is None:
        return 0.0
    now, then = (side.done.ms("ttft")[side.interactive] for side in (window, before))
    now, then = now[~np.isnan(now)], then[~np.isnan(then)]
    return max(0.0, float(np.median(now)) - float(np.median(then))) if now.size and then.size else 0.0


def of_the_tail(window: Window, explains_ms: float, source: str, where: str = "so") -> Evidence:
    """What of the time that the slowest requests lost lies at one place, as evidence."""
    return Evidence(
        f"the slowest requests lost {explains_ms:.0f} of {window.tail_lost_ms:.0f} ms {where}",
        source,
        "explains_ms",
        round(explains_ms, 1),
        "ms",
    )


def _by_row(window: Window, finding: Finding, rows: NDArray[np.int64], there: Floats) -> Floats:
    """What a finding explains of each row of the tail (ms)."""
    known = window.explained.get(finding.code)
    if known is not None:
        values: Floats = np.maximum(np.nan_to_num(known[rows], nan=0.0), 0.0)
        return values
    # It gave its mean over the tail only: spread like what was lost in its places.
    mean = float(there.mean())
    if not finding.explains_ms or mean <= 0.0:
        return np.zeros(rows.size)
    return there * min(1.0, finding.explains_ms / mean)


def _tail(window: Window, lost: float, joint: float, by_finding: dict[str, float], felt: _Felt) -> Tail:
    metric, p, p_ms, bound = felt
    return Tail(
        metric=metric,
        quantile=p,
        p_ms=round(p_ms, 1),
        n=int(window.tail.size),
        lost_ms=round(lost, 1),
        explained_ms=round(joint, 1),
        unexplained_ms=round(max(0.0, round(lost, 1) - round(joint, 1)), 1),
        by_finding=by_finding,
        objective_ms=bound,
    )


class _Felt(NamedTuple):
    metric: str
    p: float
    p_ms: float
    objective_ms: float | None


def _felt(window: Window, places: dict[str, Floats], lost: float, missed: Sequence[Missed], *, stutters: bool) -> _Felt:
    """What its users complain of: where the tail lost most, if that is complained of; else the objective that is
    broken the most; without any, where the tail lost most.
    """
    first = sum(float(places[name].mean()) for name in _WAIT)
    stall = float(places["stall"].mean())
    metric = "ttft" if first >= 0.5 * lost else "chunk_gap" if stall >= 0.5 * lost else "e2e"
    one = next((one for one in missed if one.metric == metric), missed[0] if missed else None)
    if one is not None and not (metric == "chunk_gap" and stutters and one.metric != metric):
        return _Felt(one.metric, one.p, one.seen_ms, one.bound_ms)
    values = window.done.ms("chunk_gap_max" if metric == "chunk_gap" else metric)
    values = values[window.interactive & ~np.isnan(values)]
    p = next((q for q in (0.99, 0.95) if supported(q, int(values.size))), 0.5)
    return _Felt(metric, p, quantile(values, p) if values.size else 0.0, None)
