from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.dialects import CHAT
from tailrace.measure.meter import StreamMeter
from tailrace.measure.sse import SseFramer
from tailrace.measure.strip import FrameStripper
from tailrace.model.timeline import EventKind
from tests.measure.transcripts import DONE, EOLS, STREAMS, Event, chunk, delta, usage, wire

CUT = frozenset({EventKind.USAGE, EventKind.PROGRESS})
FRAMES: list[Event] = [
    (None, chunk([{"delta": {"role": "assistant", "content": None}}], prompt_progress={"total": 9, "processed": 0})),
    (None, delta(role="assistant", content=None)),
    (None, delta(content="Hello")),
    (None, delta(content=" you")),
    (None, delta("stop")),
    (None, chunk([], usage=usage(3, 2))),
    DONE,
]
KEPT = [*FRAMES[1:5], DONE]


def stripped(pieces: list[bytes], cut: frozenset[EventKind] = CUT) -> tuple[list[bytes], StreamMeter]:
    meter = StreamMeter(CHAT, origin_ns=0, cut=cut)
    stripper = FrameStripper(meter)
    out = [stripper.feed(piece, at) for at, piece in enumerate(pieces, 1)]
    meter.end(len(pieces) + 1, clean=True)
    return [*out, stripper.finish()], meter


@pytest.mark.parametrize("eol", EOLS, ids=["lf", "crlf", "cr"])
def test_one_event_a_read_leaves_at_once_or_not_at_all(eol: str) -> None:
    out, meter = stripped([wire(frame, eol) for frame in FRAMES])
    assert out == [b"", *(wire(frame, eol) for frame in FRAMES[1:5]), b"", wire(DONE, eol), b""]
    assert meter.summary().output_tokens == 2, "what is taken out was read all the same"


@given(data=st.data(), eol=st.sampled_from(EOLS))
def test_any_split_leaves_a_stream_without_the_cut_frames(data: st.DataObject, eol: str) -> None:
    body = b"".join(wire(frame, eol) for frame in FRAMES)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=30))
    out, _ = stripped([body[low:high] for low, high in pairwise(sorted({0, *cuts, len(body)}))])
    framer = SseFramer()
    left = [event.data for event in framer.feed(b"".join(out))]
    assert left == [frame[1].encode() for frame in KEPT if frame[1] is not None]
    assert framer.finish() is None


@given(data=st.data(), eol=st.sampled_from(EOLS))
def test_without_anything_to_cut_every_byte_passes(data: st.DataObject, eol: str) -> None:
    events = data.draw(st.lists(STREAMS["chat"][1], max_size=6))
    tail = data.draw(st.binary(max_size=10))
    body = b"".join(wire(event, eol) for event in events) + tail
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=6))
    out, _ = stripped([body[low:high] for low, high in pairwise(sorted({0, *cuts, len(body)}))], frozenset())
    assert b"".join(out) == body


def test_a_stream_that_cannot_be_framed_passes_whole() -> None:
    meter = StreamMeter(CHAT, origin_ns=0, max_event_bytes=64, cut=CUT)
    stripper = FrameStripper(meter)
    pieces = [wire(FRAMES[2]), b"data: " + b"x" * 40, b"y" * 40, b"z" * 40]
    assert b"".join(stripper.feed(piece, 1) for piece in pieces) + stripper.finish() == b"".join(pieces)
    assert meter.protocol_fault


def test_a_cut_frame_without_its_blank_line_at_the_end_stays_out() -> None:
    out, _ = stripped([wire(FRAMES[2]), wire(FRAMES[5])[:-1]])
    assert b"".join(out) == wire(FRAMES[2])
