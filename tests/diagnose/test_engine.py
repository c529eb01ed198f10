import pkgutil

import msgspec
import numpy as np
import pytest

from tailrace.cli.objectives import parse_objectives
from tailrace.diagnose import causes
from tailrace.diagnose.broken_rules import BrokenRules
from tailrace.diagnose.cause import layer_of
from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.engine import diagnose, rank
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Arm, Observed
from tailrace.diagnose.symptoms import more_often_than, symptoms
from tailrace.model.finding import Action, Diagnosis, Finding, Layer, Level
from tailrace.model.measurement import ClientHealth
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.store.table import RecordTable
from tests.diagnose.simulated import MS, UNCHUNKED, answer, as_client, as_gateway, evidence, served


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("view", [as_gateway, as_client])
def test_with_nothing_wrong_it_says_so(seed, view):
    result = answer(view(served(seed, rate=6.0, long_share=0.0)))
    assert (result.findings, result.action, result.triage) == ([], Action.NONE, [])
    assert result.summary.startswith("Nothing is wrong: TTFT p99")
    assert "n = 600" in result.summary
    assert "objective p99 <= 500 ms" in result.summary


def test_of_few_requests_it_says_what_cannot_be_told_and_how_many_more_are_needed():
    calm = as_gateway(served(rate=4.0, long_share=0.0))
    result = answer(calm[:60])
    assert (result.findings, result.action) == ([], Action.COLLECT)
    assert result.summary.startswith(
        "Nothing is wrong that these requests can show, but the p99 of TTFT and TPOT cannot be told from 60 requests: "
        "440 more are needed. Seen: TTFT p90 "
    )
    assert result.next_evidence == ["440 more completed requests: the p99 of TTFT and TPOT cannot be told from these"]
    assert result.paragraph == result.summary
    # An objective that so many can test is told; with enough requests nothing is left open.
    p90 = answer(calm[:60], objectives=parse_objectives(["ttft_p90=500ms"]))
    assert p90.summary.startswith("Nothing is wrong: TTFT p90 ")
    mixed = answer(calm[:60], objectives=parse_objectives(["ttft_p90=500ms", "tpot_p99=80ms"])).summary
    assert "but the p99 of TPOT cannot be told from 60 requests" in mixed
    assert answer(calm).summary.startswith("Nothing is wrong: ")


def test_the_paragraph_speaks_of_the_objective_that_is_broken():
    # Most of what the slowest lose is decoding; what was promised and not kept is the first token.
    records = as_gateway(served(rate=3.0, n=800, long_share=0.0, short_tokens=(300, 6000), output=(40, 160)))
    result = answer(records, objectives=parse_objectives(["ttft_p95=300ms"]))
    assert (result.tail.metric, result.tail.quantile, result.tail.objective_ms) == ("ttft", 0.95, 300.0)
    assert result.paragraph.startswith(f"The p95 of the time to first token is {result.tail.p_ms:,.0f} ms (objective ")
    result = answer(records, objectives=parse_objectives(["tpot_p99=20ms"]))
    assert (result.tail.metric, result.tail.objective_ms) == ("tpot", 20.0)


class HoleError(Exception):
    """What a defect of a rule may raise."""


def test_a_rule_that_fails_is_named_and_the_others_answer(monkeypatch):
    monkeypatch.setattr(BrokenRules, "strict", False)
    records = as_gateway(served(**UNCHUNKED))
    whole = answer(records)
    for code, where in (("SCHED_HOL_LONG_PREFILL", "judge"), ("METRIC_GAP", "judge"), ("LB_SKEW", "cannot_run")):
        cause = next(one for one in CAUSES if one.code == code)

        def fails(*_):
            raise HoleError("a hole in the table")

        with monkeypatch.context() as patch:
            patch.setattr(type(cause), where, fails)
            result = answer(records)
        (said,) = [one for one in result.not_understood if code in one]
        assert said.startswith(f"{code}: this rule failed on this evidence and was left out (HoleError: a hole in the ")
        assert result.findings[0].code == whole.findings[0].code
        assert result.paragraph


