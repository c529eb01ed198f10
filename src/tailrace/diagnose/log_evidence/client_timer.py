"""CLIENT_TIMEOUT_BUDGET from an access log: clients leave, always after the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.age_cluster import WIDTH_MS, densest
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["client_timer_in_access"]

LEAST: Final = 3
MOST_OF: Final = 0.5


def client_timer_in_access(cause: Cause, observed: Observed) -> Finding | None:
    """Requests that the client closed (nginx 499, Envoy DC) at one age."""
    for rows in observed.table("access"):
        status, took, flags = rows.numbers("status"), rows.numbers("e2e"), rows.texts("flags")
        gone = (status == 499) | np.array(["DC" in flag.split(",") for flag in flags], dtype=bool)
        left = np.flatnonzero(gone & (took >= 500))
        if left.size < LEAST:
            continue
        ages = took[left]
        agree = densest(ages, apart=WIDTH_MS)
        same = ages[agree]
        if same.size < max(LEAST, MOST_OF * ages.size):
            continue
        seconds = float(np.median(same)) / 1e3
        done = np.flatnonzero((status < 400) & ~np.isnan(took))
        slowest = int(done[took[done].argmax()]) if done.size else None
        facts = [
            Evidence(
                text=f"{same.size} of {ages.size} requests that clients closed were {seconds:.3f} s old, to "
                f"{same[-1] - same[0]:.0f} ms",
                source=str(rows.line_of(int(left[agree].min()))),
                name="age",
                value=round(seconds, 3),
                unit="s",
            )
        ]
        if slowest is not None:
            longest, line = float(took[slowest]) / 1e3, str(rows.line_of(slowest))
            facts.append(Evidence(f"the longest answered request took {longest:.1f} s", line, "longest", longest, "s"))
        configured = observed.number("client_timeout_s", "timeout_s")
        return cause.finding(
            statement=f"Clients give up by a timer of their own: {same.size} of {ages.size} requests that they "
            "closed were "
            f"{seconds:.3f} s old.",
            evidence=facts,
            explains_ms=seconds * 1e3,
            relation=f"{same.size} of {ages.size} ages within {same[-1] - same[0]:.0f} ms of {seconds:.3f} s",
            n=int(ages.size),
            advice="Set the client's timeout from the tokens that it asks for (first token + tokens x time per token "
            "at load), "
            "stream, cap the output, and do not ask again at once: the work so far is lost.",
            price="A client waits longer before it knows that an engine is dead.",
            verify="tailrace diagnose access.log  # after the change",
            missing=["the client's timeout, max_tokens and the pace of a stream (tok/s)"]
            if configured is None
            else ["max_tokens and the pace of a stream (tok/s)"],
            disproof_checked=[f"{ages.size - same.size} left at other ages"],
        )
    return None
