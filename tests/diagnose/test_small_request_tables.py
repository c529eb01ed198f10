"""A dozen requests in a table: answers cut at one age, a cache that is lost, other traffic; and a hop's own word."""

from __future__ import annotations

import json

import pytest

from tailrace.model.finding import Level
from tests.diagnose.foreign_words import asked, everything, facts, of, table


def lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def answer(number: int, took: int, *, tokens: int, failed: bool = False, **more) -> dict:
    start = 200_000 * number
    status = {"status": "error", "http_status": 200, "error": "stream cut"} if failed else {"status": "ok"}
    return {"id": f"q{number}", "t_send_ms": start, "t_first_ms": start + 400, "t_last_ms": start + took,
            "output_tokens": tokens, "max_tokens": 8192, **status, **more}  # fmt: skip


CUT = [answer(0, 14_030, tokens=900), *(answer(n, 60_000 + n, tokens=3930 + n, failed=True) for n in range(1, 5)),
       answer(6, 47_000, tokens=3102)]  # fmt: skip
ROUTE = """kind: HTTPRoute
metadata: {name: models}
spec:
  rules:
    - matches: [{path: {type: PathPrefix, value: /v1}}]
      timeouts: {request: 60s}
"""


def test_answers_that_break_off_at_one_age(tmp_path):
    found = of(asked(tmp_path, lines(CUT), ROUTE), "GW_UPSTREAM_TIMEOUT")
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "60 s of gateway_api.request_timeout" in found.relation
    assert "max_tokens 8192" in found.statement
    alone = of(asked(tmp_path, lines(CUT)), "GW_UPSTREAM_TIMEOUT")
    assert alone is not None
    assert alone.level is Level.SUSPECTED
    assert alone.missing


@pytest.mark.parametrize(
    "rows",
    [
        [*CUT, answer(9, 130_000, tokens=8000)],
        [row | ({"t_last_ms": row["t_last_ms"] - 9_000 * n} if row["status"] == "error" else {})
         for n, row in enumerate(CUT)],
    ],
    ids=["an answer lives longer", "ages differ"],
)  # fmt: skip
def test_no_timer_where_ages_differ_or_answers_outlive_it(tmp_path, rows):
    assert of(asked(tmp_path, lines(rows), ROUTE), "GW_UPSTREAM_TIMEOUT") is None


def turns(cached, *, grow: int = 100, slow: int = 4200) -> str:
    rows = []
    for n, share in enumerate(cached):
        prompt = 15_000 + grow * n
        start = 20_000 * n
        rows.append({"id": f"r{n}", "session_id": "abc"[n % 3], "t_send_ms": start, "prompt_tokens": prompt,
                     "t_first_ms": start + (430 if share else slow), "t_last_ms": start + 9000,
                     "cached_tokens": int(share * prompt), "output_tokens": 200, "status": "ok"})  # fmt: skip
    return lines(rows)


def test_a_prefix_that_is_found_no_more(tmp_path):
    found = of(asked(tmp_path, turns([0.94] * 5 + [0.0] * 5)), "MIX_CACHE_MISS")
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "94.0% -> 0" in found.relation
    assert "request r5" in found.statement


@pytest.mark.parametrize(
    "text",
    [
        turns([0.94, 0.0] * 5),
        turns([0.94] * 5 + [0.0] * 5, slow=440),
        turns([0.94] * 5 + [0.0] * 5, grow=4000),
        turns([0.94] * 10),
    ],
    ids=["it comes and goes", "nobody waits", "prompts grew", "found throughout"],
)
def test_no_lost_prefix_without_a_step_that_costs(tmp_path, text):
    found = of(asked(tmp_path, text), "MIX_CACHE_MISS")
    assert found is None or "no more" not in everything(found)
    assert found is None or "is missed" not in found.statement


def test_without_cached_tokens_nothing_is_said_of_the_cache(tmp_path):
    rows = [json.loads(line) for line in turns([0.94] * 5 + [0.0] * 5).splitlines()]
    assert of(asked(tmp_path, lines([{k: v for k, v in row.items() if k != "cached_tokens"} for row in rows])),
              "MIX_CACHE_MISS") is None  # fmt: skip


def windows(share: float, *, slower: float = 1.0, prompts: bool = True) -> str:
    head = "arm | t_send_ms | t_first_ms | t_last_ms | prompt_tokens | output_tokens | status"
    rows, start = [], 0
    for arm, long, factor in (("before", 0.1, 1.0), ("after", share, slower)):
        for n in range(20):
            tokens = 12_000 + n if n < 20 * long else 1000 + n
            first = start + int(factor * (60 + 0.2 * tokens))
            rows.append(f"{arm} | {start} | {first} | {first + 3000} | {tokens if prompts else ''} | 150 | ok")
            start += 7000
    return table(head, *rows)


def test_long_prompts_that_became_more(tmp_path):
    changed = facts(changed="driver 550 -> 560")
    found = of(asked(tmp_path, windows(0.5), changed), "MIX_SHIFT")
    assert found is not None
    assert "+879 ms mix" in found.relation
    assert "10% to 50%" in found.statement
    assert "driver 550 -> 560" in found.statement


@pytest.mark.parametrize("text", [windows(0.1), windows(0.5, slower=1.6), windows(0.5, prompts=False)],
                         ids=["as before", "a stage too", "no lengths"])  # fmt: skip
def test_no_mix_shift_where_shares_stand_or_classes_are_slower(tmp_path, text):
    assert of(asked(tmp_path, text), "MIX_SHIFT") is None


HEADERS = "$ curl -sD - -o /dev/null http://proxy/v1\nHTTP/1.1 200 OK\nserver: uvicorn\n"


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (HEADERS + "x-litellm-response-duration-ms: 9873.412\nx-litellm-overhead-duration-ms: 8412.655\n", "85.2%"),
        ("HTTP/1.1 200 OK\nx-kong-proxy-latency: 4200\nx-kong-upstream-latency: 380\n", "91.7%"),
        (facts(proxy_overhead_ms=900, response_time_ms=1200), "75.0%"),
        (table("path | E2E p50 (ms) | proxy overhead (ms)", "via proxy | 2000 | 1500"), "75.0%"),
    ],
    ids=["litellm", "kong", "form", "table"],
)
def test_a_gateway_that_tells_its_own_time(tmp_path, text, share):
    found = of(asked(tmp_path, text), "GW_SELF_BOTTLENECK")
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert share in found.relation


@pytest.mark.parametrize(
    "text",
    [
        HEADERS + "x-litellm-response-duration-ms: 9873.412\nx-litellm-overhead-duration-ms: 12.655\n",
        HEADERS + "x-litellm-overhead-duration-ms: 8412.655\n",
    ],
    ids=["small", "of nobody knows what"],
)
def test_no_bottleneck_where_its_part_is_small_or_the_whole_unknown(tmp_path, text):
    assert of(asked(tmp_path, text), "GW_SELF_BOTTLENECK") is None
