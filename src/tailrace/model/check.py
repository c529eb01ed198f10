"""What `tailrace check` says: the options in force with their sources, and what is wrong or could be better."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tailrace.model.finding import Evidence


class Weight(StrEnum):
    """How much a finding matters; findings are ordered by it."""

    ERROR = "error"
    """The engine refuses it, or does something else than was meant."""
    WARNING = "warning"
    """It works, and will hurt under load."""
    ADVICE = "advice"
    """A change with an effect and a price."""
    INFO = "info"
    """Worth knowing: nothing to do."""


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of an engine."""

    key: str
    """`max_num_seqs`: the same name whatever the engine calls it."""
    value: str | int | float | bool
    source: str
    """The command line's option, a log's line, a path and its field, a metric and its label, or `default of 0.32.0`."""
    default: bool = False
    """Nobody set it: the engine's own default."""
    contradicts: str = ""
    """What another source says; one of the two is a mistake."""


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know or to change."""

    code: str
    weight: Weight
    about: str
    """The engine, file or address that it concerns."""
    subject: str = ""
    """The option, key or metric."""
    line: int | None = None
    """Line of the file that it concerns, counted from 1."""
    statement: str
    evidence: list[Evidence] = []
    advice: str = ""
    """What to write instead, ready to be copied where it is an option."""
    effect: str = ""
    """What the advice is expected to change."""
    price: str = ""
    """What it costs."""
    verify: str = ""
    """The commands that show whether it did."""


class CheckedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine (or model, or configuration) that was looked at."""

    name: str
    engine: str
    version: str = ""
    version_source: str = ""
    settings: list[InForce] = []


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace check --json` prints."""

    schema: int = 1
    engines: list[CheckedEngine] = []
    findings: list[CheckFinding] = []
    """By weight; errors first."""
    counts: dict[str, int] = {}
    """Findings of each weight."""
    needs: list[str] = []
    """What could not be judged, and what to provide for it."""
    not_understood: list[str] = []
    sources: list[str] = []
    """What was read."""
    summary: str = ""
