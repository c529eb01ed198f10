"""The account of a life in order is the one that the general rules draw up, to the nanosecond and the source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.stage_account import Stamps, _full_account, _plain_account, account_for

steps = st.integers(min_value=0, max_value=3)
maybe = st.one_of(st.none(), st.integers(min_value=0, max_value=40))


@given(start=st.integers(0, 5), gaps=st.lists(steps, min_size=7, max_size=7), streamed=st.booleans())
def test_of_stamps_in_order(start: int, gaps: list[int], streamed: bool) -> None:
    at = [start]
    for gap in gaps:
        at.append(at[-1] + gap)
    stamps = Stamps(
        received=at[0],
        queued=at[1],
        admitted=at[2],
        sent=at[3],
        first_token=at[4] if streamed else None,
        last_token=at[5] if streamed else None,
        upstream_end=at[6],
        end=at[7],
    )
    plain = _plain_account(stamps)
    assert plain == _full_account(stamps, NO_TIMINGS, (), ())
    assert plain is not None
    top = {stage: value for stage, value in plain.values.items() if "." not in stage}
    assert sum(top.values()) == at[7] - at[0]


@given(
    received=st.integers(0, 20),
    end=st.integers(0, 40),
    stamps=st.tuples(maybe, maybe, maybe, maybe, maybe, maybe),
)
def test_of_any_stamps(received: int, end: int, stamps: tuple[int | None, ...]) -> None:
    queued, admitted, sent, first, last, done = stamps
    given_stamps = Stamps(
        received=received,
        queued=queued,
        admitted=admitted,
        sent=sent,
        first_token=first,
        last_token=last,
        upstream_end=done,
        end=end,
    )
    assert account_for(given_stamps) == _full_account(given_stamps, NO_TIMINGS, (), ())


@given(
    start=st.integers(0, 5),
    gaps=st.lists(steps, min_size=7, max_size=7),
    streamed=st.booleans(),
    parts=st.tuples(*[st.one_of(st.none(), st.integers(-1, 4))] * 5),
)
def test_with_what_the_engine_said(start: int, gaps: list[int], streamed: bool, parts: tuple[int | None, ...]) -> None:
    at = [start]
    for gap in gaps:
        at.append(at[-1] + gap)
    stamps = Stamps(
        received=at[0],
        queued=at[1],
        admitted=at[2],
        sent=at[3],
        first_token=at[4] if streamed else None,
        last_token=at[5] if streamed else None,
        upstream_end=at[6],
        end=at[7],
    )
    queue, preprocess, encode, prefill, decode = parts
    said = EngineTimings(
        queue_ns=queue,
        preprocess_ns=preprocess,
        encode_ns=encode,
        prefill_ns=prefill,
        decode_ns=decode,
        sources={"queue": "inferred(step boundaries, ±5 ms)", "prefill": "reported(metrics.prefill)"},
    )
    assert account_for(stamps, timings=said) == _full_account(stamps, said, (), ())
