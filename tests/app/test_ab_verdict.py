"""What the rounds of an A/B may take from the verdict of all its runs, and what not."""

import msgspec
import numpy as np
import pytest

from tailrace.analyze.bench_summary import summarise
from tailrace.analyze.compare import compare
from tailrace.analyze.rounds import Round, agree_on
from tailrace.app.ab import _verdict
from tailrace.model.measurement import Verdict
from tailrace.model.outcome import Reason
from tests.analyze.tables import MS, request, table


def arm(level, seed, *, documents=0.0, document_level=1.0, failing=0, late=0.0):
    rng = np.random.default_rng(seed)
    work = np.random.default_rng(7)  # the same requests in either arm and in every round
    out = []
    for i in range(600):
        long = work.random() < documents
        wait = float((2000 * document_level if long else 100 * level) * rng.lognormal(0, 0.2))
        out.append(
            request(
                i,
                at_ms=i * 100.0,
                lane="document" if long else "chat",
                prompt=9000 if long else 200,
                prefill_ms=wait,
                gaps_ms=[20.0],
                reason=Reason.QUEUE_FULL if i < failing else Reason.NONE,
                run_offset_ns=i * 100 * MS,
                intended_to_sent_ns=round(late * MS),
            )
        )
    return table(out)


def judged(pairs):
    comparison = compare([a for a, _ in pairs], [b for _, b in pairs])
    rounds = agree_on(
        [Round(a=summarise(a), b=summarise(b), a_first=i % 2 == 0) for i, (a, b) in enumerate(pairs)],
        comparison.headline,
    )
    return _verdict(comparison, rounds, limited=False), comparison


def test_a_class_that_gained_is_not_undone_by_all_requests_together():
    (verdict, text), comparison = judged(
        [
            (arm(1.0, i, documents=0.08), arm(0.4, 50 + i, documents=0.08, document_level=1.0 + 0.02 * i))
            for i in range(4)
        ]
    )
    assert all("/" in name for name in comparison.headline)
    assert verdict is Verdict.IMPROVED, text


def test_no_effect_is_told_under_a_name_that_no_run_has():
    _, comparison = judged([(arm(1.0, i, late=40.0), arm(0.5, 50 + i, late=40.0)) for i in range(3)])
    (wait,) = [name for name in comparison.headline if name == "longest_wait_from_schedule_ms.p99"]
    one = Round(a=summarise(arm(1.0, 1, late=40.0)), b=summarise(arm(0.5, 2, late=40.0)), a_first=True)
    found = agree_on([one] * 3, comparison.headline)
    assert wait not in found.effects, "runs count the longest wait from the send"
    assert "ttft_from_schedule_ms.p99" in found.effects


def test_failures_that_rose_stay_a_regression_where_no_latency_moved():
    (verdict, text), comparison = judged([(arm(1.0, i), arm(1.0, 50 + i, failing=60)) for i in range(4)])
    assert comparison.decided_by == "failures"
    assert verdict is Verdict.REGRESSED, text


@pytest.mark.parametrize("late", [0.0, 40.0])
def test_the_rounds_must_agree_on_the_verdicts_side(late):
    (verdict, _), comparison = judged([(arm(1.0, i, late=late), arm(0.5, 50 + i, late=late)) for i in range(4)])
    assert verdict is Verdict.IMPROVED
    assert any("from_schedule" in name for name in comparison.headline) is bool(late)
    worse = agree_on(
        [
            Round(a=summarise(arm(1.0, i, late=late)), b=summarise(arm(1.5, 50 + i, late=late)), a_first=i % 2 == 0)
            for i in range(4)
        ],
        comparison.headline,
    )
    verdict, text = _verdict(comparison, worse, limited=False)
    assert verdict is Verdict.INCONCLUSIVE
    assert "the rounds do not agree" in text
    few = msgspec.structs.replace(worse, n=2)
    assert _verdict(comparison, few, limited=False)[0] is Verdict.IMPROVED, "two rounds say nothing of their spread"
