"""Sessions, recorded conversations and leaving clients in plans."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.conversations import read_conversations
from tailrace.workload.leave import Leave
from tailrace.workload.length import Fixed, LogNormal, Uniform
from tailrace.workload.mix import TrafficClass
from tailrace.workload.plan import Workload, first, generators, part, plan
from tailrace.workload.session import Sessions
from tailrace.workload.traits import Traits

TRAITS = Traits(
    sessions=Sessions(turns=Uniform(3, 8), think=LogNormal(5000, 0.8, 0), follow_up=Fixed(30)),
    leaves=[Leave(share=0.25, tokens=5)],
)
MIX = [TrafficClass(name="talk", prompt=Fixed(100), output=Uniform(10, 20), traits=TRAITS)]
OPEN = Workload(arrivals=Arrivals(kind=ArrivalKind.POISSON, rate=5), mix=MIX)


def take(workload: Workload, n: int, seed: int = 0):
    return list(islice(plan(workload, generators(seed)), n))


def test_sessions_are_drawn_as_described():
    got = take(OPEN, 400)
    turns = [1 + len(request.later) for request in got]
    assert (min(turns), max(turns)) == (3, 8)
    thinks = sorted(turn.think_ns for request in got for turn in request.later)
    assert thinks[len(thinks) // 2] == pytest.approx(5000 * MS, rel=0.15)
    assert {turn.prompt_tokens for request in got for turn in request.later} == {30}
    leaves = [request.leave for request in got] + [turn.leave for request in got for turn in request.later]
    assert sum(leave is not None for leave in leaves) / len(leaves) == pytest.approx(0.25, abs=0.04)
    assert all(request.turn == 0 for request in got)


def test_a_seed_is_a_run_and_arrivals_do_not_depend_on_sessions():
    assert take(OPEN, 50, 3) == take(OPEN, 50, 3)
    assert take(OPEN, 50, 3) != take(OPEN, 50, 4)
    plain = Workload(arrivals=OPEN.arrivals, mix=[TrafficClass(name="talk", prompt=Fixed(100), output=Uniform(10, 20))])
    assert [(r.at_ns, r.output_tokens) for r in take(OPEN, 50)] == [(r.at_ns, r.output_tokens) for r in take(plain, 50)]


@given(limit=st.integers(0, 80), count=st.integers(1, 4))
@settings(max_examples=30)
def test_a_limit_is_a_number_of_requests_also_over_shares(limit: int, count: int):
    whole = list(first(plan(OPEN, generators(0)), limit))
    assert sum(1 + len(request.later) for request in whole) == limit
    shares = [r for i in range(count) for r in part(first(plan(OPEN, generators(0)), limit), i, count)]
    assert sorted(shares, key=lambda r: r.number) == whole


SHAREGPT = {
    "id": "x",
    "conversations": [
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "a" * 40},
        {"from": "human", "value": "More"},
        {"from": "gpt", "value": "b" * 8},
    ],
}
CHAT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Q"}]},
    ]
}


@pytest.mark.parametrize("form", ["lines", "array", "gaps"])
def test_both_shapes_in_lines_or_an_array(form: str):
    lines = [json.dumps(SHAREGPT), json.dumps(CHAT)]
    if form == "array":
        lines = json.dumps([SHAREGPT, CHAT], indent=1).splitlines(keepends=True)
    if form == "gaps":
        lines = ["\n", lines[0], "  ", lines[1], "\n"]
    one, two = read_conversations(lines)
    assert [tuple(turn) for turn in one.turns] == [("Hi", 40), ("More", 8)]
    assert (two.system, [tuple(turn) for turn in two.turns]) == ("Be brief.", [("Q", 0)])
    got = take(Workload(arrivals=Arrivals(concurrency=1), conversations=[one, two]), 3)
    assert [(r.text, r.system, r.output_tokens, len(r.later)) for r in got] == [
        ("Hi", "", 10, 1), ("Q", "Be brief.", 128, 0), ("Hi", "", 10, 1)]  # fmt: skip
    assert (got[0].later[0].text, got[0].later[0].output_tokens) == ("More", 2)
    fixed = take(Workload(arrivals=Arrivals(concurrency=1), conversations=[one], answer=Fixed(7)), 1)
    assert (fixed[0].output_tokens, fixed[0].later[0].output_tokens) == (7, 7)


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ([], "f"),
        (['{"messages": [}'], "f:1"),
        (["", json.dumps(CHAT), "{}"], "f:3"),
        (['{"messages": ["x"]}'], "f:1"),
        (["[1]"], "f[0]"),
        (['{"messages": [{"role": "assistant", "content": "only"}]}'], "f"),
        (["[" * 5000], "f"),
    ],
)
def test_what_is_no_conversation_is_named_with_its_line(lines: list[str], place: str):
    with pytest.raises(InputError) as caught:
        read_conversations(lines, place="f")
    assert caught.value.place == place
