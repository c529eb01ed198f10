"""Shapes: what is written is what is read, the clock is the integral of the rate, and errors name the place."""

from __future__ import annotations

import math
from itertools import islice, pairwise, takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model.errors import InputError
from tailrace.model.thresholds import S
from tailrace.workload.arrivals import ArrivalKind, Arrivals, offsets, worker_starts
from tailrace.workload.shape import Form, Segment, Shape, Spike
from tailrace.workload.shape_clock import Clock, pieces, reached_ns
from tailrace.workload.shape_text import parse_series, parse_shape

LEVELS = st.just(0.0) | st.floats(0.01, 1e6, allow_nan=False) | st.integers(0, 1000).map(float)
ABOVE = st.floats(0.01, 1e6) | st.integers(1, 1000).map(float)
SPANS = st.integers(10**9, 3 * 10**12)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    kind = draw(st.sampled_from(["level", "linear", "exponential", "steps", "geometric"]))
    level = ABOVE if kind in ("exponential", "geometric") else LEVELS
    start = draw(level)
    end = start if kind == "level" else draw(level)
    return Segment(
        start=start,
        end=end,
        span_ns=draw(SPANS),
        form=Form.EXPONENTIAL if kind in ("exponential", "geometric") else Form.LINEAR,
        steps=draw(st.integers(2, 50)) if kind in ("steps", "geometric") else 0,
    )


@st.composite
def spikes(draw: st.DrawFn) -> Spike:
    span = draw(SPANS)
    every = draw(st.none() | st.integers(span + 10**9, span + 10**12))
    by_factor = draw(st.booleans())
    height = draw(LEVELS)
    return Spike(
        level=None if by_factor else height,
        factor=height if by_factor else None,
        span_ns=span,
        at_ns=draw(st.integers(0, 10**12)),
        every_ns=every,
    )


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    parts = draw(st.lists(segments(), max_size=5))
    repeat = bool(parts) and draw(st.booleans())
    if not repeat:
        last = draw(ABOVE)
        parts.append(Segment(start=last, end=last))
    else:
        parts.append(Segment(start=3.0, end=3.0, span_ns=draw(SPANS)))
    return Shape(segments=parts, spikes=draw(st.lists(spikes(), max_size=3)), repeat=repeat)


@given(shapes())
def test_what_is_rendered_is_parsed(shape: Shape):
    assert parse_shape(str(shape)) == shape


@given(st.text("0123456789. ,sxforspikeveyatinrp", max_size=40))
def test_any_text_is_read_or_refused_with_an_example(text: str):
    refused: InputError | None = None
    try:
        shape = parse_shape(text)
    except InputError as error:
        refused = error
    if refused is None:
        assert parse_shape(str(shape)) == shape
    else:
        assert (refused.place, bool(refused.remedy)) == ("--rate", True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is an empty part"),
        ("5,", "part 2 of '5,'"),
        ("fast", "cannot read 'fast'"),
        ("2..20", "does not say how long the ramp takes"),
        ("5, 6", "'5' never ends"),
        ("5 for 3s, repeat, 6", "nothing can follow 'repeat'"),
        ("5, repeat", "'5' never ends"),
        ("5, spike 9 for 2s", "does not say when"),
        ("5, spike 9 for 2s every 2s", "still there when the next one begins"),
        ("spike 9 for 2s every 30s, 5", "follows a spike"),
        ("0..8 over 9s exponential", "cannot begin or end at 0"),
        ("0", "the level is 0 all the time"),
        ("1..8 over 9s in 1 steps", "no number of steps"),
        ("99999999", "not between 0"),
        ("1e-300", "below 1e-06"),
    ],
)
def test_an_error_names_the_part_and_shows_a_right_one(text: str, said: str):
    with pytest.raises(InputError, match=r"--rate: ") as caught:
        parse_shape(text)
    assert said in caught.value.message
    assert "Write" in caught.value.remedy or "Give" in caught.value.remedy or "Begin" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "peak", "span_s", "constant"),
    [
        ("5", 5, None, 5),
        ("5 for 10s", 5, 10, 5),
        ("2..20 over 1m", 20, 60, None),
        ("5 for 30s, 20 for 10s, 5", 20, 40, None),
        ("5, spike x4 for 2s every 30s", 20, None, None),
        ("5, spike 50 for 2s at 1m", 50, 62, None),
    ],
)
def test_what_a_shape_knows_of_itself(text: str, peak: float, span_s: float | None, constant: float | None):
    shape = parse_shape(text)
    assert shape.peak == peak
    assert shape.span_ns == (None if span_s is None else span_s * S)
    assert shape.constant == constant


