"""A real llama.cpp's own metrics through the gateway: its window agrees with the records, and says what it cannot."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest

from tests.real.conftest import MODEL, Stack, get

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("llamacpp"),
    pytest.mark.long(reason="a real engine on one thread, whose steps take seconds on a busy machine"),
]

REQUESTS, TOKENS = 3, 8


def test_what_the_engine_counts_is_what_the_records_say(stack: Stack) -> None:
    deadline = time.monotonic() + 60
    # Counting begins with the first scrape: what the engine did before is not ours.
    while get(f"{stack.admin}/backends")["backends"][0]["scrapes"] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "max_tokens": TOKENS}
    body |= {"stream": True, "ignore_eos": True, "cache_prompt": False}
    for _ in range(REQUESTS):
        asked = urllib.request.Request(
            f"{stack.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            answer.read()
    records = stack.wait_for_records(REQUESTS)
    assert [record["outcome"] for record in records] == ["completed"] * REQUESTS
    while True:
        (backend,) = get(f"{stack.admin}/backends?window=300")["backends"]
        signals, counts = backend["window"]["signals"], backend["counts"]
        if signals["generation_tokens"]["n"] >= REQUESTS * TOKENS and counts["gateway"]["completed"] == REQUESTS:
            break
        assert time.monotonic() < deadline, (signals, counts)
        time.sleep(0.1)
    assert signals["generation_tokens"]["n"] == sum(record["output_tokens"] for record in records)
    assert signals["prompt_tokens"]["n"] == sum(record["prompt_tokens"] for record in records)
    decode = signals["decode_token"]
    assert (decode["n"], decode["of"]) == (signals["generation_tokens"]["n"], "tokens")
    assert decode["mean_ms"] > 0
    assert not any("p99_ms" in signal for signal in signals.values()), "it keeps no histogram, so there is no quantile"
    assert counts["engine"]["finished"] is None, "it counts no requests"
    assert backend["models"] == [MODEL]
    assert backend["frozen"] == ""
