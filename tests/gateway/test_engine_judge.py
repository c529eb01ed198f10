"""What the scrapes of one engine add up to, without a socket."""

from __future__ import annotations

import logging

import pytest

from tailrace.engines.prometheus_text import parse_scrape
from tailrace.gateway.engine_judge import EngineJudge
from tailrace.model.engine_state import EngineState
from tailrace.model.thresholds import S

TEXT = """
process_start_time_seconds {start}
vllm:generation_tokens_total {tokens}
vllm:time_to_first_token_seconds_bucket{{le="0.4"}} {met}
vllm:time_to_first_token_seconds_bucket{{le="0.6"}} {tokens}
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {tokens}
vllm:time_to_first_token_seconds_sum {tokens}
"""


def fed(*told: tuple[int, int], judge: EngineJudge | None = None) -> tuple[EngineJudge, list[int]]:
    judge = judge or EngineJudge("one", frozen_after_ns=10 * S)
    restarts: list[int] = []
    judge.on_restart = lambda: restarts.append(1)
    for second, (start, tokens) in enumerate(told):
        scrape = parse_scrape(TEXT.format(start=start, tokens=tokens, met=tokens // 2))
        judge.feed(scrape, EngineState(at_ns=second * S, running=1, waiting=0), second * S)
    return judge, restarts


def test_engines_that_answer_in_turn_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        judge, restarts = fed(*((second % 2, 100 + second) for second in range(20)))
    assert len(restarts) == 1
    assert sum("has restarted" in record.message for record in caplog.records) == 1
    window = judge.window()
    assert window is not None
    assert "in turn" in window.notes[0]


def test_the_view_has_window_counts_and_objectives() -> None:
    judge = EngineJudge("one", frozen_after_ns=10 * S)
    counted = {"completed": 0}
    judge.tally = lambda: dict(counted)
    assert judge.view(60 * S, now=0, engine="vllm", objectives=[]) == {"window": None}
    fed((1, 0), judge=judge)
    assert judge.view(60 * S, now=0, engine="vllm", objectives=[]) == {"window": None}, "one reading is no window"
    counted["completed"] = 7
    scrape = parse_scrape(TEXT.format(start=1, tokens=10, met=5))
    judge.feed(scrape, None, 5 * S)
    view = judge.view(60 * S, now=6 * S, engine="vllm", objectives=[("ttft_p99", "ttft", S // 2)])
    assert (view["window"]["s"], view["window"]["age_ms"]) == (5.0, 1000.0)
    assert view["window"]["signals"]["ttft"]["n"] == 10
    assert view["counts"]["gateway"]["completed"] == 7
    (objective,) = view["objectives"]
    assert objective["attainment"] == [0.5, 1.0]
    assert objective["remedy"].startswith("--custom-histogram-buckets")


def test_a_stand_still_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        judge, _ = fed(*((1, 5) for _ in range(30)))
        assert judge.frozen is not None
        judge.late(31 * S)
        judge.feed(parse_scrape(TEXT.format(start=1, tokens=6, met=3)), EngineState(at_ns=0, running=1), 32 * S)
    assert judge.frozen is None
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "backend one is frozen",
        "backend one is not frozen any more",
    ]
