"""Each stream of known truth through the meter alone, in virtual time: every number must be exact."""

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.dialects import dialect_for
from tailrace.measure.meter import StreamMeter
from tailrace.model.timeline import TOKEN_KINDS
from tailrace.testing import ManualClock
from tailrace.testing.truth import SCENARIOS, Ask, StepKind, plan

TOKEN_STEPS = (StepKind.CONTENT, StepKind.REASONING)


def writes(made):
    """(offset, bytes) of every write of a plan, coalesced and cut as the server does it."""
    out = []
    for step in made.steps:
        if step.kind is StepKind.CUT:
            break
        if step.joined:
            out[-1] = (out[-1][0], out[-1][1] + step.data)
        elif step.pause_ns:
            half = len(step.data) // 2
            out += [(step.at_ns, step.data[:half]), (step.at_ns + step.pause_ns, step.data[half:])]
        else:
            out.append((step.at_ns, step.data))
    return out


def measured(made, pieces, *, chat=True):
    clock = ManualClock()
    origin = clock()
    path = "/v1/chat/completions" if chat else "/v1/completions"
    meter = StreamMeter(dialect_for(path), origin_ns=origin)
    for at, data in pieces:
        clock.move_to(max(clock(), origin + at))
        meter.feed(data, clock())
    cut = any(step.kind is StepKind.CUT for step in made.steps)
    meter.end(clock(), clean=not cut)
    return meter.summary()


def assert_true(made, summary):
    tokens = [step for step in made.steps if step.kind in TOKEN_STEPS]
    stamps = [step.at_ns + step.pause_ns for step in tokens]
    gaps = [later - earlier for earlier, later in pairwise(stamps)]
    count = sum(step.tokens for step in tokens)
    assert summary.ttft_ns == stamps[0]
    content = [step.at_ns + step.pause_ns for step in tokens if step.kind is StepKind.CONTENT]
    assert summary.ttft_content_ns == (content[0] if content else None)
    assert summary.e2e_last_token_ns == stamps[-1]
    assert summary.token_events == len(tokens)
    assert summary.chunk_gap_count == len(gaps)
    if made.said_tokens is not None:
        assert summary.output_tokens == made.said_tokens == count
        assert summary.tpot_ns == (round(sum(gaps) / (count - 1)) if count > 1 else None)
    else:
        assert (summary.output_tokens, summary.output_tokens_source) == (len(tokens), "chunks")
    if gaps:
        assert summary.chunk_gap_max_ns == max(gaps)
        assert summary.chunk_gap_p50_ns == pytest.approx(statistics.median(gaps), rel=0.1, abs=1)
    assert summary.timeline.token_stamps() == stamps
    assert {kind for kind in summary.timeline.kind if kind in set(map(int, TOKEN_KINDS))}
    cut = any(step.kind is StepKind.CUT for step in made.steps)
    failed = any(step.kind is StepKind.ERROR for step in made.steps)
    assert summary.finished is not (cut or failed)
    assert (summary.fault is not None) is failed


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
@pytest.mark.parametrize("index", [0, 1], ids=["even", "odd"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name, index, chat):
    made = plan(Ask(index=index, model=name, chat=chat))
    if made.status != 200:
        assert not made.steps  # nothing for a meter to read
        return
    assert_true(made, measured(made, writes(made), chat=chat))


@given(st.sampled_from([name for name in SCENARIOS if name != "reject"]), st.integers(0, 1), st.data())
def test_any_split_of_the_bytes_gives_the_same_numbers(name, index, data):
    made = plan(Ask(index=index, model=name, max_tokens=12))
    pieces = []
    for at, whole in writes(made):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3)))
        edges = [0, *cuts, len(whole)]
        pieces += [(at, whole[start:stop]) for start, stop in pairwise(edges)]
    assert measured(made, pieces) == measured(made, writes(made))
