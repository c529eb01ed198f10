"""A cause: one object with its code, the evidence it needs, and its rule."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Final

from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.hardware import Hardware
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Evidence, Finding, Layer, Level, Proof

__all__ = ["CARRIES_MS", "CARRIES_SHARE", "Cause", "layer_of", "surest"]

CARRIES_SHARE: Final = 0.10
CARRIES_MS: Final = 50.0
CARRIES_OF_BOUND: Final = 0.15
"""A cause is named only if it explains at least this share, and this much, of the time that the tail lost. Where the
objective of TTFT is a short one, 15 % of it are enough."""

_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
_SUREST: Final = tuple(Level)
_LAYERS: Final = {
    "GW": Layer.GATEWAY,
    "FE": Layer.GATEWAY,
    "LB": Layer.GATEWAY,
    "CLIENT": Layer.GATEWAY,
    "CANCEL": Layer.GATEWAY,
    "SCHED": Layer.SCHEDULER,
    "COMPUTE": Layer.COMPUTE,
    "DECODE": Layer.COMPUTE,
    "PREPROCESS": Layer.GATEWAY,
    "POSTPROCESS": Layer.GATEWAY,
    "LOCK": Layer.GATEWAY,
    "RETRY": Layer.GATEWAY,
    "SCALE": Layer.GATEWAY,
    "ENGINE": Layer.SCHEDULER,
    "TUNE": Layer.SCHEDULER,
    "ENCODE": Layer.COMPUTE,
    "STREAM": Layer.COMPUTE,
    "MIX": Layer.MIX,
    "TRACE": Layer.VALIDITY,
    "METRIC": Layer.VALIDITY,
    "BENCH": Layer.VALIDITY,
    "AB": Layer.VALIDITY,
    "INSUFFICIENT": Layer.VALIDITY,
}


_BY_CAUSE: Final = {
    "ASR_LAG_GROWS": Layer.COMPUTE,
    "ASR_SILENT_HANG": Layer.SCHEDULER,
    "ASR_EMPTY_DELTAS": Layer.COMPUTE,
    "ASR_FINAL_LATE": Layer.GATEWAY,
    "ASR_CHUNK_TOO_LARGE": Layer.MIX,
    "ASR_REDECODE_GROWTH": Layer.COMPUTE,
    "ASR_VAD_SILENCE_LONG": Layer.GATEWAY,
    "AUDIO_UNDERRUN": Layer.COMPUTE,
    "AUDIO_RATE_MISMATCH": Layer.MIX,
}
"""Speech's codes say what is seen; where it comes from differs."""


def layer_of(code: str) -> Layer:
    """The layer of a code: by cause for speech, else it follows from the prefix."""
    return _BY_CAUSE.get(code) or _LAYERS[code.split("_", maxsplit=1)[0]]


def surest(findings: Iterable[Finding | None]) -> Finding | None:
    """Of what several rules of one code found, the surest; of equally sure ones the first."""
    found = [finding for finding in findings if finding is not None]
    return min(found, key=lambda finding: _SUREST.index(finding.level)) if found else None


def numbers_in(text: str) -> list[str]:
    """The numbers of a text as they are written, without the separators of thousands; no digits inside words."""
    return _NUMBER.findall(text.replace(",", ""))


def _with_computed(evidence: list[Evidence], statement: str, relation: str) -> list[Evidence]:
    """The evidence, and the arithmetic of the rule where the statement tells a number that only it holds."""
    told = set(numbers_in(" ".join(item.text for item in evidence)))
    if relation and any(number not in told for number in numbers_in(statement)):
        sources = dict.fromkeys(item.source for item in evidence if item.source)
        return [*evidence, Evidence(text=f"computed: {relation}", source=next(iter(sources), "computed"))]
    return evidence


