"""TRACE_GAP: the spans do not cover the request, so they cannot say where its time went."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.arm_evidence.gap_stated import gap_stated
from tailrace.diagnose.arm_evidence.parts_of_whole import gap_of_parts
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.trace_cover import Cover, covers, engines_alone, stated_covers
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["TraceGap"]

COVERED: Final = 0.9
_WHERE: Final = {
    "before": "before the first server span: the front end (reading the request, routing, tokenising) or a queue in "
    "the API process, before the engine's arrival time",
    "between": "between server spans: hops, queues and pools that nobody stamps",
    "after": "after the last server span: writing to the client, or a client that reads slowly",
}


class TraceGap(Cause):
    """Server spans cover less than nine tenths of the client's time."""

    code: ClassVar[str] = "TRACE_GAP"
    stage: ClassVar[str] = "ingress"
    needs: ClassVar[tuple[str, ...]] = ("the client's span of the request", "the servers' spans of the same trace")
    disproof: ClassVar[str] = "The gap lies after the last token: then the client's side of the write is slow."
    action: ClassVar[Action] = Action.COLLECT

    def observe(self, observed: Observed) -> Finding | None:
        """Coverage over all traces; where the gap of most of it lies."""
        found = covers(observed) or stated_covers(observed)
        if not found:
            if engines_alone(observed):
                return self.insufficient(
                    "the client's (or the gateway's) span of the same traces: the engine's alone do not say what they "
                    "leave out"
                )
            return gap_stated(self, observed) or gap_of_parts(self, observed)
        total = sum(cover.total_ms for cover in found)
        share = sum(cover.covered_ms for cover in found) / total
        return self._found(found, share) if share < COVERED else None

    def _found(self, found: list[Cover], share: float) -> Finding:
        worst = max(found, key=lambda cover: cover.total_ms - cover.covered_ms)
        total = sum(cover.total_ms for cover in found) / 1e3
        covered = sum(cover.covered_ms for cover in found) / 1e3
        placed = np.isfinite(worst.before_ms)
        gaps = {
            "before": sum(cover.before_ms for cover in found),
            "between": sum(cover.between_ms for cover in found),
            "after": sum(cover.after_ms for cover in found),
        }
        skewed = max(cover.skew_ms for cover in found)
        place = max(gaps, key=lambda name: gaps[name])
        gap = total - covered
        evidence = [
            Evidence(
                text=f"client {worst.client}: {worst.total_ms / 1e3:.3f} s; servers' spans cover "
                f"{worst.covered_ms / 1e3:.3f} s of it",
                source=worst.place,
                name="covered",
                value=round(worst.covered_ms, 3),
                unit="ms",
            ),
            Evidence(
                text=f"{covered:.3g} of {total:.3g} s covered in {len(found)} trace{'s' if len(found) != 1 else ''}: "
                f"{share:.0%}; {gap:.1f} s ({1 - share:.0%}) are in no server's span",
                source=worst.place,
                name="coverage",
                value=round(share, 4),
            ),
        ]
        evidence += [
            Evidence(
                text=f"{hop.name} begins after {hop.begins_ms / 1e3:.3g} s and lasts {hop.lasts_ms / 1e3:.3g} s: "
                f"{hop.lasts_ms / worst.total_ms:.1%} of the client's time",
                source=worst.place,
                name="hop",
                value=round(hop.lasts_ms, 3),
                unit="ms",
            )
            for hop in worst.hops
        ]
        missing, rivals, checked = [], [], []
        if not placed:
            missing.append("the spans' begin and end: where the rest lies is not known")
            where = "where they lie is not told"
        elif skewed:
            missing.append(
                "clocks that agree: spans of the servers lie outside of the client's, so the gap has no place"
            )
            where = "where it lies is not known, because the clocks differ"
            evidence.append(
                Evidence(text=f"clocks differ by at least {skewed:.1f} ms", source=worst.place, value=skewed, unit="ms")
            )
        else:
            where = f"{gaps[place] / 1e3:.1f} s of it {_WHERE[place]}"
            evidence.append(
                Evidence(
                    text=f"{gaps['before'] / 1e3:.1f} s before {worst.first} begins, {gaps['between'] / 1e3:.1f} s "
                    f"between spans, {gaps['after'] / 1e3:.1f} s after the last",
                    source=worst.place,
                    name=f"gap_{place}",
                    value=round(gaps[place], 3),
                    unit="ms",
                )
            )
            checked.append(f"{gaps['after'] / 1e3:.1f} s of the gap lie after the last server span")
            if place == "after":
                rivals.append("CLIENT_SLOW_READER")
        told = [cover.ttft_ms for cover in found if np.isfinite(cover.ttft_ms)]
        if told:
            evidence.append(
                Evidence(
                    text=f"the engine says of its first token {float(np.median(told)):.0f} ms (median)",
                    source=worst.place,
                    name="engine_ttft",
                    value=round(float(np.median(told)), 3),
                    unit="ms",
                )
            )
        return self.finding(
            statement=f"Servers' spans cover {share:.0%} of the request: {gap:.1f} s ({1 - share:.0%}) are not in "
            f"them; {where}.",
            evidence=evidence,
            explains_ms=(worst.total_ms - worst.covered_ms),
            relation=f"{covered:.3g}/{total:.3g} s = {share:.2f} < {COVERED}",
            n=len(found),
            advice="Stamp what is missing: the read of the request, tokenising, the router, the pool before the engine "
            "(a gateway in front that stamps both sides does). Judge the engine by its spans, and the request by the "
            "client's.",
            price="A span more for each request.",
            verify="tailrace serve --upstream http://localhost:8000",
            missing=missing,
            rivals=rivals,
            disproof_checked=checked,
        )
