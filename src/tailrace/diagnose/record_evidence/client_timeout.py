"""CLIENT_TIMEOUT_BUDGET: the client's timeout is shorter than what its answer needs at the engine's pace."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.age_cluster import age_cluster
from tailrace.diagnose.cancels import cancels
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.symptoms import more_often_than
from tailrace.model.finding import Evidence, Finding

__all__ = ["client_timeout_in_records"]

LEAST_SHARE: Final = 0.005
LEAST_MS: Final = 500.0


def client_timeout_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """A cluster of cancel ages, and what the answer would have needed."""
    window = evidence.now
    gone = cancels(window)
    if not more_often_than(int(gone.rows.size), len(window.every), LEAST_SHARE):
        return None
    cluster = age_cluster(np.where(gone.age_ms >= LEAST_MS, gone.age_ms, np.nan))
    if cluster is None:
        return None
    inside = cluster.holds(gone.age_ms)
    every = window.every
    planned = every.column("max_tokens")[gone.rows][inside]
    longest = window.done.column("output_tokens")
    mine, all_paces = every.ms("tpot")[gone.rows][inside], window.done.ms("tpot")
    known = mine[~np.isnan(mine)] if not np.isnan(mine).all() else all_paces[~np.isnan(all_paces)]
    pace = float(np.median(known)) if known.size else float("nan")
    started = float((~np.isnan(gone.ttft_ms[inside])).mean())
    ttft = window.done.ms("ttft")
    first = float(np.nanquantile(ttft, 0.5)) if not np.isnan(ttft).all() else float("nan")
    missing = ["the client's own timeout setting"] if cluster.high_ms - cluster.low_ms > 50.0 else []
    tokens = planned[~np.isnan(planned)]
    if not tokens.size and not np.isnan(longest).all():
        tokens = np.array([float(np.nanquantile(longest, 0.95))])
        missing.append("max_tokens of the cancelled requests")
    if not tokens.size or np.isnan(pace):
        return None
    asked = float(np.median(tokens))
    need = (0.0 if np.isnan(first) else first) + asked * pace
    got = float(np.median(gone.output_tokens[inside]))
    if need <= cluster.age_ms and started >= 0.5:
        missing.append("why they leave: at this pace the answer would have been there in time")
    completed = window.done.ms("e2e")
    beyond = int((completed > cluster.high_ms).sum())
    if beyond > 0.02 * max(window.n, 1):
        return None  # many others wait longer: it is no timeout of all clients
    return cause.finding(
        statement=f"A client's timeout of {cluster.age_ms / 1e3:.3g} s ends requests: {cluster.hits} of "
        f"{cluster.n} cancels come at that age, and {asked:.0f} tokens at {pace:.1f} ms need {need / 1e3:.3g} s.",
        evidence=[
            Evidence(
                f"{cluster.hits} of {cluster.n} cancels come between {cluster.low_ms:,.0f} and "
                f"{cluster.high_ms:,.0f} ms, that is at {cluster.age_ms / 1e3:.3g} s",
                "record:e2e_ns, record:reason",
                "age_ms",
                round(cluster.age_ms, 1),
                "ms",
            ),
            Evidence(
                f"{asked:.0f} tokens asked for (median), {got:.0f} had come",
                "record:max_tokens, record:output_tokens",
                "asked",
                asked,
            ),
            Evidence(
                f"a token takes {pace:.1f} ms in such a stream (median), so the answer needs {need / 1e3:.3g} s",
                "record:tpot_ns",
                "needs_ms",
                round(need, 1),
                "ms",
            ),
            Evidence(
                f"{beyond} of {window.n} completed requests took longer than that",
                "record:e2e_ns",
                "beyond",
                float(beyond),
            ),
        ],
        explains_ms=max(cluster.age_ms, 1.0),
        relation=f"TTFT {0.0 if np.isnan(first) else first:.0f} ms + {asked:.0f} tokens x {pace:.1f} ms = "
        f"{need:,.0f} ms "
        f"{'>' if need > cluster.age_ms else '<='} timeout {cluster.age_ms:,.0f} ms",
        n=cluster.hits,
        advice="Set the client's timeout from its token budget (TTFT p99 + max_tokens x TPOT p99) and as an idle "
        "timeout between tokens rather than for the whole answer, stream, and cap the output where nobody reads "
        "more. Until then each such request is computed for nobody, and its retry again.",
        price="A request that hangs is noticed later.",
        verify="tailrace records query --ask failures && " + evidence.verify_command,
        missing=missing,
        disproof_checked=[f"{cluster.share:.0%} of the cancels come at one age"],
    )
