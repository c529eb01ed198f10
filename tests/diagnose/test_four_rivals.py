"""p99 worse, the mean unmoved: more long prompts, a blocked post-processing thread, a batch window, a slower client."""

import msgspec
import numpy as np
import pytest

from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.finding import Level
from tests.analyze.attribution.rivals import WINDOW_MS, records, window
from tests.analyze.tables import table

CAUSES = {
    "more long prompts": "MIX_SHIFT",
    "a blocked post-processing thread": "POSTPROCESS_SLOW",
    "a batch window": "SCHED_BATCHER_WAIT",
    "a slower client": "CLIENT_SLOW_READER",
}


@pytest.mark.parametrize("kind", CAUSES)
@pytest.mark.parametrize("seed", [2, 3])
def test_each_of_the_four_is_named_first_and_no_other_of_them(kind, seed):
    result = diagnose(EvidenceSet(window(kind, seed), before=window("nothing", 1)))
    codes = [one.code for one in result.findings]
    assert codes[0] == CAUSES[kind]
    assert not set(codes[1:]) & set(CAUSES.values())
    split = next(one for one in result.attribution if one.kind == "mix_within" and one.about == "e2e")
    part = "mix" if kind == "more long prompts" else "within"
    assert split.numbers[f"{part}_low"] > 0
    assert "the mean" in split.text
    assert "did not move" in split.text
    if kind != "more long prompts":
        assert result.tail.explained_ms > 0.6 * result.tail.lost_ms


def test_another_window_of_the_same_is_none_of_them():
    result = diagnose(EvidenceSet(window("nothing", 2), before=window("nothing", 1)))
    assert result.findings == []


def waits(change, **extra):
    """The window of the batcher with its long waits changed."""
    draw = np.random.default_rng(5)
    out = []
    for one in records("a batch window", 2):
        more = 0
        if one.queue_engine_ns > 1000e6:
            more = round(change(one.queue_engine_ns / 1e6, draw) * 1e6) - one.queue_engine_ns
        out.append(
            msgspec.structs.replace(
                one,
                queue_ns=one.queue_ns + more,
                queue_engine_ns=one.queue_engine_ns + more,
                ttft_ns=one.ttft_ns + more,
                e2e_ns=one.e2e_ns + more,
                e2e_last_token_ns=one.e2e_last_token_ns + more,
                timeline=msgspec.structs.replace(one.timeline, at_ns=[at + more for at in one.timeline.at_ns]),
                **extra,
            )
        )
    return table(out)


def batcher(rows):
    result = diagnose(EvidenceSet(rows, before=window("nothing", 1)))
    return next((one for one in result.findings if one.code == "SCHED_BATCHER_WAIT"), None)


def test_a_batcher_is_suspected_for_want_of_its_setting():
    found = batcher(waits(lambda ms, _: ms))
    assert found.level is Level.SUSPECTED
    assert "setting" in found.missing[0]
    assert found.evidence[0].value == pytest.approx(WINDOW_MS, rel=0.01)
    assert f"timer of {WINDOW_MS:g} ms" in found.statement


@pytest.mark.parametrize(
    "change",
    [
        lambda ms, draw: ms * draw.uniform(0.4, 1.6),  # waits of every length: a queue
        lambda ms, _: ms * 0.685,  # a cluster at no round number
        lambda ms, draw: ms * (1.0 if draw.random() < 0.5 else draw.uniform(1.2, 4.0)),  # many wait longer
    ],
    ids=["a queue", "no round number", "many wait longer"],
)
def test_waits_that_are_no_timers_are_no_batcher(change):
    assert batcher(waits(change)) is None


def test_an_inferred_queue_names_no_batcher():
    sources = {"queue": "inferred(first token)", "prefill": "measured", "decode": "measured", "response": "measured"}
    assert batcher(waits(lambda ms, _: ms, stage_sources={**sources, "postprocess": "measured"})) is None