def test_a_rule_on_foreign_evidence_that_fails_is_named_too(monkeypatch):
    monkeypatch.setattr(BrokenRules, "strict", False)
    seen = Observed(arms=[Arm(name="a"), Arm(name="b")])

    def fails(*_):
        raise KeyError("batch")

    monkeypatch.setattr(type(next(one for one in CAUSES if one.code == "LB_SKEW")), "observe", fails)
    result = diagnose(EvidenceSet(RecordTable.empty(), observed=seen))
    assert any(one.startswith("LB_SKEW: this rule failed") for one in result.not_understood)
    assert result.findings[0].code == "INSUFFICIENT_EVIDENCE"


def test_in_tests_a_rule_that_fails_is_raised(monkeypatch):
    def fails(*_):
        raise HoleError

    monkeypatch.setattr(type(next(one for one in CAUSES if one.code == "LB_SKEW")), "cannot_run", fails)
    with pytest.raises(HoleError):
        answer(as_gateway(served(**UNCHUNKED)))


def test_a_quantile_over_its_objective_that_may_be_chance_says_so():
    records = as_gateway(served(rate=4.0, long_share=0.0))
    late = [msgspec.structs.replace(r, ttft_ns=900 * MS) if 10 <= i < 18 else r for i, r in enumerate(records)]
    summary = answer(late).summary
    assert summary.startswith("Nothing is wrong: TTFT p99 900 ms (objective p99 <= 500 ms, n = 600; 8 are over it, ")
    assert "1.0% allowed give that many by chance" in summary
    assert "chance" not in answer(records).summary
    later = [msgspec.structs.replace(r, ttft_ns=900 * MS) if 10 <= i < 30 else r for i, r in enumerate(records)]
    assert answer(later).summary.startswith("Something is wrong (TTFT is over 500 ms for 20 of 600")


def test_an_objective_decides_what_is_wrong():
    records = as_gateway(served(rate=3.0, max_num_batched_tokens=512))
    assert answer(records).findings
    loose = answer(records, objectives=parse_objectives(["ttft_p99=3s"]))
    assert loose.findings == []
    assert "TTFT p99" in loose.summary


def test_documents_are_judged_by_their_own_objective_only():
    # Documents take 0.4 s for their first token even alone; the chat objective is not theirs.
    records = as_gateway(served(rate=0.5, n=400, max_num_batched_tokens=8192))
    assert answer(records, objectives=parse_objectives(["ttft_p99=450ms"])).findings == []
    (symptom,) = symptoms(evidence(records, objectives=parse_objectives(["ttft_p99=450ms", "long/ttft_p99=300ms"])))
    assert symptom.kind == "objective"
    assert symptom.text.startswith("TTFT of lane long is over 300 ms")


def test_small_samples_name_what_they_lack():
    result = answer(as_gateway(served(**UNCHUNKED))[:150])
    assert result.findings[0].code == "SCHED_PREFILL_STEALS_DECODE"
    assert "350 more completed requests: 500 support a p99 (n = 150)" in result.needs


def test_too_few_requests_are_an_honest_answer():
    result = answer(as_gateway(served(**UNCHUNKED))[:10])
    assert (result.findings, result.action) == ([], Action.COLLECT)
    assert result.summary.startswith("Cannot tell")
    assert diagnose(EvidenceSet(RecordTable.empty())).action is Action.COLLECT


def test_lost_records_forbid_a_diagnosis():
    records = as_gateway(served(**UNCHUNKED))
    assert answer(records, dropped=0.005).findings
    result = answer(records, dropped=0.02)
    assert [finding.code for finding in result.findings] == ["INSUFFICIENT_EVIDENCE"]
    assert result.findings == result.validity
    assert result.validity[0].level is Level.INSUFFICIENT
    assert (result.tail, result.attribution, result.action) == (None, [], Action.COLLECT)
    assert "2.0%" in result.summary


