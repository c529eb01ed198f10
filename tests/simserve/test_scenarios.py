"""The plans of the streams of known truth."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.thresholds import MS
from tailrace.simserve.scenarios import SCENARIOS, TOKEN_STEPS, Ask, StepKind, plan, scenario_names

NAMES = st.sampled_from(sorted(SCENARIOS))


def frames(steps):
    """The JSON bodies of a plan's data lines, `None` for [DONE]."""
    lines = b"".join(step.data for step in steps).replace(b"\r\n", b"\n").split(b"\n")
    datas = [line[6:] for line in lines if line.startswith(b"data: ")]
    return [None if data == b"[DONE]" else json.loads(data) for data in datas]


@given(NAMES, st.integers(0, 50), st.integers(1, 100), st.integers(0, 3))
def test_a_plan_is_a_pure_function_and_its_steps_are_in_order(name, index, max_tokens, seed):
    ask = Ask(index=index, model=name, max_tokens=max_tokens)
    one, two = plan(ask, seed=seed), plan(ask, seed=seed)
    assert one == two
    assert all(a.at_ns <= b.at_ns for a, b in pairwise(one.steps))
    tokens = sum(step.tokens for step in one.steps)
    if one.said_tokens is not None:
        assert tokens == one.said_tokens <= max_tokens
    assert all((step.tokens > 0) == (step.kind in TOKEN_STEPS) for step in one.steps)
    assert one.scenario == name


@given(NAMES, st.integers(0, 5))
def test_text_and_usage_tell_the_same_story(name, index):
    ask = Ask(index=index, model=name)
    made = plan(ask)
    bodies = [body for body in frames(made.steps) if body]
    words = 0
    for body in bodies:
        for choice in body.get("choices", []):
            words += sum(len(text.split()) for key, text in choice["delta"].items() if key != "role")
    assert words == sum(step.tokens for step in made.steps)
    usage = [body["usage"]["completion_tokens"] for body in bodies if body.get("usage")]
    assert (usage[-1] if usage else None) == made.said_tokens or SCENARIOS[name].odd_requests


def test_there_are_twenty_two_and_each_says_what_must_be_reported():
    assert len(SCENARIOS) == 22
    assert all(shape.note for shape in SCENARIOS.values())


def test_model_names_say_simulated_or_not():
    assert scenario_names("simulated-spec") == scenario_names("spec") == ["spec"]
    assert scenario_names("anything") == ["plain"]
    assert scenario_names("simulated-medley") == list(SCENARIOS)
    assert scenario_names("drop+nothing+plain") == ["drop", "plain"]


def test_scenarios_take_turns_and_each_counts_its_own_requests():
    turns = [plan(Ask(index=index, model="simulated-plain+reject")) for index in range(6)]
    assert [one.scenario for one in turns] == ["plain", "reject"] * 3
    assert [one.status for one in turns] == [200, 200, 200, 429, 200, 200]


def steps_of(name, kind, index=0):
    return [step for step in plan(Ask(index=index, model=name)).steps if step.kind is kind]


def test_shapes_are_what_they_say():
    spec = steps_of("spec", StepKind.CONTENT)
    assert [step.tokens for step in spec[:6]] == [1, 4, 2, 5, 3, 1]
    assert {b.at_ns - a.at_ns for a, b in pairwise(spec)} == {40 * MS}
    burst = steps_of("burst_write", StepKind.CONTENT)
    assert [step.joined for step in burst[4:12]] == [False, True, True, True] * 2
    assert len({step.at_ns for step in burst[4:8]}) == 1
    assert all(step.pause_ns for step in steps_of("split", StepKind.CONTENT))
    assert b"\r\n\r\n" in plan(Ask(model="crlf")).steps[0].data
    assert [step.at_ns // MS for step in steps_of("role_early", StepKind.ROLE)] == [0]
    assert [step.at_ns // MS for step in steps_of("pings", StepKind.PING)] == [50, 100, 150, 200, 250]
    late = plan(Ask(model="late_usage")).steps
    assert [(step.kind.value, (step.at_ns - 880 * MS) // MS) for step in late[-3:]] == [
        ("finish", 0),
        ("usage", 500),
        ("done", 600),
    ]
    assert not steps_of("no_usage", StepKind.USAGE)
    assert len(steps_of("reasoning", StepKind.REASONING)) == 30
    assert b'"reasoning":' in steps_of("reasoning_alt", StepKind.REASONING)[0].data
    assert len(steps_of("early_eos", StepKind.CONTENT)) == 25
    assert len(steps_of("one_token", StepKind.CONTENT)) == 1
    assert len(steps_of("drop", StepKind.CONTENT, index=1)) == 21
    assert steps_of("drop", StepKind.CUT, index=1)
    assert not steps_of("drop", StepKind.CUT, index=0)
    assert plan(Ask(index=1, model="reject")).status == 429
    error = plan(Ask(index=1, model="error_event")).steps
    assert [step.kind.value for step in error[-2:]] == ["error", "done"]


def test_usage_only_where_it_was_asked_for():
    quiet = plan(Ask(model="plain", include_usage=False))
    assert quiet.said_tokens is None
    assert not [body for body in frames(quiet.steps) if body and body.get("usage")]


def test_completions_speak_text():
    bodies = frames(plan(Ask(model="reasoning", chat=False)).steps)
    assert bodies[0]["object"] == "text_completion"
    assert bodies[0]["choices"][0]["text"] == " t000"


@pytest.mark.parametrize("chat", [True, False])
def test_an_answer_that_is_not_streamed(chat):
    made = plan(Ask(model="plain", stream=False, chat=chat, max_tokens=7))
    body = json.loads(made.body)
    choice = body["choices"][0]
    text = choice["message"]["content"] if chat else choice["text"]
    assert len(text.split()) == 7 == body["usage"]["completion_tokens"]
    assert made.body_at_ns == (100 + 6 * 20) * MS
