"""The keys of lanes, callers and sharing: what they become, and what is refused."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from tailrace.gateway.callers import Callers
from tailrace.gateway.config import config_from, to_plain
from tailrace.gateway.plain_yaml import read_yaml
from tailrace.govern.lane import Classifier, Order, RequestFacts
from tailrace.govern.sharing import Between
from tailrace.model.errors import ConfigError
from tailrace.model.thresholds import MS, S

BACKENDS = [{"name": "a", "url": "http://127.0.0.1:1"}, {"name": "b", "url": "http://127.0.0.1:2"}]
WHOLE = {
    "backends": [{**BACKENDS[0], "forward_priority": True}, {**BACKENDS[1], "forward_priority": "override"}],
    "lanes": [
        {
            "name": "documents",
            "match": {"key": "nightly", "min_output_tokens": 100},
            "running": 8,
            "running_tokens": 64000,
            "running_kv_tokens": 100000,
            "queued_tokens": 200000,
            "prefill_requests": 2,
            "prefill_tokens": 16000,
            "prefill_order": "shortest_first",
            "patience": "5s",
            "weight": 2.5,
            "backends": ["b"],
            "adaptive": {"minimum": 2, "tpot": "50ms"},
        },
        {"name": "batch", "throughput": 500.0},
    ],
    "sharing": {"between_lanes": "weighted", "ageing": "30s", "tokens": 100000, "prefill_requests": 4},
    "keys": {"nightly": {"value": "sk-1", "lanes": ["batch"]}},
    "tenants": {"acme": {"weight": 3.0}},
    "tenant_header": "X-Tenant",
    "engine_room": {"max_waiting": 2, "stale": "2s"},
}


def test_every_key_reaches_the_governor():
    config = config_from(WHOLE)
    documents, batch, default = config.lane_policies()
    assert (documents.running_tokens, documents.running_kv_tokens, documents.queued_tokens) == (64000, 100000, 200000)
    assert (documents.prefill_requests, documents.prefill_tokens) == (2, 16000)
    assert documents.prefill_order is Order.SHORTEST_FIRST
    assert documents.longest_overtaken_ns == 5 * S
    assert (documents.weight, documents.backends) == (2.5, ("b",))
    adaptive = documents.adaptive
    assert adaptive is not None
    assert (adaptive.minimum, adaptive.maximum, adaptive.tpot_ns) == (2, 8, 50 * MS)
    assert (batch.objectives.bounds, batch.objectives.tokens_per_s) == ({}, 500.0)
    assert default.objectives.bounds["ttft"] == {0.99: 500 * MS}
    sharing = config.governor()
    assert (sharing.between, sharing.age_ns, sharing.running_tokens) == (Between.WEIGHTED, 30 * S, 100000)
    assert sharing.tenant_weights == {"acme": 3.0}
    assert config.engine_room is not None
    assert config.engine_room.resolve().stale_ns == 2 * S


def test_it_can_be_written_and_read_again():
    config = config_from(WHOLE)
    assert config_from(to_plain(config)) == config


LANE = {"name": "x"}


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"lanes": [{**LANE, "running_tokens": 0}]}, "lanes[0].running_tokens"),
        ({"lanes": [{**LANE, "weight": 0}]}, "lanes[0].weight"),
        ({"lanes": [{**LANE, "backends": ["c"]}]}, "lanes[0].backends"),
        ({"lanes": [{**LANE, "throughput": 0}]}, "lanes[0].throughput"),
        ({"lanes": [{**LANE, "prefill_order": "first_come"}]}, "lanes[0].prefill_order"),
        ({"lanes": [{**LANE, "match": {"key": "nobody"}}]}, "lanes[0].match.key"),
        ({"lanes": [{**LANE, "running": 4, "adaptive": {"minimum": 5}}]}, "lanes[0].adaptive"),
        ({"keys": {"k": {}}}, "keys.k"),
        ({"keys": {"k": {"value": "a", "env": "B"}}}, "keys.k"),
        ({"keys": {"k": {"sha256": "abc"}}}, "keys.k.sha256"),
        ({"keys": {"k": {"value": "two words"}}}, "keys.k"),
        ({"keys": {"k": {"env": "TAILRACE_TEST_NO_SUCH_VARIABLE"}}}, "keys.k.env"),
        ({"keys": {"k": {"value": "a"}, "l": {"value": "a"}}}, "keys.l"),
        ({"keys": {"k": {"value": "a", "lanes": ["nowhere"]}}}, "keys.k.lanes"),
        ({"require_key": True}, "require_key"),
        ({"tenants": {"t": {"weight": -1}}}, "tenants.t.weight"),
        ({"tenant_header": "no header"}, "tenant_header"),
        ({"sharing": {"ageing": "0s"}}, "sharing.ageing"),
        ({"sharing": {"kv_tokens": 0}}, "sharing.kv_tokens"),
        ({"sharing": {"between_lanes": "fair"}}, "sharing.between_lanes"),
        ({"engine_room": {"max_kv_usage": 0}}, "engine_room.max_kv_usage"),
        ({"engine_room": {"max_waiting": -1}}, "engine_room.max_waiting"),
        ({"backends": [{**BACKENDS[0], "forward_priority": "maybe"}]}, "backends[0].forward_priority"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_with_its_place_and_a_remedy(keys, place):
    with pytest.raises(ConfigError) as caught:
        config_from({"backends": BACKENDS, **keys})
    assert caught.value.place.endswith(place)
    assert caught.value.remedy


def test_a_key_is_found_by_value_environment_and_digest(monkeypatch):
    monkeypatch.setenv("TAILRACE_TEST_KEY", "from-the-environment")
    keys = {
        "plain": {"value": "in-the-file"},
        "env": {"env": "TAILRACE_TEST_KEY", "tenant": "acme"},
        "digest": {"sha256": sha256(b"nowhere-here").hexdigest(), "tenant": ""},
    }
    callers = Callers(config_from({"backends": BACKENDS, "keys": keys, "tenant_header": "x-tenant"}))
    found = {
        text: callers.find({b"authorization": b"Bearer " + text.encode(), b"x-tenant": b"said"})
        for text in ("in-the-file", "from-the-environment", "nowhere-here", "another", "in-the-file ")
    }
    assert [caller.key for caller in found.values()] == ["plain", "env", "digest", "", "plain"]
    assert [caller.tenant for caller in found.values()] == ["plain", "acme", "said", "said", "plain"]


def test_without_any_of_it_nobody_is_looked_for():
    callers = Callers(config_from({"backends": BACKENDS}))
    assert callers.idle
    assert not callers.scoped
    assert callers.turned_away({}) is None


def test_the_example_of_the_page_loads(monkeypatch):
    monkeypatch.setenv("WEB_KEY", "sk-web")
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "lanes.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        config = config_from(read_yaml(block))
        assert [policy.name for policy in config.lane_policies()] == ["documents", "batch", "interactive", "default"]


@pytest.mark.parametrize("name", ["", "  ", "a\r\nx-evil: 1", "default\r\n", "x\0y", "\u4e2d", "a" * 65])
def test_a_lane_s_name_can_stand_in_a_header(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("lanes[0].name")):
        config_from({"backends": BACKENDS, "lanes": [{"name": name}]}, where="test")


def test_a_header_s_name_has_no_case() -> None:
    config = config_from({"backends": BACKENDS, "lanes": [{"name": "big", "match": {"header": {"X-Size": "big"}}}]})
    facts = RequestFacts(request_id="r", headers={"x-size": "big"})
    assert Classifier(config.lane_policies()).lane(facts).name == "big"


@pytest.mark.parametrize("header", [{"x size": "big"}, {"": "big"}, {"x-size": "big\n"}, {"x-size": " big"}])
def test_a_header_that_no_request_can_bring_is_refused(header: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=re.escape("lanes[0].match.header")):
        config_from({"backends": BACKENDS, "lanes": [{"name": "big", "match": {"header": header}}]}, where="test")
