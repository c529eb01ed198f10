"""The verdict as a person reads it: one paragraph, what to collect next, and the requests behind each finding."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tailrace.diagnose.attribution_words import attribution_words
from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.explained import explained
from tailrace.diagnose.verdict import wording
from tailrace.model.finding import Action, Diagnosis, Finding, Layer, Level, Tail

__all__ = ["CALM", "told"]

CALM: Final = "Nothing in this shows a slow tail"
"""How the summary begins where the evidence is calm and no request is in it."""

_WORDS: Final = {"ttft": "time to first token", "chunk_gap": "longest chunk gap", "e2e": "end-to-end time"}
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


def told(evidence: EvidenceSet, found: Diagnosis, *, forbidden: bool = False) -> Diagnosis:
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
    joint = explained(evidence.now, found.findings)
    findings = [
        msgspec.structs.replace(one, requests=joint.requests.get(one.code) or one.requests) for one in found.findings
    ]
    said = msgspec.structs.replace(
        found, findings=findings, tail=joint.tail, attribution=attribution_words(evidence.attributed)
    )
    return msgspec.structs.replace(said, paragraph=_paragraph(said, joint.tail), next_evidence=next_evidence(said))


def next_evidence(found: Diagnosis) -> list[str]:
    """What to collect, the most decisive first: what the first finding lacks, what tells it from its rivals, then what
    the others lack, then what rules could not be computed for want of.
    """
    out: list[str] = []
    known = {cause.code: cause for cause in CAUSES}
    for finding in found.findings:
        if finding.level in (Level.SUSPECTED, Level.INSUFFICIENT):
            out += [f"{item} (for {finding.code})" for item in finding.missing]
        out += [
            f"what tells {finding.code} from {code}: {known[code].disproof.rstrip('.')}"
            for rival in finding.rivals
            for code in _CODE.findall(rival)
            if code in known
        ]
    if not found.findings and found.action is Action.COLLECT:
        out += [item for finding in found.validity for item in finding.missing]
        out += found.needs
    return list(dict.fromkeys(out))[:_MOST]


def _paragraph(found: Diagnosis, tail: Tail | None) -> str:
    if not found.findings:
        nexts = next_evidence(found)
        return f"{found.summary} To collect next: {nexts[0]}." if nexts else found.summary
    first = found.findings[0]
    if found.summary.startswith(CALM):
        return found.summary
    parts = [
        _slow(tail) if tail is not None and tail.lost_ms >= _SHOWN_MS else "",
        _sentence(first.statement) or f"Cannot tell: {'; '.join(first.missing)}.",
        wording(first),
        _beside(found, first, tail),
        _checked(first),
    ]
    # Where the mix made it, the attribution says what a reader would ask next.
    parts += [one.text for one in found.attribution if one.kind == "mix_within"][:1]
    if first.advice:
        parts.append(f"{_DO[first.action]}: {_sentence(first.advice)}")
    if first.price:
        parts.append(f"Price: {_sentence(first.price)}")
    if first.verify:
        parts.append(f"To verify: {first.verify}")
    return " ".join(part for part in parts if part)


def _slow(tail: Tail) -> str:
    return (
        f"The p{tail.quantile * 100:g} of the {_WORDS[tail.metric]} is {tail.p_ms:,.0f} ms; the {tail.n} slowest "
        f"requests lost {tail.lost_ms:,.0f} ms each on average."
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
