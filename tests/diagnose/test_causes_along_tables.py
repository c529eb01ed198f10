"""Causes along the rows of a table or a series: length, throttling, replicas, classes, collectors, windows."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.diagnose.evidence_texts import codes, facts, found

Ask = Callable[..., list[str]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Texts of several files -> the codes found, the surest first."""
    return partial(codes, tmp_path)


LENGTHS = "| answer length (output tokens) | ITL p50 (ms) | detok CPU per token (ms) | running |\n|---|---|---|---|\n"


@pytest.mark.parametrize(("rows", "grows"), [
    ([(3000, 11, 1.2, 2), (12000, 15, 4.9, 2), (50000, 31, 20.1, 2)], True),
    ([(3000, 11, 1.2, 2), (12000, 11.1, 1.3, 2), (50000, 11.2, 1.2, 2)], False),
    ([(100, 11, 1.2, 2), (200, 15, 4.9, 2), (400, 31, 20.1, 2)], False),
    ([(3000, 11, 1.2, 2), (12000, 15, 4.9, 8), (50000, 31, 20.1, 30)], False),
])  # fmt: skip
def test_a_step_that_costs_more_the_longer_the_answer_is(ask: Ask, rows: list[tuple[float, ...]], grows: bool) -> None:
    table = LENGTHS + "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)
    assert ("FE_DETOKENIZE_GROWTH" in ask(t_md=table)) is grows


def test_without_the_length_nothing_grows_with_it(ask: Ask) -> None:
    table = "| run | ITL p50 (ms) |\n|---|---|\n| a | 11 |\n| b | 15 |\n| c | 31 |\n"
    assert "FE_DETOKENIZE_GROWTH" not in ask(t_md=table)


def _throttling(shares: list[float], gaps: list[float], running: list[int]) -> str:
    rows = [f"{n * 20},{s},{g},{r}" for n, (s, g, r) in enumerate(zip(shares, gaps, running, strict=True))]
    return "t_s,throttled_pct,itl_ms,running\n" + "\n".join(rows) + "\n"


def test_tokens_are_slow_in_the_readings_that_are_throttled(ask: Ask) -> None:
    assert ask(s_csv=_throttling([1, 2, 44, 51, 2], [20, 20, 41, 45, 21], [9] * 5))[0] == "FE_CPU_STARVED"


@pytest.mark.parametrize("table", [
    _throttling([1, 2, 44, 51, 2], [20, 20, 20, 21, 21], [9] * 5),
    _throttling([1, 2, 4, 5, 2], [20, 20, 41, 45, 21], [9] * 5),
    _throttling([1, 2, 44, 51, 2], [20, 20, 41, 45, 21], [9, 9, 22, 25, 9]),
    _throttling([1, 2, 44, 51, 2], [20, 20, 41, 45, 21], [9] * 5).replace("throttled", "gpu_throttled"),
    _throttling([1, 2, 44, 51, 2], [20, 20, 41, 45, 21], [9] * 5).replace("throttled", "thermal_throttle"),
    _throttling([1, 2, 44, 51, 2], [20, 20, 41, 45, 21], [9] * 5).replace("throttled", "requests_throttled"),
    "t_s,itl_ms,running\n0,20,9\n20,41,9\n40,20,9\n60,41,9\n",
])  # fmt: skip
def test_throttling_that_slows_nobody_or_a_fuller_batch_is_no_starved_processor(ask: Ask, table: str) -> None:
    assert "FE_CPU_STARVED" not in ask(s_csv=table)


def _served(names: list[str], slow: str, late: int) -> str:
    rows = []
    for n in range(24):
        name = names[n % len(names)]
        first = n * 400 + (late if name == slow else 150)
        rows.append({"id": f"k{n}", "replica": name, "t_send_ms": n * 400, "t_first_ms": first,
                     "t_last_ms": first + 900, "prompt_tokens": 300, "output_tokens": 40, "status": "ok"})  # fmt: skip
    return "\n".join(map(json.dumps, rows))


def test_few_requests_tell_the_replica_that_has_them_all(ask: Ask) -> None:
    assert "LB_SKEW" in ask(r_jsonl=_served(["n1", "n1", "n1", "n2", "n3", "n4"], "n1", 5200))


@pytest.mark.parametrize(("names", "late"), [(["n1", "n2", "n3", "n4"], 150), (["n1", "n1", "n2", "n3"], 150)])
def test_even_or_fast_replicas_are_not_skewed(ask: Ask, names: list[str], late: int) -> None:
    assert "LB_SKEW" not in ask(r_jsonl=_served(names, "n1", late))


CLASSES = (
    "| kind | n | TTFT p99 (s) |\n|---|---|---|\n| short (400 tokens) | 700 | {} |\n| long ({}k tokens) | 700 | {} |\n"
)


def test_classes_that_tell_their_length_in_their_name(ask: Ask) -> None:
    assert "SCHED_HOL_LONG_PREFILL" in ask(t_md=CLASSES.format(12.1, 70, 12.8))


@pytest.mark.parametrize("row", [(0.4, 70, 12.8), (12.1, 1, 12.8)])
def test_classes_that_differ_or_are_of_one_length_hold_nobody_up(ask: Ask, row: tuple[float, int, float]) -> None:
    assert "SCHED_HOL_LONG_PREFILL" not in ask(t_md=CLASSES.format(*row))


COLLECTOR = "| collector | ITL p50 (ms) | ITL p99 (ms) |\n|---|---|---|\n| {} | {} | {} |\n| {} | {} | {} |\n"


def test_a_collector_that_was_frozen_takes_the_pauses_with_it(ask: Ask) -> None:
    table = COLLECTOR.format("gc default", 19, 230, "gc frozen after start", 19, 27)
    assert ask(t_md=table)[0] == "FE_GC_PAUSE"


