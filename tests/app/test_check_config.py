"""Each rule on a gateway's file, with a file that it is about and one that only looks like it."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.app.check import CheckRequest, check
from tailrace.app.check_lanes import shadows
from tailrace.govern.lane import LaneMatch, RequestFacts
from tailrace.model.thresholds import S
from tests.children import child_env, tailrace_command

HEAD = "backends: [{name: a, url: 'http://127.0.0.1:1'}]\n"


def found(tmp_path, text: str, **more) -> dict[str, tuple[str, int | None]]:
    """Code -> (subject, line) of what is said of a file."""
    path = tmp_path / "tailrace.yaml"
    path.write_text(HEAD + text)
    report = check(CheckRequest(sources=[str(path)], **more))
    return {one.code: (one.subject, one.line) for one in report.findings}


def lanes(*matches: str, more: str = "") -> str:
    return "lanes:\n" + "".join(f"  - {{name: l{at}, match: {{{match}}}{more}}}\n" for at, match in enumerate(matches))


RULES = [
    # code, a file that it is about, subject, line, a near miss
    ("CONFIG_LANE_PATH_UNKNOWN", lanes("path: /v1/chats"), "lanes[0].match.path", 3, lanes("path: /v1/chat*")),
    (
        "CONFIG_LANE_PATH_UNKNOWN",
        "passthrough: [/v1/rerank]\n" + lanes("path: /v1/rerank"),
        "lanes[0].match.path",
        4,
        lanes("path: '/v2/models/{model}/infer'"),
    ),
    (
        "CONFIG_LANE_REFUSES_ALL",
        lanes("min_prompt_tokens: 4000", more=", tokens: {max_prompt: 3999}"),
        "lanes[0].tokens.max_prompt",
        3,
        lanes("min_prompt_tokens: 4000", more=", tokens: {max_prompt: 4000}"),
    ),
    (
        "CONFIG_LANE_REFUSES_ALL",
        lanes("min_prompt_tokens: 4000") + "tokens: {routes: {'*': {max_prompt: 2000}}}\n",
        "lanes[0].match.min_prompt_tokens",
        3,
        lanes("min_prompt_tokens: 4000") + "tokens: {routes: {'*': {max_prompt: 2000, allow_truncation: true}}}\n",
    ),
    (
        "CONFIG_PACE_ABOVE_OBJECTIVE",
        lanes("", more=", pace: {min_tokens_per_s: 13}"),
        "lanes[0].pace.min_tokens_per_s",
        3,
        lanes("", more=", pace: {min_tokens_per_s: 12.5}"),
    ),
    (
        "CONFIG_COMMENTS_NEVER",
        "predictions: {comments: 2s}\n",
        "predictions.comments",
        2,
        "predictions: {comments: 1s}\n",
    ),
    (
        "CONFIG_HEDGE_NEVER",
        "hedge: {enabled: true}\n",
        "hedge.enabled",
        2,
        "hedge: {enabled: false}\n",
    ),
    (
        "CONFIG_RUNG_WITHOUT_EFFECT",
        "degradation: {enabled: true, rungs: [cached]}\n",
        "degradation.rungs",
        2,
        "degradation: {enabled: true, rungs: [cached]}\ncache: {routes: [{}]}\n",
    ),
    (
        "CONFIG_LANE_EMPTY",
        lanes("min_prompt_tokens: 2001, max_prompt_tokens: 2000"),
        "lanes[0].match.min_prompt_tokens",
        3,
        lanes("min_prompt_tokens: 2000, max_prompt_tokens: 2000"),
    ),
    (
        "CONFIG_LANE_SHADOWED",
        lanes("max_prompt_tokens: 2000", "max_prompt_tokens: 1000, stream: true"),
        "lanes[1]",
        4,
        lanes("max_prompt_tokens: 2000, stream: true", "max_prompt_tokens: 1000"),
    ),
    (
        "CONFIG_LANE_SHADOWED",
        lanes("max_prompt_tokens: 2000", "min_prompt_tokens: 2001", "model: m"),
        "lanes[2]",
        5,
        lanes("max_prompt_tokens: 2000", "min_prompt_tokens: 2002", "model: m"),
    ),
    (
        "CONFIG_LANE_SHADOWED",
        lanes("stream: true", "stream: false, model: m", "model: m, path: /v1/completions"),
        "lanes[2]",
        5,
        lanes("stream: true", "stream: false, model: m", "path: /v1/completions"),
    ),
    (
        "CONFIG_LANE_SHADOWED",
        lanes("header: {x-lane: batch}", "header: {x-lane: batch, x-team: a}"),
        "lanes[1]",
        4,
        lanes("header: {x-lane: batch, x-team: a}", "header: {x-lane: batch}"),
    ),
    ("CONFIG_LANE_SHADOWED", lanes("model: m", "model: m"), "lanes[1]", 4, lanes("model: m", "model: n")),
    (
        "CONFIG_ORDER_WITHOUT_QUEUE",
        lanes("", more=", queued: 0, order: shortest_first"),
        "lanes[0].order",
        3,
        lanes("", more=", queued: 0"),
    ),
    (
        "CONFIG_QUEUE_WITHOUT_TIME",
        lanes("") + "budgets: {queue: 0s}\n",
        "budgets.queue",
        4,
        lanes("", more=", queued: 0") + "budgets: {queue: 0s}\n",
    ),
    (
        "CONFIG_LANE_ABOVE_TOTAL",
        lanes("", more=", running: 17") + "total_running: 16\n",
        "lanes[0].running",
        3,
        lanes("", more=", running: 16") + "total_running: 16\n",
    ),
    (
        "CONFIG_TOTAL_ABOVE_LANES",
        "lanes:\n  - {name: default, running: 8}\ntotal_running: 9\n",
        "total_running",
        4,
        "lanes:\n  - {name: default, running: 8}\ntotal_running: 8\n",
    ),
    (
        "CONFIG_CONNECTIONS_BELOW_RUNNING",
        "limits:\n  upstream_connections: 255\n",
        "limits.upstream_connections",
        3,
        "limits:\n  upstream_connections: 256\n",
    ),
    (
        "CONFIG_ALIAS_OF_ALIAS",
        "aliases:\n  small: fast\n  fast: llama\n",
        "aliases.small",
        3,
        "aliases:\n  small: llama\n  fast: llama\n",
    ),
    (
        "CONFIG_BUDGET_BELOW_OBJECTIVE",
        "budgets: {first_token: 400ms}\n",
        "budgets.first_token",
        2,
        "budgets: {first_token: 500ms}\n",
    ),
    (
        "CONFIG_BUDGET_BELOW_OBJECTIVE",
        lanes("", more=", objectives: {ttft_p99: 6s}"),
        "budgets.first_token",
        None,
        lanes("", more=", objectives: {ttft_p99: 5s}"),
    ),
    (
        "CONFIG_BUDGET_FAR_ABOVE_OBJECTIVE",
        "budgets:\n  first_token: 11s\n",
        "budgets.first_token",
        3,
        "budgets:\n  first_token: 10s\n",
    ),
    (
        "CONFIG_BUDGET_ORDER",
        lanes("", more=", budgets: {queue: 9s, total: 8s}"),
        "lanes[0].budgets.total",
        3,
        lanes("", more=", budgets: {queue: 8s, total: 8s}"),
    ),
    (
        "CONFIG_BUDGET_BEYOND_CLIENT",
        "budgets: {unstreamed_total: 601s, total: 700s}\n",
        "budgets.unstreamed_total",
        2,
        "budgets: {unstreamed_total: 600s, total: 700s}\n",
    ),
    (
        "CONFIG_OBJECTIVES_ORDER",
        "objectives:\n  ttft_p50: 600ms\n  ttft_p99: 500ms\n",
        "objectives.ttft_p50",
        3,
        "objectives:\n  ttft_p50: 500ms\n  ttft_p99: 500ms\n",
    ),
    (
        "CONFIG_SLOW_ABOVE_BUDGET",
        "slow: {gap: 3s}\n",
        "slow.gap",
        2,
        "slow: {gap: 2s}\n",
    ),
    (
        "CONFIG_CACHE_ROUTE_SHADOWED",
        "cache:\n  routes:\n    - {models: ['a*']}\n    - {models: [abc], paths: [/v1/embeddings]}\n",
        "cache.routes[1]",
        5,
        "cache:\n  routes:\n    - {models: ['a*']}\n    - {models: [abc, b], paths: [/v1/embeddings]}\n",
    ),
    (
        "CONFIG_EMBEDDING_UNUSED",
        "cache:\n  routes: [{}]\n  embedding: {url: 'http://127.0.0.1:2', model: e}\n",
        "cache.embedding",
        4,
        "cache:\n  routes: [{semantic: 0.97}]\n  embedding: {url: 'http://127.0.0.1:2', model: e}\n",
    ),
    (
        "CONFIG_LANE_SHADOWED",
        lanes("model: 'llama*'", "model: llama-8b"),
        "lanes[1]",
        4,
        lanes("model: llama-8b", "model: 'llama*'"),
    ),
    (
        "CONFIG_LANE_SHADOWED",
        lanes("max_output_tokens: 100", "min_output_tokens: 101", ""),
        "lanes[2]",
        5,
        lanes("max_output_tokens: 100", "min_output_tokens: 102", ""),
    ),
    (
        "CONFIG_LANE_SHADOWED",
        lanes("min_audio_seconds: 5", "max_audio_seconds: 9", "min_audio_seconds: 3"),
        "lanes[2]",
        5,
        lanes("min_audio_seconds: 5.5", "max_audio_seconds: 5", "min_audio_seconds: 3"),
    ),
    (
        "CONFIG_LIMIT_ABOVE_SHARED",
        lanes("", more=", running_tokens: 9001") + "sharing: {tokens: 9000}\n",
        "lanes[0].running_tokens",
        3,
        lanes("", more=", running_tokens: 9000") + "sharing: {tokens: 9000}\n",
    ),
    (
        "CONFIG_PREFILL_ABOVE_RUNNING",
        lanes("", more=", running: 4, prefill_requests: 5"),
        "lanes[0].prefill_requests",
        3,
        lanes("", more=", running: 4, prefill_requests: 4"),
    ),
    (
        "CONFIG_PATIENCE_BEYOND_QUEUE",
        lanes("", more=", patience: 3s"),
        "lanes[0].patience",
        3,
        lanes("", more=", patience: 2s"),
    ),
    (
        "CONFIG_CALLER_UNKNOWN",
        lanes("tenant: acme"),
        "lanes[0].match.tenant",
        3,
        lanes("tenant: acme") + "tenant_header: x-tenant\n",
    ),
    (
        "CONFIG_CALLER_UNKNOWN",
        "keys: {k: {value: secret, tenant: acme}}\ntenants: {k: {weight: 2}}\n",
        "tenants.k",
        3,
        "keys: {k: {value: secret, tenant: acme}}\ntenants: {acme: {weight: 2}}\n",
    ),
    (
        "CONFIG_WEIGHT_WITHOUT_EFFECT",
        lanes("", more=", weight: 2"),
        "lanes[0].weight",
        3,
        lanes("", more=", weight: 2") + "sharing: {between_lanes: weighted}\n",
    ),
    (
        "CONFIG_ROOM_ALWAYS_OLD",
        "engine_room: {stale: 900ms}\n",
        "engine_room.stale",
        2,
        "engine_room: {stale: 1s}\n",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("code", "bad", "subject", "line", "good"), RULES)
def test_a_rule_finds_its_file_with_the_line_and_leaves_the_near_miss_alone(tmp_path, code, bad, subject, line, good):
    assert found(tmp_path, bad).get(code) == (subject, line)
    assert code not in found(tmp_path, good)


def test_the_defaults_are_beyond_reproach(tmp_path):
    assert found(tmp_path, "") == {}


def test_a_client_that_waits_for_less_than_the_budgets_is_named(tmp_path):
    assert found(tmp_path, "", client_timeout_ns=29 * S)["CONFIG_BUDGET_BEYOND_CLIENT"][0] == "budgets.unstreamed_total"
    assert found(tmp_path, "", client_timeout_ns=30 * S) == {}


def test_a_lane_that_a_key_may_ask_for_is_reached_all_the_same(tmp_path):
    text = lanes("", "") + "keys: {k: {value: secret, lanes: [l1]}}\n"
    assert "CONFIG_LANE_SHADOWED" not in found(tmp_path, text)


def test_the_same_server_twice_is_named(tmp_path):
    text = "backends:\n  - {name: a, url: 'http://127.0.0.1:1'}\n  - {name: b, url: 'http://127.0.0.1:%d'}\n"
    path = tmp_path / "tailrace.yaml"
    said = []
    for port in (1, 2):
        path.write_text(text % port)
        said.append({one.code: one.line for one in check(CheckRequest(sources=[str(path)])).findings})
    assert said == [{"CONFIG_BACKEND_TWICE": 3}, {}]


def test_a_file_that_is_refused_is_refused_with_the_line(tmp_path):
    assert found(tmp_path, "lanes:\n  - name: a\n    running: 0\n")["CONFIG_REFUSED"][1] == 3
    assert found(tmp_path, "lanes:\n  - name: a\n    backends: [a, b]\n")["CONFIG_REFUSED"][1] == 4
    assert found(tmp_path, "cache:\n  ttl: 10m\n  routes:\n    - {paths: [/x]}\n")["CONFIG_REFUSED"][1] == 5


@pytest.mark.parametrize("text", ["hedge: {enabled: true}\n", "cache: {routes: [{}]}\n", "shadow: {backends: [a]}\n"])
def test_any_key_of_a_gateway_tells_its_file(tmp_path, text):
    """Without `backends`, too: what was meant for one may be the very thing that is misspelt."""
    path = tmp_path / "t.yaml"
    path.write_text("backend: [{url: 'http://127.0.0.1:1'}]\n" + text)
    (one,) = check(CheckRequest(sources=[str(path)])).findings
    assert (one.code, one.line) == ("CONFIG_REFUSED", 1)
    assert "backends" in one.advice


def test_the_command_prints_file_and_line(tmp_path):
    path = tmp_path / "tailrace.yaml"
    path.write_text(HEAD + lanes("model: m", "model: m"))
    done = subprocess.run(
        tailrace_command("check", str(path), "--client-timeout", "10s", "--fail-on", "error"),
        env=child_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "CONFIG_LANE_SHADOWED lanes[1] [tailrace.yaml:4]" in done.stdout
    assert "10s (--client-timeout)" in done.stdout


matches = st.builds(
    LaneMatch,
    min_prompt_tokens=st.none() | st.integers(0, 5),
    min_output_tokens=st.none() | st.integers(0, 3),
    max_output_tokens=st.none() | st.integers(0, 3),
    min_audio_seconds=st.none() | st.sampled_from([0.5, 1.0, 2.0]),
    max_audio_seconds=st.none() | st.sampled_from([0.5, 1.0, 2.0]),
    max_prompt_tokens=st.none() | st.integers(0, 5),
    stream=st.none() | st.booleans(),
    model=st.none() | st.sampled_from(["m", "n", "m*"]),
    header=st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2),
)


def _edges(before, match, axis):
    ends = [getattr(one, f"{side}_{axis}") for one in [*before, match] for side in ("min", "max")]
    return {end for end in ends if end is not None}


@settings(max_examples=60, deadline=None)
@given(st.lists(matches, min_size=1, max_size=4), matches)
def test_a_lane_is_called_unreachable_exactly_when_no_request_reaches_it(before, match):
    every = [
        RequestFacts(
            request_id="r",
            prompt_tokens=tokens,
            max_tokens=output,
            audio_seconds=audio,
            stream=stream,
            model=model,
            headers=headers,
        )
        for tokens in sorted(
            {0, 6} | {edge + by for edge in _edges(before, match, "prompt_tokens") for by in (-1, 0, 1)}
        )
        if tokens >= 0
        for output in (0, 1, 2, 3, 4, None)
        for audio in (None, 0.1, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
        for stream in (True, False)
        for model in ("m", "mx", "n", "o")
        for headers in (
            {},
            {"x": "1"},
            {"x": "2"},
            {"y": "1"},
            {"y": "2"},
            {"x": "1", "y": "1"},
            {"x": "1", "y": "2"},
            {"x": "2", "y": "1"},
            {"x": "2", "y": "2"},
        )
    ]
    mine = [facts for facts in every if match.accepts(facts)]
    if not mine:
        return  # an empty range: another finding
    left = [facts for facts in mine if not any(earlier.accepts(facts) for earlier in before)]
    assert bool(shadows(before, match)) == (not left)
