"""The diagnosis: validity, symptoms, triage, causes, ranking, the answer."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.analyze.decompose import tail_stages
from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observations import observations
from tailrace.diagnose.symptoms import Symptom, application_symptoms, healthy_words, symptoms
from tailrace.diagnose.triage import triage
from tailrace.diagnose.validity import check
from tailrace.model.finding import Action, Diagnosis, Finding, Level
from tailrace.stats.quantiles import needed, supported

__all__ = ["diagnose", "rank"]

MIN_N: Final = 20
_ORDER: Final = {level: place for place, level in enumerate(Level)}
_WORDING: Final = {
    Level.PROVEN: "This is the cause.",
    Level.CONSISTENT: "This matches; it was not yet tested by changing it.",
    Level.SUSPECTED: "This could be it.",
    Level.INSUFFICIENT: "",
}


def rank(findings: list[Finding]) -> list[Finding]:
    """Surest first; among equally sure ones, the one that explains the most milliseconds of the tail."""
    return sorted(findings, key=lambda item: (_ORDER[item.level], -(item.explains_ms or 0.0)))


def diagnose(evidence: EvidenceSet) -> Diagnosis:
    """Why is the tail slow? Findings are ranked; with nothing wrong there is none, and the summary says so."""
    if not len(evidence.table) and not len(evidence.applications) and evidence.hardware:
        return _without_requests(evidence)
    found = _of_requests(evidence)
    return msgspec.structs.replace(found, observations=observations(evidence.meanwhile))


def _without_requests(evidence: EvidenceSet) -> Diagnosis:
    """Readings of a machine alone: what they show, and that nobody is known to have felt it."""
    found = (cause.without_requests(evidence.hardware) for cause in CAUSES)
    findings = rank([finding for finding in found if finding is not None])
    return Diagnosis(
        findings=findings,
        action=findings[0].action if findings else Action.COLLECT,
        needs=["records of requests from the same time: without them nobody is known to have been slow"],
        not_understood=evidence.not_understood,
        observations=observations(evidence.hardware),
        summary=f"{findings[0].statement} {_WORDING[findings[0].level]}"
        if findings
        else "There is no request in this, so there is nothing to explain; what it shows is listed.",
    )


def _of_requests(evidence: EvidenceSet) -> Diagnosis:
    checked = check(evidence)
    if checked.sound is not evidence.table:
        evidence = evidence.with_table(checked.sound)
    if checked.blocks:
        return Diagnosis(
            validity=checked.findings,
            action=Action.COLLECT,
            not_understood=evidence.not_understood,
            summary="The numbers do not allow a diagnosis: "
            + "; ".join(item.statement.rstrip(".") or item.missing[0] for item in checked.findings)
            + ".",
        )
    window = evidence.now
    few = window.n < MIN_N and len(window.every) < MIN_N
    found = [*([] if few else symptoms(evidence)), *application_symptoms(evidence, at_least=MIN_N)]
    if few and not found:
        return Diagnosis(
            validity=checked.findings,
            action=Action.COLLECT,
            needs=[f"at least {MIN_N} requests (n = {len(window.every)}); {needed(0.99)} support a p99"],
            not_understood=evidence.not_understood,
            summary=f"Cannot tell: {len(window.every)} requests are too few; {MIN_N} are the least, {needed(0.99)} "
            "support a p99.",
        )
    needs = _needs_of_n(evidence)
    if not found:
        return Diagnosis(
            validity=checked.findings,
            action=Action.NONE,
            needs=needs,
            not_understood=evidence.not_understood,
            summary=f"Nothing is wrong: {healthy_words(evidence)}; no stream stutters, "
            f"{len(window.every) - window.n} of {len(window.every)} requests did not complete.",
        )
    findings = []
    for cause in CAUSES:
        if few and not cause.of_applications:
            continue
        why = cause.cannot_run(evidence)
        if why:
            needs.append(f"{cause.code}: {why}")
            continue
        finding = cause.judge(evidence)
        if finding is not None:
            findings.append(finding)
            needs += [f"{cause.code}: {item}" for item in finding.missing]
    findings = rank(findings)
    return Diagnosis(
        validity=checked.findings,
        findings=findings,
        action=findings[0].action if findings else Action.COLLECT,
        triage=[] if few else triage(evidence),
        needs=needs,
        not_understood=evidence.not_understood,
        summary=_summary(evidence, findings, found, few=few),
    )


def _needs_of_n(evidence: EvidenceSet) -> list[str]:
    n = evidence.now.n
    return [] if supported(0.99, n) else [f"{needed(0.99)} completed requests for a p99 (n = {n})"]


def _summary(evidence: EvidenceSet, findings: list[Finding], found: list[Symptom], *, few: bool) -> str:
    if findings:
        first = findings[0]
        wording = _WORDING[first.level]
        if first.level is Level.SUSPECTED and first.missing:
            wording = f"This could be it; to decide, measure: {first.missing[0]}."
        return f"{first.statement} {wording}"
    where = None if few else tail_stages(evidence.now.done)
    place = f" {where.sentence}" if where else ""
    return f"Something is wrong ({found[0].text}), but no cause that this evidence can test explains it.{place}"
