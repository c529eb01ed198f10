"""A reader of one engine's spans, and what readers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from tailrace.model.span import Span
from tailrace.model.stage import SourceKind, source


class SpanFacts(msgspec.Struct, kw_only=True):
    """What the spans of one request say, under an amendment's names. Durations in ns; `None`: not said."""

    request_id: str = ""
    """Only where it is ours beyond doubt."""
    queue_ns: int | None = None
    preprocess_ns: int | None = None
    encode_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    postprocess_ns: int | None = None
    parts_ns: dict[str, int] = {}
    sources: dict[str, str] = {}
    cached_tokens: int | None = None
    preemptions: int | None = None
    finish_reason: str = ""

    def say(self, stage: str, value_ns: int | None, detail: str) -> None:
        """Note a stage and the field it was read from; a negative duration is no report."""
        if value_ns is None or value_ns < 0:
            return
        if "." in stage:
            self.parts_ns = {**self.parts_ns, stage: value_ns}
        else:
            setattr(self, f"{stage}_ns", value_ns)
        self.sources = {**self.sources, stage: source(SourceKind.REPORTED, detail)}


class SpanReader(ABC):
    """One engine. A reader has no state: everything is in the spans."""

    engine: ClassVar[str]
    root: ClassVar[str]
    """What the first span of a request is called, for the amendment's origin."""
    settle_ns: ClassVar[int] = 0
    """How long after a request's first span others of it may come: from other processes of the engine."""

    @abstractmethod
    def owns(self, span: Span) -> bool:
        """Whether this engine sent it, about one request."""

    @abstractmethod
    def is_root(self, span: Span) -> bool:
        """Whether it is a request's first span inside the engine, which ends last."""

    @abstractmethod
    def read(self, root: Span, below: Sequence[Span]) -> SpanFacts:
        """The request's stages from its first span and those below it, in the order of their starts."""


def number(attributes: Mapping[str, Any], key: str) -> float | None:
    """A finite, non-negative number, or `None`."""
    value = attributes.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return value


def count(attributes: Mapping[str, Any], key: str) -> int | None:
    """A whole number, or `None`."""
    value = number(attributes, key)
    return None if value is None else int(value)


def covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """How much time (ns) at least one of the intervals covers."""
    total, until = 0, None
    for start, end in sorted(intervals):
        begin = start if until is None else max(start, until)
        if end > begin:
            total += end - begin
            until = end
    return total