def test_a_limited_client_forbids_a_diagnosis():
    result = answer(as_client(served(**UNCHUNKED)), client=ClientHealth(limited=True, why="its CPU was full"))
    assert result.findings == result.validity
    assert result.validity[0].code == "BENCH_CLIENT_QUEUE"
    assert "its CPU was full" in result.summary


def test_impossible_records_are_left_out_and_counted():
    records = as_gateway(served(rate=4.0, long_share=0.0))
    broken = [msgspec.structs.replace(r, ttft_ns=-5) if i < 3 else r for i, r in enumerate(records)]
    result = answer(broken)
    (finding,) = result.validity
    assert (finding.code, finding.level) == ("METRIC_BUG", Level.PROVEN)
    assert "3 of 600" in finding.statement
    assert "n = 597" in result.summary


def test_many_impossible_records_end_the_diagnosis():
    epoch = 1_700_000_000_000_000_000
    broken = [
        msgspec.structs.replace(r, e2e_ns=epoch, decode_ns=epoch) if i % 10 == 0 else r
        for i, r in enumerate(as_gateway(served(**UNCHUNKED)))
    ]
    result = answer(broken)
    assert result.findings == result.validity
    assert result.validity[0].code == "METRIC_BUG"
    assert any("longer than a week" in item.text for item in result.validity[0].evidence)


def test_late_sends_are_told():
    late = [
        msgspec.structs.replace(r, intended_to_sent_ns=i * 2_000_000)
        for i, r in enumerate(as_client(served(rate=4.0, long_share=0.0)))
    ]
    assert [finding.code for finding in answer(late).validity] == ["BENCH_COORDINATED_OMISSION"]


def test_chunks_counted_as_tokens_are_told():
    records = [
        msgspec.structs.replace(r, output_tokens=r.output_tokens * 4)
        for r in as_client(served(rate=4.0, long_share=0.0))
    ]
    assert [finding.code for finding in answer(records).validity] == ["METRIC_UNIT"]


def test_an_engine_that_others_use_too_is_told():
    records = [
        msgspec.structs.replace(r, running_at_admission=60) for r in as_gateway(served(rate=4.0, long_share=0.0))
    ]
    (finding,) = answer(records).validity
    assert (finding.code, finding.level) == ("METRIC_GAP", Level.SUSPECTED)
    assert "Little's law" in finding.statement


def test_failures_are_a_symptom_and_never_in_a_percentile():
    records = as_gateway(served(rate=4.0, long_share=0.0))
    failed = [
        msgspec.structs.replace(r, outcome=OutcomeKind.FAILED, reason=Reason.ENGINE_ERROR) if i % 20 == 0 else r
        for i, r in enumerate(records)
    ]
    result = answer(failed)
    assert result.action is Action.COLLECT
    assert "30 of 600 requests did not complete" in result.summary


def test_a_slow_tail_without_a_known_cause_is_not_forced_into_one():
    # The engine's own prefill of every prompt is slow: none of the eight causes.
    records = []
    rng = np.random.default_rng(0)
    for record in as_gateway(served(rate=0.5, n=300, long_share=0.0)):
        more = int(rng.exponential(600) * 1e6)
        records.append(
            msgspec.structs.replace(
                record,
                prefill_ns=record.prefill_ns + more,
                ttft_ns=record.ttft_ns + more,
                e2e_ns=record.e2e_ns + more,
                e2e_last_token_ns=record.e2e_last_token_ns + more,
                timeline=msgspec.structs.replace(record.timeline, at_ns=[at + more for at in record.timeline.at_ns]),
            )
        )
    result = answer(records)
    assert result.findings == []
    assert result.action is Action.COLLECT
    assert "prefill makes the tail" in result.summary
    assert "at p99 of ttft" in result.summary, "of the objective that is broken"
    assert "R2" in result.triage


