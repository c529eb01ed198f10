"""The diagnosis: validity, symptoms, triage, causes, ranking, the answer."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from tailrace.analyze.decompose import tail_stages
from tailrace.diagnose.broken_rules import BrokenRules
from tailrace.diagnose.calm import calm_words
from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.causes.validity import CHECKS
from tailrace.diagnose.collect import sample_notes, what_to_collect
from tailrace.diagnose.configured.lint import lint
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.hardware import Hardware
from tailrace.diagnose.healthy import healthy
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.align import align
from tailrace.diagnose.precedence import heavier
from tailrace.diagnose.scale import disciplined, rule_on
from tailrace.diagnose.scale_records import rule_on_records
from tailrace.diagnose.seen_beside import seen_beside
from tailrace.diagnose.steady_part import WARM_UP, of_both, parted, steady_observed, steady_part
from tailrace.diagnose.symptoms import Symptom, application_symptoms, missed_objectives, symptoms
from tailrace.diagnose.than_before import ThanBefore
from tailrace.diagnose.told import CALM, told
from tailrace.diagnose.triage import triage
from tailrace.diagnose.triage_arms import triage_arms
from tailrace.diagnose.validity import Checked, check
from tailrace.diagnose.verdict import ENDS_REQUESTS, answering, merged, rank, wording
from tailrace.model.finding import Action, Diagnosis, Finding, Layer, Level
from tailrace.stats.quantiles import needed, supported

__all__ = ["diagnose", "rank"]

MIN_N: Final = 20
_COMPARING: Final = frozenset(cause.code for cause in CAUSES if cause.only_with_before)


def diagnose(evidence: EvidenceSet) -> Diagnosis:
    """Why is the tail slow? Findings are ranked; with nothing wrong there is none, and the summary says so."""
    broken = BrokenRules()
    found = _of_everything(evidence, broken)
    return msgspec.structs.replace(found, not_understood=[*found.not_understood, *broken.said])


def _of_everything(evidence: EvidenceSet, broken: BrokenRules) -> Diagnosis:
    observed = _observed(evidence, broken)
    if not len(evidence.table) and not len(evidence.applications):
        found = _of_observed(evidence, observed, broken) if evidence.observed else _without_requests(evidence, broken)
        return told(evidence, msgspec.structs.replace(found, observations=seen_beside(evidence.hardware)), broken)
    checked = check(evidence, broken)
    evidence = checked.sound
    rules = broken.ask("triage", partial(triage_arms, evidence.observed)) or []
    found = _of_requests(evidence, checked, broken)
    late = None if checked.forbidding else steady_part(evidence)
    if late is not None:
        steady = _of_requests(late, checked, broken)
        found = of_both(found, steady, late)
        evidence = late if steady.findings else evidence
    found = _with_observed(found, observed, rules)
    found = msgspec.structs.replace(
        found,
        observations=seen_beside(evidence.meanwhile),
        not_understood=[*found.not_understood, *_not_understood(evidence)],
        remarks=_remarks(evidence),
    )
    return told(evidence, found, broken, forbidden=bool(checked.forbidding))


def _observed(evidence: EvidenceSet, broken: BrokenRules) -> list[Finding]:
    """What foreign evidence leads to; where a number cannot be right, that and nothing else."""
    observed = evidence.observed
    if not observed:
        return []
    found = _asked(observed, broken)
    if any(finding.code == WARM_UP for finding in found) and (late := steady_observed(observed)) is not None:
        found = parted(found, _asked(late, broken))
    return disciplined(rank(found), lambda: rule_on(observed))


def _asked(observed: Observed, broken: BrokenRules) -> list[Finding]:
    """What every rule finds; where a number cannot be right, that and nothing else."""
    found: list[Finding] = []
    for cause in CAUSES:
        finding = broken.ask(cause.code, partial(cause.observe, observed))
        if finding is not None:
            if cause.ends and finding.level is not Level.SUSPECTED:
                return [finding]
            found.append(finding)
    found += (
        broken.ask("the check of configurations", lambda: lint(CAUSES, observed, [one.code for one in found])) or []
    )
    return disciplined(rank(found), lambda: rule_on(observed))


def _of_hardware(hardware: Hardware, broken: BrokenRules) -> list[Finding]:
    """What readings of the machine alone show."""
    asked = [broken.ask(cause.code, partial(cause.without_requests, hardware)) for cause in CAUSES]
    return rank([finding for finding in asked if finding is not None])


def _of_observed(evidence: EvidenceSet, findings: list[Finding], broken: BrokenRules) -> Diagnosis:
    """Foreign evidence alone: the findings, or what is missing for one."""
    findings = findings or _of_hardware(evidence.hardware, broken)
    # A cause may see its own shape in the evidence and lack what decides: that is a need, not a finding.
    lacks = [want for item in evidence.observed.understood for want in item.wants]
    lacks += [missing for item in findings if item.level is Level.INSUFFICIENT for missing in item.missing]
    needs = [f"{item.code}: {missing}" for item in findings for missing in item.missing]
    findings = [item for item in findings if item.level is not Level.INSUFFICIENT]
    findings, beside = _apart(findings)
    first = findings[0] if findings else _cannot_tell(lacks, evidence)
    needs += sample_notes(evidence.observed.arms)
    return Diagnosis(
        validity=[item for item in (*beside, *findings) if item.layer is Layer.VALIDITY],
        findings=findings or [first],
        action=first.action,
        triage=triage_arms(evidence.observed),
        needs=needs if findings else [*first.missing, *needs],
        not_understood=[*evidence.not_understood, *_not_understood(evidence)],
        remarks=_remarks(evidence),
        summary=f"{first.statement} {wording(first)}".strip()
        if findings
        else _nothing_shown(first, calm_words(evidence.observed) if not lacks else ""),
    )


_BESIDE: Final = {cause.code: cause.beside for cause in CAUSES if cause.beside or cause.beside_when_suspected}
"""Code -> whether at any level, or only while it is a suspicion."""


def _is_beside(finding: Finding) -> bool:
    return _BESIDE.get(finding.code, False) or (finding.level is Level.SUSPECTED and finding.code in _BESIDE)


def _apart(findings: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """(the findings, what only says how far they carry): the latter leads where there is nothing else."""
    beside = [item for item in findings if _is_beside(item)]
    rest = [item for item in findings if not _is_beside(item)]
    return (rest, beside) if rest else (findings, [])


def _nothing_shown(first: Finding, calm: str) -> str:
    """Nothing was found: because nothing in it is slow, or because nothing can be computed."""
    if calm:
        return f"{CALM}: {calm}. To judge what users felt, give: {'; '.join(first.missing[:2])}."
    return f"Cannot tell. Needed: {'; '.join(first.missing)}."


def _with_observed(found: Diagnosis, observed: list[Finding], rules: list[str]) -> Diagnosis:
    """Requests lead; foreign evidence beside them adds its findings and the rules of triage that its arms fire
    (`rules`), and may raise a level.
    """
    observed = [item for item in observed if item.level is not Level.INSUFFICIENT]
    if rules:
        both = sorted({*found.triage, *rules}, key=lambda rule: int(rule[1:]))
        found = msgspec.structs.replace(found, triage=both)
    beside = [item for item in observed if _is_beside(item)]
    known = {item.code for item in found.validity}
    found = msgspec.structs.replace(
        found, validity=[*found.validity, *(item for item in beside if item.code not in known)]
    )
    observed = [item for item in observed if not _is_beside(item)]
    if not observed:
        return found
    findings = rank(merged([*found.findings, *observed]))
    first = findings[0]
    return msgspec.structs.replace(
        found,
        validity=[*found.validity, *(item for item in observed if item.layer is Layer.VALIDITY)],
        findings=findings,
        action=first.action,
        summary=f"{first.statement} {wording(first)}" if not found.findings else found.summary,
    )


def _cannot_tell(lacks: list[str], evidence: EvidenceSet) -> Finding:
    """No rule could be computed: what to collect next. `lacks` is what rules that fit would have needed."""
    contradict = [text for text in lacks if "contradict" in text]
    return Finding(
        code="INSUFFICIENT_EVIDENCE",
        layer=Layer.VALIDITY,
        stage="",
        level=Level.INSUFFICIENT,
        statement="",
        missing=contradict or list(dict.fromkeys([*lacks, *what_to_collect(evidence.observed)])),
        action=Action.COLLECT,
    )


def _not_understood(evidence: EvidenceSet) -> list[str]:
    """What of the foreign evidence was not read."""
    return [
        f"{item.source}: parsed {item.understood} of {item.total} {item.what} ({item.format})"
        + (f", not: {'; '.join(item.examples)}" if item.examples else "")
        for item in evidence.observed.understood
        if item.understood < item.total
    ]


def _remarks(evidence: EvidenceSet) -> list[str]:
    """What its readers say of it, and which clocks were taken for one or cannot be."""
    said = [f"{item.source}: {said}" for item in evidence.observed.understood for said in item.said]
    return said + align(evidence.observed).said


def _without_requests(evidence: EvidenceSet, broken: BrokenRules) -> Diagnosis:
    """Readings of a machine alone: what they show, and that nobody is known to have felt it."""
    findings = _of_hardware(evidence.hardware, broken)
    return Diagnosis(
        findings=findings,
        action=findings[0].action if findings else Action.COLLECT,
        needs=["records of requests from the same time: without them nobody is known to have been slow"],
        not_understood=evidence.not_understood,
        observations=seen_beside(evidence.hardware),
        summary=f"{findings[0].statement} {wording(findings[0])}"
        if findings
        else "There is no request in this, so there is nothing to explain; what it shows is listed.",
    )


def _of_requests(evidence: EvidenceSet, checked: Checked, broken: BrokenRules) -> Diagnosis:
    if checked.forbidding:
        return Diagnosis(
            validity=checked.findings,
            findings=rank(checked.forbidding),
            action=Action.COLLECT,
            not_understood=evidence.not_understood,
            summary="The numbers do not allow a diagnosis: "
            + "; ".join(item.statement.rstrip(".") or item.missing[0] for item in checked.forbidding)
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
        return healthy(evidence, checked.findings, needs)
    findings = []
    for cause in CAUSES:
        if cause in CHECKS or (few and not cause.of_applications):
            continue
        why = broken.ask(cause.code, partial(cause.cannot_run, evidence))
        if why:
            needs.append(f"{cause.code}: {why}")
            continue
        finding = broken.ask(cause.code, partial(cause.judge, evidence))
        if finding is not None:
            findings.append(finding)
            needs += [f"{cause.code}: {item}" for item in finding.missing]
    kinds = {symptom.kind for symptom in found}
    kept = bool(evidence.objectives.bounds)
    than = ThanBefore(evidence, CAUSES, broken)
    if kinds <= ({"moved", "worse", "fails_more"} if kept else {"moved"}):
        # Windows of one healthy system differ too, and whatever was promised is kept: only a cause that fits, and takes
        # more than before, makes it a complaint.
        doubtless = next((symptom for symptom in found if symptom.doubtless), None)
        findings = [one for one in findings if _tells_them_apart(one, than, kinds, doubtless)]
        if not findings:
            differs = next((symptom.text for symptom in found if symptom.kind != "moved"), "")
            return healthy(evidence, checked.findings, _needs_of_n(evidence), differs)
    findings = findings or _suspected(evidence, broken)
    findings = _new_first(answering(rank(findings), found), than)
    findings = disciplined(findings, partial(rule_on_records, evidence, findings, CAUSES))
    return Diagnosis(
        validity=checked.findings,
        findings=findings,
        action=findings[0].action if findings else Action.COLLECT,
        triage=[] if few else broken.ask("triage", partial(triage, evidence)) or [],
        needs=needs,
        not_understood=evidence.not_understood,
        summary=_summary(evidence, findings, found, few=few),
    )


def _suspected(evidence: EvidenceSet, broken: BrokenRules) -> list[Finding]:
    """Where something is wrong and no rule holds."""
    asked = [broken.ask(cause.code, partial(cause.suspect, evidence)) for cause in CAUSES]
    return [finding for finding in asked if finding is not None]


def _tells_them_apart(finding: Finding, than: ThanBefore, kinds: set[str], doubtless: Symptom | None) -> bool:
    """Whether a finding is a reason to complain of a window that keeps its promises and differs from the one before.

    Where no test of the whole says that it is worse, all inputs of the rule must be there; where the cause does not
    compare the windows itself, what it explains must have grown beyond chance. Where the whole is worse beyond doubt
    (`doubtless`), that it grew is enough: a cause of a few long gaps has too few of them for a test of its own. So is
    that it takes most of what the deciding metric rose by, however much it took before.
    """
    sure = finding.level in (Level.PROVEN, Level.CONSISTENT)
    worse = kinds != {"moved"}
    if finding.code in _COMPARING:
        return (sure or worse) and (finding.code != "MIX_SHIFT" or heavier(finding))
    if doubtless and sure and than.took_most_of(finding, doubtless.rise_ms):
        return True
    if than.as_before(finding):
        return False
    grew = than.grew(finding)
    if grew is None:
        return sure or ("fails_more" in kinds and finding.code in ENDS_REQUESTS)
    return (grew and (sure or worse)) or (doubtless is not None and sure and than.rose(finding))


def _new_first(findings: list[Finding], than: ThanBefore) -> list[Finding]:
    """Ranked findings; those that explain as much of a window before in which all was well stand last."""
    if len(findings) < 2 or not than.was_well:
        return findings
    return sorted(findings, key=lambda item: item.code not in _COMPARING and than.as_before(item))


def _needs_of_n(evidence: EvidenceSet) -> list[str]:
    n = evidence.now.n
    lacking = needed(0.99) - n
    return [] if supported(0.99, n) else [f"{lacking} more completed requests: {needed(0.99)} support a p99 (n = {n})"]


def _summary(evidence: EvidenceSet, findings: list[Finding], found: list[Symptom], *, few: bool) -> str:
    if findings:
        return f"{findings[0].statement} {wording(findings[0])}"
    broken = next((one.metric for one in missed_objectives(evidence) if one.metric in ("ttft", "e2e")), "e2e")
    where = None if few else tail_stages(evidence.now.done, broken)
    place = f" {where.sentence}" if where else ""
    return f"Something is wrong ({found[0].text}), but no cause that this evidence can test explains it.{place}"
