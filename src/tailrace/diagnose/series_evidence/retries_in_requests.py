"""RETRY_STORM from a table of attempts that name what they repeat: most repeats fail, and more come as more fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.observed import Observed, Rows
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["first_attempts", "retries_in_requests"]

AMPLIFIED: Final = 1.2
LEAST: Final = 5
"""Repeats; fewer are the odd second try."""
IN_VAIN: Final = 0.5
"""Share of the repeats that fail as well: where most succeed, the second try is the cure."""
RISING: Final = 1.1
ONE_AGE: Final = 0.01
"""Spread of the ages at which attempts end, over their median, that only a timer has."""


def first_attempts(rows: Rows) -> list[str]:
    """For each row, the first attempt of what a client wanted: its own id where it repeats nothing."""
    ids = rows.texts("id")
    of = dict(zip(ids, rows.texts("retry_of"), strict=True))
    out = []
    for name in ids:
        root, seen = name, {name}
        while of.get(root) and of[root] not in seen:
            root = of[root]
            seen.add(root)
        out.append(root)
    return out


def retries_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """Attempts over what clients wanted, early and late, and how the repeats end."""
    for rows in observed.table("requests"):
        if rows.has("retry_of") and rows.has("id"):
            found = _of(cause, rows)
            if found is not None:
                return found
    return None


def _of(cause: Cause, rows: Rows) -> Finding | None:
    roots = np.array(first_attempts(rows), dtype=object)
    repeat = np.array([bool(text) for text in rows.texts("retry_of")], dtype=bool)
    failed = np.array([status not in ("ok", "") for status in rows.texts("status")], dtype=bool)
    wanted = len(set(roots))
    n, repeats = len(rows), int(repeat.sum())
    ratio = n / max(wanted, 1)
    in_vain = float(failed[repeat].mean()) if repeats else 0.0
    if ratio <= AMPLIFIED or repeats < LEAST or in_vain < IN_VAIN:
        return None
    early, late, rising = _over_time(rows, roots, repeat, failed)
    lost = [float(failed[~repeat].mean()), float(failed.mean())]
    took = rows.numbers("e2e_ms")[failed]
    took = took[np.isfinite(took)]
    timer = bool(took.size >= LEAST and float(np.ptp(took)) <= ONE_AGE * float(np.median(took)))
    ages = (
        f" Each attempt that fails ends after {float(np.median(took)) / 1e3:.4g} s: a client's timer." if timer else ""
    )
    place = str(rows.place) or "requests"
    return cause.finding(
        statement=f"Failed requests come again: {wanted} requests of clients became {n} attempts ({ratio:.3g} each), "
        f"and {in_vain:.0%} of the {repeats} repeats fail as well. The repeats are part of the load that makes them "
        f"fail.{ages}",
        evidence=[
            Evidence(
                f"{n} attempts for {wanted} requests: {n} / {wanted} = {ratio:.3g} each", place, "amplification",
                round(ratio, 4),
            ),
            Evidence(f"{repeats} of {n} rows are retries, {int(failed[repeat].sum())} of them fail", place, "retries",
                     float(repeats)),
            Evidence(f"{lost[0]:.0%} of the first attempts and {lost[1]:.0%} of all fail", place, "failed",
                     round(lost[1], 4)),
            *([Evidence(f"attempts a request: {early:.3g} of those sent before the first that fails, {late:.3g} "
                        "from it on", place, "rising", round(late, 3))] if rising else []),
        ],
        explains_ms=None,
        relation=f"attempts / requests of clients = {n} / {wanted} = {ratio:.3g} > {AMPLIFIED}",
        n=n,
        advice="Give retries a budget (at most a tenth of the requests), back off with jitter, and do not retry what "
        "timed out while the engine may still compute it; answer overload early with 429 and Retry-After. Then find "
        "what failed first: the repeats only multiply it.",
        price="Some requests fail at once that a lucky repeat would have saved.",
        verify="tailrace bench http://localhost:8080 --rate 5 --duration 60 --out after.run && tailrace diagnose "
        "after.run",
        missing=[] if rising else ["attempts a request before anything failed"],
        disproof_checked=[f"the attempts rise with the errors: {early:.3g} -> {late:.3g}"] if rising else [],
        level=Level.CONSISTENT if rising else Level.SUSPECTED,
    )  # fmt: skip


def _over_time(rows: Rows, roots: np.ndarray, repeat: np.ndarray, failed: np.ndarray) -> tuple[float, float, bool]:
    """Attempts a request of those first sent before the first one that failed, and from it on."""
    send = rows.numbers("t_send_ms")
    firsts = ~repeat & np.isfinite(send)
    if not (failed & firsts).any():
        return 0.0, 0.0, False
    begun = float(send[failed & firsts].min())
    count = {root: int((roots == root).sum()) for root in dict.fromkeys(roots)}
    sides = [
        [count[str(roots[row])] for row in np.flatnonzero(firsts) if bool(send[row] < begun) is early]
        for early in (True, False)
    ]
    if not sides[0] or not sides[1]:
        return 0.0, 0.0, False
    early, late = (float(np.mean(side)) for side in sides)
    return early, late, late > RISING * early
