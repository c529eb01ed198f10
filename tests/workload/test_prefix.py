"""Shared prefixes: the share that a cache can find is the share that was asked for."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model.errors import InputError
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.exact_text import ExactWriter
from tailrace.workload.length import Fixed, Length, LogNormal, Uniform
from tailrace.workload.mix import TrafficClass
from tailrace.workload.plan import Workload, first, generators, plan, with_fitted_prefixes
from tailrace.workload.prefix import MOST, Piece, Prefixes, Reuse, fit
from tailrace.workload.text import PromptWriter
from tailrace.workload.traits import Traits


def planned(prefixes: Prefixes, n: int, *, prompt: Length | None = None, seed: int = 0, fitted: bool = True):
    mix = [
        TrafficClass(name="a", prompt=prompt or LogNormal(800, 0.5), output=Fixed(1), traits=Traits(prefixes=prefixes))
    ]
    workload = Workload(arrivals=Arrivals(concurrency=1), mix=mix)
    if fitted:
        workload = with_fitted_prefixes(workload, seed, requests=n)
    return list(first(plan(workload, generators(seed)), n))


def reuse(requests) -> float:
    found = Reuse()
    for request in requests:
        found.note(request.prompt_tokens, request.prefix)
    return found.share


@pytest.mark.parametrize("zipf", [0.0, 1.0])
@pytest.mark.parametrize("hit", [0.2, 0.6, 0.9])
def test_the_share_is_what_was_asked_first_uses_made_up_for(hit: float, zipf: float):
    requests = planned(Prefixes(pool=20, hit=hit, zipf=zipf), 3000)
    assert reuse(requests) == pytest.approx(hit, abs=0.002)


def test_without_making_up_first_uses_cost_something():
    prefixes = Prefixes(pool=50, hit=0.6)
    assert reuse(planned(prefixes, 200, fitted=False)) < 0.5
    assert reuse(planned(prefixes, 200)) == pytest.approx(0.6, abs=0.002)


def test_what_cannot_be_had_is_as_near_as_can_be():
    """Each entry is used about once: nearly nothing can be found."""
    requests = planned(Prefixes(pool=1000, hit=0.9), 50)
    assert all(request.prefix[0].tokens <= MOST * request.prompt_tokens + 1 for request in requests)
    assert reuse(requests) < 0.3


def test_the_pool_is_used_as_its_skew_says():
    requests = planned(Prefixes(pool=4, tokens=100, zipf=1.0), 5000)
    counts = [sum(request.prefix[0].key == f"a/{k}" for request in requests) / 5000 for k in range(4)]
    whole = sum(1 / (k + 1) for k in range(4))
    assert counts == pytest.approx([1 / (k + 1) / whole for k in range(4)], abs=0.02)
    assert {request.prefix[0].tokens for request in requests if request.prompt_tokens >= 100} == {100}


def test_neither_lengths_nor_times_change_with_prefixes():
    one = planned(Prefixes(pool=4, hit=0.5), 300)
    other = list(islice(plan(Workload(arrivals=Arrivals(concurrency=1), mix=[
        TrafficClass(name="a", prompt=LogNormal(800, 0.5), output=Fixed(1))]), generators(0)), 300))  # fmt: skip
    assert [r.prompt_tokens for r in one] == [r.prompt_tokens for r in other]


def test_a_time_tells_how_many_there_will_be():
    mix = [
        TrafficClass(
            name="a", prompt=Uniform(100, 900), output=Fixed(1), traits=Traits(prefixes=Prefixes(pool=9, hit=0.5))
        )
    ]
    workload = Workload(arrivals=Arrivals(kind=ArrivalKind.CONSTANT, rate=10), mix=mix)
    fitted = with_fitted_prefixes(workload, 0, duration_ns=20 * 10**9)
    assert reuse(list(first(plan(fitted, generators(0)), 200))) == pytest.approx(0.5, abs=0.002)


@given(
    prompts=st.lists(st.tuples(st.integers(50, 5000), st.sampled_from("abc")), min_size=2, max_size=60),
    hit=st.floats(0.05, 0.5),
)
@settings(max_examples=60)
def test_the_formula_is_the_count(prompts: list[tuple[int, str]], hit: float):
    fitted = fit(Prefixes(pool=3, hit=hit), prompts)
    found = Reuse()
    for tokens, key in prompts:
        found.note(tokens, (Piece(key, fitted.length(tokens)),))
    if fitted.hit * fitted.scale <= MOST and fitted.scale != 1:
        assert found.share == pytest.approx(hit, abs=len(prompts) / sum(tokens for tokens, _ in prompts))


@given(
    pieces=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 80)), min_size=1, max_size=4),
    tokens=st.integers(40, 500),
    indices=st.tuples(st.integers(0, 99), st.integers(100, 199)),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("exact", [False, True])
def test_the_same_pieces_are_the_same_text_and_the_rest_is_not(exact: bool, pieces, tokens: int, indices):
    if exact:
        writer = ExactWriter(lambda texts: [len(text.split()) for text in texts], seed=1, nonce="n")
    else:
        writer = PromptWriter(seed=1, nonce="n")
    asked = [Piece(key, size) for key, size in pieces]
    one, two = (writer.write(index, tokens, asked) for index in indices)
    shared = min(sum(size for _, size in pieces), tokens)
    if exact:
        assert one.split()[:shared] == two.split()[:shared]
        assert len(one.split()) == tokens
        if shared < tokens - 4:
            assert one != two
    else:
        length = round(shared * writer.chars_per_token)
        assert one[:length] == two[:length]
        assert len(one) == round(tokens * writer.chars_per_token)


def test_an_earlier_run_has_other_prefixes():
    texts = [PromptWriter(seed=1, nonce=nonce).write(0, 200, [Piece("a", 150)]) for nonce in ("one", "two")]
    assert texts[0][:100] != texts[1][:100]


@pytest.mark.parametrize("bad", [{"pool": 0, "hit": 0.5}, {"hit": 1.0}, {"hit": 0.0}, {}, {"hit": 0.5, "tokens": 5},
                                 {"tokens": 0}, {"hit": 0.5, "zipf": -1}])  # fmt: skip
def test_what_cannot_be(bad: dict):
    with pytest.raises(InputError):
        Prefixes(**bad)
