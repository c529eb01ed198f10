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


class Proof(StrEnum):
    """What alone makes a finding `proven`."""

    ONE_CHANGE = "one change"
    """Two arms that differ in one stated change, at equal mix and load, and by more than runs differ."""
    IN_WINDOW = "seen inside the slow window"
    """A stack, a profile or a line of the engine's log from the slow time names the mechanism."""
    IMPOSSIBLE = "impossible otherwise"
    """Arithmetic: the numbers cannot all be right."""


class Action(StrEnum):
    """What to do about it."""

    TUNE = "tune"
    SCALE = "scale"
    SHED = "shed"
    ROLLBACK = "rollback"
    FIX = "fix"
    NONE = "none"
    COLLECT = "collect"


class Part(StrEnum):
    """Which part of a window a finding holds for, where the window begins with a warm-up."""

    WHOLE = ""
    STEADY = "steady"
    """The requests that came once it was warm."""
    START = "start"
    """Only the window with its start shows it."""


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
    proof: Proof | None = None
    """By what it is proven; `None` at every other level."""
    requests: list[str] = []
    """Requests of the tail that show it best, at most five; `tailrace explain` opens them by their ids."""
    part: Part = Part.WHOLE
    """Which part of a window with a warm-up it holds for."""


class Attribution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a part of the tail, or of its change, lies. It names no cause: causes are findings."""

    kind: str
    """`stage_at_tail`, `stage_shift`, `mix_within`, `slower_kind`, `gaps_together`, `gap_and_prefill`, `replica_skew`,
    `timer`, `period`, `moment`, `contribution`."""
    text: str
    """One sentence with its numbers, their intervals (95 %) and their n."""
    source: str
    about: str = ""
    """What it is about: a metric, a stage, a tenant."""
    n: int = 0
    numbers: dict[str, float] = {}
    """The numbers of the sentence by name; `..._low` and `..._high` are the ends of an interval."""


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """How much time the slowest requests lost, and how much of it the findings explain together (ms)."""

    metric: str
    """The metric whose objective is broken; where none is, what its users feel: `ttft`, `chunk_gap` (the longest of a
    request) or `e2e`."""
    quantile: float
    """That of the objective; without one the highest of p99, p95 and p50 that n supports."""
    p_ms: float
    """`metric` at `quantile`."""
    n: int
    """Requests of the tail: the 2.5 % that lost the most time, at least ten."""
    lost_ms: float
    """What each lost on average: beyond what the typical request takes (that of the window before, if there is one)."""
    explained_ms: float
    """Of it, what the findings explain together. Where two of them explain the same wait, it counts once."""
    unexplained_ms: float
    """`lost_ms - explained_ms`."""
    by_finding: dict[str, float] = {}
    """Code -> what it adds to those ranked before it; the sum is `explained_ms`."""
    objective_ms: float | None = None
    """The bound that `p_ms` breaks; `None` where no objective is broken."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace diagnose --json` prints. Findings are ranked; the first is the answer."""

    schema: int = 1
    validity: list[Finding] = []
    findings: list[Finding] = []
    action: Action = Action.NONE
    triage: list[str] = []
    needs: list[str] = []
    not_understood: list[str] = []
    remarks: list[str] = []
    """What is to be known of the evidence itself: lines that were thinned, clocks taken for one, or that cannot be."""
    observations: list[Evidence] = []
    """What the machine and a profile showed beside the requests, whatever the cause; none of it is a verdict."""
    summary: str = ""
    """One sentence for a person: the answer, or that nothing is wrong, or what is missing."""
    attribution: list[Attribution] = []
    """Which stage, traffic, replica, moment or tenant makes the tail or its change, with intervals."""
    tail: Tail | None = None
    """`None` where there is no request to lose time."""
    paragraph: str = ""
    """The verdict in one paragraph: what is slow, why, how sure that is, what to do, at what price, how to check it."""
    next_evidence: list[str] = []
    """What to collect next, the most decisive first: what would raise the first finding's level or rule out a rival."""
    steady: str = ""
    """Where the window begins with a warm-up: what the answer is with the start in it, and without."""
