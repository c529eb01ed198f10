"""Each row of the truth pass list, through the meter, by exact plan stamps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.engines.openai_compatible import OpenAICompatible
from tailrace.measure.dialects import CHAT, COMPLETIONS
from tailrace.measure.gaps import per_token_gaps, token_gaps
from tailrace.measure.meter import StreamMeter
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import OutcomeKind, Reason
from tests.measure.shared import truth_module

pytestmark = pytest.mark.needs("shared")

MS = 1_000_000
ORIGIN = 1_000_000_000_000
TOKENS = 40
SCENARIOS = (
    "plain", "mixed", "fast", "spec", "burst_write", "split", "crlf", "role_early", "empty_first", "pings",
    "late_usage", "late_done", "no_usage", "cont_usage", "usage_with_finish", "reasoning", "reasoning_alt",
    "early_eos", "one_token", "reject", "drop", "error_event",
)  # fmt: skip
# The failure scenarios hit one request in five: too few for eight.
MODELS = {
    "reject": "reject:reject_prob=0.5",
    "drop": "drop:drop_prob=0.5",
    "error_event": "error_event:error_event_prob=0.5",
}


def plans(name: str, *, chat: bool = True) -> Iterator[Any]:
    scenario = truth_module("scenario")
    model = MODELS.get(name, name)
    for index in range(8):
        yield (
            scenario.parse(model, None),
            scenario.plan(
                scenario.parse(model, None),
                7,
                index,
                chat=chat,
                max_tokens=TOKENS,
                prompt_tokens=11,
                want_usage=True,
                model=model,
            ),
        )


def reads(sc: Any, plan: Any) -> Iterator[tuple[bytes, int]]:
    """(bytes, stamp) as the truth server writes them: a split event's second half comes a moment later."""
    for event in plan.events:
        at = ORIGIN + round(event.at * 1e9)
        if sc.split_event:
            half = len(event.data) // 2
            yield event.data[:half], at - round(sc.split_gap_ms * MS)
            yield event.data[half:], at
        elif event.data:
            yield event.data, at


def measure(sc: Any, plan: Any, *, bytewise: bool, chat: bool = True) -> StreamSummary:
    meter = StreamMeter(CHAT if chat else COMPLETIONS, origin_ns=ORIGIN)
    now = ORIGIN
    for data, at in reads(sc, plan):
        now = at
        for piece in [bytes([byte]) for byte in data] if bytewise else [data]:
            meter.feed(piece, at)
    meter.end(now, clean=all(event.kind != "drop" for event in plan.events))
    return meter.summary()


def truth_of(plan: Any) -> dict[str, Any]:
    record = {
        "sent_us": [event.at * 1e6 for event in plan.events],
        "n": [event.tokens for event in plan.events],
        "kinds": [event.kind for event in plan.events],
        "body_ns": 0,
    }
    return truth_module("truth").stream_metrics(record)


def near(ns: int | None, ms: float | None) -> bool:
    """Equal but for the rounding of floating-point seconds to integer nanoseconds."""
    if ns is None or ms is None:
        return ns is ms
    return abs(ns - ms * MS) <= 2


@pytest.mark.parametrize("bytewise", [False, True], ids=["reads", "bytewise"])
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_truth(name: str, *, chat: bool, bytewise: bool) -> None:
    adapter = OpenAICompatible()
    endings: set[str] = set()
    for sc, plan in plans(name, chat=chat):
        if plan.reject:
            ending = adapter.error(plan.reject, b'{"error": {"message": "injected reject", "code": 429}}')
            assert (ending.outcome, ending.reason) == (OutcomeKind.REJECTED, Reason.RATE_LIMITED)
            endings.add("reject")
            continue
        got = measure(sc, plan, bytewise=bytewise, chat=chat)
        want = truth_of(plan)
        assert near(got.ttft_ns, want["ttft"])
        if chat or not sc.reasoning_tokens:  # completions have no reasoning field: all text is content
            assert near(got.ttft_content_ns, want["ttft_content"])
        assert near(got.e2e_last_token_ns, want["e2e_last_token"])
        assert near(got.tpot_ns, want["tpot"])
        assert got.output_tokens == want["tokens"] == plan.n_tokens
        assert got.token_events == want["token_events"]
        assert got.chunk_gap_count == len(want["gaps"])
        timeline = got.timeline
        assert timeline is not None
        gaps = token_gaps(timeline)
        assert len(gaps) == len(want["gaps"])
        assert all(map(near, gaps, want["gaps"]))
        assert near(got.chunk_gap_max_ns, max(want["gaps"], default=None))
        assert got.malformed == 0
        ending = adapter.judge(got)
        kinds = {event.kind for event in plan.events}
        if "drop" in kinds:
            assert (ending.outcome, ending.reason) == (OutcomeKind.FAILED, Reason.STREAM_CUT)
            assert got.done_at is None
            assert got.output_tokens_source == "chunks"
        elif "error" in kinds:
            assert (ending.outcome, ending.reason, ending.stage) == (
                OutcomeKind.FAILED,
                Reason.ENGINE_CRASH,
                "decode",
            )
            assert got.fault is not None
            assert got.fault.message == "injected"
        else:
            assert ending.outcome is OutcomeKind.COMPLETED
            assert got.done_at is not None
            assert near(got.done_at - ORIGIN, want["e2e_done"])
            assert got.output_tokens_source == ("chunks" if name == "no_usage" else "usage")
            assert got.finish_reason == "length"
        endings.add(str(ending.outcome))
    if name in {"drop", "error_event", "reject"}:
        assert len(endings) == 2, "the scenario must show both endings"


def test_truth_spec_spreads_gaps_over_tokens_when_each_event_says_its_count() -> None:
    scenario = truth_module("scenario")
    sc = scenario.parse("spec:usage=continuous", None)
    plan = scenario.plan(sc, 7, 0, chat=True, max_tokens=TOKENS, prompt_tokens=3, want_usage=True, model="spec")
    got = measure(sc, plan, bytewise=False)
    assert got.timeline is not None
    mine = per_token_gaps(got.timeline, got.output_tokens)
    want = truth_of(plan)["gaps_per_token"]
    assert len(mine) == len(want) == TOKENS - 1
    assert all(map(near, map(round, mine), want))


def test_truth_mixed_shows_its_stalls_in_the_gaps() -> None:
    gaps: list[int] = []
    for sc, plan in plans("mixed"):
        timeline = measure(sc, plan, bytewise=False).timeline
        assert timeline is not None
        gaps += token_gaps(timeline)
    assert sorted(gaps)[-len(gaps) // 100] > 180 * MS


def test_truth_one_token_has_no_tpot_at_all() -> None:
    for sc, plan in plans("one_token"):
        got = measure(sc, plan, bytewise=False)
        assert got.tpot_ns is None
        assert got.chunk_gap_count == 0
        assert got.chunk_gap_p50_ns is None
