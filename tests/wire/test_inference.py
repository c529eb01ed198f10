"""The gateway infers where its engine reports nothing, and leaves alone what is reported."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
from tailrace.model.errors import ConfigError
from tailrace.model.record import broken_invariants
from tests.children import Child, tailrace_command
from tests.wire.inference_load import Outcome, load, stated_ns
from tests.wire.stand import Records, run

ASKED = [
    (0.02, {"messages": [{"role": "user", "content": f"{n:04d} " * 200}], "max_tokens": 24, "stream": True})
    for n in range(34)
]
WITH_USAGE = [(pause, {**body, "stream_options": {"include_usage": True}}) for pause, body in ASKED]
"""The client gets the event with the engine's account, too."""


def engine(*more: str) -> Child:
    return Child(tailrace_command("engine", "--port", "0", "--time-scale", "2", "--json", *more))


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    child = engine("--no-request-metrics")
    try:
        yield child.wait_ready(30).url
    finally:
        child.kill()


def through(url: str, asked: list[tuple[float, dict[str, Any]]] = ASKED, **more: Any) -> Outcome:
    out: list[Outcome] = []

    async def test() -> None:
        out.append(await load(url, asked, tells='"metrics"', **more))

    run(test())
    return out[0]


def test_an_engine_can_be_told_not_to_say(silent: str):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    asked = urllib.request.Request(f"{silent}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(asked, timeout=10) as answer:
        said = json.loads(answer.read())
    assert said["usage"]["completion_tokens"] == 2
    assert "metrics" not in said


def test_stages_of_a_silent_engine_are_inferred_and_labelled(silent: str):
    # Its own adapter finds no report: nothing else is needed. The quality is set so low that a busy machine passes.
    told, view = through(silent, engine="auto", inference={"error_share": 1.0, "error_floor": "1s"})
    assert view["asked"] >= 25
    shown = [one.record for one in told if one.record.prefill_ns is not None]
    assert len(shown) >= 10
    for record in shown:
        assert record.stage_sources["prefill"].startswith("inferred(")
        assert record.stage_sources["queue.engine"] == record.stage_sources["prefill"]
        assert stated_ns(record, "prefill") >= 5_000_000
        assert record.encode_ns is None
        assert record.preprocess_ns is None


def test_nothing_is_shown_below_the_quality_asked_for(silent: str):
    told, view = through(silent, inference={"error_share": 0.0, "error_floor": "1ms"})
    assert view["asked"] >= 25
    assert view["shown"] == 0
    assert all(one.record.prefill_ns is None for one in told)
    assert all("unattributed" in one.record.stage_sources for one in told)


def test_switched_off(silent: str):
    told, view = through(silent, inference={"enabled": False})
    assert (view["enabled"], view["asked"]) == (False, 0)
    assert all(one.record.prefill_ns is None for one in told)


def test_an_engine_that_reports_is_not_second_guessed_and_its_stages_are_exact():
    child = engine()
    try:
        told, view = through(child.wait_ready(30).url, WITH_USAGE, engine="auto")
    finally:
        child.kill()
    assert view["asked"] == view["shown"] == 0
    sources = {one.record.stage_sources["prefill"].partition("(")[0] for one in told}
    assert sources == {"reported"}
    assert len(told) == len(ASKED)
    for record, event in told:
        said = event["metrics"]
        # To the nanosecond that a float of milliseconds holds. A cut to what our clock saw would say so.
        assert record.queue_engine_ns == pytest.approx(said["queue_time_ms"] * 1e6, abs=2)
        assert record.prefill_ns == pytest.approx(said["time_to_first_token_ms"] * 1e6, abs=2)
        assert broken_invariants(record) == []
    assert max(record.queue_engine_ns for record, _ in told) > 0


def test_requests_of_others_are_noticed_by_the_engines_own_count(silent: str):
    out: list[Outcome] = []
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2000, "ignore_eos": True, "stream": True}

    async def stranger(session: aiohttp.ClientSession) -> None:
        async with session.post(f"{silent}/v1/chat/completions", json=body) as answer:
            async for _ in answer.content:
                pass

    async def test() -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            others = [group.create_task(stranger(session)) for _ in range(5)]
            out.append(await load(silent, ASKED, tells='"metrics"', engine="auto", scrape={"period": "100ms"}))
            for other in others:
                other.cancel()

    run(test())
    assert out[0].view["partial"] == "the engine counts more requests than ours"
    idle = [one.record for one in out[0].told if "idle engine" in one.record.stage_sources.get("prefill", "")]
    assert not idle


def test_one_of_several_workers_does_not_take_an_empty_table_for_an_idle_engine():
    async def test() -> None:
        gateway = Gateway(
            config_from({"listen": "127.0.0.1:0", "backends": [{"url": "http://127.0.0.1:9"}]}, where="test"), Records()
        )
        await gateway.start(scrape=False)
        try:
            assert "worker" in gateway.live()["inference"]["partial"]
        finally:
            await gateway.close(0)

    run(test())


def test_a_share_is_a_share():
    raw = {"backends": [{"url": "http://127.0.0.1:9"}], "inference": {"error_share": 15}}
    with pytest.raises(ConfigError, match="no share"):
        config_from(raw, where="test")
