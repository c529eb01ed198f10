"""Engines side by side."""

import numpy as np

from tailrace.analyze.compare import prepare
from tailrace.analyze.engine_view import engine_view
from tailrace.cli.compare_print import engine_cells, engine_remark
from tailrace.model.conditions import Conditions
from tailrace.model.engine_state import EngineState
from tailrace.model.outcome import Reason
from tests.analyze.tables import request, run


def engine(seed, *, vantage="gateway", failed=0, **header):
    rng = np.random.default_rng(seed)
    out = [
        request(
            i, at_ms=i * 50.0, queue_ms=float(rng.exponential(20)), prefill_ms=float(rng.lognormal(4, 0.2)),
            gaps_ms=[15.0] * 4, vantage=vantage,
        )
        for i in range(600)
    ]  # fmt: skip
    for i in range(failed):
        out[i] = request(i, at_ms=i * 50.0, reason=Reason.QUEUE_FULL, vantage=vantage)
    return run(out, **header)


def rows(view, group):
    return {row.name: row for row in view.rows if row.group == group}


def test_a_stage_that_one_engine_cannot_report_is_not_comparable_and_never_zero():
    view = engine_view({"vllm": engine(1), "triton": engine(2, vantage="client")})
    stages = rows(view, "stages")
    queue = stages["queue p99"]
    assert queue.values[0] > 0
    assert queue.values[1] is None
    assert not queue.comparable
    assert queue.why == "triton does not report it"
    assert stages["decode p99"].comparable
    assert not any(row.values[1] == 0 for row in stages.values())
    assert {name for name, row in stages.items() if row.comparable} == {"decode p50", "decode p99"}


def test_a_quantile_that_n_does_not_support_is_said_to_be_so():
    few = run(engine(3).records[:200])
    row = rows(engine_view({"a": engine(1), "b": few}), "latency")["TTFT p99"]
    assert row.values[1] is None
    assert not row.comparable
    assert row.why == "b has 200 values, 500 support it"


def test_failures_throughput_and_conditions_stand_beside_each_other():
    view = engine_view(
        {
            "vllm": engine(1, conditions=Conditions(engine="vllm", engine_version="0.33.0", gpu=["A100"])),
            "sglang": engine(2, failed=30, conditions=Conditions(engine="sglang")),
        }
    )
    assert rows(view, "conditions")["engine version"].values == ["0.33.0", "unknown"]
    assert rows(view, "conditions")["gpu"].values == ["A100", "unknown"]
    assert rows(view, "failures")["not completed"].values == [0.0, 5.0]
    refused = rows(view, "failures")["rejected (queue full) in unknown"]
    assert refused.values == [0.0, 30.0]  # known to be none
    assert refused.comparable
    assert all(value > 0 for value in rows(view, "throughput")["output tokens"].values)


def test_resources_come_from_the_engines_metrics_or_from_nobody():
    states = [EngineState(at_ns=i, running=i, kv_usage=i / 10, preemptions_total=2.0 * i) for i in range(5)]
    known = prepare(engine(1), "vllm")._replace(states=tuple(states))
    unknown = prepare(engine(2), "triton")
    resources = rows(engine_view({"vllm": known, "triton": unknown}), "resources")
    assert resources["running requests, mean"].values == [2.0, None]
    assert resources["KV cache in use, most"].values == [40.0, None]
    assert resources["preemptions"].values == [8.0, None]
    assert not resources["preemptions"].comparable


def test_other_work_is_said():
    def of(prompt):
        return run([request(i, at_ms=i * 50.0, prompt=prompt) for i in range(600)])

    view = engine_view({"a": of(200), "b": of(2000)})
    assert any("b did not do the work of a" in text for text in view.checks)


def test_too_few_requests_are_told_from_what_an_engine_does_not_report():
    few = run(engine(3).records[:200])
    view = engine_view({"a": engine(1), "b": few, "c": engine(2, vantage="client")})
    thin = rows(view, "latency")["TTFT p99"]
    assert engine_cells(view.engines, thin)[1] == "n ≥ 500"
    assert engine_remark(thin) == "not comparable: too few requests"
    both = rows(view, "stages")["queue p99"]
    assert engine_cells(view.engines, both)[1:] == ["n ≥ 500", "not reported"]
    assert engine_remark(both).startswith("not comparable: b has")
    assert engine_cells(view.engines, rows(view, "work")["requests"])[1] == "200"
