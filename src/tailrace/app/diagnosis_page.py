"""A diagnosis as one self-contained page: the verdict in a paragraph, how much of the tail it explains, each finding
with its evidence and the requests that show it, where the tail lies, and what was not answered.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tailrace import __version__
from tailrace.app.diagnose import is_url
from tailrace.app.outputs import refuse_to_replace
from tailrace.app.report import write_page
from tailrace.app.report_markup import ABSENT, Cell, Section, card, cell, facts, ms, row, table, text
from tailrace.app.report_page import document
from tailrace.diagnose.told import answer_of, context_of, open_questions
from tailrace.diagnose.triage import RULES
from tailrace.model.finding import Attribution, Diagnosis, Evidence, Finding, Level, Tail

__all__ = ["diagnosis_page", "write_diagnosis"]

_METHOD: Final = (
    "Intervals are 95 %, resampled by blocks of time; what several findings explain of the same wait counts once. "
    "Made by Tailrace {version}; this file fetches nothing."
)
_LEVELS: Final = {
    Level.PROVEN: "proven: the mechanism was seen",
    Level.CONSISTENT: "consistent: the numbers fit, nothing disproves it; not yet tested by changing it",
    Level.SUSPECTED: "suspected: it could be; something is missing, or a rival fits as well",
    Level.INSUFFICIENT: "insufficient: what is needed to tell is missing",
}
_METRICS: Final = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "chunk_gap": "longest chunk gap",
    "e2e": "end-to-end time",
}
_KINDS: Final = {
    "stage_at_tail": "stage at the tail",
    "stage_shift": "stage shift",
    "mix_within": "mix and within",
    "slower_kind": "slower kind",
    "gaps_together": "stops of streams",
    "gap_and_prefill": "gap and prefill",
    "replica_skew": "replicas",
    "timer": "timer",
    "period": "period",
    "moment": "moment",
    "contribution": "whose requests",
}
_LONG: Final = 4000


def diagnosis_page(found: Diagnosis, *, title: str, sources: Sequence[str] = ()) -> str:
    """The page. `sources` are what was read; requests link to the dashboard of a gateway among them."""
    admin = next((one.rstrip("/") for one in sources if one.startswith(("http://", "https://"))), "")
    sections = [Section(markup=_verdict(found))]
    if found.tail is not None:
        sections.append(Section(markup=_tail(found.tail)))
    sections += [
        Section(markup=_finding(number, one, found, admin, sources))
        for number, one in enumerate(found.findings, start=1)
    ]
    sections += [
        Section(markup=markup)
        for markup in (_validity(found), _attribution(found.attribution), _seen(found.observations), _open(found))
        if markup
    ]
    return document(
        title=title,
        subtitle=", ".join(sources)[:300],
        sections=sections,
        footer=_METHOD.format(version=__version__),
    )


def write_diagnosis(found: Diagnosis, out: str | Path, sources: Sequence[str]) -> int:
    """Write the page; how many bytes it has. InputError where it would replace a source or cannot be written."""
    first = sources[0] if sources else "diagnosis"
    title = f"Diagnosis of {first if is_url(first) else Path(first).name}"
    page = diagnosis_page(found, title=title, sources=sources)
    refuse_to_replace(out, sources, option="--html")
    return write_page(out, page, first, option="--html")


def _verdict(found: Diagnosis) -> Cell:
    doubt = not found.findings or found.findings[0].level in (Level.SUSPECTED, Level.INSUFFICIENT)
    said = context_of(found)
    banner = f'<div class="banner{" doubt" if doubt else ""}"><p><strong>{text(answer_of(found), _LONG)}</strong></p>'
    banner += f"<p>{text(said, _LONG)}</p></div>" if said else "</div>"
    first = found.findings[0] if found.findings else None
    name = first.code if first is not None else "No cause found" if found.action != "none" else "Nothing is wrong"
    pairs: list[tuple[str, object]] = [("To do", found.action)]
    if first is not None:
        pairs += [("Layer", first.layer), ("Stage", first.stage or ABSENT), ("How sure", _LEVELS[first.level])]
    advice = f"<p>{text(first.advice, _LONG)}</p>" if first is not None and first.advice else ""
    inside = banner + advice + facts(pairs, limit=_LONG)
    if found.next_evidence:
        inside += f"<h3>To collect next</h3>{_list(found.next_evidence)}"
    return card("Verdict", name, inside, name="verdict")


def _tail(tail: Tail) -> Cell:
    rows = [
        row(code, [cell(ms(value), "number"), cell(_share(value, tail.lost_ms), "number")])
        for code, value in tail.by_finding.items()
    ]
    rows.append(
        row(
            "not explained",
            [cell(ms(tail.unexplained_ms), "number"), cell(_share(tail.unexplained_ms, tail.lost_ms), "number")],
        )
    )
    bound = "" if tail.objective_ms is None else f" (objective {ms(tail.objective_ms)} ms)"
    note = (
        f"p{tail.quantile * 100:g} of the {_METRICS.get(tail.metric, tail.metric)}: {ms(tail.p_ms)} ms{bound}. "
        f"The {tail.n} slowest requests lost {ms(tail.lost_ms)} ms each on average, beyond what the typical request "
        "takes."
    )
    title = f"{_share(tail.explained_ms, tail.lost_ms)} of what the slowest requests lost is explained"
    inside = table(["finding", "adds, ms", "share"], rows, caption="What the findings explain of the tail")
    return card("The tail", title, inside, note=note, name="tail")


def _share(value: float, whole: float) -> str:
    return f"{value / whole:.0%}" if whole > 0 else ABSENT


def _finding(number: int, one: Finding, found: Diagnosis, admin: str, sources: Sequence[str]) -> Cell:
    explains = (
        "" if one.explains_ms is None else f"; by itself it explains {ms(one.explains_ms)} ms of the slow requests"
    )
    # The first one's statement and advice are the verdict's: they stand there.
    inside = f"<p>{text(one.statement, _LONG)}</p>" if one.statement and number > 1 else ""
    evidence = [item for item in one.evidence if item.text != f"computed: {one.relation}"]
    if evidence:
        inside += _evidence(evidence)
    pairs = [
        ("Relation", one.relation),
        ("Advice", one.advice if number > 1 else ""),
        ("Price", one.price),
        ("Would disprove it", one.disproof),
        ("Checked", "; ".join(dict.fromkeys(one.disproof_checked))),
        ("Could also be", ", ".join(one.rivals)),
        ("Missing", "; ".join(one.missing)),
        ("Verify", Cell(f"<code>{text(one.verify, _LONG)}</code>") if one.verify else ""),
        ("Requests that show it", _requests(one.requests, admin, sources) if one.requests else ""),
    ]
    inside += facts([(name, value) for name, value in pairs if value], limit=_LONG)
    kicker = f"Finding {number} of {len(found.findings)} · {one.layer} layer" + (f" · {one.stage}" if one.stage else "")
    return card(
        kicker, one.code, inside, note=f"{_LEVELS[one.level]} (n = {one.n}){explains}", name=f"finding-{number}"
    )


def _evidence(items: Sequence[Evidence]) -> Cell:
    rows = [row(one.text, [cell(one.source)]) for one in items]
    return table(["evidence", "source"], rows, caption="Evidence", words={"source"})


def _requests(ids: Sequence[str], admin: str, sources: Sequence[str]) -> Cell:
    """Each a link to its timeline in the gateway's dashboard where one was asked, else the command that explains it."""
    if admin:
        return Cell(", ".join(f'<a href="{text(f"{admin}/#request={quote(one)}")}">{text(one)}</a>' for one in ids))
    where = f" {shlex.quote(sources[0])}" if len(sources) == 1 else ""
    return Cell(", ".join(f"<code>tailrace explain {text(f'{one}{where}')}</code>" for one in ids))