def rate_at(shape: Shape, at_s: float) -> float:
    """The rate by its definition, without any integral."""
    at = at_s
    for spike in reversed(shape.spikes):
        since = at_s * S - spike.at_ns
        if since >= 0 and (since if spike.every_ns is None else since % spike.every_ns) < spike.span_ns:
            bare = rate_at(Shape(segments=shape.segments, repeat=shape.repeat), at_s)
            return spike.level if spike.level is not None else bare * (spike.factor or 0.0)
    if shape.repeat:
        at %= sum(one.span_ns or 0 for one in shape.segments) / S
    for one in shape.segments:
        span = math.inf if one.span_ns is None else one.span_ns / S
        if at < span:
            along = 0.0 if span == math.inf else at / span
            if one.steps:
                along = min(int(along * one.steps), one.steps - 1) / (one.steps - 1)
            if one.form is Form.EXPONENTIAL:
                return one.start * (one.end / one.start) ** along
            return one.start + (one.end - one.start) * along
        at -= span
    return shape.segments[-1].end


@pytest.mark.parametrize(
    "text",
    [
        "7",
        "2..20 over 60s",
        "20..0 over 30s, 4",
        "1..30 over 40s exponential",
        "30..1 over 40s exponential, 3 for 5s, 9",
        "2..20 over 60s in 4 steps",
        "1..32 over 50s exponential in 6 steps, 2",
        "5 for 7s, 0 for 4s, 9 for 2s, repeat",
        "5, spike 50 for 2s every 9s",
        "2..20 over 60s, spike x3 for 4s at 10s every 20s, spike 0 for 1s at 12s",
        "1..30 over 40s exponential, spike x0.5 for 3s every 7s",
    ],
)
def test_the_clock_is_the_integral_of_the_rate(text: str):
    shape = parse_shape(text)
    # Midpoints of fine cells; each edge of these shapes lies on a cell's edge.
    width = 1 / 240
    grid = (np.arange(int(90 / width)) + 0.5) * width
    expected = np.concatenate([[0.0], np.cumsum([rate_at(shape, float(at)) for at in grid]) * width])
    edges = np.arange(expected.size) * width
    counted = Clock(shape)
    for i in range(0, expected.size, 97):
        assert counted.count(float(edges[i])) == pytest.approx(expected[i], rel=2e-3, abs=0.05)
    clock, back = Clock(shape), Clock(shape)
    for unit in np.linspace(0.5, expected[-1] - 1, 200).tolist():
        at = clock.at(unit)
        assert back.count(at) == pytest.approx(unit, rel=1e-9, abs=1e-9)


@given(shapes())
@settings(max_examples=40, deadline=None)
def test_a_clock_never_goes_back(shape: Shape):
    clock = Clock(shape)
    times = [clock.at(float(i)) for i in range(30)]
    assert all(0 <= a <= b for a, b in pairwise(times))


def take(shape: str, n: int, kind: ArrivalKind = ArrivalKind.CONSTANT, seed: int = 0, **more) -> list[int]:
    arrivals = Arrivals(kind=kind, shape=parse_shape(shape), **more)
    return list(islice(offsets(arrivals, np.random.default_rng(seed)), n))


