"""The interview of `tailrace diagnose --ask`: on a terminal, or with answers piped in, one a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tailrace.diagnose.interview import Question
    from tailrace.model.finding import Diagnosis

__all__ = ["ask_facts"]

_TRIES: Final = 3
_SHOWN: Final = 3
_TO: Final = {
    "ms": {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "min": 60e3},
    "s": {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    "%": {"%": 1.0},
    "tok/s": {"tok/s": 1.0},
    "tokens": {"tokens": 1.0},
}
"""The unit that a question counts in -> a unit that may be typed -> the factor."""


class _EndedError(Exception):
    """Nothing more is answered: the input has ended, or Ctrl-C was pressed."""


def ask_facts(facts: Iterable[str], diagnose: Callable[[list[str]], Diagnosis | None]) -> list[str]:
    """Facts of before with those that were answered. `diagnose` says what follows from the facts so far.

    Questions go to stderr. An empty answer means that it is not known. The end of the input and Ctrl-C end the
    interview, and lose nothing that was answered.
    """
    from tailrace.diagnose.interview import SYMPTOMS, next_question

    out = list(facts)
    asked = {fact.partition("=")[0].rpartition(".")[2] for fact in out}
    given: dict[str, str] = {}
    number = 0
    told = ""
    try:
        symptom = _symptom(SYMPTOMS)
        while (question := next_question(asked, given, symptom, result := diagnose(out))) is not None:
            told = _so_far(result, told)
            asked.add(question.key)
            number += 1
            two = given.get("compared", "").lower().startswith("y")
            sides = (("before.", "before"), ("after.", "now")) if question.both and two else (("", ""),)
            for place, (prefix, side) in enumerate(sides):
                text = _answer(question, number, side, first=place == 0)
                if not text:
                    continue
                given[question.key] = text
                if question.key != "compared":
                    out.append(f"{prefix}{question.key}={text}")
        _say("\nThat is enough to answer.\n\n" if result is not None else "\nNo further question would decide.\n\n")
    except _EndedError:
        known = len(out) - len(list(facts))
        _say(f"\nThe questions end here; {known} answer{'s are' if known != 1 else ' is'} kept.\n\n" if known else "\n")
    return out


def _so_far(result: Diagnosis | None, told: str) -> str:
    """What follows from the answers until now, where that has changed."""
    first = next((one for one in result.findings if one.statement), None) if result is not None else None
    now = f"{first.code} ({first.level})" if first is not None else ""
    if now and now != told:
        _say(f"   so far: {now}\n")
    return now


def _symptom(symptoms: tuple[str, ...]) -> str:
    from tailrace.diagnose.interview import SYMPTOM_WORDS

    _say(
        "A few questions, each with why it is asked. Enter alone: not known. What that would have decided\n"
        "stays open, and is listed under what to collect. Ctrl-C or Ctrl-D: no more questions, answer with these.\n\n"
        "What is wrong?\n"
    )
    for number, name in enumerate(symptoms, start=1):
        _say(f"  {number}  {SYMPTOM_WORDS[name]}\n")
    for _ in range(_TRIES):
        answer = _line("1 to 6, Enter for everything")
        if not answer:
            return "all"
        if answer.isdecimal() and 1 <= int(answer) <= len(symptoms):
            return symptoms[int(answer) - 1]
        found = next((name for name in symptoms if name.startswith(answer.lower())), "")
        if found:
            return found
        _say(f"   {answer[:40]!r} is none of them\n")
    return "all"


def _answer(question: Question, number: int, side: str, *, first: bool) -> str:
    """The answer as a fact's value, in the unit of its key; empty where it is not known."""
    unit = f", {question.unit}" if question.unit else ""
    if first:
        _say(f"\n{number}. {question.text}{unit}\n   why: {question.why}\n   not known: {_left_open(question)}\n")
    wanted = "yes or no" if _is_yes_no(question) else "in words" if question.words_wanted else "a number"
    for _ in range(_TRIES):
        text = _line(f"{side + ', ' if side else ''}{wanted}{unit if wanted == 'a number' else ''}")
        if not text:
            return ""
        value = _read(question, text)
        if value:
            return value
        example = {"ms": "850 or 0.85 s", "s": "5, 5..7 or 300 ms", "%": "97"}.get(question.unit, "64")
        _say(f"   {text[:40]!r} is not understood: {wanted}{'' if question.words_wanted else f', such as {example}'}\n")
    return ""


def _left_open(question: Question) -> str:
    codes = sorted(question.codes)
    more = f" and {len(codes) - _SHOWN} more" if len(codes) > _SHOWN else ""
    return f"{', '.join(codes[:_SHOWN])}{more} stay open"


def _is_yes_no(question: Question) -> bool:
    return question.words_wanted and question.key != "changed"


def _read(question: Question, text: str) -> str:
    """What was typed in the unit of the question; empty where it is no such answer."""
    from tailrace.diagnose.readers.cells import read_cell

    if _is_yes_no(question):
        word = text.lower()
        return "yes" if word in ("y", "yes", "true") else "no" if word in ("n", "no", "false") else ""
    if question.words_wanted:
        return text
    cell = read_cell(text.replace("..", " .. "))
    if cell.value is None:
        return ""
    factor = 1.0 if not cell.unit else _TO.get(question.unit, {}).get(cell.unit)
    if factor is None:
        return ""
    low, high = cell.value * factor, None if cell.high is None else cell.high * factor
    return f"{low:.10g}" if high is None else f"{low:.10g}..{high:.10g}"


def _line(prompt: str) -> str:
    _say(f"   {prompt}: ")
    try:
        line = sys.stdin.readline(10_000)
    except KeyboardInterrupt:
        _say("\n")
        raise _EndedError from None
    if not line:
        _say("\n")
        raise _EndedError
    if not sys.stdin.isatty():
        _say(f"{line.strip()}\n")
    return line.strip()


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
