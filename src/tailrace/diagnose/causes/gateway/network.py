"""GW_NETWORK: the way between gateway, engine and client is slow; the engine is not."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arm_evidence.way_on_arms import way_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.proxy_stages import connect_in_access
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.shared_stops import shared_stops
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["Network"]

SHARE: Final = 0.10
UNCHANGED: Final = 1.5
ROUND_TRIPS: Final = 2
"""Of a request on a connection that is there: the request and its first answer; each may wait for one loss."""
MANY: Final = 0.3
LEAST_RTT: Final = 3
LEAST_AGAIN: Final = 2
"""Connections looked at: the waits of all requests say the rest."""
FEW_LOOKED: Final = 10
NARROW_MS: Final = 50.0
"""Waits of a third of the requests within so little, from one window to the next: a timeout, wherever few connections
were looked at."""
LONG_MS: Final = 15.0
LONG_SHARE: Final = 0.2
RTO_MS: Final = (200.0, 480.0)
"""Linux waits at least 200 ms and a round trip before it sends a lost segment again."""
LOSSY_SHARE: Final = 0.005
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

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks; from a proxy's log that tells the time to connect."""
        return surest([way_on_arms(self, observed), connect_in_access(self, observed)])

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """A way that carries the excess of the slow ones; a way that is long for all; segments that are sent again."""
        window = evidence.now
        if self.cannot_run(evidence) or not window.n:
            return None
        return self._tail(evidence) or self._long_way(evidence) or self._lossy(evidence)

    def _long_way(self, evidence: EvidenceSet) -> Finding | None:
        """The round trip itself, of every request: against the window before, or against the first token."""
        window, before = evidence.now, evidence.before
        seen = window.done.ms("upstream_rtt")
        seen = seen[~np.isnan(seen)]
        ttft = window.done.ms("ttft")
        ttft = ttft[~np.isnan(ttft)]
        if seen.size < LEAST_RTT or not ttft.size:
            return None
        rtt, first = float(np.median(seen)), float(np.median(ttft))
        earlier = np.empty(0) if before is None else before.done.ms("upstream_rtt")
        earlier = earlier[~np.isnan(earlier)]
        old = float(np.median(earlier)) if earlier.size else None
        grown = rtt - (old or 0.0)
        if not max(LONG_MS, LONG_SHARE * first) <= grown <= first or not self.carries(evidence, grown):
            return None
        missing = [] if old is not None else ["the round trip in a usual window (--before FILE)"]
        checked = []
        if before is not None:
            prefill = [float(np.nanmedian(side.done.ms("prefill"))) for side in (before, window)]
            if not np.isnan(prefill).any():
                checked.append(f"the engine's prefill {prefill[0]:.0f} -> {prefill[1]:.0f} ms (median)")
                if prefill[1] > UNCHANGED * prefill[0] and prefill[1] - prefill[0] > grown:
                    return None
        was = f", {old:.1f} ms before" if old is not None else ""
        window.explain(self.code, np.where(np.isnan(window.first), 0.0, grown))
        return self.finding(
            statement=f"The way to the engine is long: a round trip takes {rtt:.0f} ms{was}, of {first:.0f} ms to the "
            "first token (median).",
            evidence=[
                Evidence(
                    f"round trip to the engine {rtt:.0f} ms (median of {seen.size} requests; TCP's own){was}",
                    "record:upstream_rtt_ns",
                    "rtt_ms",
                    round(rtt, 2),
                    "ms",
                ),
                Evidence(f"TTFT {first:.0f} ms (median)", "record:ttft_ns", "ttft_ms", round(first, 1), "ms"),
                *(Evidence(text, "record:prefill_ns", "prefill") for text in checked),
            ],
            explains_ms=grown,
            relation=f"round trip / TTFT = {rtt:.0f} / {first:.0f} ms = {rtt / max(first, 1e-9):.0%}",
            n=int(seen.size),
            advice="Look at the route between gateway and engine (another region, a tunnel, a mesh's proxies, a "
            "congested link); put the gateway where the engine is. The engine is not to blame.",
            price="None at the engine.",
            verify="tailrace diagnose http://127.0.0.1:9480  # after the change",
            missing=missing,
            disproof_checked=checked,
        )

    def _lossy(self, evidence: EvidenceSet) -> Finding | None:  # noqa: PLR0911  (one a condition)
        """Gaps of one retransmission timeout, in streams whose segments were sent again."""
        window, before = evidence.now, evidence.before
        again = window.done.column("upstream_retransmits")
        known = ~np.isnan(again)
        longest = window.done.ms("chunk_gap_max")
        looked = known.sum() >= LEAST_AGAIN and float((again[known] > 0).mean()) >= MANY
        if not looked and (known.sum() > FEW_LOOKED or before is None):
            return None
        waits = np.fmax(longest, np.nan_to_num(window.done.ms("unattributed"), nan=0.0))
        of_timeout = (waits >= RTO_MS[0]) & (waits <= RTO_MS[1])
        share = float(of_timeout.mean())
        usual = float(np.nanmedian(longest)) if not np.isnan(longest).all() else 0.0
        old = None
        if before is not None and before.n:
            earlier = np.fmax(before.done.ms("chunk_gap_max"), np.nan_to_num(before.done.ms("unattributed"), nan=0.0))
            old = float(((earlier >= RTO_MS[0]) & (earlier <= RTO_MS[1])).mean())
            lost = before.done.column("upstream_retransmits")
            lost = lost[~np.isnan(lost)]
            if share < 2.0 * old + 0.01 or (
                lost.size >= LEAST_RTT and (lost > 0).mean() > 0.7 * (again[known] > 0).mean()
            ):
                return None
        if int(of_timeout.sum()) < LEAST_RTT or share < LOSSY_SHARE:
            return None
        if not looked and (
            share < MANY
            or old is None
            or old > 0.02
            or float(np.ptp(np.quantile(waits[of_timeout], (0.1, 0.9)))) > NARROW_MS
        ):
            return None
        cost = float(np.median(waits[of_timeout])) - min(usual, RTO_MS[0])
        if not self.carries(evidence, min(cost, 1e9)) and share < MANY:
            return None
        seen = float((again[known] > 0).mean())
        was = f", {old:.1%} before" if old is not None else ""
        shared = shared_stops(window).stop_share if window.stalls.row.size else 0.0
        if shared > 0.5:
            return None  # streams that stop together do not wait for a lost segment each
        cost = max(cost, 0.0)
        # Whoever waited for a segment that was sent again lost that wait; that the tail did is another question.
        window.explain(self.code, np.where(of_timeout, np.maximum(waits - min(usual, RTO_MS[0]), 0.0), 0.0))
        return self.finding(
            statement=f"Segments are lost on the way from the engine: {share:.1%} of the requests wait once for "
            f"{np.median(waits[of_timeout]):.0f} ms{was}, as long as TCP waits before it sends again, and {seen:.0%} "
            f"of "
            "the connections looked at had to.",
            evidence=[
                Evidence(
                    f"the longest wait for a token lies between {RTO_MS[0]:.0f} and {RTO_MS[1]:.0f} ms in "
                    f"{share:.1%} of "
                    f"the requests{was}, {np.median(waits[of_timeout]):.0f} ms (median)",
                    "record:chunk_gap_max_ns, record:unattributed_ns",
                    "timeout_share",
                    round(share, 4),
                ),
                Evidence(
                    f"segments were sent again on {seen:.0%} of {int(known.sum())} connections that were looked at",
                    "record:upstream_retransmits",
                    "retransmitted_share",
                    round(seen, 4),
                ),
                Evidence(
                    f"{shared:.0%} of the stall time is shared by streams", "timeline", "shared", round(shared, 4)
                ),
            ],
            explains_ms=cost,
            relation=f"longest wait {np.median(waits[of_timeout]):.0f} ms ~ a retransmission timeout (200 ms and a "
            f"round "
            "trip at the least)",
            n=int(of_timeout.sum()),
            advice="Look at the route between gateway and engine for losses (ip -s link, ss -ti, a full queue of a "
            "switch, a wrong MTU); put the gateway where the engine is. The engine is not to blame.",
            price="None at the engine.",
            verify=(
                "tailrace diagnose http://127.0.0.1:9480  # after the change; ss -ti dst ENGINE: retrans must not grow"
            ),
            missing=([] if looked else ["segments sent again on more of the connections (ss -ti)"])
            + ([] if old is not None else ["the share of such waits in a usual window (--before FILE)"]),
            disproof_checked=[f"{shared:.0%} of the stall time is shared by streams"],
        )

    def _tail(self, evidence: EvidenceSet) -> Finding | None:
        """The way to the engine above 10 % of what the tail lost, and longer than the others' way."""
        window = evidence.now
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
            verify="tailrace diagnose http://127.0.0.1:9480  # after the change",
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
