"""Plans: the same seed is the same run, and shares of it add up to it."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload, generators, part, plan
from tailrace.workload.trace import TraceRow

MIX = parse_mix("short:0.9,long:0.1")
POISSON = Arrivals(kind=ArrivalKind.POISSON, rate=10)
CLOSED = Arrivals(concurrency=4)


def take(workload: Workload, n: int, seed: int = 0, phase: int = 0):
    return list(islice(plan(workload, generators(seed, phase)), n))


def test_a_seed_is_a_run():
    one = Workload(arrivals=POISSON, mix=MIX)
    assert take(one, 500, 7) == take(one, 500, 7)
    assert take(one, 500, 7) != take(one, 500, 8)
    assert take(one, 500, 7) != take(one, 500, 7, phase=1)


def test_lengths_do_not_depend_on_the_arrivals():
    opened, closed = take(Workload(arrivals=POISSON, mix=MIX), 500), take(Workload(arrivals=CLOSED, mix=MIX), 500)
    assert [r[2:] for r in opened] == [r[2:] for r in closed]
    assert all(r.at_ns is None for r in closed)


def test_arrivals_do_not_depend_on_the_mix():
    other = Workload(arrivals=POISSON, mix=parse_mix("chat=10/5"))
    assert [r.at_ns for r in take(other, 500)] == [r.at_ns for r in take(Workload(arrivals=POISSON, mix=MIX), 500)]


ROWS = [TraceRow(0, 10, 1), TraceRow(5, 20, 2), TraceRow(9, 30, 3)]


def test_a_trace_plays_once_at_its_own_times():
    got = take(Workload(arrivals=Arrivals(kind=ArrivalKind.TRACE), trace=ROWS), 10)
    assert [(r.at_ns, r.prompt_tokens, r.output_tokens) for r in got] == [(0, 10, 1), (5, 20, 2), (9, 30, 3)]


@pytest.mark.parametrize("arrivals", [CLOSED, POISSON])
def test_a_trace_gives_lengths_to_other_arrivals_in_turn(arrivals: Arrivals):
    got = take(Workload(arrivals=arrivals, trace=ROWS), 7)
    assert [r.prompt_tokens for r in got] == [10, 20, 30, 10, 20, 30, 10]


@given(count=st.integers(1, 6), n=st.integers(0, 60))
@settings(max_examples=30)
def test_the_shares_of_several_generators_are_the_whole_plan(count: int, n: int):
    whole = take(Workload(arrivals=POISSON, mix=MIX), n)
    shares = [
        request
        for index in range(count)
        for request in part(islice(plan(Workload(arrivals=POISSON, mix=MIX), generators(0)), n), index, count)
    ]
    assert sorted(shares) == whole
