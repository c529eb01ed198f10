"""The verdict's shape: what is explained and what is not, the requests behind it, one paragraph, the same words."""

import msgspec
import numpy as np
import pytest

from tailrace.diagnose.attribution_words import attribution_words
from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.explained import explained
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Finding, Layer, Level
from tailrace.store.table import RecordTable
from tests.analyze.tables import request, table
from tests.diagnose.simulated import UNCHUNKED, answer, as_client, as_gateway, evidence, served


def finding(code, stage, ms, **more):
    fields = {"layer": Layer.SCHEDULER, "level": Level.CONSISTENT, "statement": f"{code}.", **more}
    return Finding(code=code, stage=stage, explains_ms=ms, **fields)


def window():
    """Forty requests; the last ten wait 1 s in the queue and stall for 2 s."""
    slow = [request(30 + i, at_ms=3000 + i * 100, queue_ms=1000, gaps_ms=[20] * 10 + [2020]) for i in range(10)]
    return Window(table([*(request(i, at_ms=i * 100, gaps_ms=[20] * 11) for i in range(30)), *slow]))


def test_what_two_findings_explain_of_the_same_wait_counts_once():
    seen = window()
    assert seen.tail_lost_ms == pytest.approx(3000, abs=20)
    joint = explained(seen, [finding("SCHED_A", "decode", 2000.0), finding("SCHED_B", "decode", 1500.0)])
    assert joint.tail.explained_ms == pytest.approx(2000, abs=20)
    assert joint.tail.unexplained_ms == pytest.approx(1000, abs=20)
    assert joint.tail.by_finding["SCHED_B"] == 0.0
    apart = explained(seen, [finding("SCHED_A", "decode", 2000.0), finding("SCHED_C", "queue", 1000.0)])
    assert apart.tail.explained_ms == pytest.approx(3000, abs=30)
    assert apart.tail.by_finding["SCHED_C"] == pytest.approx(1000, abs=20)


def test_no_finding_explains_more_than_was_lost_in_its_place():
    joint = explained(window(), [finding("SCHED_A", "queue", 90_000.0)])
    assert joint.tail.explained_ms == pytest.approx(1000, abs=20)
    assert joint.tail.explained_ms + joint.tail.unexplained_ms == pytest.approx(joint.tail.lost_ms)


def test_what_a_cause_knows_by_request_is_used_by_request():
    """Of the ten, five stall for one reason and five for another: together they explain all."""
    seen = window()
    stall = seen.lost.stall
    first = np.where(np.arange(40) < 35, stall, 0.0)
    assert seen.explain("SCHED_A", first) == seen.in_tail(first)
    seen.explain("SCHED_B", stall - first)
    joint = explained(seen, [finding("SCHED_A", "decode", 1000.0), finding("SCHED_B", "decode", 1000.0)])
    assert joint.tail.by_finding["SCHED_A"] == pytest.approx(1000, abs=10)
    assert joint.tail.by_finding["SCHED_B"] == pytest.approx(1000, abs=10)
    assert set(joint.requests["SCHED_A"]) == {f"r{i:06}" for i in range(30, 35)}
    assert set(joint.requests["SCHED_B"]) == {f"r{i:06}" for i in range(35, 40)}


def test_what_the_typical_request_waits_longer_than_before_is_lost_too():
    """A cause that hits all alike leaves no tail within its window: only the window before shows what it costs."""
    then = Window(table([request(i, at_ms=i * 100, gaps_ms=[20] * 11) for i in range(40)]))
    late = Window(table([request(i, at_ms=i * 100, queue_ms=1500, gaps_ms=[20] * 11) for i in range(40)]))
    late.explain("MIX_A", np.full(40, 1400.0))
    found = [finding("MIX_A", "prefill", 1400.0)]
    joint = explained(late, found, before=then).tail
    alone = explained(late, found).tail
    assert joint.lost_ms - alone.lost_ms == pytest.approx(1500, abs=20)
    assert joint.by_finding["MIX_A"] >= 1400 - 1
    faster = explained(then, [finding("MIX_A", "prefill", 1400.0)], before=late).tail
    assert faster.lost_ms == pytest.approx(explained(then, []).tail.lost_ms)


def test_a_check_of_the_numbers_explains_nothing():
    joint = explained(window(), [finding("METRIC_GAP", "", 500.0, layer=Layer.VALIDITY)])
    assert (joint.tail.explained_ms, joint.requests) == (0.0, {})
    assert explained(Window(RecordTable.empty()), []).tail is None


def test_a_blocked_post_processing_is_lost_time():
    records = [
        msgspec.structs.replace(
            one,
            postprocess_ns=900_000_000 if i >= 30 else 2_000_000,
            e2e_ns=one.e2e_ns + (900_000_000 if i >= 30 else 2_000_000),
            stage_sources={**one.stage_sources, "postprocess": "measured"},
        )
        for i, one in enumerate(request(i, at_ms=i * 100, gaps_ms=[20] * 5) for i in range(40))
    ]
    seen = Window(table(records))
    assert seen.tail_lost_ms == pytest.approx(898, abs=2)
    assert seen.lost.postprocess[:30].max() == 0.0


