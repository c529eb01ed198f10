"""GW_IDLE_TIMEOUT: a hop closes connections on which nothing came for a while, although the engine still works."""

from __future__ import annotations

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.timer_ends import timer_ends
from tailrace.model.finding import Finding

__all__ = ["idle_timer_in_records"]


def idle_timer_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """The silence before the end is one number."""
    ends = timer_ends(evidence.now)
    if ends is None or not ends.idle:
        return None
    age = ends.cluster.age_ms
    own = set(evidence.now.every.column("budget")[ends.rows].astype(str)) == {"idle"}
    retried = float(evidence.now.every.column("attempts")[ends.rows].mean())
    return cause.finding(
        statement=f"A hop closes streams that are silent for {age:,.0f} ms: {ends.cluster.hits} of "
        f"{ends.cluster.n} cut streams end then.",
        evidence=ends.facts(),
        explains_ms=age,
        relation=f"silence before the cut = {ends.cluster.low_ms:,.0f} to {ends.cluster.high_ms:,.0f} ms = one "
        "idle timer",
        n=ends.cluster.hits,
        advice=f"Set the idle timer of that hop ({age / 1e3:.3g} s) above the p99 of TTFT and of the longest "
        f"gap, or "
        "send SSE comments (`: heartbeat`) meanwhile; stop retrying such requests, each retry is computed again "
        "from its beginning" + (f" ({retried:.1f} attempts each now)." if retried > 1.05 else "."),
        price="Dead connections are noticed later; a heartbeat costs a few bytes.",
        verify=evidence.verify_command
        + ("  # and this number in the configuration of every hop: grep -r -i -E 'idle|read_timeout|keepalive'"),
        missing=[] if own else [f"the idle timers of every hop: which one is {age / 1e3:.3g} s"],
        disproof_checked=[ends.spread_words()],
    )
