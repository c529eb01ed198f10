"""METRIC_DEFINITION_CHANGE: a server's metric jumped with its version, and nobody's waiting did."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from tailrace.diagnose.arm_numbers import name_of, pairs_of, seen, shown
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Finding, Level

__all__ = ["DefinitionChange"]

JUMP: Final = 1.3
STILL: Final = 0.1
_CLIENT: Final = re.compile(r"client|user|gateway|probe|bench|measured", re.IGNORECASE)
_SERVER: Final = re.compile(r"server|engine|metric|prometheus|vllm:|sglang:|scrape|dashboard|grafana", re.IGNORECASE)
_VERSION: Final = re.compile(r"version|upgrad|release|\bv?\d+\.\d+", re.IGNORECASE)
_LATENCIES: Final = ("ttft", "e2e", "itl", "tpot", "queue")


class DefinitionChange(Cause):
    """The series of /metrics and the client's stamps disagree across a change of version."""

    code: ClassVar[str] = "METRIC_DEFINITION_CHANGE"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("the server's metric in both versions", "the client's stamps in both versions")
    disproof: ClassVar[str] = "The client's stamps moved too."
    action: ClassVar[Action] = Action.COLLECT

    def observe(self, observed: Observed) -> Finding | None:
        """A server's number that jumps between two versions beside a client's that does not, or is not known."""
        changed = observed.text("changed", "change")
        for before, after in pairs_of(observed.arms):
            words = f"{before.name} {after.name} {' '.join(map(str, (*before.keys, *after.keys)))} {changed}"
            if not _VERSION.search(words):
                continue
            for metric in _LATENCIES:
                found = self._metric(before, after, metric)
                if found is not None:
                    return found
        return None

    def _metric(self, before: Arm, after: Arm, metric: str) -> Finding | None:
        server = _both(before, after, metric, _SERVER)
        client = _both(before, after, metric, _CLIENT)
        if server is None:
            return None
        jump = server[1].value / server[0].value
        if 1.0 / JUMP < jump < JUMP:
            return None
        if client is not None and abs(client[1].value / client[0].value - 1.0) > STILL:
            return None
        evidence = [seen(before, server[0]), seen(after, server[1])]
        told, relation = "what clients saw is not known", f"server x {jump:.2f}"
        if client is not None:
            evidence += [seen(before, client[0]), seen(after, client[1])]
            told = f"clients saw {shown(client[0].value)} -> {shown(client[1].value)} {client[1].unit}"
            relation += f", client x {client[1].value / client[0].value:.2f}"
        return self.finding(
            statement=f"{name_of(server[1])} went {shown(server[0].value)} -> {shown(server[1].value)} "
            f"{server[1].unit} with the "
            f"version, while {told}: the metric may mean another thing now.",
            evidence=evidence,
            explains_ms=None,
            relation=relation,
            n=int(after.get("n") or 0),
            advice="Compare with stamps of a client or a gateway before calling it a regression, and read what the "
            "new version "
            "counts from.",
            price="Dashboards across the change cannot be read as one line.",
            verify="tailrace bench http://localhost:8000 --rate 5 --duration 60",
            missing=[] if client is not None else ["the client's TTFT in both versions"],
            rivals=[] if client is not None else ["COMPUTE_KERNEL_REGRESSION"],
            level=None if client is not None else Level.SUSPECTED,
        )


def _both(before: Arm, after: Arm, metric: str, words: re.Pattern[str]) -> tuple[Quoted, Quoted] | None:
    """The same number of both arms, the heading of which has one of the words."""
    for old in before.values.values():
        if old.quantity != metric or old.relative or old.value <= 0 or not words.search(f"{old.label} {old.qualifier}"):
            continue
        new = next(
            (v for v in after.values.values() if v.label == old.label and v.stat == old.stat and not v.relative), None
        )
        if new is not None and new.unit == old.unit:
            return old, new
    return None