class Cause:
    """One cause of the catalogue. Subclasses are stateless: everything comes from the evidence."""

    code: ClassVar[str]
    stage: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """What must be there for the level `consistent`, in words."""
    disproof: ClassVar[str]
    """What would show that a finding of this cause is wrong."""
    action: ClassVar[Action] = Action.TUNE
    only_with_before: ClassVar[bool] = False
    """The rule compares two windows."""
    of_applications: ClassVar[bool] = False
    """The rule can be decided by the records of services before the gateway, without the gateway's."""

    ends: ClassVar[bool] = False
    """A finding of at least `consistent` ends the diagnosis: wrong numbers say nothing of the system."""

    beside: ClassVar[bool] = False
    """It says how far other findings carry: it stands in `validity`, and leads only where nothing else was found."""

    beside_when_suspected: ClassVar[bool] = False
    """The same while it is no more than a suspicion."""

    def judge(self, evidence: EvidenceSet) -> Finding | None:  # noqa: ARG002
        """From records of requests: the finding, or `None` when the rule does not hold or cannot be computed at all."""
        return None

    def suspect(self, evidence: EvidenceSet) -> Finding | None:  # noqa: ARG002
        """What may be suspected from records where something is wrong and no cause's rule holds; most say nothing."""
        return None

    def observe(self, observed: Observed) -> Finding | None:  # noqa: ARG002
        """From foreign evidence (tables, logs, scrapes, forms): as `judge`. A cause has either rule, or both."""
        return None

    def without_requests(self, hardware: Hardware) -> Finding | None:  # noqa: ARG002
        """What readings of the machine show where there is no request to judge by; most causes say nothing then."""
        return None

    def forbids(self, evidence: EvidenceSet) -> bool:  # noqa: ARG002
        """Whether what `judge` found leaves nothing to conclude about the system from these records."""
        return False

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Why the rule cannot be computed at all on this evidence; empty when it can."""
        if self.only_with_before and evidence.before is None:
            return "a window from before (--before FILE)"
        return ""

    def least_ms(self, evidence: EvidenceSet) -> float:
        """The delay of a request from which it matters at all (ms), by what its users were promised."""
        bound = min(evidence.objectives.bounds.get("ttft", {}).values(), default=0) / 1e6
        return min(CARRIES_MS, CARRIES_OF_BOUND * bound) if bound else CARRIES_MS

    def carries(self, evidence: EvidenceSet, explains_ms: float) -> bool:
        """Whether so many milliseconds matter to the tail of this window."""
        return explains_ms >= max(self.least_ms(evidence), CARRIES_SHARE * evidence.now.tail_lost_ms)

    def insufficient(self, *missing: str) -> Finding:
        """The answer where the evidence has the shape of this cause, and lacks what would decide it."""
        return Finding(
            code=self.code,
            layer=layer_of(self.code),
            stage=self.stage,
            level=Level.INSUFFICIENT,
            statement="",
            missing=list(missing),
            action=Action.COLLECT,
        )

    def finding(
        self,
        *,
        statement: str,
        evidence: list[Evidence],
        explains_ms: float | None,
        relation: str,
        n: int,
        advice: str,
        price: str,
        verify: str,
        missing: list[str] | None = None,
        rivals: list[str] | None = None,
        disproof_checked: list[str] | None = None,
        action: Action | None = None,
        level: Level | None = None,
        proof: Proof | None = None,
    ) -> Finding:
        """A finding of this cause. Without `level`: `suspected` if something is missing or a rival fits, else
        `consistent`. What is `proven` says by what (`proof`, which counts at that level only).
        """
        if level is None:
            level = Level.SUSPECTED if missing or rivals else Level.CONSISTENT
        if level is Level.PROVEN and proof is None:
            raise ValueError(f"{self.code} is called proven, and nothing says by what")
        return Finding(
            code=self.code,
            layer=layer_of(self.code),
            stage=self.stage,
            level=level,
            statement=statement,
            explains_ms=None if explains_ms is None else round(explains_ms, 1),
            evidence=_with_computed(evidence, statement, relation),
            relation=relation,
            n=n,
            advice=advice,
            price=price,
            disproof=self.disproof,
            disproof_checked=disproof_checked or [],
            verify=verify,
            rivals=rivals or [],
            missing=missing or [],
            action=self.action if action is None else action,
            proof=proof if level is Level.PROVEN else None,
        )
