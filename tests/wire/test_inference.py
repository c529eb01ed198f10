"""The gateway infers where its engine reports nothing, and leaves alone what is reported."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.gateway.config import config_from
from tailrace.model.errors import ConfigError
from tests.children import Child, tailrace_command
from tests.wire.inference_load import Outcome, load, stated_ns
from tests.wire.stand import run

ASKED = [
    (0.05, {"messages": [{"role": "user", "content": f"{n:04d} " * 200}], "max_tokens": 24, "stream": True})
    for n in range(40)
]


def engine(*more: str) -> Child:
    return Child(tailrace_command("engine", "--port", "0", "--time-scale", "2", "--json", *more))


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    child = engine("--no-request-metrics")
    try:
        yield child.wait_ready(30).url
    finally:
        child.kill()


def through(url: str, **more: Any) -> Outcome:
    out: list[Outcome] = []

    async def test() -> None:
        out.append(await load(url, ASKED, tells='"metrics"', **more))

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
    assert view["asked"] >= 30
    shown = [one.record for one in told if one.record.prefill_ns is not None]
    assert len(shown) >= 15
    for record in shown:
        assert record.stage_sources["prefill"].startswith("inferred(")
        assert record.stage_sources["queue.engine"] == record.stage_sources["prefill"]
        assert stated_ns(record, "prefill") >= 5_000_000
        assert record.encode_ns is None
        assert record.preprocess_ns is None


def test_nothing_is_shown_below_the_quality_asked_for(silent: str):
    told, view = through(silent, inference={"error_share": 0.0, "error_floor": "1ms"})
    assert view["asked"] >= 30
    assert view["shown"] == 0
    assert all(one.record.prefill_ns is None for one in told)
    assert all("unattributed" in one.record.stage_sources for one in told)


def test_switched_off(silent: str):
    told, view = through(silent, inference={"enabled": False})
    assert (view["enabled"], view["asked"]) == (False, 0)
    assert all(one.record.prefill_ns is None for one in told)


def test_an_engine_that_reports_is_not_second_guessed():
    child = engine()
    try:
        told, view = through(child.wait_ready(30).url, engine="auto")
    finally:
        child.kill()
    assert view["asked"] == view["shown"] == 0
    sources = {one.record.stage_sources["prefill"].partition("(")[0] for one in told}
    assert sources == {"reported"}


def test_a_share_is_a_share():
    raw = {"backends": [{"url": "http://127.0.0.1:9"}], "inference": {"error_share": 15}}
    with pytest.raises(ConfigError, match="no share"):
        config_from(raw, where="test")
