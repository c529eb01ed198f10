"""CANCEL_NOT_PROPAGATED: the client has left, and the engine goes on."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.cancels import cancels
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.in_flight import InFlight, account
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.rank_correlation import spearman

__all__ = ["cancelled_still_runs"]

LATE_MS: Final = 1_500.0
LEAST: Final = 5
GHOSTS: Final = 1.0
FOLLOWS: Final = 0.4
LEAVE: Final = 0.1
SURPLUS: Final = 0.2
SOME: Final = 0.2
AS_MANY: Final = (0.5, 2.0)
CERTAIN: Final = 4.0
"""Where a fifth of what the engine runs is nobody's, a weaker correlation that chance does not give is enough."""


class _Ghosts(NamedTuple):
    mean: float
    """Requests that the engine has and nobody waits for, mean at admissions."""
    correlation: float
    """With what the cancelled ones would still have to do."""
    share: float
    """Of what the engine runs."""
    n: int
    expected: float
    """Cancelled requests that would still run if nothing ended them, mean at the same moments."""

    @property
    def as_many(self) -> bool:
        """Whether there are about as many of them as the cancelled ones would be."""
        return AS_MANY[0] <= self.mean / max(self.expected, 1e-9) <= AS_MANY[1]


def cancelled_still_runs(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """By the slot of each cancelled request; else by requests that the engine has and we have not."""
    if cause.cannot_run(evidence):
        return None
    return _by_slot(cause, evidence) or _by_ghosts(cause, evidence)


def _by_slot(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    window = evidence.now
    gone = cancels(window)
    slot = window.every.ms("cancel_slot")[gone.rows]
    slot = slot[~np.isnan(slot)]
    if slot.size < LEAST:
        return None
    median = float(np.median(slot))
    late = int((slot > LATE_MS).sum())
    if median <= LATE_MS or late < LEAST:
        return None
    closed = window.every.ms("cancel_upstream")[gone.rows]
    closed = closed[~np.isnan(closed)]
    own = float(np.median(closed)) if closed.size else float("nan")
    facts = [
        Evidence(
            f"the engine's slot is free {median:,.0f} ms after the client left (median of {slot.size} cancels), "
            f"{late} of them later than {LATE_MS:.0f} ms",
            "record:cancel_slot_ns",
            "slot_ms",
            round(median, 1),
            "ms",
        )
    ]
    if closed.size:
        facts.append(
            Evidence(
                f"the gateway had closed its connection to the engine {own:.0f} ms after (median)",
                "record:cancel_upstream_ns",
                "closed_ms",
                round(own, 1),
                "ms",
            )
        )
    return _found(
        cause,
        evidence,
        f"The engine goes on for clients that have left: its slot is free {median:,.0f} ms after the client's end "
        f"(median of {slot.size} cancels).",
        facts,
        f"slot free - client left = {median:,.0f} ms > {LATE_MS:.0f} ms",
        late,
        median,
    )


def _by_ghosts(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    window = evidence.now
    found = _ghosts(window)
    if found is None or found.mean < GHOSTS:
        return None
    many = found.share >= SURPLUS and found.correlation >= max(SOME, CERTAIN / found.n**0.5)
    follows = found.correlation >= FOLLOWS or many
    if not follows and not _new(evidence, found) and not _as_many(evidence, found):
        return None
    return _found(
        cause,
        evidence,
        f"The engine goes on for clients that have left: it holds {found.mean:.1f} requests more than wait for an "
        f"answer (mean), {found.share:.0%} of what it runs, and more after cancels.",
        [
            Evidence(
                f"running + waiting at the engine less our requests under way: {found.mean:.1f} (mean at "
                f"admission), "
                f"{found.share:.0%} of what it runs",
                "record:running_at_admission, record:start, record:e2e_ns",
                "ghosts",
                round(found.mean, 2),
            ),
            Evidence(
                f"if nothing ended them, {found.expected:.1f} of the cancelled requests would still run (mean at the "
                "same moments)",
                "record:max_tokens, record:output_tokens, record:tpot_ns",
                "expected",
                round(found.expected, 2),
            ),
            Evidence(
                f"that surplus goes with what the cancelled requests would still have had to do (rank correlation "
                f"{found.correlation:.2f})",
                "record:max_tokens, record:tpot_ns",
                "correlation",
                round(found.correlation, 3),
            ),
        ],
        f"engine's {found.mean:.1f} too many ~ cancelled requests that would still run (rank correlation "
        f"{found.correlation:.2f})",
        int(cancels(window).rows.size),
        window.tail_lost_ms * found.share,
        [] if follows else ["when the engine's slots of cancelled requests are free, or who else uses this engine"],
    )


def _found(
    cause: Cause,
    evidence: EvidenceSet,
    statement: str,
    facts: list[Evidence],
    relation: str,
    n: int,
    explains: float,
    missing: list[str] | None = None,
) -> Finding:
    gone = cancels(evidence.now)
    return cause.finding(
        statement=statement,
        evidence=[
            *facts,
            Evidence(
                f"{gone.rows.size} of {len(evidence.now.every)} requests were cancelled by their clients",
                "record:outcome",
                "cancelled",
                float(gone.rows.size),
            ),
        ],
        explains_ms=explains,
        relation=relation,
        n=n,
        advice="Have every hop close its upstream connection when its client leaves (nginx: "
        "proxy_ignore_client_abort "
        "off), pass the request id to the engine's abort (vLLM aborts on disconnect of a stream; SGLang: "
        "/abort_request), and keep an acceptance test: cancel, then running falls within a second.",
        price="None.",
        verify=(
            "tailrace bench http://localhost:8000 --cancel after-tokens:5 --output-tokens 900 "
            "--duration 60 --out cancelled.run && tailrace diagnose cancelled.run  # the engine's "
            "running requests must fall within about a second"
        ),
        missing=missing,
        disproof_checked=[relation],
    )


def _new(evidence: EvidenceSet, found: _Ghosts) -> bool:
    """Whether a fifth of what the engine runs is nobody's, in the window before nothing was, and many clients leave: in
    a full engine the surplus is always there and follows no single cancel.
    """
    before = evidence.before
    if before is None or found.share < SURPLUS:
        return False
    leave = cancels(evidence.now).rows.size / max(len(evidence.now.every), 1)
    old = _ghosts(before)
    return leave >= LEAVE and old is not None and old.mean < GHOSTS


def _as_many(evidence: EvidenceSet, found: _Ghosts) -> bool:
    """Whether many clients leave and the engine holds about as many too many as those would still be: a gauge that is
    read every few seconds follows no single cancel.
    """
    leave = cancels(evidence.now).rows.size / max(len(evidence.now.every), 1)
    return leave >= LEAVE and found.share >= SURPLUS and found.as_many


def _ghosts(window: Window) -> _Ghosts | None:
    every = window.every
    known = account(window)
    seen = every.column("running_at_admission") + np.nan_to_num(every.column("waiting_at_admission"), nan=0.0)
    rows = np.flatnonzero(~np.isnan(seen) & known.reached)
    if rows.size < 20:
        return None
    ours = known.upstream().at(known.sent[rows]) - 1.0
    surplus = seen[rows] - ours
    gone = cancels(window)
    pace = window.done.ms("tpot")
    pace = pace[~np.isnan(pace)]
    if not pace.size:
        return None
    # What each cancelled request would still have taken: its tokens to go at the usual pace.
    planned = every.column("max_tokens")[gone.rows]
    output = window.done.column("output_tokens")
    usual = float(np.nanmedian(output)) if not np.isnan(output).all() else 0.0
    left = np.maximum(np.where(np.isnan(planned), usual, np.minimum(planned, 2 * usual)) - gone.output_tokens, 1.0)
    over = known.end[gone.rows]
    expected = InFlight.of(over, over + left * float(np.median(pace)) * 1e6).at(known.sent[rows])
    total = float(seen[rows].mean())
    return _Ghosts(
        float(surplus.mean()),
        spearman(surplus, expected),
        float(surplus.mean()) / max(total, 1e-9),
        int(rows.size),
        float(expected.mean()),
    )
