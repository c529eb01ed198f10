"""Mixes and lengths: what is written is what is drawn."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model.errors import InputError
from tailrace.workload.length import Fixed, LogNormal, Uniform, parse_length
from tailrace.workload.mix import CLASSES, TrafficClass, draws, parse_mix, render_mix


def take(text_or_classes, n: int, seed: int = 0):
    classes = parse_mix(text_or_classes) if isinstance(text_or_classes, str) else text_or_classes
    return list(islice(draws(classes, np.random.default_rng(seed)), n))


def test_named_classes_are_drawn_by_their_weights():
    drawn = take("short:0.9,long:0.1", 20_000)
    share = sum(one.name == "long" for one in drawn) / len(drawn)
    assert share == pytest.approx(0.1, abs=0.01)


def test_weights_need_not_add_up_to_one():
    share = sum(one.name == "long" for one in take("short:9,long", 20_000)) / 20_000
    assert share == pytest.approx(0.1, abs=0.01)


def test_inline_lengths_are_fixed_uniform_or_lognormal():
    chat, document = parse_mix("chat=300/20-40:0.95, document=12000~0.5/60:0.05")
    assert (chat.prompt, chat.output, chat.weight) == (Fixed(300), Uniform(20, 40), 0.95)
    assert (document.prompt, document.output, document.weight) == (LogNormal(12_000, 0.5), Fixed(60), 0.05)


@pytest.mark.parametrize("name", list(CLASSES))
def test_a_named_class_has_the_median_and_bounds_that_it_states(name: str):
    drawn = take(name, 20_000)
    for length, got in (
        (CLASSES[name].prompt, [one.prompt_tokens for one in drawn]),
        (CLASSES[name].output, [one.output_tokens for one in drawn]),
    ):
        assert isinstance(length, LogNormal)
        assert np.median(got) == pytest.approx(length.median, rel=0.06, abs=1)
        assert length.low <= min(got) <= max(got) <= length.high


def test_uniform_reaches_both_ends_and_nothing_else():
    got = {one.prompt_tokens for one in take("a=5-8/1", 2000)}
    assert got == {5, 6, 7, 8}


@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.6])
def test_lengths_are_drawn_jointly(correlation: float):
    one = TrafficClass(name="a", prompt=LogNormal(500, 0.5), output=LogNormal(500, 0.5), correlation=correlation)
    drawn = take([one], 20_000)
    logs = np.log([[d.prompt_tokens, d.output_tokens] for d in drawn])
    assert np.corrcoef(logs.T)[0, 1] == pytest.approx(correlation, abs=0.03)


def test_a_changed_class_leaves_the_draws_of_the_other_alone():
    before, after = take("a=10-500/5:1,b=100/5:1", 2000), take("a=10-500/5:1,b=9000/50:1", 2000)
    assert [one for one in before if one.name == "a"] == [one for one in after if one.name == "a"]
    assert [one.name for one in before] == [one.name for one in after]


@pytest.mark.parametrize(
    "text",
    ["", "short:0", "short:-1", "short:x", "short:nan", "nobody:1", "short:1,short:2", "a=10:1", "a=0/1", "a=5-3/1",
     "a=1/x", "a=1/2/3", "=1/2:1", "a=1/99999999", "short:0.5,"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_remedy(text: str):
    with pytest.raises(InputError) as caught:
        parse_mix(text)
    assert caught.value.place.startswith("--mix")
    assert caught.value.remedy


lengths = st.one_of(
    st.integers(1, 1_000_000).map(Fixed),
    st.tuples(st.integers(1, 5000), st.integers(0, 5000)).map(lambda p: Uniform(p[0], p[0] + p[1])),
    st.tuples(st.integers(1, 5000), st.integers(0, 300)).map(lambda p: LogNormal(p[0], p[1] / 100)),
)


@given(lengths)
def test_a_length_reads_back_as_it_was_written(length):
    assert parse_length(str(length)) == length


@given(st.lists(st.tuples(st.from_regex(r"[a-z]{3,9}", fullmatch=True), lengths, lengths), min_size=1, max_size=4))
@settings(max_examples=50)
def test_a_mix_reads_back_as_it_was_written(parts):
    mix = list({name: TrafficClass(name=name, prompt=p, output=o) for name, p, o in parts}.values())
    assert parse_mix(render_mix(mix)) == mix


@given(lengths, st.integers(0, 2**32))
@settings(max_examples=50)
def test_draws_stay_inside_their_distribution(length, seed):
    one = TrafficClass(name="a", prompt=length, output=length)
    low, high = {
        Fixed: lambda d: (d.tokens, d.tokens),
        Uniform: lambda d: (d.low, d.high),
        LogNormal: lambda d: (d.low, d.high),
    }[type(length)](length)
    assert all(low <= d.prompt_tokens <= high and low <= d.output_tokens <= high for d in take([one], 200, seed))
