"""Forms read as they pass: any split of the bytes reads alike, and nothing is kept but what is wanted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.form import (
    FILE_HEAD,
    LONGEST_HEADERS,
    LONGEST_VALUE,
    WANTED,
    FormScanner,
    boundary_of,
    form_work,
)
from tailrace.measure.wave import wave_seconds
from tests.silence import wave

BOUNDARY = b"X-y_z"
KIND = b"multipart/form-data; boundary=" + BOUNDARY


def part(name: str, value: bytes, *, filename: str | None = None) -> bytes:
    shown = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename is not None else "")
    return b"--%b\r\nContent-Disposition: %b\r\n\r\n%b\r\n" % (BOUNDARY, shown.encode(), value)


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--%b--\r\n" % BOUNDARY


def scan(pieces: list[bytes]) -> FormScanner:
    scanner = FormScanner(BOUNDARY)
    for piece in pieces:
        scanner.feed(piece)
    return scanner


def seen(scanner: FormScanner) -> tuple[object, ...]:
    return scanner.fields, scanner.files, scanner.file_head, scanner.ended


def test_fields_before_and_behind_a_file() -> None:
    body = form(
        part("model", b"whisper-1"),
        part("file", wave(2.0), filename='a "b".wav'),
        part("stream", b"True"),
        part("prompt", b"secret"),
        part("temperature", b"0.2"),
        part("max_completion_tokens", b"77"),
    )
    work = form_work(KIND, body)
    assert (work.model, work.stream, work.sampled, work.max_tokens) == ("whisper-1", True, True, 77)
    assert work.audio_seconds == pytest.approx(2.0)
    scanner = scan([body])
    assert "prompt" not in scanner.fields
    assert scanner.ended


@pytest.mark.parametrize("said", [b"true", b"True", b"1", b"on", b"yes"])
def test_what_the_engines_take_for_true(said: bytes) -> None:
    assert form_work(KIND, form(part("stream", said))).stream


@pytest.mark.parametrize("said", [b"false", b"0", b"", b"maybe"])
def test_everything_else_is_no_stream(said: bytes) -> None:
    assert not form_work(KIND, form(part("stream", said))).stream


def test_a_file_whose_bytes_look_like_a_delimiter_is_a_file() -> None:
    content = b'\r\n--X-y_\r\n--X-y_zz\r\n\r\n--X-y_z-\r\nContent-Disposition: form-data; name="model"\r\n\r\nevil'
    scanner = scan([form(part("file", content, filename="f"), part("model", b"m"))])
    assert scanner.fields == {"model": "m"}
    assert scanner.file_head == content
    assert scanner.files == 1


def test_only_what_is_whole_is_known() -> None:
    body = form(part("stream", b"true"))
    scanner = FormScanner(BOUNDARY)
    for at in range(len(body)):
        if b"\r\n--" + BOUNDARY + b"--" in body[:at]:
            assert scanner.fields == {"stream": "true"}
        scanner.feed(body[at : at + 1])
    assert scanner.fields == {"stream": "true"}


def test_a_huge_value_a_huge_head_and_a_huge_file_are_not_kept() -> None:
    long = scan([form(part("model", b"m" * (LONGEST_VALUE + 1)), part("stream", b"1"))])
    assert long.fields == {"stream": "1"}
    heads = scan([b"--%b\r\n" % BOUNDARY, b"a: b\r\n" * LONGEST_HEADERS])
    assert heads.ended
    file = FormScanner(BOUNDARY)
    file.feed(part("file", b"", filename="f")[:-2])
    for _ in range(100):
        file.feed(b"z" * 100_000)
        assert len(file.file_head) <= FILE_HEAD
        assert len(file._held) < 100


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        (KIND, BOUNDARY),
        (b'Multipart/Form-Data; charset=utf-8; Boundary="a b"', b"a b"),
        (b"multipart/form-data", None),
        (b"multipart/form-data; boundary=", None),
        (b"multipart/mixed; boundary=x", None),
        (b"audio/wav", None),
        (b"multipart/form-data; boundary=" + b"x" * 300, None),
    ],
)
def test_boundaries(kind: bytes, boundary: bytes | None) -> None:
    assert boundary_of(kind) == boundary


_NAMES = st.sampled_from([*sorted(WANTED), "prompt", "x"])
_VALUES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"--" + BOUNDARY, b"\r\n--" + BOUNDARY[:-1], b"\r", b"\r\n", b"\r\n\r\n", b"\r\n--", b"-" * 9]),
)
_PARTS = st.builds(part, _NAMES, _VALUES, filename=st.one_of(st.none(), st.sampled_from(["f", ""])))
_BODIES = st.one_of(
    st.lists(_PARTS, max_size=5).map(lambda parts: form(*parts)),
    st.lists(st.one_of(_PARTS, _VALUES), max_size=8).map(b"".join),
)


@given(_BODIES, st.data())
def test_any_split_reads_alike(body: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    whole = seen(scan([body]))
    assert seen(scan(pieces)) == whole
    assert seen(scan([body[at : at + 1] for at in range(len(body))])) == whole


@given(st.lists(st.tuples(_NAMES, st.binary(max_size=40), st.booleans()), max_size=6))
def test_a_sound_form_is_read_whole(parts: list[tuple[str, bytes, bool]]) -> None:
    parts = [(name, value, file) for name, value, file in parts if BOUNDARY not in value]
    body = form(*(part(name, value, filename="f" if file else None) for name, value, file in parts))
    scanner = scan([body])
    wanted = {name: value.decode("utf-8", "replace") for name, value, file in parts if not file and name in WANTED}
    files = [value for _, value, file in parts if file]
    assert scanner.fields == wanted
    assert scanner.files == len(files)
    assert scanner.file_head == (files[0] if files else b"")
    assert scanner.ended


@given(st.binary(max_size=400), st.binary(max_size=30))
def test_nothing_is_ever_an_error(body: bytes, boundary: bytes) -> None:
    scanner = FormScanner(boundary or b"b")
    scanner.feed(body)
    scanner.work(len(body))
    form_work(b"multipart/form-data; boundary=" + boundary, body)


@given(st.floats(0.01, 100.0), st.sampled_from([8000, 16000, 44100]), st.booleans())
def test_wave_lengths(seconds: float, rate: int, extra: bool) -> None:
    head = wave(seconds, rate=rate, extra=extra, body=False)
    assert wave_seconds(head) == pytest.approx(seconds, abs=2 / rate)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"OggS" + bytes(40),
        wave(1.0, body=False)[:30],
        wave(1.0, size=0, body=False),
        wave(1.0, size=0xFFFFFFFF, body=False),
        wave(1.0, byte_rate=0, body=False),
    ],
)
def test_what_does_not_say_its_length_has_none(head: bytes) -> None:
    assert wave_seconds(head) is None


def test_a_wave_that_promises_more_than_there_is_is_not_believed() -> None:
    head = wave(1.0, body=False)
    assert wave_seconds(head, at_most=32_100) == pytest.approx(1.0)
    assert wave_seconds(head, at_most=10_000) is None


@given(st.binary(max_size=200).map(lambda rest: b"RIFF\0\0\0\0WAVE" + rest))
def test_no_header_is_an_error(head: bytes) -> None:
    seconds = wave_seconds(head)
    assert seconds is None or seconds >= 0
