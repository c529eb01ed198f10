"""What many rules ask of one arm, or of one body of evidence, is found once and kept with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from tailrace.diagnose.observed import Arm, Observed

__all__ = ["asked_once"]

Body = TypeVar("Body", Arm, Observed)
Words = ParamSpec("Words")
Answer = TypeVar("Answer")


def asked_once(ask: Callable[Concatenate[Body, Words], Answer]) -> Callable[Concatenate[Body, Words], Answer]:
    """`ask(body, *words)`, whose answers stay with the body, an arm or the whole: an arm stands in a hundred pairs, and
    a dozen rules go through them all. For questions of hashable words to what nobody changes any more.
    """

    @wraps(ask)
    def asked(body: Body, /, *words: Words.args, **more: Words.kwargs) -> Answer:
        own = vars(body)
        answers: dict[Any, Answer] | None = own.get("answers")
        if answers is None:
            answers = own["answers"] = {}
        question = (ask, words, tuple(more.items())) if more else (ask, words)
        try:
            return answers[question]
        except KeyError:
            answer = answers[question] = ask(body, *words, **more)
            return answer

    return asked
