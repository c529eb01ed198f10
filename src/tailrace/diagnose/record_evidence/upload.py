"""CLIENT_UPLOAD_LATE: the request itself comes slowly; nobody could begin earlier."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.window import tail_of
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.quantiles import median, or_zero

__all__ = ["upload_in_records"]

SHARE: Final = 0.3


def upload_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Ingress above its median carries a third of the slow requests' time to the first token."""
    window = evidence.now
    if cause.cannot_run(evidence) or window.n < 20:
        return None
    ingress = or_zero(window.done.ms("ingress"))
    lag = or_zero(window.done.ms("loop_lag"))
    ttft = or_zero(window.done.ms("ttft"))
    usual = median(ingress)
    late = np.maximum(ingress - usual - lag, 0.0)
    rows = np.flatnonzero(window.interactive)
    if not rows.size:
        return None
    slow = rows[tail_of(ttft[rows])]
    explains = float(late[slow].mean())
    excess = float((ttft[slow] - median(ttft[rows])).mean())
    if explains < SHARE * max(excess, 1.0) or not cause.carries(evidence, explains):
        return None
    told = ~np.isnan(window.done.column("loop_lag_ns"))
    missing = [] if told.any() else ["the gateway's event-loop lag"]
    size_of = window.done.column("prompt_bytes")
    audio = window.done.column("audio_seconds")
    what = "audio" if (~np.isnan(audio[slow])).mean() > 0.5 else "body"
    median_bytes = float(np.nanmedian(size_of[slow])) if not np.isnan(size_of[slow]).all() else float("nan")
    facts = []
    if not np.isnan(median_bytes):
        rate = median_bytes / max(median(ingress[slow]), 1e-3)
        facts.append(
            Evidence(
                f"their bodies have {median_bytes / 1e3:,.1f} kB (median): {rate:,.1f} kB/s",
                "record:prompt_bytes",
                "kB",
                round(median_bytes / 1e3, 2),
                "kB",
            )
        )
    return cause.finding(
        statement=f"The requests come in slowly: the {what} of the slow ones takes {explains:.0f} ms more than the "
        f"usual {usual:.0f} ms to arrive, of the {excess:.0f} ms that they lose before the first token.",
        evidence=[
            Evidence(
                f"{explains:.0f} ms more than the median of {usual:.0f} ms between first and last byte of the "
                f"request, beyond the gateway's own lag (n = {slow.size})",
                "record:ingress_ns, record:loop_lag_ns",
                "explains_ms",
                round(explains, 1),
                "ms",
            ),
            Evidence(
                f"TTFT of the slow ones is {excess:.0f} ms above the median",
                "record:ttft_ns",
                "excess_ms",
                round(excess, 1),
                "ms",
            ),
            *facts,
        ],
        explains_ms=explains,
        relation=f"ingress / lost = {explains:.0f} / {excess:.0f} ms = {explains / max(excess, 1e-9):.0%}",
        n=int((late > 50.0).sum()),
        advice="Look at the clients' uplink and how they send: smaller bodies (fewer retrieved chunks, compressed "
        "audio, smaller images), audio in pieces as it is spoken, one connection that stays open. The engine had "
        "not seen the request yet.",
        price="None at the server.",
        verify=evidence.verify_command,
        missing=missing,
        disproof_checked=["the gateway's own lag is taken off"] if told.any() else [],
    )
