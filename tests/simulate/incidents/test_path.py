"""The way of an answer: whatever stands in it, order is kept, nothing is early, and no token is lost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.simulate.incidents.blocks import Loop, TwoLoops
from tailrace.simulate.incidents.path import (
    EVENT_BYTES,
    HEAD_BYTES,
    TEXT_BYTES,
    Chunks,
    held_by_parser,
    merged,
    over_network,
    through_proxy,
    to_reader,
)
from tailrace.simulate.incidents.site import ClientSide, FrontEnd, Hop

MS = 1_000_000


def chunks_of(stamps_ms, tokens=None):
    at = np.array(sorted(stamps_ms), dtype=np.int64) * MS
    return Chunks(at, np.ones(at.size, dtype=np.int64) if tokens is None else np.array(tokens, dtype=np.int64))


streams = st.lists(st.integers(0, 5000), min_size=1, max_size=80).map(chunks_of)
hops = st.builds(
    Hop,
    latency_ms=st.floats(0, 50),
    jitter_ms=st.floats(0, 20),
    loss=st.sampled_from([0.0, 0.1]),
    buffer_bytes=st.sampled_from([0, 300, 4096, 65_536]),
    coalesce_ms=st.sampled_from([0.0, 50.0]),
    hold_ms=st.sampled_from([0.0, 700.0]),
)


def last_token_at(chunks, count):
    """When the `count`-th token is there."""
    return int(chunks.at[np.searchsorted(np.cumsum(chunks.tokens), count)])


@given(streams, hops, st.integers(0, 30), st.integers(0, 30), st.booleans(), st.integers(0, 99))
def test_no_token_is_lost_or_early_and_the_order_is_kept(stream, hop, hold_at, hold_tokens, hold, seed):
    out = merged(stream)
    out = held_by_parser(out, FrontEnd(hold_at=hold_at, hold_tokens=hold_tokens))
    out = through_proxy(out, hop, hold=hold)
    out, _ = over_network(out, hop, np.random.default_rng(seed))
    assert int(out.tokens.sum()) == int(stream.tokens.sum())
    assert (np.diff(out.at) >= 0).all()
    for count in range(1, int(stream.tokens.sum()) + 1):
        assert last_token_at(out, count) >= last_token_at(stream, count)


@given(streams, st.floats(100, 1e5), st.integers(200, 70_000))
def test_a_slow_reader_blocks_in_order_and_takes_everything(stream, rate, window):
    client = ClientSide(slow_bytes_per_s=rate, window_bytes=window)
    out = to_reader(stream, client, slow=True)
    assert out.read.size == out.written.size == stream.at.size
    assert (out.read >= stream.at).all()
    assert (out.written >= out.read).all()
    assert (np.diff(out.written) >= 0).all()
    for (_, end), (begin, _) in zip(out.blocked, out.blocked[1:], strict=False):
        assert end <= begin


def test_a_reader_that_keeps_up_is_never_waited_for():
    stream = chunks_of(range(0, 3000, 20))
    client = ClientSide(slow_bytes_per_s=2.0 * EVENT_BYTES / 0.02, window_bytes=4096)
    assert to_reader(stream, client, slow=True).blocked == []


def test_a_buffer_passes_on_in_equal_bursts():
    """16 KiB of chunks of 254 bytes: 64 or 65 a burst, and the first burst after 64 periods."""
    stream = chunks_of(range(0, 250 * 200, 250))
    out = through_proxy(stream, Hop(buffer_bytes=16_384), hold=False)
    bursts, sizes = np.unique(out.at, return_counts=True)
    a_chunk = EVENT_BYTES + TEXT_BYTES
    assert int(bursts[0]) == (16_384 - HEAD_BYTES) // a_chunk * 250 * MS
    assert set(sizes[1:-1].tolist()) <= {64, 65}


def test_a_timer_makes_one_event_of_many_and_the_end_flushes():
    stream = chunks_of([0, 10, 20, 60, 70, 200])
    out = through_proxy(stream, Hop(coalesce_ms=50.0), hold=False)
    assert (out.at // MS).tolist() == [50, 110, 200]
    assert out.tokens.tolist() == [3, 2, 1]


def test_a_held_beginning_comes_out_at_once_and_the_rest_as_it_comes():
    stream = chunks_of([100, 120, 140, 900, 920])
    out = through_proxy(stream, Hop(hold_ms=300.0), hold=True)
    assert (out.at // MS).tolist() == [400, 400, 400, 900, 920]
    assert through_proxy(stream, Hop(hold_ms=300.0), hold=False).at.tolist() == stream.at.tolist()


def test_a_parser_holds_a_tool_call_until_it_is_whole():
    stream = chunks_of(range(0, 100, 10))
    out = held_by_parser(stream, FrontEnd(hold_at=3, hold_tokens=4))
    assert (out.at // MS).tolist() == [0, 10, 20, 60, 70, 80, 90]
    assert out.tokens.tolist() == [1, 1, 1, 4, 1, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 200)), max_size=20), st.lists(st.integers(0, 3000)))
def test_one_and_many_get_through_a_loop_alike(blocks, stamps):
    loop = Loop()
    for begin, length in sorted(blocks):
        loop.block(begin, length)
    at = np.array(sorted(stamps), dtype=np.int64)
    assert loop.passed(at).tolist() == [loop.after(int(one)) for one in at]


def test_work_on_a_loop_waits_for_what_is_planned_there():
    loop = TwoLoops([(100, 50)])
    assert loop.work(120, 10) == 160
    assert loop.work(155, 10) == 170
    assert loop.passed(np.array([99, 110, 165])).tolist() == [99, 150 + 10, 170]
