"""Messages between a supervisor and its workers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.app.fleet_views import merged
from tailrace.app.worker_link import Answer, Ask, Counted, Lack, Link, ToWorker, decode_config, encode_config
from tailrace.gateway.config import Config
from tailrace.gateway.config_sections import LaneConfig
from tailrace.gateway.config_values import Duration
from tailrace.govern.shared_state import Report
from tailrace.model.errors import ConfigError


@given(st.integers(0, 10**15))
def test_a_configuration_arrives_to_the_nanosecond(ns: int) -> None:
    config = Config.for_upstream("http://127.0.0.1:1")
    config.lanes = [LaneConfig(name="a", running=3, objectives={"ttft_p99": Duration(ns)})]
    config.drain = Duration(ns)
    out = decode_config(encode_config(config))
    assert out == config
    assert isinstance(out.drain, Duration)


@given(st.data())
def test_messages_are_whole_however_the_bytes_are_cut(data: st.DataObject) -> None:
    sent = bytearray()
    got: list[Any] = []

    class Wire:
        def write(self, part: bytes) -> None:
            sent.extend(part)

        def is_closing(self) -> bool:
            return False

    async def test() -> None:
        ours = Link(ToWorker, got.append, lambda: None)
        theirs = Link(ToWorker, got.append, lambda: None)
        ours.connection_made(Wire())  # type: ignore[arg-type]
        wanted = data.draw(st.lists(st.builds(Ask, st.integers(0, 9), st.text(max_size=300)), max_size=6))
        for message in wanted:
            ours.send(message)
        at = 0
        while at < len(sent):
            size = data.draw(st.integers(1, 200))
            theirs.data_received(bytes(sent[at : at + size]))
            at += size
        assert got == wanted

    asyncio.run(test())


def test_the_end_of_either_side_is_noticed_and_the_last_words_arrive() -> None:
    async def test() -> None:
        a, b = socket.socketpair()
        heard: list[Any] = []
        gone = asyncio.Event()
        ours = Link(Answer | Lack | Counted, heard.append, gone.set)
        theirs = Link(ToWorker, heard.append, lambda: None)
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: ours, sock=a)
        await loop.create_unix_connection(lambda: theirs, sock=b)
        reports = [Report(lane="x", number=n, heard=0) for n in range(5000)]
        theirs.send(Lack(reports))
        await theirs.drained()
        async with asyncio.timeout(2):
            await gone.wait()
        assert heard == [Lack(reports)]
        ours.send(Lack([]))  # to nobody: no error

    asyncio.run(test())


def test_numbers_of_processes_add_up_or_the_worst_counts() -> None:
    one = {"in_flight": 2, "loop_lag_ms": 3.0, "lanes": {"a": {"running": 1, "running_limit": 4, "predicted": None}}}
    two = {"in_flight": 1, "loop_lag_ms": 9.0, "lanes": {"a": {"running": 2, "running_limit": 4}, "b": {"running": 1}}}
    assert merged([one, two]) == {
        "in_flight": 3,
        "loop_lag_ms": 9.0,
        "lanes": {"a": {"running": 3, "running_limit": 4, "predicted": None}, "b": {"running": 1}},
    }
    assert one["lanes"]["a"]["running"] == 1, "what was said is not changed"  # type: ignore[index]


def test_errors_of_predictions_are_weighted_and_not_added_up() -> None:
    one = {"lanes": {"a": {"predicted_wait_error": {"median": 0.1, "coverage": 0.8, "bias": 0.0, "n": 30}}}}
    two = {"lanes": {"a": {"predicted_wait_error": {"median": 0.3, "coverage": 0.6, "bias": 0.2, "n": 10}}}}
    none = {"lanes": {"a": {"predicted_wait_error": {"median": None, "coverage": None, "bias": None, "n": 0}}}}
    together = merged([none, one, two])["lanes"]["a"]["predicted_wait_error"]
    assert together == {
        "median": pytest.approx(0.15),
        "coverage": pytest.approx(0.75),
        "bias": pytest.approx(0.05),
        "n": 40,
    }


@pytest.mark.parametrize("workers", [0, -1, 129])
def test_an_impossible_number_of_workers_is_refused(workers: int) -> None:
    from tailrace.app.serve_settings import settings_from

    with pytest.raises(ConfigError, match="workers"):
        settings_from(upstream="http://127.0.0.1:1", workers=workers)
