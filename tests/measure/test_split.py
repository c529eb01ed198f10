"""The first property of the meter: any split of the bytes gives the same record."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.meter import StreamMeter
from tailrace.model.record import broken_invariants
from tests.measure.transcripts import EOLS, ODD, STREAMS, Event, delta, feed_by_the_book, record_of, wire


@pytest.mark.parametrize("eol", EOLS, ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
def test_any_split_gives_the_same_record(name: str, eol: str, data: st.DataObject) -> None:
    dialect, events = STREAMS[name]
    # Events that share a stamp come in one write; the bytes of a write may be cut anywhere, at equal stamps.
    writes = data.draw(
        st.lists(st.tuples(st.integers(0, 400_000_000), st.lists(events, min_size=1, max_size=4)), max_size=8)
    )
    whole = StreamMeter(dialect, origin_ns=5)
    split = StreamMeter(dialect, origin_ns=5)
    single = StreamMeter(dialect, origin_ns=5)
    book = StreamMeter(dialect, origin_ns=5)
    now = 5
    for gap, group in writes:
        now += gap
        body = b"".join(wire(event, eol) for event in group)
        whole.feed(body, now)
        cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=4))
        for low, high in pairwise(sorted({0, *cuts, len(body)})):
            split.feed(body[low:high], now)
        for byte in body:
            single.feed(bytes([byte]), now)
        feed_by_the_book(book, body, now)
    expected = record_of(book, now + 7)
    assert not broken_invariants(expected)
    assert record_of(whole, now + 7) == expected
    assert record_of(split, now + 7) == expected
    assert record_of(single, now + 7) == expected


@pytest.mark.parametrize("eol", EOLS, ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize(
    ("name", "event"),
    [pytest.param(name, event, id=f"{name}-{at}") for name in ODD for at, event in enumerate(ODD[name])],
)
def test_every_odd_event_reads_alike_whole_and_byte_by_byte(name: str, event: Event, eol: str) -> None:
    dialect, _ = STREAMS[name]
    whole, single, book = (StreamMeter(dialect, origin_ns=0) for _ in range(3))
    first = wire((None, delta(content="x")), eol)
    for at, body in enumerate([first, wire(event, eol), wire(event, eol)], 1):
        whole.feed(body, at)
        for byte in body:
            single.feed(bytes([byte]), at)
        feed_by_the_book(book, body, at)
    assert record_of(whole, 9) == record_of(single, 9) == record_of(book, 9)
    assert whole.summary() == single.summary() == book.summary()


TOKEN = b'{"choices":[{"delta":{"content":"x"}}]}'


@pytest.mark.parametrize(
    "body",
    [
        b"data: " + TOKEN + b"\r\n\n",
        b"data: " + TOKEN + b"\n\r\n",
        b'data: {"choices":\r[{"delta":{"content":"x"}}]}\n\n',
        b'data: {"choices":\rdata: [{"delta":{"content":"x"}}]}\n\n',
        b"event: error\rdata: " + TOKEN + b"\n\n",
        b"event: error\r\ndata: " + TOKEN + b"\n\n",
        b"event: ping\ndata: " + TOKEN + b"\nid: 3\n\n",
        b"data:" + TOKEN + b"\n\n\n",
        b"\ndata: " + TOKEN + b"\n\n",
        b"data: " + TOKEN + b"\n\n: ping\n\n",
        b": ping\ndata: " + TOKEN + b"\n\n",
        b"data: [DONE]\r\r",
        b"data\n\n",
        b"data: " + TOKEN + b"\n\ndata: " + TOKEN,
        b"\n\n\n",
    ],
)
def test_mixed_line_ends_read_as_the_grammar_says(body: bytes) -> None:
    whole, book = (StreamMeter(STREAMS["chat"][0], origin_ns=0) for _ in range(2))
    for at, piece in enumerate([b"data: " + TOKEN + b"\n\n", body, body, b"data: " + TOKEN + b"\n\n"], 1):
        whole.feed(piece, at)
        feed_by_the_book(book, piece, at)
    assert record_of(whole, 9) == record_of(book, 9)


@given(junk=st.lists(st.binary(max_size=40), max_size=12), cut=st.integers(0, 400))
def test_nonsense_never_raises_and_reads_alike_in_any_split(junk: list[bytes], cut: int) -> None:
    body = b"data: ".join(junk)
    dialect = STREAMS["chat"][0]
    one, two, book = (StreamMeter(dialect, origin_ns=0) for _ in range(3))
    one.feed(body, 1)
    two.feed(body[:cut], 1)
    two.feed(body[cut:], 1)
    feed_by_the_book(book, body, 1)
    assert record_of(one, 2) == record_of(two, 2) == record_of(book, 2)


@given(texts=st.lists(st.text(max_size=8), min_size=3, max_size=12), tail=st.binary(max_size=6))
def test_an_event_recognised_reads_as_one_parsed(texts: list[str], tail: bytes) -> None:
    """Streams of one shape take the path that does not parse; alone, each event is parsed."""
    dialect = STREAMS["chat"][0]
    recognised = StreamMeter(dialect, origin_ns=0)
    parsed_kinds: list[int] = []
    for index, text in enumerate(["w", "v", *texts]):
        # Raw bytes inside the JSON string: broken UTF-8 and control characters must not be waved through.
        body = wire((None, '{"choices":[{"index":0,"delta":{"content":"@"},"finish_reason":null}]}'))
        body = body.replace(
            b"@", text.encode("utf-8", "replace").replace(b"\n", b"").replace(b"\r", b"") + tail[: index % 3]
        )
        recognised.feed(body, index + 1)
        alone = StreamMeter(dialect, origin_ns=0)
        feed_by_the_book(alone, body, 1)
        line = alone.summary().timeline
        assert line is not None
        parsed_kinds.extend(line.kind)
    timeline = recognised.summary().timeline
    assert timeline is not None
    assert timeline.kind == parsed_kinds


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("chat", '{"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}'),
        ("chat", '{"%s":1,"choices":[{"index":0,"delta":{"content":"\\u0041"}}]}'),
        ("chat", '{"choices":[{"index":0,"delta":{"content":"A"}}],"A":"%s"}'),
        ("chat", '{"choices":[{"index":0,"delta":{"content":"%s","reasoning":"A"}}]}'),
        ("chat", '{"choices":[{"index":0,"delta":{"content":"","reasoning":"%s"}}]}'),
        ("chat", '{"choices":[{"index":0,"delta":{"role":"%s","content":"A"}}]}'),
        ("chat", '{"choices":[{"index":0,"delta":{"content":"A"},"finish_reason":"%s"}]}'),
        ("chat", '{"choices":[{"index":0,"delta":{"content":"A","content":"%s"}}]}'),
        ("chat", '{"choices":[{"index":0,"delta":{"content":"%s","content":""}}]}'),
        ("chat", '{"choices":[{"index":0,"delta":{"content":"A"}},{"index":1,"delta":{"content":"%s"}}]}'),
        ("chat", '{"error":"%s","choices":[{"index":0,"delta":{"content":"A"}}]}'),
        ("messages", '{"type":"%s","delta":{"text":"content_block_delta"}}'),
        ("messages", '{"type":"content_block_delta","delta":{"text":"%s"}}'),
        ("messages", '{"type":"content_block_delta","delta":{"text":"A","type":"%s"}}'),
    ],
)
@given(
    texts=st.lists(
        st.sampled_from(["A", "", "B", "error", "content_block_delta", "ping", 'a":"b', "a\\"]), min_size=4, max_size=10
    )
)
def test_nothing_but_the_text_may_change_in_an_event_recognised(name: str, form: str, texts: list[str]) -> None:
    dialect = STREAMS[name][0]
    whole, book = StreamMeter(dialect, origin_ns=0), StreamMeter(dialect, origin_ns=0)
    for at, text in enumerate(["A", "A", "content_block_delta", *texts], 1):
        body = wire((None, form.replace("%s", text)))
        whole.feed(body, at)
        feed_by_the_book(book, body, at)
    assert record_of(whole, 99) == record_of(book, 99)
