"""Bytes of an event stream through framer, meter and stripper: what a client sees does not depend on the reads."""

from __future__ import annotations

from tailrace.measure.dialects import dialect_for
from tailrace.measure.meter import StreamMeter
from tailrace.measure.sse import EventTooLarge, SseFramer
from tailrace.measure.strip import FrameStripper
from tailrace.model.timeline import EventKind
from tests.wire.fuzz.client_edge import pieces

LIMIT = 4096
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


def framed(data: bytes, plan: bytes) -> tuple[list[tuple[bytes | None, bytes | None, int]], bool]:
    """(name, data, end) of each event, and whether one was too large."""
    framer = SseFramer(LIMIT)
    out = []
    try:
        for piece, _ in pieces(data, plan):
            out += framer.feed(piece)
    except EventTooLarge as error:
        return [(one.event, one.data, one.end) for one in out + error.events], True
    last = framer.finish()
    return [(one.event, one.data, one.end) for one in out + ([last] if last else [])], False


def relayed(data: bytes, plan: bytes, path: str, cut: frozenset[EventKind]) -> tuple[bytes, tuple]:
    """What the client gets, and what the record says."""
    meter = StreamMeter(dialect_for(path), origin_ns=0, max_event_bytes=LIMIT, cut=cut)
    stripper = FrameStripper(meter)
    out = b""
    for number, (piece, _) in enumerate(pieces(data, plan)):
        out += stripper.feed(piece, 1000 + number)
    meter.end(1_000_000, clean=True)
    out += stripper.finish()
    summary = meter.summary()
    said = (meter.done, meter.finish_reason, summary.output_tokens, summary.prompt_tokens, meter.fault is None)
    return out, said


def stream_edge(data: bytes, plan: bytes) -> None:
    """Framing, relay and measure are the same for every split; without frames to cut, the relay is the identity."""
    whole, large = framed(data, b"")
    split, large_split = framed(data, plan)
    assert large == large_split
    for (name, text, end), (other, other_text, other_end) in zip(whole, split, strict=not large):
        assert (name, text) == (other, other_text)
        # A line feed that completes a CRLF only in a later read belongs to the next range.
        assert 0 <= end - other_end <= 1
    for path in PATHS:
        plain, said = relayed(data, b"", path, frozenset())
        assert plain == data
        out, said_split = relayed(data, plan, path, frozenset())
        assert out == data
        if not large:
            assert said_split == said
            cut = frozenset({EventKind.USAGE})
            once, _ = relayed(data, b"", path, cut)
            again, _ = relayed(data, plan, path, cut)
            if b"\r" not in data:
                assert once == again
