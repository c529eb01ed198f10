from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.sse import EventTooLarge, SseFramer
from tailrace.model.errors import UpstreamError


class Block(NamedTuple):
    event: bytes | None
    data: bytes | None


def feed(pieces: list[bytes], **options: int) -> list[Block]:
    framer = SseFramer(**options)
    return [Block(event.event, event.data) for piece in pieces for event in framer.feed(piece)]


def by_the_grammar(body: bytes) -> list[Block]:
    """Blocks by the letter of the event-stream grammar, one byte after the other."""
    body = body.removeprefix(b"\xef\xbb\xbf")
    lines: list[bytes] = []
    line = bytearray()
    index = 0
    while index < len(body):
        byte = body[index]
        index += 1
        if byte == 13:
            index += body[index : index + 1] == b"\n"
        elif byte != 10:
            line.append(byte)
            continue
        lines.append(bytes(line))
        line.clear()
    out: list[Block] = []
    name: bytes | None = None
    data: list[bytes] = []
    any_line = False
    for text in lines:
        if not text:
            if any_line:
                out.append(Block(name, b"\n".join(data) if data else None))
            name, data, any_line = None, [], False
            continue
        any_line = True
        field, _, value = text.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return out


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"])
def test_every_field_and_line_end(eol: bytes) -> None:
    body = eol.join(
        [b": hi", b"event: e", b"id: 7", b"retry: 250", b"data: a", b"data:b", b"data", b"other: x", b"", b""]
    )
    framer = SseFramer()
    (event,) = framer.feed(body)
    assert (event.event, event.data) == (b"e", b"a\nb\n")
    assert (framer.last_id, framer.retry_ms) == (b"7", 250)


def test_one_space_only_is_taken_off() -> None:
    assert feed([b"data:  two\n\n"]) == [(None, b" two")]


def test_comment_block_is_told_but_has_no_data() -> None:
    assert feed([b": keep-alive\n\ndata: x\n\n"]) == [(None, None), (None, b"x")]


def test_empty_data_is_an_event_and_no_field_is_none() -> None:
    assert feed([b"data:\n\n\n\n\n"]) == [(None, b"")]


def test_byte_order_mark_at_the_start_only() -> None:
    bom = b"\xef\xbb\xbf"
    assert feed([bom[:1], bom[1:], b"data: x\n\n", bom + b"data: y\n\n"]) == [(None, b"x"), (None, None)]


def test_utf8_split_inside_a_character() -> None:
    body = "data: 漢字😀\n\n".encode()
    for cut in range(1, len(body)):
        assert feed([body[:cut], body[cut:]]) == [(None, "漢字😀".encode())]


def test_64_kilobyte_event_byte_by_byte() -> None:
    body = b"data: " + b"x" * 65536 + b"\r\n\r\n"
    (event,) = feed([bytes([byte]) for byte in body])
    assert event.data == b"x" * 65536


def test_cr_ends_a_block_at_once_and_its_lf_is_swallowed() -> None:
    framer = SseFramer()
    assert len(framer.feed(b"data: a\r\n\r")) == 1
    assert framer.feed(b"\n") == []
    assert [event.data for event in framer.feed(b"data: b\n\n")] == [b"b"]


def test_too_large_an_event_names_the_bound() -> None:
    framer = SseFramer(max_event_bytes=100)
    framer.feed(b"data: " + b"x" * 80 + b"\n\n")
    framer.feed(b"data: " + b"y" * 80)
    with pytest.raises(EventTooLarge, match="100 bytes") as caught:
        framer.feed(b"y" * 80)
    assert isinstance(caught.value, UpstreamError)
    with pytest.raises(EventTooLarge):
        SseFramer(max_event_bytes=100).feed(b"data: " + b"x" * 101 + b"\n\n")


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"])
def test_the_bound_is_the_same_in_any_split(eol: bytes) -> None:
    just, over = b"data: " + b"x" * 94, b"data: " + b"x" * 95
    for body, fits in ((just + eol * 2, True), (over + eol * 2, False)):
        for pieces in ([body], [bytes([byte]) for byte in body]):
            framer = SseFramer(max_event_bytes=100)
            try:
                found = [event for piece in pieces for event in framer.feed(piece)]
            except EventTooLarge:
                found = []
            assert bool(found) is fits


def test_the_end_gives_an_event_without_its_blank_line() -> None:
    framer = SseFramer()
    assert framer.feed(b"data: [DONE]\n") == []
    event = framer.finish()
    assert event is not None
    assert event.data == b"[DONE]"
    assert framer.finish() is None


pieces_of_stream = st.lists(
    st.sampled_from(
        [
            b"\n",
            b"\r",
            b"\r\n",
            b"data",
            b":",
            b" ",
            b"data: ",
            b"event: ",
            b"id: 1",
            b"x",
            b"\xef\xbb\xbf",
            b"\xe6\xbc",
            b"\xa2",
            b"\0",
        ]
    ),
    max_size=40,
)


@given(parts=pieces_of_stream, cuts=st.lists(st.integers(0, 200), max_size=8))
def test_any_bytes_in_any_split_read_as_the_grammar_says(parts: list[bytes], cuts: list[int]) -> None:
    body = b"".join(parts)
    expected = by_the_grammar(body)
    places = sorted({min(cut, len(body)) for cut in cuts} | {0, len(body)})
    pieces = [body[low:high] for low, high in itertools.pairwise(places)]
    assert feed([body]) == expected
    assert feed(pieces) == expected
    assert feed([bytes([byte]) for byte in body]) == expected


@given(parts=pieces_of_stream, data=st.data())
def test_ranges_tile_the_stream_and_any_may_be_cut_out(parts: list[bytes], data: st.DataObject) -> None:
    body = b"".join(parts)
    cut = data.draw(st.integers(0, len(body)))
    framer = SseFramer()
    events = framer.feed(body[:cut]) + framer.feed(body[cut:])
    at = 0
    for event in events:
        assert event.start == at < event.end <= len(body)
        at = event.end
    assert framer.block_start == at
    assert framer.offset == len(body)
    if len(events) > 1:
        victim = data.draw(st.integers(1, len(events) - 1))
        rest = body[: events[victim].start] + body[events[victim].end :]
        kept = [Block(e.event, e.data) for e in events[:victim] + events[victim + 1 :]]
        assert feed([rest]) == kept
