"""Tune, shed or scale: what may be said when."""

import msgspec
import pytest

from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.scale import disciplined, rule_on
from tailrace.diagnose.scale_records import rule_on_records
from tailrace.model.finding import Action, Finding, Layer, Level
from tests.diagnose.foreign_words import asked, everything, facts, table
from tests.diagnose.simulated import as_client, as_gateway, evidence, served

FULL = {
    "offered_rps": 12, "completed_rps": 7, "n": 3000, "duration_s": 430, "ttft_p99_s": 61, "queue_p99_s": 55,
    "tpot_p50_ms": 95, "output_tokens": 400, "prompt_tokens": 1200, "preemptions": 0,
}  # fmt: skip
STATED = {
    "max_num_seqs": 64, "kv_capacity_tokens": 120000, "replicas": 1, "repeat_ratio_offered": 0,
    "same": ["mix", "gpu clocks"],
}  # fmt: skip


def answer(tmp_path, arm=None, **context):
    return asked(tmp_path, facts({"now": {**FULL, **(arm or {})}}, **{**STATED, **context}))


def test_with_all_answered_it_says_scale_and_what_to_check_after(tmp_path):
    result = answer(tmp_path)
    first = result.findings[0]
    assert (first.code, first.level) == ("SCHED_QUEUE_SATURATION", "consistent")
    assert result.action == first.action == Action.SCALE
    assert "ends no incident" in first.advice
    assert "limits of each node" in first.advice


@pytest.mark.parametrize(
    ("arm", "context", "named"),
    [
        ({}, {"kv_capacity_tokens": None}, "KV cache"),
        ({}, {"max_num_seqs": None}, "max_num_seqs"),
        ({}, {"replicas": None}, "skew"),
        ({"preemptions": None}, {}, "preemption counter"),
        ({}, {"repeat_ratio_offered": None}, "prefix hits"),
        ({}, {"same": ["mix"]}, "SM clock"),
        ({}, {"same": ["gpu clocks"]}, "grammar"),
        ({"tpot_p50_ms": 40}, {}, "sweep of the cap"),
        ({"queue_p99_s": None}, {}, "prefill or decode"),
    ],
)
def test_what_is_not_known_does_not_hold(tmp_path, arm, context, named):
    kept = {key: value for key, value in {**FULL, **arm}.items() if value is not None}
    stated = {key: value for key, value in {**STATED, **context}.items() if value is not None}
    first = asked(tmp_path, facts({"now": kept}, **stated)).findings[0]
    assert first.code == "SCHED_QUEUE_SATURATION"
    assert first.action == Action.SHED
    assert "Do not add replicas" in first.advice
    assert named in first.advice


@pytest.mark.parametrize(
    ("arm", "context", "named"),
    [
        ({}, {"max_num_seqs": 16}, "raise max_num_seqs"),
        ({}, {"max_num_seqs": 256}, "lower max_num_seqs"),
        ({}, {"running_per_replica": [60, 4, 2, 0]}, "unevenly loaded"),
        ({"hit_pct": 5}, {"repeat_ratio_offered": 0.8}, "could"),
        ({}, {"same": ["mix"], "clock_drop_mhz": 300}, "clock drop"),
    ],
)
def test_what_fails_is_tuned_first(tmp_path, arm, context, named):
    result = answer(tmp_path, arm, **context)
    first = next(item for item in result.findings if item.code == "SCHED_QUEUE_SATURATION")
    assert first.action == Action.TUNE
    assert "Tune before adding replicas" in first.advice
    assert named in first.advice


def test_a_cap_that_still_gains_is_raised_first(tmp_path):
    sweep = table("max_num_seqs | output tok/s | TPOT p50 (ms)", "8 | 100 | 30", "32 | 360 | 36")
    result = asked(tmp_path, sweep, facts({"now": FULL}, **STATED))
    found = {item.code: item for item in result.findings}
    assert found["TUNE_NOT_SCALE"].action == Action.TUNE
    assert found["SCHED_QUEUE_SATURATION"].action == Action.TUNE
    assert "throughput still rises with the cap" in everything(found["SCHED_QUEUE_SATURATION"])


def saying_scale(**more):
    return Finding(
        code="SCHED_QUEUE_SATURATION", layer=Layer.SCHEDULER, stage="queue", level=Level.CONSISTENT, statement="full",
        advice="Add.", action=Action.SCALE, **more,
    )  # fmt: skip


def test_nothing_says_scale_past_the_ruling():
    asked_for = []

    def ruling():
        asked_for.append(1)
        return rule_on(Observed())

    other = msgspec.structs.replace(saying_scale(), action=Action.FIX)
    assert disciplined([other], ruling) == [other]
    assert not asked_for
    (found,) = disciplined([saying_scale()], ruling)
    assert found.action == Action.SHED
    assert found.advice.startswith("Add. Do not add replicas")


def test_records_answer_by_their_stages_and_by_the_causes_that_could_be_tested():
    whole = rule_on_records(evidence(as_gateway(served(rate=12.0))), [], CAUSES)
    assert [item.answer for item in whole.questions[:2]] == ["holds", "holds"]
    held = {item.name for item in whole.preconditions if item.answer == "holds"}
    assert {"skew", "preemptions"} <= held
    assert not whole.may_scale
    blind = rule_on_records(evidence(as_client(served(rate=12.0))), [], CAUSES)
    assert blind.action == Action.SHED
    assert any("queue" in item for item in blind.missing_for_scale)
    preempted = msgspec.structs.replace(saying_scale(), code="SCHED_KV_PREEMPTION")
    ruled = rule_on_records(evidence(as_gateway(served(rate=12.0))), [preempted], CAUSES)
    assert ruled.action == Action.TUNE
    assert "SCHED_KV_PREEMPTION fires" in ruled.advice
