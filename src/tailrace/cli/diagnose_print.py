"""A diagnosis for people: the answer in the first line, then what to do, then why; nothing is said twice.

The first finding is printed whole. Of the others stand what they say, the numbers behind it and what to do: whoever
wants their price and what would disprove them takes `--json` or `--html`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tailrace.cli.console import Console
from tailrace.diagnose.told import answer_of, context_of, open_questions
from tailrace.diagnose.triage import RULES
from tailrace.model.finding import Level, Part

if TYPE_CHECKING:
    from tailrace.analyze.joined import Joined
    from tailrace.model.finding import Attribution, Diagnosis, Finding

__all__ = ["print_diagnosis", "print_joined"]

_MOST_OF_A_KIND: Final = 2
_MOST_EVIDENCE: Final = 4
_MOST_NEEDS: Final = 6
_ALL: Final = "(all of them: --json, --html)"
_PARTS: Final = {Part.WHOLE: "", Part.STEADY: ", once warm", Part.START: ", in the start only"}


def print_diagnosis(result: Diagnosis) -> None:
    """Print a diagnosis for people."""
    console = Console(soft_wrap=True, highlight=False)
    console.put(answer_of(result), style="bold")
    context = context_of(result)
    if context:
        console.put(context)
    for finding in result.validity:
        if finding.statement and finding not in result.findings:
            console.put(f"\n! {finding.code}: {finding.statement} {finding.advice}")
    told = [finding for finding in result.findings if finding.statement]
    for number, finding in enumerate(told, start=1):
        _finding(console, number, finding, first=finding is result.findings[0])
    console.put(f"\nAction: {result.action}")
    _list(console, "To collect next", result.next_evidence)
    _list(console, "First questions that fire", [f"{rule}: {RULES.get(rule, '')}" for rule in result.triage])
    _list(console, "Where the tail lies", _places(result.attribution, context))
    seen = [f"{item.text}  [{item.source}]" for item in result.observations]
    _list(console, "Seen beside the requests (no verdict by itself)", seen)
    _list(console, "Not answered, for want of", _few(open_questions(result)))
    for note in dict.fromkeys(result.not_understood):
        console.put(f"not understood: {note}")
    _list(console, "About the evidence", result.remarks)


def print_joined(both: Joined) -> None:
    """What a run and its gateway's records say together."""
    _list(Console(soft_wrap=True, highlight=False), "Joined with the gateway's records", both.lines())


def _list(console: Console, title: str, lines: list[str]) -> None:
    if lines:
        console.print(f"\n{title}:")
        for line in lines:
            console.put(f"  {line}")


def _places(items: Iterable[Attribution], context: str) -> list[str]:
    """What `context` does not say already: at most two of a kind, the most telling, and how many more there are."""
    shown: Counter[str] = Counter()
    out = []
    for one in items:
        if one.text in context:
            continue
        shown[one.kind] += 1
        if shown[one.kind] <= _MOST_OF_A_KIND:
            out.append(f"{one.text}  [{one.source}]")
    more = sum(count - _MOST_OF_A_KIND for count in shown.values() if count > _MOST_OF_A_KIND)
    return [*out, f"and {more} more like these {_ALL}"] if more else out


def _few(lines: list[str]) -> list[str]:
    left = len(lines) - _MOST_NEEDS
    return [*lines[:_MOST_NEEDS], f"and {left} more {_ALL}"] if left > 1 else lines


def _finding(console: Console, number: int, finding: Finding, *, first: bool) -> None:
    explains = "" if finding.explains_ms is None else f", explains {finding.explains_ms:,.0f} ms of the slow requests"
    console.put(
        f"\n{number}. {finding.code} ({', '.join(filter(None, (f'{finding.layer} layer', finding.stage)))}): "
        f"{finding.level}{_PARTS[finding.part]}{explains}{f', n = {finding.n}' if finding.n else ''}",
        style="bold",
    )
    if not first:
        console.put(f"   {finding.statement}")
    # The arithmetic stands in its own line.
    evidence = [item for item in finding.evidence if item.text != f"computed: {finding.relation}"]
    few = evidence if first or len(evidence) <= _MOST_EVIDENCE + 1 else evidence[:_MOST_EVIDENCE]
    for item in few:
        console.put(f"   - {item.text}  [{item.source}]")
    if len(few) < len(evidence):
        console.put(f"   - and {len(evidence) - len(few)} more {_ALL}")
    rows = (
        ("advice", finding.advice, True),
        ("price", finding.price, False),
        ("verify", finding.verify, True),
        ("relation", finding.relation, True),
        ("would disprove it", finding.disproof, False),
        ("checked", "; ".join(dict.fromkeys(finding.disproof_checked)), False),
        ("could also be", ", ".join(finding.rivals), True),
        ("missing", "; ".join(finding.missing), finding.level is not Level.INSUFFICIENT),
        ("requests", ", ".join(finding.requests), True),
    )
    for name, text, always in rows:
        if text and (first or always):
            console.put(f"   {name}: {text}")
