"""The verdict as a person reads it: one paragraph, what to collect next, and the requests behind each finding."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tailrace.diagnose.attribution_words import attribution_words
from tailrace.diagnose.broken_rules import BrokenRules
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.explained import explained
from tailrace.diagnose.healthy import NOTHING_WRONG
from tailrace.diagnose.symptoms import missed_objectives, stutters
from tailrace.diagnose.verdict import wording
from tailrace.model.finding import Action, Diagnosis, Finding, Layer, Level, Tail

__all__ = ["CALM", "answer_of", "context_of", "open_questions", "told"]

CALM: Final = "Nothing in this shows a slow tail"
"""How the summary begins where the evidence is calm and no request is in it."""

_WORDS: Final = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "chunk_gap": "longest chunk gap",
    "e2e": "end-to-end time",
}
_DO: Final = {
    Action.TUNE: "To do (tune)",
    Action.SCALE: "To do (scale)",
    Action.SHED: "To do (shed load)",
    Action.ROLLBACK: "To do (roll back)",
    Action.FIX: "To do (fix)",
    Action.COLLECT: "To do (collect)",
    Action.NONE: "To do",
}
_MOST: Final = 6
_CODE: Final = re.compile(r"[A-Z]+(?:_[A-Z]+)+")
"""A rival is named by its code, with words behind it where its reason is not plain."""
_SHOWN_MS: Final = 1.0


def told(evidence: EvidenceSet, found: Diagnosis, broken: BrokenRules, *, forbidden: bool = False) -> Diagnosis:
    """The diagnosis with its tail, its attributions, the requests that show each finding, and its paragraph.

    `evidence` holds the records that passed the checks. Without requests, or where the checks forbid a diagnosis
    (`forbidden`: numbers that cannot be right are not attributed to anything), only the words are added.
    """
    if forbidden:
        advice = " ".join(one.advice for one in found.findings if one.advice and not one.missing)
        paragraph = " ".join(filter(None, (found.summary, advice)))
        return msgspec.structs.replace(found, paragraph=paragraph, next_evidence=next_evidence(found))
    if not len(evidence.table) or not evidence.now.n:
        return msgspec.structs.replace(found, paragraph=_paragraph(found, None), next_evidence=next_evidence(found))
    joint = explained(
        evidence.now,
        found.findings,
        missed_objectives(evidence),
        before=evidence.before,
        stutters=stutters(evidence.now),
    )
    findings = [
        msgspec.structs.replace(one, requests=joint.requests.get(one.code) or one.requests) for one in found.findings
    ]
    said = msgspec.structs.replace(
        found, findings=findings, tail=joint.tail, attribution=attribution_words(evidence.attributed, broken)
    )
    return msgspec.structs.replace(said, paragraph=_paragraph(said, joint.tail), next_evidence=next_evidence(said))


def next_evidence(found: Diagnosis) -> list[str]:
    """What to collect, the most decisive first: what the first finding lacks, what tells it from its rivals, then what
    the others lack, then what rules could not be computed for want of.
    """
    out: list[str] = []
    known = {cause.code: cause for cause in CAUSES}
    pairs: set[frozenset[str]] = set()
    for finding in found.findings:
        if finding.level in (Level.SUSPECTED, Level.INSUFFICIENT):
            whose = f" (for {finding.code})" if finding.statement else ""
            out += [f"{item}{whose}" for item in finding.missing]
        for code in (code for rival in finding.rivals for code in _CODE.findall(rival)):
            if code in known and frozenset((code, finding.code)) not in pairs:
                pairs.add(frozenset((code, finding.code)))
                out.append(f"what tells {finding.code} from {code}: {known[code].disproof.rstrip('.')}")
    if not found.findings and found.action is Action.COLLECT:
        out += [item for finding in found.validity for item in finding.missing]
        # What the causes lack that act on the stage of the tail decides more than what all others lack.
        leader = next((one.about for one in found.attribution if one.kind == "stage_at_tail"), "")
        out += sorted(found.needs, key=lambda need: not _acts_on(known.get(need.partition(":")[0]), leader))
    return list(dict.fromkeys(out))[:_MOST]


def _split(found: Diagnosis) -> str:
    """How much of a change is the traffic's, and how much the same requests' own; where the whole did not
    move, the kind of requests that did; empty without a change.
    """
    for kind in ("mix_within", "slower_kind"):
        one = next((one for one in found.attribution if one.kind == kind), None)
        if one is not None:
            return one.text
    return ""


def open_questions(found: Diagnosis) -> list[str]:
    """What rules could not be computed for want of, one line a want with the codes that lack it, what most of them lack
    first; without what is said elsewhere.
    """
    said = {f"{finding.code}: {item}" for finding in found.findings for item in finding.missing}
    said |= {*found.next_evidence, *(item for finding in found.findings for item in finding.missing)}
    by_want: dict[str, list[str]] = {}
    for need in found.needs:
        code, sign, want = need.partition(": ")
        if need in said:
            continue
        if sign and code.isupper():
            by_want.setdefault(want, []).append(code)
        else:
            by_want.setdefault(need, [])
    wants = sorted(by_want.items(), key=lambda pair: -len(pair[1]))
    return [f"{want} (for {', '.join(codes)})" if codes else want for want, codes in wants]


def _acts_on(cause: Cause | None, stage: str) -> bool:
    return cause is not None and bool(stage) and cause.stage.partition(".")[0] == stage


def answer_of(found: Diagnosis) -> str:
    """The answer in one sentence, for whoever reads no further."""
    if not found.findings or found.summary.startswith(CALM):
        return found.summary
    first = found.findings[0]
    return _sentence(first.statement) or f"Cannot tell ({first.code}): what would decide it is missing."


def context_of(found: Diagnosis) -> str:
    """What a reader asks next: how sure that is, what is slow, how much of it that explains, what else was found."""
    if not found.findings or found.summary.startswith(CALM):
        return " ".join(filter(None, (found.steady, _split(found))))
    first, tail = found.findings[0], found.tail
    parts = [
        wording(first),
        _slow(tail) if tail is not None and tail.lost_ms >= _SHOWN_MS else "",
        _beside(found, first, tail),
        found.steady,
        _split(found),
    ]
    return " ".join(part for part in parts if part)


def _paragraph(found: Diagnosis, tail: Tail | None) -> str:
    if not found.findings:
        nexts = [] if found.summary.startswith(NOTHING_WRONG) else next_evidence(found)
        said = " ".join(filter(None, (found.summary, found.steady, _split(found))))
        return f"{said} To collect next: {nexts[0]}." if nexts else said
    first = found.findings[0]
    if found.summary.startswith(CALM):
        return found.summary
    parts = [
        _slow(tail) if tail is not None and tail.lost_ms >= _SHOWN_MS else "",
        _sentence(first.statement) or f"Cannot tell: {'; '.join(first.missing)}.",
        wording(first),
        found.steady,
        _beside(found, first, tail),
        _checked(first),
    ]
    # Where the mix made it, the attribution says what a reader would ask next.
    parts.append(_split(found))
    if first.advice:
        parts.append(f"{_DO[first.action]}: {_sentence(first.advice)}")
    if first.price:
        parts.append(f"Price: {_sentence(first.price)}")
    if first.verify:
        parts.append(f"To verify: {first.verify}")
    return " ".join(part for part in parts if part)


def _slow(tail: Tail) -> str:
    return (
        f"The p{tail.quantile * 100:g} of the {_WORDS.get(tail.metric, tail.metric)} is {tail.p_ms:,.0f} ms"
        + (f" (objective {tail.objective_ms:,.0f} ms)" if tail.objective_ms is not None else "")
        + f"; the {tail.n} slowest requests lost {tail.lost_ms:,.0f} ms each on average."
    )


def _beside(found: Diagnosis, first: Finding, tail: Tail | None) -> str:
    """How much it explains, what others add, and what remains."""
    others = [
        one for one in found.findings[1:] if one.layer is not Layer.VALIDITY and one.level is not Level.INSUFFICIENT
    ]
    if tail is None or tail.lost_ms < _SHOWN_MS:
        return f"Also found: {', '.join(f'{one.code} ({one.level})' for one in others)}." if others else ""
    text = f"It explains {tail.by_finding.get(first.code, 0.0):,.0f} of those {tail.lost_ms:,.0f} ms"
    more = [f"{one.code} ({one.level}) {_more(tail.by_finding.get(one.code, 0.0))}" for one in others]
    if more:
        text += f"; {', '.join(more)}"
    return f"{text}; {tail.unexplained_ms:,.0f} ms remain unexplained."


def _more(added: float) -> str:
    """What a further finding adds."""
    return f"{added:,.0f} ms more" if added >= _SHOWN_MS else "nothing beyond that"


def _checked(finding: Finding) -> str:
    if not finding.disproof_checked or finding.level is Level.INSUFFICIENT:
        return ""
    return f"It would be disproved so: {_sentence(finding.disproof)} Checked: {'; '.join(finding.disproof_checked)}."


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else f"{text}."
