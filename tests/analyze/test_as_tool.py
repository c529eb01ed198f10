"""Another tool's definitions on runs that were computed by hand, and on the truth server's own account of its plans."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tailrace.analyze.as_tool import TOOLS, as_tool, their_values
from tailrace.model.errors import InputError
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.run_file import Run, RunHeader, RunTrailer
from tests.diagnose.planned_streams import plan_record, planned, truth_module

K = EventKind
KINDS = {
    "role": K.ROLE, "empty": K.EMPTY, "ping": K.COMMENT, "token": K.CONTENT, "reasoning": K.REASONING,
    "finish": K.FINISH, "usage": K.USAGE, "done": K.DONE, "error": K.ERROR,
}  # fmt: skip


def stream(*events: tuple[float, EventKind, int], number: int = 0, **fields: Any) -> RequestRecord:
    """A request by its events: (ms, kind, tokens)."""
    at = [round(ms * 1e6) for ms, _, _ in events]
    carrying = [one for one, (_, kind, _) in zip(at, events, strict=True) if kind <= K.REFUSAL]
    content = [one for one, (_, kind, _) in zip(at, events, strict=True) if kind == K.CONTENT]
    tokens = sum(n for _, kind, n in events if kind <= K.REFUSAL)
    fields = {
        "output_tokens": tokens or None,
        "output_tokens_source": "usage",
        "outcome": OutcomeKind.COMPLETED,
        "e2e_ns": at[-1],
        "tpot_ns": round((carrying[-1] - carrying[0]) / (tokens - 1)) if tokens > 1 else None,
        **fields,
    }
    return RequestRecord(
        vantage="client",
        request_id=f"r{number}",
        start_unix_ns=10**18 + number * 10**9,
        run_offset_ns=number * 10**9,
        ttft_ns=carrying[0] if carrying else None,
        ttft_content_ns=content[0] if content else None,
        e2e_last_token_ns=carrying[-1] if carrying else None,
        timeline=Timeline(at_ns=at, kind=[int(kind) for _, kind, _ in events], tokens=[n for _, _, n in events]),
        **fields,
    )


BY_HAND = stream(
    (5, K.ROLE, -1), (10, K.EMPTY, -1), (100, K.REASONING, 1), (140, K.CONTENT, 3), (200, K.CONTENT, 2),
    (210, K.FINISH, -1), (300, K.USAGE, -1), (400, K.DONE, -1), connect_ns=7_000_000, e2e_ns=401_000_000,
)  # fmt: skip
"""Six tokens in three frames; usage 100 ms late, [DONE] 100 ms after it; the connection took 7 ms."""


def values(tool: str, name: str, *records: RequestRecord) -> list[float]:
    return their_values(tool, records or (BY_HAND,))[name].tolist()


@pytest.mark.parametrize(
    ("tool", "name", "expected"),
    [
        # The empty frame at 10 ms counts, and so does the connection.
        ("vllm", "TTFT", [17.0]),
        ("vllm", "TPOT", [(200 - 10) / 5]),
        ("vllm", "ITL", [90.0, 40.0, 60.0]),
        ("vllm", "E2EL", [207.0]),
        ("sglang", "TTFT", [107.0]),
        ("sglang", "TPOT", [(400 - 100) / 5]),
        ("sglang", "ITL", [40.0, 60.0]),
        ("sglang", "E2E Latency", [407.0]),
        ("guidellm", "time_to_first_token_ms", [100.0]),
        ("guidellm", "time_to_first_output_token_ms", [140.0]),
        ("guidellm", "inter_token_latency_ms", [100 / 5]),
        ("guidellm", "time_per_output_token_ms", [200 / 6]),
        ("guidellm", "request_latency", [400.0]),
        ("aiperf", "time_to_first_token", [107.0]),
        ("aiperf", "time_to_first_output_token", [147.0]),
        ("aiperf", "inter_token_latency", [100 / 5]),
        ("aiperf", "inter_chunk_latency", [40.0, 60.0]),
        ("aiperf", "request_latency", [207.0]),
        ("genai-perf", "time_to_first_token", [100.0]),
        ("genai-perf", "inter_token_latency", [(400 - 100) / 5]),
        ("genai-perf", "request_latency", [400.0]),
        ("inference-perf", "time_to_first_token", [140.0]),
        ("inference-perf", "time_per_output_token", [(200 - 140) / 5]),
        ("inference-perf", "normalized_time_per_output_token", [401 / 6]),
        ("inference-perf", "inter_token_latency", [0.0, 0.0, 60.0, 0.0]),
        ("inference-perf", "request_latency", [401.0]),
        ("llmperf", "ttft_s", [140.0]),
        ("llmperf", "inter_token_latency_s", [200 / 6]),
        ("llmperf", "end_to_end_latency_s", [401.0]),
        ("evalscope", "TTFT", [100.0]),
        ("evalscope", "TPOT", [(400 - 100) / 5]),
        ("evalscope", "ITL", [40.0, 60.0]),
        ("evalscope", "Latency", [400.0]),
        ("genai-bench", "ttft", [100.0]),
        ("genai-bench", "tpot", [(300 - 100) / 5]),
        ("genai-bench", "e2e_latency", [300.0]),
    ],
)
def test_each_definition_by_hand(tool: str, name: str, expected: list[float]) -> None:
    assert values(tool, name) == pytest.approx(expected)


def test_every_definition_was_computed_by_hand() -> None:
    marks = test_each_definition_by_hand.pytestmark[0].args[1]
    assert {(tool, name) for tool, name, _ in marks} == {
        (tool, one.name) for tool, form in TOOLS.items() for one in form.definitions
    }


def test_a_single_token_has_no_time_per_token() -> None:
    one = stream((100, K.CONTENT, 1), (120, K.DONE, -1))
    for tool, name in (("vllm", "TPOT"), ("sglang", "TPOT"), ("guidellm", "inter_token_latency_ms")):
        assert values(tool, name, one) == []


def test_without_usage_sglang_takes_the_length_that_was_asked_for() -> None:
    cut = stream(
        (100, K.CONTENT, 1), (120, K.CONTENT, 1), (120, K.DONE, -1), output_tokens_source="chunks", max_tokens=11
    )
    assert values("sglang", "TPOT", cut) == pytest.approx([2.0])
    assert values("evalscope", "TPOT", cut) == pytest.approx([20.0])


FAULT = stream(
    (100, K.CONTENT, 1), (120, K.CONTENT, 1), (121, K.ERROR, -1), number=1,
    outcome=OutcomeKind.FAILED, reason=Reason.ENGINE_ERROR,
)  # fmt: skip


def run(*records: RequestRecord, **header: Any) -> Run:
    return Run(
        path="x", header=RunHeader(**header), records=list(records), trailer=RunTrailer(n=len(records), duration_s=2.0)
    )


@pytest.mark.parametrize(
    ("tool", "successes"),
    [("vllm", 2), ("sglang", 2), ("aiperf", 2), ("guidellm", 1), ("evalscope", 1), ("genai-bench", 1)],
)
def test_who_takes_an_error_inside_of_a_stream_for_a_success(tool: str, successes: int) -> None:
    view = as_tool(tool, run(BY_HAND, FAULT))
    assert (view.requests, view.successes) == (2, successes)
    assert view.requests_per_s == successes / 2
    assert view.output_tokens_per_s == (6 + 2 * (successes - 1)) / 2


def test_the_peak_counts_frames() -> None:
    """Six tokens came in the first second, in three frames."""
    assert as_tool("vllm", run(BY_HAND)).peak_frames_per_s == 3
    assert as_tool("guidellm", run(BY_HAND)).peak_frames_per_s is None


def test_guidellm_weighs_a_mean_by_its_tokens() -> None:
    """Three tokens 10 ms apart and thirty-one 20 ms apart: 2 and 30 values in its summary."""
    short = stream(*((100 + 10 * i, K.CONTENT, 1) for i in range(3)))
    long = stream(*((100 + 20 * i, K.CONTENT, 1) for i in range(31)), number=1)
    one = next(m for m in as_tool("guidellm", run(short, long)).metrics if m.name == "inter_token_latency_ms")
    assert (one.n, one.p50, one.p90) == (32, pytest.approx(20.0), pytest.approx(20.0))
    assert one.mean == pytest.approx((2 * 10 + 30 * 20) / 32)
    assert one.ours is not None
    assert one.ours.mean == pytest.approx(15.0)
    # Its percentiles are values that were there: the upper one of two, not between them.
    first = next(m for m in as_tool("guidellm", run(short, long)).metrics if m.name == "request_latency")
    assert first.p90 == pytest.approx(700.0)


def test_warm_up_and_missing_timelines_are_said() -> None:
    bare = msgspec.structs.replace(stream((100, K.CONTENT, 1), (120, K.CONTENT, 1), number=1), timeline=None)
    warm = msgspec.structs.replace(BY_HAND, lane="warmup")
    assert BY_HAND.timeline is not None
    thin = msgspec.structs.replace(BY_HAND, timeline=msgspec.structs.replace(BY_HAND.timeline, thinned=3))
    assert any("1 timelines were thinned" in note for note in as_tool("vllm", run(thin)).notes)
    view = as_tool("aiperf", run(BY_HAND, bare, warm))
    assert view.requests == 2
    assert any("1 of 2 requests have no timeline" in note for note in view.notes)
    foreign = as_tool("sglang", run(BY_HAND, source="vllm", granularity="chunk"))
    assert any("vllm kept frames with tokens only" in note for note in foreign.notes)


def test_an_unknown_tool_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no view of 'wrk'.*guidellm"):
        as_tool("wrk", run(BY_HAND))


# -- the truth server's definitions


def from_plan(scenario: str, index: int) -> tuple[RequestRecord, dict[str, Any]]:
    plan = planned(scenario, 40, index=index)
    truth = truth_module("truth").stream_metrics(plan_record(plan))
    rows = [(round(event.at * 1e9) / 1e6, KINDS[event.kind], event.tokens or -1) for event in plan]
    return stream(*rows, number=index), truth


@pytest.mark.needs("shared")
@pytest.mark.parametrize(
    "scenario",
    ["plain", "mixed", "fast", "spec", "role_early", "pings", "late_usage", "late_done", "reasoning", "early_eos"],
)
def test_definitions_of_the_truth_server(scenario: str) -> None:
    pairs = [from_plan(scenario, index) for index in range(4)]
    records = [record for record, _ in pairs]
    truths = [truth for _, truth in pairs]

    def agree(tool: str, name: str, key: str) -> None:
        told = [truth[key] for truth in truths if truth[key] is not None]
        flat = np.concatenate([np.atleast_1d(one) for one in told])
        assert values(tool, name, *records) == pytest.approx(flat.tolist(), abs=1e-3), (tool, name)

    for tool, name in (("vllm", "TTFT"), ("sglang", "TTFT"), ("guidellm", "time_to_first_token_ms")):
        agree(tool, name, "ttft")
    for tool, name in (("guidellm", "time_to_first_output_token_ms"), ("inference-perf", "time_to_first_token"),
                       ("llmperf", "ttft_s")):  # fmt: skip
        agree(tool, name, "ttft_content")
    for tool, name in (("vllm", "TPOT"), ("guidellm", "inter_token_latency_ms"), ("aiperf", "inter_token_latency")):
        agree(tool, name, "tpot")
    for tool, name in (("sglang", "TPOT"), ("genai-perf", "inter_token_latency"), ("evalscope", "TPOT")):
        agree(tool, name, "tpot_done")
    agree("guidellm", "time_per_output_token_ms", "tpot_over_n")
    for tool, name in (("vllm", "ITL"), ("sglang", "ITL"), ("aiperf", "inter_chunk_latency"), ("evalscope", "ITL")):
        agree(tool, name, "gaps")
    for tool, name in (("vllm", "E2EL"), ("aiperf", "request_latency")):
        agree(tool, name, "e2e_last_token")
    for tool, name in (("sglang", "E2E Latency"), ("genai-perf", "request_latency"), ("evalscope", "Latency")):
        agree(tool, name, "e2e_done")
    if scenario != "reasoning":
        agree("inference-perf", "inter_token_latency", "gaps_raw_token")


@pytest.mark.needs("shared")
def test_what_was_measured_wrong_is_what_the_view_shows() -> None:
    """The rows of the pass list where tools are wrong: the view reproduces their numbers, not ours."""
    empty = [from_plan("empty_first", 0)[0]]
    assert values("vllm", "TTFT", *empty) == pytest.approx([10.0], abs=0.1)  # true: 300 ms
    assert values("vllm", "TPOT", *empty)[0] == pytest.approx(27.3, abs=0.2)  # true: 20 ms
    assert len(values("vllm", "ITL", *empty)) == 40  # true: 39
    late = [from_plan("late_usage", 0)[0]]
    assert values("sglang", "TPOT", *late)[0] == pytest.approx(35.4, abs=0.2)  # true: 20 ms
    assert values("sglang", "E2E Latency", *late)[0] == pytest.approx(1480, abs=10)  # true: 880 ms
    spec = [from_plan("spec", 0)[0]]
    assert values("guidellm", "time_per_output_token_ms", *spec)[0] == pytest.approx(15.6, abs=0.5)  # true: 13.3 ms
    mixed = [from_plan("mixed", index)[0] for index in range(60)]
    stalls = np.percentile(values("aiperf", "inter_chunk_latency", *mixed), 99.5)
    means = np.percentile(values("guidellm", "inter_token_latency_ms", *mixed), 99.5)
    assert stalls > 150
    assert means < 40  # stalls of 180 ms are gone from it
