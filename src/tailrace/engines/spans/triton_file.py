"""Triton's own trace file (`mode=triton`): the same stamps as its spans, in pieces, of a monotonic clock.

Each piece names its trace's `id`; the model and the request's id come once. Facts are of 2.51 (captured). The pieces
of a trace become the three spans that `opentelemetry` mode sends, so that one reader serves both.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.engines.spans.reader import SpanFacts
from tailrace.engines.spans.triton import TritonSpans
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.span import Span, SpanEvent

_SCOPE: Final = "triton-server"
_OF_MODEL: Final = frozenset({"REQUEST_START", "QUEUE_START", "REQUEST_END"})


class _Stamp(msgspec.Struct):
    name: str = ""
    ns: int = 0


class _Piece(msgspec.Struct):
    id: int
    model_name: str = ""
    model_version: int = 0
    request_id: str = ""
    parent_id: int = 0
    timestamps: list[_Stamp] = []


class TracedRequest(msgspec.Struct, frozen=True):
    """One request of a trace file."""

    trace: int
    """Triton's number of it."""
    model: str
    request_id: str
    """The client's, or ours where it was sent as the body's `id`."""
    began_ns: int
    """The first stamp: of a monotonic clock, good for their order alone."""
    total_ns: int
    """First stamp -> last one."""
    facts: SpanFacts


def read_trace_file(text: bytes) -> list[TracedRequest]:
    """The requests of a trace file, in its order. ValueError where it is none.

    A file that is still written, or whose server was killed, lacks its end: the pieces before that are read.
    """
    pieces: dict[int, list[_Piece]] = {}
    for piece in _pieces(text):
        pieces.setdefault(piece.id, []).append(piece)
    return [found for number, some in pieces.items() if (found := _request(number, some)) is not None]


def _pieces(text: bytes) -> list[_Piece]:
    try:
        return msgspec.json.decode(text, type=list[_Piece])
    except UNREADABLE as error:
        # Up to the last piece that is whole.
        at = text.rfind(b"},{")
        if not text.lstrip().startswith(b'[{"id"') or at < 0:
            raise ValueError(f"is no trace file of Triton: {error}") from None
        try:
            return msgspec.json.decode(text[: at + 1] + b"]", type=list[_Piece])
        except UNREADABLE:
            raise ValueError(f"is no trace file of Triton: {error}") from None


def _request(number: int, pieces: list[_Piece]) -> TracedRequest | None:
    # A stamp that was not taken is 0: the sends of a stream.
    stamps = [stamp for piece in pieces for stamp in piece.timestamps if stamp.ns > 0]
    model = next((piece.model_name for piece in pieces if piece.model_name), "")
    request_id = next((piece.request_id for piece in pieces if piece.request_id), "")
    if not stamps or not model:
        return None
    root = _span("InferRequest", 1, 0, [one for one in stamps if not _inside(one.name)])
    inner = _span(model, 2, 1, [one for one in stamps if one.name in _OF_MODEL], model_name=model)
    compute = _span("compute", 3, 2, [one for one in stamps if one.name.startswith("COMPUTE_")])
    facts = TritonSpans().read(root, [inner, compute])
    first, last = min(one.ns for one in stamps), max(one.ns for one in stamps)
    return TracedRequest(number, model, request_id, first, last - first, facts)


def _inside(name: str) -> bool:
    return name in _OF_MODEL or name.startswith("COMPUTE_")


def _span(name: str, number: int, parent: int, stamps: list[_Stamp], **said: Any) -> Span:
    times = [one.ns for one in stamps] or [0]
    return Span(
        trace_id="",
        span_id=str(number),
        parent_span_id=str(parent) if parent else "",
        name=name,
        scope=_SCOPE,
        start_unix_ns=min(times),
        end_unix_ns=max(times),
        events=[SpanEvent(one.name, one.ns) for one in stamps],
        attributes={f"triton.{key}": value for key, value in said.items()},
    )
