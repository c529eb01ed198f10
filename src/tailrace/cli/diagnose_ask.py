"""The interview of `tailrace diagnose --ask`: on a terminal, or with answers piped in, one a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.diagnose.interview import Question
    from tailrace.model.finding import Diagnosis

__all__ = ["ask_facts"]


def ask_facts(facts: Iterable[str], diagnose: Callable[[list[str]], Diagnosis | None]) -> list[str]:
    """Facts of before with those that were answered. `diagnose` says what follows from the facts so far.

    Questions go to stderr; an empty answer means `not known`; the end of the input ends the interview.
    """
    from tailrace.diagnose.interview import SYMPTOMS, next_question

    out = list(facts)
    _say("A few questions; an empty answer means that you do not know.\n")
    options = ", ".join(f"{number} {name}" for number, name in enumerate(SYMPTOMS, start=1))
    answer = _ask(f"What is wrong? {options}")
    if answer is None:
        return out
    symptom = _symptom(answer, SYMPTOMS)
    asked = {fact.partition("=")[0].rpartition(".")[2] for fact in facts}
    given: dict[str, str] = {}
    while (question := next_question(asked, given, symptom, diagnose(out))) is not None:
        asked.add(question.key)
        answers = _answers(question, two=given.get("compared", "").lower().startswith("y"))
        if answers is None:
            break
        for prefix, text in answers:
            given[question.key] = text
            if question.key != "compared":
                out.append(f"{prefix}{question.key}={text}")
    return out


def _answers(question: Question, *, two: bool) -> list[tuple[str, str]] | None:
    """(prefix, answer) of one question, twice where there is a before; `None` at the end of the input."""
    out: list[tuple[str, str]] = []
    for prefix, words in (("before.", " before"), ("after.", " now")) if question.both and two else (("", ""),):
        answer = _ask(f"{question.text}{words}")
        if answer is None:
            return out or None
        if answer:
            out.append((prefix, answer))
    return out


def _symptom(answer: str, symptoms: tuple[str, ...]) -> str:
    if answer.isdecimal() and 1 <= int(answer) <= len(symptoms):
        return symptoms[int(answer) - 1]
    return next((name for name in symptoms if answer and name.startswith(answer.lower())), "all")


def _ask(text: str) -> str | None:
    _say(f"{text}: ")
    line = sys.stdin.readline(10_000)
    if not line:
        _say("\n")
        return None
    if not sys.stdin.isatty():
        _say(f"{line.strip()}\n")
    return line.strip()


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
