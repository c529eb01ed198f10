"""GW_NETWORK: the way between gateway, engine and client is slow; the engine is not."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["Network"]

SHARE: Final = 0.10
UNCHANGED: Final = 1.5
ROUND_TRIPS: Final = 2
"""Of a request on a connection that is there: the request and its first answer; each may wait for one loss."""
MANY: Final = 0.3
"""Share of the slow requests with segments sent again, and more than twice that of the others: losses go with them."""


def _hops_ms(window: Window) -> NDArray[np.float64]:
    """What each row of `done` spent on the way to the engine (ms): opening the connection, and round trips."""
    # A gateway that stood still has stamped its connection late by as much: that is not the network's.
    lag = np.nan_to_num(window.done.ms("loop_lag"), nan=0.0)
    connect = np.maximum(np.nan_to_num(window.done.ms("connect"), nan=0.0) - lag, 0.0)
    rtt = np.nan_to_num(window.done.ms("upstream_rtt"), nan=0.0)
    out: NDArray[np.float64] = connect + ROUND_TRIPS * rtt
    return out


class Network(Cause):
    """Opening connections or round trips to the engine carry the excess while the engine's own prefill is unchanged."""

    code: ClassVar[str] = "GW_NETWORK"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = ("connect and round-trip times of the gateway", "the engine's own prefill times")
    disproof: ClassVar[str] = "The engine's own stages are longer for the slow requests too."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Only whoever sits on both hops knows them."""
        done = evidence.now.done
        known = ~np.isnan(done.column("connect_ns")) | ~np.isnan(done.column("upstream_rtt_ns"))
        gateway = evidence.vantage == "gateway"
        return "" if gateway and known.any() else "records of the gateway (connect and round-trip times)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """The way to the engine above 10 % of what the tail lost, and longer than the others' way."""
        window = evidence.now
        if self.cannot_run(evidence) or not window.n:
            return None
        hops = _hops_ms(window)
        others = np.ones(window.n, dtype=bool)
        others[window.tail] = False
        usual = float(np.median(hops[others])) if others.any() else 0.0
        explains = window.explain(self.code, np.minimum(np.maximum(hops - usual, 0.0), window.lost.total))
        if explains < SHARE * window.tail_lost_ms or not self.carries(evidence, explains):
            return None
        checked, missing = [], []
        prefill = window.done.ms("prefill")
        slow, rest = prefill[window.tail], prefill[others]
        slow, rest = slow[~np.isnan(slow)], rest[~np.isnan(rest)]
        if slow.size and rest.size:
            ratio = float(np.median(slow)) / max(float(np.median(rest)), 1e-9)
            checked.append(f"the engine's prefill of the slow requests is {ratio:.2f} x that of the others (median)")
            if ratio > UNCHANGED:
                return None
        else:
            missing.append("the engine's own prefill times (its timings in the answer)")
        connect = np.nan_to_num(window.done.ms("connect"), nan=0.0)
        opened = int((connect[window.tail] > 0).sum())
        return self.finding(
            statement=f"The way to the engine is slow: the slowest requests spent {explains:.0f} of the "
            f"{window.tail_lost_ms:.0f} ms that they lost on opening connections and round trips.",
            evidence=[
                Evidence(
                    text=f"{explains:.0f} of {window.tail_lost_ms:.0f} ms lost by the slowest requests are connecting "
                    f"and round trips beyond the usual {usual:.1f} ms",
                    source="record:connect_ns, record:upstream_rtt_ns",
                    name="explains_ms",
                    value=round(explains, 1),
                    unit="ms",
                ),
                Evidence(
                    text=f"{opened} of the {window.tail.size} slowest requests had to open a connection",
                    source="record:connect_ns",
                    name="opened",
                    value=float(opened),
                ),
                *self._losses(window, others),
                *(Evidence(text=text, source="record:prefill_ns") for text in checked),
            ],
            explains_ms=explains,
            relation=f"way / lost = {explains:.0f} / {window.tail_lost_ms:.0f} ms = "
            f"{explains / max(window.tail_lost_ms, 1e-9):.0%} in the tail",
            n=int(window.tail.size),
            advice="Look at the route between gateway and engine (distance, losses, a full accept queue), and keep "
            "connections open longer (`upstream_keepalive`, below the engine's own).",
            price="An idle connection costs the engine a socket.",
            verify="tailrace diagnose ADMIN-URL, after the change",
            missing=missing,
            disproof_checked=checked,
        )

    @staticmethod
    def _losses(window: Window, others: NDArray[np.bool_]) -> list[Evidence]:
        again = window.done.column("upstream_retransmits")
        slow, rest = again[window.tail], again[others]
        slow, rest = slow[~np.isnan(slow)], rest[~np.isnan(rest)]
        if not slow.size or (slow > 0).mean() < MANY:
            return []
        if rest.size and (slow > 0).mean() <= 2 * (rest > 0).mean():
            return []
        return [
            Evidence(
                text=f"segments had to be sent again to the engine for {(slow > 0).mean():.0%} of them",
                source="record:upstream_retransmits",
                name="retransmitted_share",
                value=round(float((slow > 0).mean()), 3),
            )
        ]
