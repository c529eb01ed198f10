"""Frames on their way: any split of the bytes gives the same, faults are known before their frame leaves."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.websocket import (
    BAD_TEXT,
    NO_CODE,
    PROTOCOL_ERROR,
    TOO_BIG,
    Close,
    FrameWatcher,
    close_frame,
    reserved_bits,
    unmask,
)
from tests.wire.sockets import frame

MASK = b"\x37\xfa\x21\x3d"
LIMIT = 70_000


class Heard:
    """An observer that keeps all."""

    def __init__(self) -> None:
        self.texts: list[tuple[bytes, bool]] = []

    def text(self, message: bytes, now: int, *, compressed: bool) -> None:
        self.texts.append((message, compressed))


class Direction:
    """A watcher, what it let go on, and what its observer heard."""

    def __init__(self, *, masked: bool, limit: int = LIMIT, reserved: int = 0, observed: int = LIMIT) -> None:
        self.heard = Heard()
        self.watcher = FrameWatcher(
            masked=masked, message_bytes=limit, reserved=reserved, observer=self.heard, observed_bytes=observed
        )
        self.out = b""

    def feed(self, *pieces: bytes) -> Direction:
        for now, piece in enumerate(pieces):
            self.out += self.watcher.feed(piece, now)
        return self

    @property
    def seen(self) -> tuple[object, ...]:
        w = self.watcher
        return (
            self.out,
            self.heard.texts,
            w.messages,
            w.bytes_seen,
            w.control_frames,
            w.unobserved,
            w.fault,
            w.close,
            w.at_boundary,
        )


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(at)]


PAYLOADS = st.one_of(st.binary(max_size=200), st.integers(120, 70_100).map(lambda size: b"x" * size))
CUTS = st.lists(st.integers(0, 1 << 20), max_size=12)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[bool, bytes, list[bytes], int]:
    """(masked, bytes, text messages, messages) of a sound direction; control frames between fragments too."""
    masked = draw(st.booleans())
    mask = st.binary(min_size=4, max_size=4) if masked else st.just(b"")
    data, texts, count = b"", [], 0
    for opcode, payloads in draw(
        st.lists(st.tuples(st.sampled_from([1, 2]), st.lists(PAYLOADS, min_size=1, max_size=3)), max_size=4)
    ):
        if sum(map(len, payloads)) > LIMIT:
            continue
        for index, payload in enumerate(payloads):
            last = index == len(payloads) - 1
            data += frame(0 if index else opcode, payload, fin=last, mask=draw(mask))
            if draw(st.booleans()):
                data += frame(draw(st.sampled_from([9, 10])), draw(st.binary(max_size=125)), mask=draw(mask))
        count += 1
        if opcode == 1:
            texts.append(b"".join(payloads))
    return masked, data, texts, count


@given(sessions(), CUTS)
def test_a_sound_direction_goes_on_as_it_came_however_it_is_cut(session, cuts):
    masked, data, texts, count = session
    got = Direction(masked=masked).feed(*split(data, cuts))
    assert got.out == data
    assert [message for message, _ in got.heard.texts] == texts
    assert (got.watcher.messages, got.watcher.fault, got.watcher.at_boundary) == (count, None, True)


@given(
    st.booleans(), st.lists(st.binary(max_size=30), max_size=8).map(b"".join), CUTS, st.sampled_from([0, 0x40, 0x70])
)
def test_any_bytes_give_the_same_however_they_are_cut(masked, data, cuts, reserved):
    whole = Direction(masked=masked, reserved=reserved, limit=300).feed(data)
    pieces = Direction(masked=masked, reserved=reserved, limit=300).feed(*split(data, cuts))
    single = Direction(masked=masked, reserved=reserved, limit=300).feed(*(data[i : i + 1] for i in range(len(data))))
    assert whole.seen == pieces.seen == single.seen
    assert data.startswith(whole.out)


@given(sessions(), CUTS, st.integers(0, 1 << 20))
def test_what_is_held_back_is_small_and_what_has_left_can_be_closed_behind(session, cuts, until):
    masked, data, _, _ = session
    data = data[: until % (len(data) + 1)]
    got = Direction(masked=masked).feed(*split(data, cuts))
    assert len(data) - len(got.out) <= 14 + 124
    if got.watcher.at_boundary:
        reader = Direction(masked=masked).feed(got.out + close_frame(1011, "gone", mask=MASK if masked else b""))
        assert reader.watcher.close == Close(1011, "gone")


@given(sessions(), st.integers(0, 1 << 20))
def test_a_halt_lets_the_frame_at_hand_go_on_and_no_other(session, at):
    masked, data, _, _ = session
    cut = at % (len(data) + 1)
    got = Direction(masked=masked).feed(data[:cut])
    before = got.out
    clean = got.watcher.at_boundary
    got.watcher.halt()
    got.feed(data[cut:])
    assert got.watcher.at_boundary
    assert (got.out == before) is clean
    reader = Direction(masked=masked).feed(got.out)
    assert reader.watcher.at_boundary
    assert reader.out == got.out


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4), st.integers(0, 300))
def test_unmasking_in_pieces_is_unmasking_at_once(data, mask, cut):
    expected = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
    assert unmask(data, mask) == expected
    assert unmask(data[:cut], mask) + unmask(data[cut:], mask, len(data[:cut])) == expected


SOUND = frame(1, b"before")


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frame(1, b"x", mask=MASK), PROTOCOL_ERROR),
        (frame(3), PROTOCOL_ERROR),
        (frame(11), PROTOCOL_ERROR),
        (frame(0, b"x"), PROTOCOL_ERROR),
        (frame(1, b"x", fin=False) + frame(2, b"y"), PROTOCOL_ERROR),
        (frame(9, b"x", fin=False), PROTOCOL_ERROR),
        (frame(9, b"x" * 126), PROTOCOL_ERROR),
        (frame(1, b"x", reserved=0x40), PROTOCOL_ERROR),
        (b"\x82\x7f" + (1 << 63).to_bytes(8, "big"), PROTOCOL_ERROR),
        (frame(8, b"x"), PROTOCOL_ERROR),
        (frame(8, (999).to_bytes(2, "big")), PROTOCOL_ERROR),
        (frame(8, (1005).to_bytes(2, "big")), PROTOCOL_ERROR),
        (frame(8, (1006).to_bytes(2, "big")), PROTOCOL_ERROR),
        (frame(8, (5000).to_bytes(2, "big")), PROTOCOL_ERROR),
        (frame(8, (1000).to_bytes(2, "big") + b"\xff"), BAD_TEXT),
        (frame(2, b"x" * 101), TOO_BIG),
        (frame(2, b"x" * 60, fin=False) + frame(0, b"x" * 41), TOO_BIG),
        (b"\x82\x7f" + (1 << 62).to_bytes(8, "big"), TOO_BIG),
    ],
)
def test_a_fault_is_known_before_its_frame_leaves(bad, code):
    for pieces in ([SOUND + bad], [bytes([byte]) for byte in SOUND + bad]):
        got = Direction(masked=False, limit=100).feed(*pieces, SOUND)
        assert got.watcher.fault is not None
        assert got.watcher.fault.code == code
        assert got.watcher.fault.reason
        assert got.watcher.at_boundary
        assert (SOUND + bad).startswith(got.out)
        assert got.out.startswith(SOUND)
        reader = Direction(masked=False, limit=100).feed(got.out)
        assert (reader.watcher.fault, reader.watcher.at_boundary) == (None, True)


def test_frames_of_a_client_must_be_masked():
    got = Direction(masked=True).feed(frame(1, b"x"))
    assert got.watcher.fault == Close(PROTOCOL_ERROR, "a frame is not masked")
    assert got.out == b""


@pytest.mark.parametrize("said", [Close(1000, ""), Close(4001, "späť"), Close(NO_CODE, ""), Close(1014, "x" * 123)])
@pytest.mark.parametrize("mask", [b"", MASK])
def test_a_close_frame_goes_on_and_nothing_behind_it(said, mask):
    data = close_frame(said.code, said.reason, mask=mask)
    got = Direction(masked=bool(mask)).feed(data + frame(1, b"late", mask=mask), frame(1, b"later", mask=mask))
    assert got.out == data
    assert got.watcher.close == said
    assert got.watcher.fault is None


def test_a_long_reason_is_cut_between_two_characters():
    data = close_frame(1000, "ž" * 100)
    assert len(data) == 2 + 2 + 122
    assert Direction(masked=False).feed(data).watcher.close == Close(1000, "ž" * 61)


def test_the_bound_is_a_message_and_not_a_session():
    got = Direction(masked=False, limit=100).feed(*[frame(2, b"x" * 100)] * 50)
    assert (got.watcher.messages, got.watcher.bytes_seen, got.watcher.fault) == (50, 5000, None)


def test_what_is_too_large_for_the_observer_goes_on_all_the_same():
    large = frame(1, b"x" * 30, fin=False) + frame(0, b"y" * 30)
    got = Direction(masked=False, observed=50).feed(large + frame(1, b"small"))
    assert got.out == large + frame(1, b"small")
    assert got.heard.texts == [(b"small", False)]
    assert got.watcher.unobserved == 1


def test_pings_are_no_data():
    got = Direction(masked=False).feed(b"", frame(9, b"x"))
    assert got.watcher.last_data_ns is None
    got.feed(frame(2, b"x"))
    assert got.watcher.last_data_ns == 0


def test_reserved_bits_follow_the_extensions():
    assert reserved_bits(b"") == 0
    assert reserved_bits(b"permessage-deflate; server_no_context_takeover") == 0x40
    assert reserved_bits(b"permessage-deflate, x-more") == 0x70
    deflated = frame(1, b"x", fin=False, reserved=0x40)
    got = Direction(masked=False, reserved=0x40).feed(deflated + frame(0, b"y") + frame(1, b"z"))
    assert got.heard.texts == [(b"xy", True), (b"z", False)]
    assert Direction(masked=False, reserved=0x40).feed(deflated + frame(0, b"y", reserved=0x40)).watcher.fault
    assert Direction(masked=False, reserved=0x40).feed(frame(9, reserved=0x40)).watcher.fault
    assert not Direction(masked=False, reserved=0x70).feed(frame(9, reserved=0x40)).watcher.fault
