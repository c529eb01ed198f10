"""DECODE_SLOWDOWN and COMPUTE_KERNEL_REGRESSION where no equal company is there to compare, or only at times."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.expected_pace import grown_pace, slow_episodes
from tailrace.model.finding import Evidence

__all__ = ["Slower", "slower_than_before"]


class Slower(NamedTuple):
    """What was found, for a finding."""

    statement: str
    evidence: list[Evidence]
    relation: str
    explains: float
    n: int
    checked: list[str]
    at_times: bool


def slower_than_before(evidence: EvidenceSet, code: str) -> Slower | None:
    """The pace against what it should be at the company that the requests had, by the window before."""
    before, window = evidence.before, evidence.now
    if before is None:
        return None
    grown = grown_pace(before, window)
    if grown is not None:
        text = (
            f"a token takes {grown.seen:.3g} ms where {grown.expected:.3g} ms are usual for {grown.company_b:.0f} "
            f"requests together (x {grown.ratio:.2f}, n = {grown.n})"
        )
        return Slower(
            f"The engine is slower for the same work: {text}, at the rate and lengths of before.",
            [
                Evidence(text, "record:chunk_gap_p50_ns", "pace_ms", round(grown.seen, 4), "ms"),
                Evidence(
                    f"{grown.company_a:.0f} -> {grown.company_b:.0f} requests are under way together (median) although "
                    "no more is asked: a slower engine keeps each one for longer",
                    "record:start, record:e2e_ns",
                    "company",
                    round(grown.company_b, 1),
                ),
            ],
            f"{grown.seen:.3g} / {grown.expected:.3g} ms a token = {grown.ratio:.2f}",
            grown.explains,
            grown.n,
            [
                (
                    f"the batch went from {grown.company_a:.0f} to {grown.company_b:.0f}, which explains "
                    f"{grown.expected:.3g} ms a token; rate and lengths are as before"
                )
            ],
            at_times=False,
        )
    found = slow_episodes(before, window)
    if found is None:
        return None
    explains = window.explain(code, found.explains)
    return Slower(
        f"The engine is slower at times: in {found.stretches} stretches of {found.seconds:.0f} s together each token "
        f"takes x {found.ratio:.2f} of what is usual at that batch, for all requests alike; between them it is as "
        f"before (x {found.outside:.2f}).",
        [
            Evidence(
                f"{found.stretches} stretches, {found.seconds:.0f} s, in which at least seven of ten requests that "
                f"decode are slower by a third (x {found.ratio:.2f}, n = {found.n}); elsewhere x {found.outside:.2f}",
                "record:chunk_gap_p50_ns by second",
                "pace_ratio",
                round(found.ratio, 3),
            )
        ],
        f"pace inside / expected = {found.ratio:.2f}, outside {found.outside:.2f}",
        explains,
        found.n,
        ["compared at equal company, by the window before, which has no such stretches"],
        at_times=True,
    )
