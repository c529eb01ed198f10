"""A garbage collector on the stack of a process that stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.series_evidence.jit_in_stacks import taken_in_the_stall
from tailrace.model.finding import Action, Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["gc_in_stacks"]


def gc_in_stacks(cause: Cause, observed: Observed, *, advice: str, price: str, verify: str) -> Finding | None:
    """An active thread stands in the collector; proven where somebody says that the dump was taken in the stall."""
    stacks = [
        event
        for event in observed.of_kind("stack")
        if event.attributes.get("class") == "gc" and event.attributes.get("state") == "active"
    ]
    inside, where = taken_in_the_stall(observed)
    frozen = observed.setting("all_streams_frozen")
    if not stacks or inside is False or (frozen is not None and frozen.value is False):
        return None
    stall = observed.number("stall_s", "gap_s")
    frame = str(stacks[0].attributes.get("frame") or stacks[0].text)
    title = str(stacks[0].attributes.get("title") or f"process {stacks[0].attributes.get('process')}")
    lasts = f" for {stall:g} s" if stall is not None else ""
    missing = []
    if not inside:
        missing.append("that the dump was taken while it was slow")
    if frozen is None:
        missing.append("whether all streams stop together then")
    evidence = [Evidence(text=f"{title} stands in {event.text}", source=str(event.place), name="stack")
                for event in stacks[:3]]  # fmt: skip
    if inside:
        evidence.append(Evidence("the dump was taken in the stall", where))
    if frozen is not None:
        evidence.append(Evidence("all streams are said to stand still then", observed.source_of("all_streams_frozen")))
    if stall is not None:
        evidence.append(
            Evidence(f"the stall lasts {stall:g} s", observed.source_of("stall_s", "gap_s"), "stall", stall, "s")
        )
    return cause.finding(
        statement=f"Garbage collection stops the process{lasts}: {title} stands in {frame}.",
        evidence=evidence,
        explains_ms=stall * 1e3 if stall is not None else None,
        relation=f"active thread in {frame}",
        n=len(stacks),
        advice=advice,
        price=price,
        verify=verify,
        missing=missing,
        disproof_checked=["the dump was taken in the stall" if inside else "when the dump was taken is not known"],
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.PROVEN,
        proof=Proof.IN_WINDOW,
    )