@pytest.mark.parametrize("row", [
    ("gc default", 19, 30, "gc frozen after start", 19, 27), ("old build", 19, 230, "new build", 19, 27),
    ("gc default", 60, 230, "gc frozen after start", 19, 27),
    ("gen2 slot, higher", 19, 230, "gen4 without riser", 19, 27),
])  # fmt: skip
def test_no_pause_no_collector_or_another_usual_gap_is_no_collection(ask: Ask, row: tuple[str | int, ...]) -> None:
    assert "FE_GC_PAUSE" not in ask(t_md=COLLECTOR.format(*row))


def _scaled(ready: list[int], late: list[float], rate: list[int]) -> str:
    wanted = [3, 3, 5, 5, 5, 5]
    rows = [f"{n * 240},{w},{r},{p},{q}" for n, (w, r, p, q) in enumerate(zip(wanted, ready, late, rate, strict=True))]
    return "t_s,desired_replicas,ready_replicas,p95_ttft_s,rps\n" + "\n".join(rows) + "\n"


def test_replicas_that_are_ready_when_it_is_over(ask: Ask) -> None:
    late = [1.4, 8.8, 9.1, 9.3, 9.2, 9.0]
    assert ask(s_csv=_scaled([3, 3, 3, 3, 3, 5], late, [20] * 6))[0] == "SCALE_OUT_TOO_SLOW"


def test_some_of_the_wanted_replicas_are_not_all_of_them(tmp_path: Path) -> None:
    late = [1.4, 8.8, 9.1, 9.3, 9.2, 9.0]
    finding = found(tmp_path, "SCALE_OUT_TOO_SLOW", s_csv=_scaled([3, 3, 3, 4, 4, 4], late, [20] * 6))
    assert finding is not None
    assert "are not all ready 12 min later" in finding.statement


@pytest.mark.parametrize("table", [
    _scaled([3, 3, 3, 3, 3, 5], [1.4, 8.8, 9.1, 9.3, 9.2, 9.0], [20, 30, 33, 34, 34, 34]),
    _scaled([3, 3, 5, 5, 5, 5], [1.4, 1.5, 1.4, 1.4, 1.4, 1.4], [20] * 6),
    "t_s,desired_replicas,p95_ttft_s,rps\n0,3,1.4,20\n240,3,8.8,20\n480,5,9.2,20\n720,5,9.0,20\n960,5,9.1,20\n",
    "t_s,ready_replicas,p95_ttft_s,rps\n0,3,1.4,20\n240,3,9.1,20\n480,3,9.2,20\n720,5,9.0,20\n",
])  # fmt: skip
def test_more_load_or_no_rise_or_nothing_wanted_is_no_late_replica(ask: Ask, table: str) -> None:
    assert "SCALE_OUT_TOO_SLOW" not in ask(s_csv=table)


def _batched(queue: float, **stated: object) -> dict[str, str]:
    rows = [
        {"id": f"b{n}", "t_send_ms": n * 2000, "t_first_ms": n * 2000 + queue + 12, "t_last_ms": n * 2000 + queue + 12,
         "prompt_tokens": 20, "output_tokens": 1, "status": "ok", "stage_ms": {"queue": queue + n % 2, "prefill": 11}}
        for n in range(8)
    ]  # fmt: skip
    return {"r_jsonl": "\n".join(map(json.dumps, rows)), "f_json": facts(**stated)}


def test_requests_that_wait_the_batchers_window(ask: Ask) -> None:
    assert "SCHED_BATCHER_WAIT" in ask(**_batched(150, max_queue_delay_ms=150, offered_rps=0.5))


def test_requests_that_wait_another_time_or_without_a_window(ask: Ask) -> None:
    assert "SCHED_BATCHER_WAIT" not in ask(**_batched(40, max_queue_delay_ms=150, offered_rps=0.5))
    assert "SCHED_BATCHER_WAIT" not in ask(**_batched(150, offered_rps=0.5))


def test_a_lock_in_a_series_in_which_the_load_was_raised(ask: Ask) -> None:
    head = "t_s,inflight_client,preprocess_ms,host_cpu_util_pct\n"
    rows = [(0, 1, 15, 4), (20, 3, 46, 5), (40, 6, 91, 5), (60, 12, 178, 5)]
    flat = [(at, load, 15, cpu) for at, load, _, cpu in rows]
    assert "LOCK_CONTENTION" in ask(s_csv=head + "\n".join(",".join(map(str, row)) for row in rows))
    assert "LOCK_CONTENTION" not in ask(g_csv=head + "\n".join(",".join(map(str, row)) for row in flat))


POLICY = (
    "| policy | concurrency | output tok/s | TPOT p99 (ms) |\n|---|---|---|---|\n"
    "| {} | 48 | {} | {} |\n| {} | 48 | {} | {} |\n"
)


def _policies(*cells: object, changed: str = "scheduler policy") -> dict[str, str]:
    return {"t_md": POLICY.format(*cells), "f_json": facts(changed=changed)}


def test_a_policy_that_may_evict_loses_throughput_and_the_tail(ask: Ask) -> None:
    assert "SCHED_KV_PREEMPTION" in ask(**_policies("never_evict", 300, 90, "fill_up", 190, 610))


def test_policies_that_are_alike_or_evict_nothing_preempt_nobody(ask: Ask) -> None:
    assert "SCHED_KV_PREEMPTION" not in ask(**_policies("never_evict", 300, 90, "fill_up", 295, 95))
    assert "SCHED_KV_PREEMPTION" not in ask(**_policies("old", 300, 90, "new", 190, 610))
    assert "SCHED_KV_PREEMPTION" not in ask(**_policies("never_evict", 300, 90, "fill_up", 190, 610, changed="host"))