@pytest.mark.parametrize("view", [as_gateway, as_client])
def test_the_paragraph_says_what_why_how_sure_and_what_to_do(view):
    result = answer(view(served(**UNCHUNKED)))
    first = result.findings[0]
    assert result.tail.metric == "chunk_gap"
    assert result.tail.explained_ms > 0.7 * result.tail.lost_ms
    for part in (
        f"{result.tail.lost_ms:,.0f} ms each",
        first.statement,
        first.advice,
        first.price,
        first.verify,
        f"{result.tail.unexplained_ms:,.0f} ms remain unexplained",
        "It would be disproved so:",
    ):
        assert part in result.paragraph
    assert "  " not in result.paragraph
    assert 1 <= len(first.requests) <= 5
    assert set(first.requests) <= {record.request_id for record in served(**UNCHUNKED)}


def test_what_to_collect_next_raises_the_first_finding():
    result = answer(as_client(served(**UNCHUNKED)))
    first = result.findings[0]
    assert first.level is Level.SUSPECTED
    assert result.next_evidence[0] == f"{first.missing[0]} (for {first.code})"
    few = answer(as_gateway(served(**UNCHUNKED))[:10])
    assert few.next_evidence == few.needs
    assert f"To collect next: {few.needs[0]}." in few.paragraph


def test_nothing_wrong_is_one_sentence_and_no_attribution_of_blame():
    result = answer(as_gateway(served(rate=2.0, long_share=0.0)))
    assert result.paragraph == result.summary
    assert result.tail.explained_ms == 0.0
    assert not any(one.kind in ("gaps_together", "timer", "period", "contribution") for one in result.attribution)


def test_numbers_that_cannot_be_are_not_attributed():
    epoch = 1_700_000_000_000_000_000
    broken = [
        msgspec.structs.replace(one, e2e_ns=epoch, decode_ns=epoch) if i % 10 == 0 else one
        for i, one in enumerate(as_gateway(served(**UNCHUNKED)))
    ]
    result = answer(broken)
    assert (result.tail, result.attribution) == (None, [])
    assert result.paragraph.startswith("The numbers do not allow a diagnosis")


def test_a_rival_is_told_apart_by_what_would_disprove_it():

    from tailrace.diagnose.told import next_evidence
    from tailrace.model.finding import Diagnosis

    one = finding("SCHED_HOL_LONG_PREFILL", "queue", 100.0, rivals=["SCHED_KV_PREEMPTION"])
    (line,) = next_evidence(Diagnosis(findings=[one], action=Action.TUNE))
    assert line.startswith("what tells SCHED_HOL_LONG_PREFILL from SCHED_KV_PREEMPTION: ")


def test_a_rival_that_is_said_with_its_reason_is_told_apart_as_well():
    from tailrace.diagnose.told import next_evidence
    from tailrace.model.finding import Diagnosis

    one = finding("FE_CPU_STARVED", "decode", 100.0, rivals=["COMPUTE_THERMAL: the clock was limited as well"])
    (line,) = next_evidence(Diagnosis(findings=[one], action=Action.FIX))
    assert line.startswith("what tells FE_CPU_STARVED from COMPUTE_THERMAL: ")


# -- same data, same words


def words(result):
    return msgspec.json.encode(result)


@pytest.mark.parametrize("view", [as_gateway, as_client])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_records_changes_no_word(view, seed):
    records = view(served(**UNCHUNKED))
    earlier = view(served(3, rate=4.0))
    draw = np.random.default_rng(seed)
    shuffled = [records[i] for i in draw.permutation(len(records))]
    before = [earlier[i] for i in draw.permutation(len(earlier))]
    assert words(answer(shuffled, before=before)) == words(answer(records, before=earlier))


def test_records_that_began_at_once_are_ordered_by_their_id():
    records = [request(i, at_ms=(i // 7) * 100, gaps_ms=[20, 20, 700 if i % 9 == 0 else 20]) for i in range(300)]
    mixed = [records[i] for i in np.random.default_rng(0).permutation(300)]
    assert words(answer(mixed)) == words(answer(records))
    assert evidence(mixed).table.column("request_id").tolist() == [one.request_id for one in records]


def test_two_runs_of_the_same_words_are_the_same():
    seen = evidence(as_gateway(served(**UNCHUNKED)), before=as_gateway(served(3, rate=4.0)))
    again = evidence(as_gateway(served(**UNCHUNKED)), before=as_gateway(served(3, rate=4.0)))
    assert words(diagnose(seen)) == words(diagnose(again))
    assert attribution_words(seen.attributed) == attribution_words(again.attributed)


def test_every_attribution_carries_its_numbers_and_source():
    seen = evidence(as_gateway(served(**UNCHUNKED)), before=as_gateway(served(3, rate=4.0)))
    said = attribution_words(seen.attributed)
    assert {one.kind for one in said} >= {"stage_at_tail", "gaps_together", "gap_and_prefill"}
    for one in said:
        assert one.source
        assert one.n > 0
        assert one.text.endswith(".")
        for name in one.numbers:
            if name.endswith("_low"):
                assert one.numbers[name] <= one.numbers[name.removesuffix("_low") + "_high"]


def test_no_attribution_of_a_handful():
    assert attribution_words(EvidenceSet(table([request(i) for i in range(5)])).attributed) == []
