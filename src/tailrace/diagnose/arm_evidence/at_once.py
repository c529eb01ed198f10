"""All requests of a benchmark are sent at once: TTFT is then a place in the queue, and no service time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import condition, figure, per_request
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.limits import LATE_MS
from tailrace.diagnose.observed import Arm, Observed
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["all_at_once"]

LEAST_N: Final = 20
OF_THE_RUN: Final = 0.2
"""A usual TTFT of this share of the whole run: most requests waited for others to end."""
FEW: Final = 8.0
"""Requests at once, by rate x time per token, below which the engine's cap is the first question."""


def all_at_once(cause: Cause, observed: Observed, arm: Arm) -> Finding | None:
    """Rate `inf`, no limit of concurrency below n, and a usual TTFT that is a large part of the run."""
    if not _unlimited(observed, arm):
        return None
    n, span = figure(arm, "n"), figure(arm, "duration")
    ttft = figure(arm, "ttft", stats=("mean", "p50"))
    if n is None or span is None or ttft is None or n.value < LEAST_N or span.value <= 0:
        return None
    limit = condition(arm, r"\bconcurrency\b")
    share = ttft.value / 1e3 / span.value
    if (limit is not None and limit < n.value) or ttft.value < LATE_MS or share < OF_THE_RUN:
        return None
    rate = n.value / span.value
    evidence = [
        evidence_of(arm, n),
        evidence_of(arm, span),
        evidence_of(arm, ttft),
        Evidence(f"{n.value:g} / {span.value:g} s = {rate:.3g}/s", str(n.place), "service_rate", round(rate, 4), "1/s"),
        Evidence(f"TTFT is {share:.0%} of the run", str(ttft.place), "share_of_run", round(share, 4)),
    ]
    at_once, words = _served_together(arm), ""
    few = at_once is not None and at_once <= FEW
    if at_once is not None and few:
        words = f" Token rate x time per token says that about {at_once:.2g} were decoded at once."
        evidence.append(
            Evidence(f"about {at_once:.2g} streams at once", str(arm.place), "decoded_at_once", round(at_once, 3))
        )
    return cause.finding(
        statement=f"All {n.value:g} requests are sent at once and served at {rate:.3g}/s: the last waits for "
        f"{span.value:g} s, and {quantity(ttft)} {number(ttft.value, 'ms')} ({share:.0%} of the run) is a place in "
        f"that queue, no service time.{words}",
        evidence=evidence,
        explains_ms=ttft.value,
        relation=f"{n.value:g} / {rate:.3g}/s = {span.value:g} s; TTFT {ttft.value / 1e3:.1f} s = {share:.0%} of it",
        n=int(n.value),
        advice=(
            "The engine decodes hardly more than one at a time: look at --max-num-seqs, and at the device (is it used "
            "at all?), before anything else. "
            if few
            else ""
        )
        + "To learn how fast the engine answers, send at a rate below what it serves (--request-rate), or with a limit "
        "(--max-concurrency); where this is the real traffic, bound the queue and shed.",
        price="A run at a fixed rate takes as long as its requests say.",
        verify=again(arm),
        rivals=["TUNE_NOT_SCALE"] if few else [],
        disproof_checked=["no request rate and no limit of concurrency are given"],
        action=Action.TUNE if few else Action.SHED,
    )


def _unlimited(observed: Observed, arm: Arm) -> bool:
    offered = figure(arm, "offered_rps")
    if arm.keys.get("offered_rps") == "inf" or (offered is not None and offered.value == float("inf")):
        return True
    if "offered_rps" in arm.keys or offered is not None or len(observed.arms) > 1:
        return False
    stated = [item.value for item in observed.settings if item.name in {"request_rate", "offered_rps"}]
    limits = [item.number for item in observed.settings if item.name in {"max_concurrency", "concurrency"}]
    return bool(stated) and all(str(value).lower() == "inf" for value in stated) and not any(limits)


def _served_together(arm: Arm) -> float | None:
    """Streams that were decoded at once, by Little's law over the decode: tok/s x s a token."""
    rate, tpot, out = (
        figure(arm, "output_tok_s"),
        figure(arm, "tpot", stats=("mean", "p50")),
        per_request(arm, "output_tokens", ("mean", "p50", "")),
    )
    if rate is None or tpot is None or out is None or out[0] < 2:
        return None
    return rate.value * tpot.value / 1e3
