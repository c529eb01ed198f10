"""One question and its answer."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Answer", "Check"]


class Answer(StrEnum):
    """What the evidence says."""

    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "unknown"


class Check(NamedTuple):
    """A question."""

    name: str
    answer: Answer
    words: str
    """The answer with its numbers; where it is unknown, what to measure."""