def _validity(found: Diagnosis) -> Cell | str:
    beside = [one for one in found.validity if one not in found.findings and (one.statement or one.missing)]
    if not beside:
        return ""
    rows = [row(one.code, [cell(f"{one.statement or '; '.join(one.missing)} {one.advice}", "text")]) for one in beside]
    inside = table(["check", "what it says"], rows, caption="Checks of the numbers", words={"what it says"})
    return card("First the numbers", "What the checks of the numbers say", inside, name="validity")


def _attribution(items: Sequence[Attribution]) -> Cell | str:
    if not items:
        return ""
    rows = [
        row(_KINDS.get(one.kind, one.kind), [cell(Cell(text(one.text, _LONG)), "text", small=one.source)])
        for one in items
    ]
    inside = table(["", "what was found"], rows, caption="Where the tail lies", words={"what was found"})
    return card("Attribution", "Where the tail, or its change, lies", inside, name="attribution")


def _seen(items: Sequence[Evidence]) -> Cell | str:
    if not items:
        return ""
    return card("Beside the requests", "Seen of the machine; no verdict by itself", _evidence(items), name="seen")


def _open(found: Diagnosis) -> Cell | str:
    parts = [
        ("First questions that fire", [f"{rule}: {RULES.get(rule, '')}" for rule in found.triage]),
        ("Not answered, for want of", open_questions(found)),
        ("Not understood", found.not_understood),
    ]
    inside = "".join(f"<h3>{text(name)}</h3>{_list(lines)}" for name, lines in parts if lines)
    return card("Open", "Questions and what is missing", inside, name="open") if inside else ""


def _list(lines: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{text(line, _LONG)}</li>" for line in lines)}</ul>'
