"""Findings: a cause with its layer, level, evidence, and what would disprove it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Layer(StrEnum):
    """The four layers to which a bad tail is attributed, and the check of the numbers that comes before them."""

    VALIDITY = "validity"
    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    COMPUTE = "compute"
    MIX = "mix"


class Level(StrEnum):
    """How sure a finding may sound; the ranking order is this order."""

    PROVEN = "proven"
    CONSISTENT = "consistent"
    SUSPECTED = "suspected"
    INSUFFICIENT = "insufficient"


class Action(StrEnum):
    """What to do about it."""

    TUNE = "tune"
    SCALE = "scale"
    SHED = "shed"
    ROLLBACK = "rollback"
    FIX = "fix"
    NONE = "none"
    COLLECT = "collect"


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One number behind a statement."""

    text: str
    """A sentence with its number and unit."""
    source: str
    """Where it comes from: `record:decode_ns`, `timeline`, `metric:vllm:num_preemptions_total`."""
    name: str = ""
    value: float | None = None
    unit: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause. Every number in `statement` appears in `evidence`; an `insufficient` one carries only `missing`."""

    code: str
    layer: Layer
    stage: str
    level: Level
    statement: str
    explains_ms: float | None = None
    """How much of the tail's excess latency this cause explains (ms at the quantile), where it can be computed."""
    evidence: list[Evidence] = []
    relation: str = ""
    """The arithmetic of the rule, with its numbers."""
    n: int = 0
    advice: str = ""
    price: str = ""
    """What the advice costs: the trade-off in words."""
    disproof: str = ""
    """What would show that this finding is wrong."""
    disproof_checked: list[str] = []
    verify: str = ""
    """The command to type to test the advice."""
    rivals: list[str] = []
    missing: list[str] = []
    action: Action = Action.NONE


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace diagnose --json` prints. Findings are ranked; the first is the answer."""

    schema: int = 1
    validity: list[Finding] = []
    findings: list[Finding] = []
    action: Action = Action.NONE
    triage: list[str] = []
    needs: list[str] = []
    not_understood: list[str] = []
    observations: list[Evidence] = []
    """What the machine and a profile showed beside the requests, whatever the cause; none of it is a verdict."""
    summary: str = ""
    """One sentence for a person: the answer, or that nothing is wrong, or what is missing."""