def test_before_and_after_say_that_only_the_tail_is_worse():
    calm = as_gateway(served(1, rate=3.0, n=1000, long_share=0.05))
    result = answer(as_gateway(served(1, rate=3.0, n=1000, long_share=0.05, **UNCHUNKED)), before=calm)
    assert result.findings[0].code == "SCHED_PREFILL_STEALS_DECODE"


def test_ranking_is_by_level_then_by_milliseconds():
    def finding(code, level, ms):
        return Finding(code=code, layer=Layer.SCHEDULER, stage="", level=level, statement="", explains_ms=ms)

    ranked = rank(
        [
            finding("SCHED_A", Level.SUSPECTED, 900.0),
            finding("SCHED_B", Level.CONSISTENT, 100.0),
            finding("SCHED_C", Level.CONSISTENT, 400.0),
            finding("SCHED_D", Level.PROVEN, None),
        ]
    )
    assert [item.code for item in ranked] == ["SCHED_D", "SCHED_C", "SCHED_B", "SCHED_A"]


def test_the_answer_depends_on_nothing_but_its_inputs():
    records = as_gateway(served(**UNCHUNKED))
    assert answer(records) == answer(records)


def test_the_catalogue_is_complete_and_its_layers_follow_from_the_codes():
    codes = [cause.code for cause in CAUSES]
    assert len(codes) == len(set(codes))
    files = {
        module.name.rpartition(".")[2]
        for module in pkgutil.walk_packages(causes.__path__, "tailrace.diagnose.causes.")
        if not module.ispkg
    }
    assert {type(cause).__module__.rpartition(".")[2] for cause in CAUSES} == files
    assert set(codes) >= {
        "SCHED_QUEUE_SATURATION",
        "SCHED_PREFILL_STEALS_DECODE",
        "SCHED_HOL_LONG_PREFILL",
        "SCHED_KV_PREEMPTION",
        "GW_LANE_QUEUE",
        "GW_NETWORK",
        "GW_SELF_BOTTLENECK",
        "CLIENT_SLOW_READER",
        "MIX_SHIFT",
        "DECODE_SLOWDOWN",
    }
    for cause in CAUSES:
        assert cause.disproof
        assert cause.needs
        assert layer_of(cause.code) in Layer


def test_it_survives_a_round_trip_through_json():
    result = answer(as_gateway(served(**UNCHUNKED)))
    assert msgspec.json.decode(msgspec.json.encode(result), type=Diagnosis) == result
    assert set(msgspec.to_builtins(result)) >= {
        "schema", "validity", "findings", "action", "triage", "needs", "not_understood",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("count", "n", "answer_"), [(1, 100, False), (4, 100, True), (10, 600, False), (12, 600, True)]
)
def test_an_objective_is_judged_by_counting(count, n, answer_):
    # P(X >= 4 | 100, 1 %) = 1.8 %; P(X >= 10 | 600, 1 %) = 8.3 %, P(X >= 12 | 600, 1 %) = 2.0 %.
    assert more_often_than(count, n, 0.01) is answer_


@pytest.mark.parametrize("bound_ms", [50, 5_000])
def test_an_objective_on_chunk_gaps_binds_the_longest_of_each_request(bound_ms):
    records = as_gateway(served(rate=3.0, n=600))
    slowest = sum((r.chunk_gap_max_ns or 0) > bound_ms * MS for r in records)
    assert (slowest > 0.05 * len(records)) is (bound_ms == 50)
    objectives = parse_objectives([f"chunk_gap_p99={bound_ms}ms"])
    said = [one.text for one in symptoms(evidence(records, objectives=objectives)) if one.kind == "objective"]
    assert bool(said) is (slowest > 0.05 * len(records))
    assert all("longest chunk gap" in text for text in said)


def test_evidence_from_a_live_gateway_has_no_run_offsets():
    from tailrace.analyze.timebase import aligned_on_one_clock

    assert not aligned_on_one_clock(evidence(as_gateway(served())).table)
    assert aligned_on_one_clock(evidence(as_client(served())).table)