def test_constant_arrivals_of_steps_are_exact():
    at = take("5 for 30s, 20 for 10s, 5", 400)
    assert at[:3] == [0, S // 5, 2 * S // 5]
    assert at[150] == 30 * S
    assert at[151] - at[150] == S // 20
    assert at[350] == 40 * S
    assert at[351] == 40 * S + S // 5


def test_constant_arrivals_of_a_ramp_are_where_its_integral_is_whole():
    # 0..10 over 20 s: L(t) = t^2 / 4, so request i comes at 2 sqrt(i), and after 100 of them at 10/s.
    at = take("0..10 over 20s", 120)
    assert at[:101] == [round(2 * math.sqrt(i) * S) for i in range(101)]
    assert at[110] == 21 * S


def test_a_shape_of_one_level_is_the_plain_rate():
    plain = Arrivals(kind=ArrivalKind.POISSON, rate=20.0)
    a = list(islice(offsets(plain, np.random.default_rng(5)), 3000))
    assert np.abs(np.array(a) - np.array(take("20", 3000, ArrivalKind.POISSON, seed=5))).max() <= 2


def test_a_rate_that_comes_to_rest_ends_the_schedule():
    assert take("10 for 3s, 0", 1000) == [i * S // 10 for i in range(31)]
    assert take("10..0 over 4s", 1000)[-1] <= 4 * S


def test_poisson_counts_of_a_ramp_are_poisson_in_every_window():
    arrivals = Arrivals(kind=ArrivalKind.POISSON, shape=parse_shape("2..20 over 30s, spike 60 for 2s at 10s"))
    windows = np.array([0, 10, 12, 20, 30, 40]) * S
    counts = np.array(
        [
            np.diff(
                np.searchsorted(
                    list(takewhile(lambda at: at < 40 * S, offsets(arrivals, np.random.default_rng(seed)))), windows
                )
            )
            for seed in range(400)
        ]
    )
    # By hand: 2t + 0.3 t^2 between the edges of the windows, 60/s for 2 s in the spike, then 20/s.
    expected = np.array([50.0, 120.0, 40 + 0.3 * 400 - (24 + 0.3 * 144), 60 + 0.3 * 900 - (40 + 0.3 * 400), 200.0])
    assert counts.mean(axis=0) == pytest.approx(expected, rel=0.03)
    assert counts.var(axis=0) / expected == pytest.approx(np.ones(5), abs=0.3)
    correlation = np.corrcoef(counts.T)
    assert np.abs(correlation[~np.eye(5, dtype=bool)]).max() < 0.2


def test_gamma_arrivals_keep_their_burstiness_under_a_ramp():
    shape = parse_shape("2..20 over 60s")
    arrivals = Arrivals(kind=ArrivalKind.GAMMA, burstiness=0.25, shape=shape)
    times = np.array(list(islice(offsets(arrivals, np.random.default_rng(1)), 20_000))) / S
    clock = Clock(shape)
    gaps = np.diff([clock.count(float(at)) for at in times])
    assert gaps.mean() == pytest.approx(1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(2, rel=0.05)


@given(shapes(), st.sampled_from(["constant", "poisson", "gamma"]), st.integers(1, 30))
@settings(max_examples=20, deadline=None)
def test_a_shape_has_one_schedule_a_seed_however_much_is_taken(shape: Shape, kind: str, n: int):
    arrivals = Arrivals(kind=ArrivalKind(kind), shape=shape)
    whole = list(islice(offsets(arrivals, np.random.default_rng(3)), 30))
    assert list(islice(offsets(arrivals, np.random.default_rng(3)), n)) == whole[:n]
    assert whole == sorted(whole)


# -- a series


def test_a_series_is_steps_or_goes_from_row_to_row():
    rows = ["seconds,rate", "0,5", "30,20", "", "40,5"]
    assert str(parse_series(rows, place="f")) == "5 for 30s, 20 for 10s, 5"
    assert str(parse_series(rows, place="f", linear=True)) == "5..20 over 30s, 20..5 over 10s, 5"


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ([], "f"),
        (["0,5", "x,6"], "f:2"),
        (["0,5", "0,6"], "f:2"),
        (["1,5"], "f:1"),
        (["0,-5"], "f:1"),
        (["0"], "f:1"),
        (["0,0"], "f"),
        (["0,nan"], "f:1"),
        (["0,5", "inf,6"], "f:2"),
    ],
)
def test_a_bad_series_names_its_line(rows: list[str], place: str):
    with pytest.raises(InputError) as caught:
        parse_series(rows, place=place.partition(":")[0])
    assert caught.value.place == place


# -- workers


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("1..4 over 30s", [0, 10, 20, 30]),
        ("0..4 over 40s", [10, 20, 30, 40]),
        ("2 for 5s, 3", [0, 0, 5]),
        ("1..4 over 40s in 4 steps", [0, 10, 20, 30]),
        ("1..4 over 20s exponential", [0, 10, 20 * math.log(3) / math.log(4), 20]),
    ],
)
def test_workers_come_in_as_the_shape_rises(text: str, starts: list[float]):
    shape = parse_shape(text)
    arrivals = Arrivals(kind=ArrivalKind.CLOSED, shape=shape, concurrency=round(shape.peak))
    assert [at / S for at in worker_starts(arrivals)] == pytest.approx(starts)


def test_a_pause_over_nearly_everything_ends_the_schedule_instead_of_searching_for_ever():
    shape = Shape(
        segments=[Segment(start=1.0, end=1.0)],
        spikes=[Spike(level=0.0, span_ns=10**8, at_ns=0, every_ns=10**8 + 1)],
    )
    assert Clock(shape).at(1.0) == math.inf


def test_workers_do_not_leave():
    for text in ("4..1 over 3s", "4 for 3s, 2", "4, spike 9 for 1s every 5s", "4 for 3s, repeat"):
        with pytest.raises(InputError, match="can come in, not leave"):
            Arrivals(kind=ArrivalKind.CLOSED, shape=parse_shape(text), concurrency=4)


def test_a_level_that_is_never_reached():
    assert reached_ns(parse_shape("1..4 over 30s"), 5) is None
    assert next(pieces(parse_shape("5"))).span_s == math.inf
