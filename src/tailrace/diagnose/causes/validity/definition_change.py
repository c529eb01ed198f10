"""METRIC_DEFINITION_CHANGE: a server's metric jumped with its version, and nobody's waiting did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar, Final

from tailrace.diagnose.arms.again import MEASURE
from tailrace.diagnose.arms.as_written import name_of, seen, shown
from tailrace.diagnose.arms.pairs import before_and_after, unlike
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Arm, Histogram, Observed, Quoted, Role
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["DefinitionChange"]

JUMP: Final = 1.3
STILL: Final = 0.1
_CLIENT: Final = re.compile(
    r"client|user|gateway|probe|bench|measured|load ?gen|loadgen|locust|\bk6\b|curl|outside|external|caller|\bscript",
    re.IGNORECASE,
)
_SERVER: Final = re.compile(
    r"server|engine|metric|prom(?:etheus)?\b|vllm|sglang|scrape|dashboard|grafana|export|reported|internal|telemetry|panel",
    re.IGNORECASE,
)
_VERSION: Final = re.compile(r"version|upgrad|release|\bv?\d+\.\d+", re.IGNORECASE)
_VERSIONS: Final = re.compile(
    r"[^.\n]{0,40}\b(?:upgrad\w*|version|release)\b[^\n]{0,40}\d+\.\d+[^\n]{0,20}|\bv?\d+\.\d+(?:\.\d+)?\s*(?:->|→|to)\s*"
    r"v?\d+\.\d+(?:\.\d+)?",
    re.IGNORECASE,
)
LEAST: Final = 20
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
        versions = _told_versions(observed)
        for before, after in [*before_and_after(observed.arms), *_steps(observed)]:
            told = [*before.keys.items(), *after.keys.items()]
            texts = [text for item in told for text in item if isinstance(text, str)]  # a temperature is no version
            words = f"{_named(before)} {_named(after)} {' '.join(texts)} {changed} {versions}"
            if not _VERSION.search(words):
                continue
            for metric in _LATENCIES:
                found = self._metric(before, after, metric)
                if found is not None:
                    return found
        return self._scrapes(observed, f"{changed} {' '.join(observed.notes)}")

    def _scrapes(self, observed: Observed, words: str) -> Finding | None:
        """A histogram's mean that jumps between two windows of scrapes, where a change of version is told."""
        told = _VERSIONS.search(words)
        if told is None:
            return None
        for metric in _LATENCIES:
            known = [item for item in observed.windows(metric) if not item.lifetime and item.n >= LEAST and item.mean]
            for old, new in pairwise(known):
                jump = (new.mean or 0.0) / (old.mean or 1.0)
                if 1.0 / JUMP < jump < JUMP:
                    continue
                client = _of_clients(observed, metric)
                if client is not None and abs(client[1] / client[0] - 1.0) > STILL:
                    return None
                return self._jumped(old, new, jump, told[0], client)
        return None

    def _jumped(
        self, old: Histogram, new: Histogram, jump: float, version: str, client: tuple[float, float] | None
    ) -> Finding:
        means = f"{shown(round(old.mean or 0.0, 2))} -> {shown(round(new.mean or 0.0, 2))} {new.unit}"
        place = str(new.place) or new.raw
        evidence = [
            Evidence(
                text=f"mean of {new.raw or new.name} {means} between two windows (n = {old.n:.0f}, {new.n:.0f})",
                source=place, name=f"{new.name}.mean", value=new.mean, unit=new.unit,
            ),
            Evidence(text=f"a change of version is told: {version.strip()[:80]}", source="notes", name="changed"),
        ]  # fmt: skip
        seen_by = "what clients saw is not known"
        if client is not None:
            seen_by = f"clients saw {shown(client[0])} -> {shown(client[1])} ms"
            evidence.append(Evidence(text=seen_by, source="facts", name=new.name, value=client[1], unit="ms"))
        return self.finding(
            statement=f"The mean of {new.name.upper()} went {means} with the version, while {seen_by}: the metric may "
            "mean another thing now.",
            evidence=evidence,
            explains_ms=None,
            relation=f"server x {jump:.2f}" + ("" if client is None else f", client x {client[1] / client[0]:.2f}"),
            n=int(new.n),
            advice="Compare with stamps of a client or a gateway before calling it a regression, and read what the new "
            "version counts from.",
            price="Dashboards across the change cannot be read as one line.",
            verify=MEASURE,
            missing=[] if client is not None else ["the client's TTFT in both versions"],
            rivals=[] if client is not None else ["COMPUTE_KERNEL_REGRESSION"],
        )

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
            verify=MEASURE,
            missing=[] if client is not None else ["the client's TTFT in both versions"],
            rivals=[] if client is not None else ["COMPUTE_KERNEL_REGRESSION"],
            level=None if client is not None else Level.SUSPECTED,
        )


def _named(arm: Arm) -> str:
    """What it is called, without its numbers: `temperature 0.7` is no version."""
    numbers = [f"{value:g}" for value in arm.keys.values() if isinstance(value, (int, float))]
    return " ".join(word for word in arm.name.split() if word not in numbers)


def _steps(observed: Observed) -> Iterator[tuple[Arm, Arm]]:
    """Neighbouring rows of tables along versions (or days) that tell no before from after; of rows along a load or a
    setting, a number with a point is no version.
    """
    rows = [arm for arm in observed.arms if arm.role is Role.NONE]
    for one, two in pairwise(rows):
        if one.place.source == two.place.source and not unlike(one, two) and _texts(one) != _texts(two):
            yield one, two


def _texts(arm: Arm) -> set[str]:
    """What tells it from others that is no number."""
    return {value for value in arm.keys.values() if isinstance(value, str)}


def _told_versions(observed: Observed) -> str:
    """Two different versions of a form, as words."""
    told = {str(item.value) for item in observed.settings if "version" in item.name and isinstance(item.value, str)}
    return f"version {' '.join(sorted(told))}" if len(told) > 1 else ""


def _of_clients(observed: Observed, metric: str) -> tuple[float, float] | None:
    """The same latency as a pair of arms has it: what a load test or a form says is a client's."""
    for before, after in before_and_after(observed.arms):
        for stat in ("mean", "p50", "p99"):
            old, new = before.get(metric, stat), after.get(metric, stat)
            if old and new:
                return old, new
    return None


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
