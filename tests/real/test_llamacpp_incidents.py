"""Incidents made on a real llama.cpp: the gateway's own records must lead to what was done to it.

They need a machine that does nothing else: on a busy one the first answer is FE_CPU_STARVED, and rightly so.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.real.incident_stand import chat, document, incident, keep_asking, read_slowly

pytestmark = [
    pytest.mark.tier("ci"),
    pytest.mark.needs("llamacpp"),
    pytest.mark.long("a real engine on one thread serves half a minute of traffic", timeout=180),
]


def codes(told: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in told["findings"]]


def leads_to(told: dict[str, Any], *accepted: str) -> None:
    assert codes(told), told["summary"]
    assert codes(told)[0] in accepted, [(one["code"], one["level"], one["statement"]) for one in told["findings"]]
    first = told["findings"][0]
    assert first["evidence"]
    assert first["disproof"]


def test_one_long_prompt_in_a_big_step_stops_every_stream(tmp_path):
    with incident(tmp_path, engine=("--slots", "8", "--batch", "512")) as stand:
        documents = threading.Thread(
            target=keep_asking, args=(stand.url, document), kwargs={"clients": 1, "requests": 6, "every_s": 5.0}
        )
        documents.start()
        keep_asking(stand.url, lambda number: chat(number, tokens=40), clients=3, requests=36)
        documents.join()
        leads_to(stand.diagnosis(), "SCHED_PREFILL_STEALS_DECODE", "SCHED_HOL_LONG_PREFILL")


def test_more_threads_than_processors(tmp_path):
    """llama.cpp's threads spin for each other: eight on two processors wait for the one that is not running."""
    with incident(tmp_path / "one", engine=("--slots", "4", "--threads", "1")) as stand:
        keep_asking(stand.url, chat, clients=2, requests=40)
        before = stand.records()
    with incident(tmp_path / "eight", engine=("--slots", "4", "--threads", "8")) as stand:
        keep_asking(stand.url, chat, clients=2, requests=40)
        told = stand.diagnosis(before=before)
    leads_to(told, "FE_CPU_STARVED")


def test_all_slots_are_busy(tmp_path):
    with incident(tmp_path, engine=("--slots", "2")) as stand:
        keep_asking(stand.url, lambda number: chat(number, tokens=24), clients=10, requests=50)
        leads_to(stand.diagnosis(), "SCHED_QUEUE_SATURATION", "SCHED_INSTANCE_LIMIT", "TUNE_NOT_SCALE")


def test_the_prompt_cache_is_lost(tmp_path):
    """The same conversations again and again; then somebody switches the cache off."""

    def turn(number: int, *, cached: bool) -> dict[str, Any]:
        return document(0, words=240, tokens=4, cache_prompt=cached)

    with incident(tmp_path, engine=("--slots", "1")) as stand:
        keep_asking(stand.url, lambda number: turn(number, cached=True), clients=1, requests=30)
        before = stand.records().rename(tmp_path / "before.jsonl")
    with incident(tmp_path / "after", engine=("--slots", "1")) as stand:
        keep_asking(stand.url, lambda number: turn(number, cached=False), clients=1, requests=24)
        leads_to(stand.diagnosis(before=before), "MIX_CACHE_MISS", "LB_CACHE_AFFINITY_LOST")


def test_a_client_reads_slowly(tmp_path):
    # At 10 kB/s the client is slower than any engine: a line of these is 2 kB, and slow machines make twenty a second.
    with incident(tmp_path, engine=("--slots", "4")) as stand:
        wordy = {"logprobs": True, "top_logprobs": 20}
        slow = [
            threading.Thread(
                target=read_slowly,
                args=(stand.url, chat(number, tokens=120, **wordy)),
                kwargs={"every_s": 0.2, "at_once": 2000},
            )
            for number in range(3)
        ]
        for thread in slow:
            thread.start()
        keep_asking(stand.url, lambda number: chat(number, tokens=16), clients=1, requests=30)
        for thread in slow:
            thread.join()
        leads_to(stand.diagnosis(), "CLIENT_SLOW_READER")


@pytest.mark.needs("nginx")
def test_a_proxy_before_the_engine_buffers(tmp_path):
    # The second hop swallows llama.cpp's wish that nobody buffers (X-Accel-Buffering: no); HTTP/1.0 is the default.
    proxy = "proxy_buffering on; proxy_buffers 8 4k;"
    with incident(tmp_path, engine=("--slots", "4"), proxy=proxy) as stand:
        keep_asking(stand.url, lambda number: chat(number, tokens=64), clients=2, requests=24)
        leads_to(stand.diagnosis(), "GW_PROXY_BUFFERING")


def test_clients_leave_by_the_dozen(tmp_path):
    with incident(tmp_path, engine=("--slots", "4")) as stand:
        keep_asking(
            stand.url,
            lambda number: chat(number, words=60, tokens=64),
            clients=6,
            requests=60,
            leave=lambda number: None if number % 4 == 0 else 12,
        )
        leads_to(stand.diagnosis(), "CANCEL_STORM")


def test_a_healthy_engine_is_left_alone(tmp_path):
    """The same stand without an incident: nothing is named."""
    with incident(tmp_path, engine=("--slots", "4")) as stand:
        keep_asking(stand.url, lambda number: chat(number, tokens=16), clients=1, requests=30)
        told = stand.diagnosis()
    assert [one["code"] for one in told["findings"] if one["layer"] != "validity"] == [], told["summary"]
