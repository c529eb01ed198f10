"""The ladder's and the streams' keys: what they mean, and what is refused with its place and remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailrace.gateway.config import config_from, to_plain
from tailrace.govern.ladder import DEFAULT_THRESHOLDS, LadderPolicy, Signal, Threshold
from tailrace.govern.rungs import DEFAULT_RUNGS, Rung
from tailrace.govern.stream_guard import GapAction, StreamGuard
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS, S

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "how-to"


def config(**keys: Any) -> Any:
    return config_from({"backends": [{"url": "http://127.0.0.1:8000"}], **keys})


def test_the_ladder_is_off_and_its_defaults_are_the_declared_ones() -> None:
    section = config().degradation
    assert not section.enabled
    assert section.policy() == LadderPolicy()
    assert config().lane_policies()[0].guard is None


def test_everything_is_read_and_written_back() -> None:
    keys = {
        "enabled": True,
        "rungs": ["cached", "smaller_model", "refuse"],
        "lanes": ["chat"],
        "signals": {"kv_usage": {"enter": 0.9}, "loop_lag_ms": {"off": True}},
        "dwell": "3s",
        "calm": "30s",
        "cap": 100,
        "models": {"big": "small"},
    }
    read = config(lanes=[{"name": "chat"}], degradation=keys)
    policy = read.degradation.policy()
    assert policy.rungs == (Rung.CACHED, Rung.SMALLER_MODEL, Rung.REFUSE)
    assert policy.thresholds[Signal.KV_USAGE] == Threshold(0.9, DEFAULT_THRESHOLDS[Signal.KV_USAGE].leave)
    assert Signal.LOOP_LAG_MS not in policy.thresholds
    assert (policy.dwell_ns, policy.calm_ns) == (3 * S, 30 * S)
    assert policy.settings.models == {"big": "small"}
    assert to_plain(read)["degradation"].items() >= keys.items()
    assert config_from(to_plain(read)) == read


@pytest.mark.parametrize(
    ("keys", "place", "words"),
    [
        ({"rungs": []}, "degradation.rungs", "without rungs"),
        ({"rungs": ["cap", "cap"]}, "degradation.rungs", "twice"),
        ({"rungs": ["panic"]}, "degradation.rungs[0]", "panic"),
        ({"lanes": ["nobody"]}, "degradation.lanes", "no lane 'nobody'"),
        ({"signals": {"mood": {"enter": 1}}}, "degradation.signals", "'mood' is no signal"),
        ({"signals": {"kv_usage": {"enter": 0.8}}}, "degradation.signals.kv_usage", "flap: entered from 0.8 on"),
        ({"signals": {s.value: {"off": True} for s in Signal}}, "degradation.signals", "no signal could ever press"),
        ({"limit_factor": 1.5}, "degradation.limit_factor", "no smaller limit"),
        ({"pin": 5}, "degradation.pin", "no step 5"),
        ({"cap": 0}, "degradation.cap", "0 tokens"),
        ({"shrink": 3}, "degradation.shrink", "3 tokens"),
        ({"dwell": "10ms"}, "degradation.dwell", "noise"),
        ({"rungs": ["smaller_model"]}, "degradation.models", "no model to go to"),
    ],
)
def test_a_ladder_that_cannot_stand_is_refused(keys: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(degradation=keys)
    assert caught.value.place == f"config: {place}"
    assert words in caught.value.message
    assert caught.value.remedy


def test_the_default_rungs_are_those_of_the_documentation() -> None:
    assert [rung.value for rung in DEFAULT_RUNGS] == ["batch", "cap", "low_waits", "refuse"]


@pytest.mark.parametrize("page", ["degradation", "client-policy"])
def test_what_the_pages_tell_people_to_write_is_taken(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        raw = yaml.safe_load(block)
        read = config_from({"backends": [{"url": "http://127.0.0.1:8000"}], **raw})
        assert read.degradation.enabled == ("degradation" in raw)


def test_a_lane_demands_of_its_streams() -> None:
    lane = {"name": "chat", "gap": {"limit": "800ms", "action": "degrade"}, "pace": {"min_tokens_per_s": 5}}
    policy = config(lanes=[lane]).lane_policies()[0]
    assert policy.guard == StreamGuard(gap_ns=800 * MS, gap_action=GapAction.DEGRADE, tokens_per_s=5.0, window_ns=5 * S)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"gap": {"limit": "50ms"}}, "gap.limit"),
        ({"gap": {"limit": "2s"}}, "gap.limit"),
        ({"gap": {"action": "shout"}}, "gap.action"),
        ({"pace": {"min_tokens_per_s": 0}}, "pace.min_tokens_per_s"),
        ({"pace": {"min_tokens_per_s": 5, "window": "1ms"}}, "pace.window"),
        ({"gap": {"limit": "1500ms"}, "budgets": {"idle": "1s"}}, "gap.limit"),
    ],
)
def test_a_demand_that_cannot_be_kept_is_refused(keys: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(lanes=[{"name": "chat", **keys}])
    assert caught.value.place == f"config: lanes[0].{place}"
    assert caught.value.remedy
