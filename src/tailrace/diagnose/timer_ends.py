"""Requests that a timer ended: failures at one age, or at one time after their last token."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import among
from tailrace.diagnose.age_cluster import AgeCluster, age_cluster
from tailrace.diagnose.symptoms import more_often_than
from tailrace.diagnose.window import Window, once_a_window
from tailrace.model.finding import Evidence
from tailrace.model.outcome import Reason

__all__ = ["ENDED_BY_HOP", "GAVE_UP", "TimerEnds", "timer_ends"]

Ints = NDArray[np.int64]

BY_TIMER: Final = frozenset(
    {
        Reason.FIRST_TOKEN_TIMEOUT.value,
        Reason.IDLE_TIMEOUT.value,
        Reason.TOTAL_TIMEOUT.value,
        Reason.ENGINE_QUEUE_TIMEOUT.value,
        Reason.ENGINE_RUN_TIMEOUT.value,
        Reason.ENGINE_UNREACHABLE.value,
        Reason.ENGINE_ERROR.value,
        Reason.STREAM_CUT.value,
        Reason.PROTOCOL_ERROR.value,
        Reason.CLIENT_ERROR.value,
    }
)
"""Reasons behind which a timer may stand, ours or another hop's."""
LEAST_MS: Final = 200.0
LEAST_SHARE: Final = 0.005
GAVE_UP: Final = (408, 504, 524)
"""A hop's own word for a timeout; 524 is Cloudflare's."""
ENDED_BY_HOP: Final = (*GAVE_UP, 502)
"""The same, or for an upstream that it lost."""
OUTLIVED: Final = 1.1
LEAST_OUTLIVED: Final = 5
"""Streams that began in time and lived longer than the timer: one for the whole request would have ended them."""


class TimerEnds(NamedTuple):
    """What ended at one number."""

    cluster: AgeCluster
    idle: bool
    """Silence ended it: the number is the time since the last token, or a streamed answer had not begun and the
    connection was closed without a gateway's error."""
    from_last: bool
    """Counted from the last token, not from the start."""
    rows: Ints
    """Rows of `Window.every` in the cluster."""
    failures: int
    reasons: str

    def words(self, budgets: list[str]) -> str:
        """The timer's name, as far as it is known."""
        if budgets:
            return f"the gateway's budget {' and '.join(budgets)}, {self.cluster.age_ms / 1e3:.3g} s"
        return f"{self.cluster.age_ms / 1e3:.3g} s"

    def spread_words(self) -> str:
        """What was checked."""
        return (
            f"{self.cluster.share:.0%} of {self.cluster.n} ages lie within {self.cluster.low_ms:,.0f} to "
            f"{self.cluster.high_ms:,.0f} ms"
        )

    def facts(self) -> list[Evidence]:
        """The cluster in words."""
        since = "after their last token" if self.from_last else "after their start"
        return [
            Evidence(
                f"{self.cluster.hits} of {self.cluster.n} failures come {self.cluster.age_ms:,.0f} ms {since} "
                f"(between "
                f"{self.cluster.low_ms:,.0f} and {self.cluster.high_ms:,.0f} ms)",
                "record:e2e_ns",
                "age_ms",
                round(self.cluster.age_ms, 1),
                "ms",
            ),
            Evidence(f"their reasons: {self.reasons}", "record:reason", "failures", float(self.failures)),
        ]


@once_a_window
def timer_ends(window: Window) -> TimerEnds | None:
    """The cluster of failures, if there is one and failures are more than a rarity."""
    every = window.every
    reason = every.column("reason")
    rows = np.flatnonzero(among(reason, BY_TIMER))
    if not more_often_than(int(rows.size), len(every), LEAST_SHARE):
        return None
    e2e, last, ttft = (every.ms(name)[rows] for name in ("e2e", "e2e_last_token", "ttft"))
    started = ~np.isnan(ttft) | ~np.isnan(last)
    held = np.nan_to_num(every.ms("queue_gateway")[rows], nan=0.0)
    # A hop's timer begins when the request reaches it; whichever origin makes one number of the ages is the timer's.
    origins = (("start", e2e), ("sent", e2e - held), ("last", np.where(started, e2e - last, np.nan)))
    found = [
        (name, values, cluster)
        for name, values in origins
        if (cluster := age_cluster(np.where(values >= LEAST_MS, values, np.nan))) is not None
    ]
    if not found:
        return None
    name, values, cluster = max(found, key=lambda item: (item[2].hits, -(item[2].high_ms - item[2].low_ms)))
    inside = rows[cluster.holds(values)]
    names, counts = np.unique(reason[inside].astype(str), return_counts=True)
    most = str(names[int(np.argmax(counts))])
    status = every.column("http_status")[inside]
    refused = bool(np.isin(status, ENDED_BY_HOP).mean() > 0.5)
    silent = bool(np.isnan(every.ms("ttft")[inside]).mean() > 0.5)
    streamed = bool(every.column("stream")[inside].astype(bool).mean() > 0.5)
    budgets = set(every.column("budget")[inside].astype(str)) - {""}
    closed = bool((reason[inside] == Reason.STREAM_CUT.value).mean() > 0.5)
    outlived = _outlived(window, cluster.age_ms) >= LEAST_OUTLIVED
    unbegun = silent and streamed and not budgets and (not refused or closed or outlived)
    idle = name == "last" or budgets == {"idle"} or unbegun
    return TimerEnds(
        cluster,
        idle,
        name == "last",
        inside,
        int(rows.size),
        ", ".join(f"{n} {c}" for n, c in sorted(zip(names, counts, strict=True), key=lambda pair: -pair[1])) or most,
    )


def _outlived(window: Window, age_ms: float) -> int:
    streamed = window.done.column("stream").astype(bool)
    return int((streamed & (window.done.ms("e2e") > OUTLIVED * age_ms)).sum())
