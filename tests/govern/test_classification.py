"""Which lane takes a request."""

from __future__ import annotations

import pytest

from tailrace.govern.lane import LaneMatch, LanePolicy, RequestFacts, classify

FACTS = RequestFacts(
    request_id="r",
    prompt_tokens=500,
    max_tokens=300,
    audio_seconds=12.0,
    stream=True,
    model="llama-3-8b",
    tenant="acme",
    key="acme-web",
    path="/v1/chat/completions",
    headers={"x-team": "search"},
)
BARE = RequestFacts(request_id="r", stream=False)


@pytest.mark.parametrize(
    ("match", "takes", "takes_bare"),
    [
        (LaneMatch(), True, True),
        (LaneMatch(min_prompt_tokens=500), True, False),
        (LaneMatch(min_prompt_tokens=501), False, False),
        (LaneMatch(max_prompt_tokens=500), True, True),
        (LaneMatch(max_prompt_tokens=499), False, True),
        (LaneMatch(stream=True), True, False),
        (LaneMatch(stream=False), False, True),
        (LaneMatch(header={"x-team": "search"}), True, False),
        (LaneMatch(header={"x-team": "other"}), False, False),
        (LaneMatch(model="llama-3-8b"), True, False),
        (LaneMatch(model="llama-*"), True, False),
        (LaneMatch(model="qwen-*"), False, False),
        (LaneMatch(path="/v1/chat/*"), True, False),
        (LaneMatch(path="/v1/chat"), False, False),
        (LaneMatch(tenant="acme"), True, False),
        (LaneMatch(key="acme-web"), True, False),
        (LaneMatch(key="acme"), False, False),
        (LaneMatch(min_output_tokens=300), True, True),
        (LaneMatch(min_output_tokens=301), False, True),
        (LaneMatch(max_output_tokens=300), True, False),
        (LaneMatch(max_output_tokens=299), False, False),
        (LaneMatch(min_audio_seconds=12), True, False),
        (LaneMatch(min_audio_seconds=0), True, False),
        (LaneMatch(max_audio_seconds=12), True, False),
        (LaneMatch(max_audio_seconds=11.9), False, False),
        (LaneMatch(tenant="acme", stream=False), False, False),
    ],
    ids=str,
)
def test_each_condition(match, takes, takes_bare):
    assert match.accepts(FACTS) is takes
    assert match.accepts(BARE) is takes_bare


def test_the_first_match_wins_and_a_lane_that_was_asked_for_comes_before_all():
    policies = [
        LanePolicy(name="any"),
        LanePolicy(name="batch", match=LaneMatch(path="/nowhere")),
    ]
    assert classify(policies, FACTS).name == "any"
    asked = RequestFacts(request_id="r", asked_lane="batch")
    assert classify(policies, asked).name == "batch"
    unknown = RequestFacts(request_id="r", asked_lane="no such lane")
    assert classify(policies, unknown).name == "any"


def test_what_nobody_takes_goes_to_the_default():
    taken = LanePolicy(name="long", match=LaneMatch(min_prompt_tokens=10_000))
    assert classify([taken], FACTS) == LanePolicy()
    own = LanePolicy(name="default", match=LaneMatch(path="/never"), running=3)
    assert classify([taken, own], FACTS) is own
