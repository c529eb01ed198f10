"""The verdicts that a reader expects by name."""

import msgspec
import numpy as np
import pytest

from tailrace.analyze.compare import compare
from tailrace.model.measurement import Verdict
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import S
from tests.analyze.tables import request, table


def lognormal(n, p50, p99, seed, **extra):
    """Requests whose waits have about this p50 and p99, each at its own time."""
    rng = np.random.default_rng(seed)
    sigma = np.log(p99 / p50) / 2.326
    return [
        request(i, at_ms=i * 500.0, prefill_ms=float(p50 * np.exp(sigma * rng.standard_normal())), **extra)
        for i in range(n)
    ]


@pytest.mark.parametrize("n", [1000, 3000])
def test_a_p99_from_5000_to_1200_with_a_p50_from_300_to_400_is_an_improvement_that_names_the_p50(n):
    result = compare(table(lognormal(n, 300, 5000, 1)), table(lognormal(n, 400, 1200, 2)))
    assert result.verdict is Verdict.IMPROVED
    p50 = result.metrics["ttft_ms.p50"].delta_pct
    assert 20 < p50 < 45
    assert result.summary.startswith(f"Improved, p50 {p50:+.0f} %: p99 of the longest wait went from")
    assert result.in_short.startswith(f"p50 {p50:+.0f} %, p95 -")
    assert any(text.startswith("TTFT p50 rose") and "while its p99 fell" in text for text in result.trade_offs)


def test_exactly_33_percent_is_told_as_such():
    a = [request(i, at_ms=i * 500.0, prefill_ms=5000.0 if i % 50 == 0 else 300.0 + i % 7) for i in range(1000)]
    b = [request(i, at_ms=i * 500.0, prefill_ms=1200.0 if i % 50 == 0 else 400.0 + i % 7) for i in range(1000)]
    result = compare(table(a), table(b))
    assert result.verdict is Verdict.IMPROVED
    assert "improved, p50 +33 %" in result.summary.lower()


def test_200_requests_decide_a_large_effect_and_say_on_how_many_the_p99_rests():
    result = compare(table(lognormal(200, 300, 5000, 1)), table(lognormal(200, 400, 1200, 2)))
    assert result.verdict is Verdict.IMPROVED
    p99 = result.metrics["ttft_ms.p99"]
    assert p99.note.startswith("rests on 2 samples")
    assert "0 after" in p99.note
    assert None not in result.metrics["ttft_ms.p95"].ci_pct
    assert any("p99 rests on 2 samples" in text for text in result.checks)


def test_200_requests_do_not_decide_20_percent_and_say_how_many_would():
    result = compare(table(lognormal(200, 300, 3000, 5)), table(lognormal(200, 360, 3600, 9)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.need_n is not None
    assert result.need_more == result.need_n - 200 > 0
    assert f"Need {result.need_more:,} more" in result.summary


def test_no_difference_says_how_large_one_could_be():
    steady = [
        request(i, at_ms=i * 50.0, prefill_ms=100.0 + (i * 37 % 101) / 5, gaps_ms=[20.0] * 3) for i in range(4000)
    ]
    other = [request(i, at_ms=i * 50.0, prefill_ms=100.0 + (i * 53 % 101) / 5, gaps_ms=[20.0] * 3) for i in range(4000)]
    result = compare(table(steady), table(other))
    assert result.verdict is Verdict.NO_DIFFERENCE
    assert result.equivalence_pct is not None
    assert 0 <= result.equivalence_pct <= 10
    assert result.summary.startswith(f"No difference larger than {result.equivalence_pct:.1f}%")


def shed(count, reason, *, age_ms, **extra):
    """Arm B: as many as `count` end without an answer, the others wait less."""
    out = lognormal(1000, 200, 600, 2)
    for i in range(count):
        at = i * (1000 // count)
        out[at] = request(at, at_ms=at * 500.0, prefill_ms=age_ms, reason=reason, **extra)
    return table(out)


def test_load_that_was_shed_is_no_improvement_and_the_queues_limit_is_named():
    result = compare(table(lognormal(1000, 300, 5000, 1)), shed(60, Reason.QUEUE_FULL, age_ms=1.0))
    assert result.verdict is Verdict.REGRESSED
    assert result.metrics["ttft_ms.p95"].verdict is Verdict.IMPROVED
    assert result.summary.startswith("Regressed: load was shed.")
    assert "60 rejected by the limit of the queue (queue_full), 0 before" in result.summary
    assert result.same_work["errors"] is False
    assert result.decided_by == "failures"
    assert result.failed_share == [0.0, 0.06]


def test_load_that_was_shed_by_a_timeout_names_the_budget_and_its_length():
    b = shed(60, Reason.FIRST_TOKEN_TIMEOUT, age_ms=2000.0, budget="first_token", died_in="prefill")
    result = compare(table(lognormal(1000, 300, 5000, 1)), b)
    assert "load was shed" in result.summary
    assert "60 timed out by the first_token budget of 2 s (first_token_timeout)" in result.summary
    (row,) = result.failures
    assert (row.a, row.b, row.budget, row.limit_ms) == (0, 60, "first_token", 2000.0)


def test_failures_that_became_fewer_are_told():
    result = compare(shed(60, Reason.QUEUE_FULL, age_ms=1.0), table(lognormal(1000, 200, 600, 2)))
    assert result.verdict is not Verdict.REGRESSED
    assert "Fewer requests failed: 0.0% did not complete, against 6.0% before" in result.summary
    assert "Fewer" not in compare(table(lognormal(1000, 200, 600, 1)), table(lognormal(1000, 200, 600, 2))).summary


def test_an_engine_that_crashed_is_not_called_shedding():
    result = compare(table(lognormal(1000, 300, 5000, 1)), shed(60, Reason.ENGINE_CRASH, age_ms=50.0))
    assert result.verdict is Verdict.REGRESSED
    assert "shed" not in result.summary
    assert "engine_crash" in result.summary


def test_failures_in_bursts_on_both_sides_are_not_counted_as_if_each_were_alone():
    def bursts(first, seed):
        out = lognormal(1000, 200, 600, seed)
        for begin in first:
            for at in range(begin, begin + 12):
                out[at] = request(at, at_ms=at * 500.0, prefill_ms=1.0, reason=Reason.QUEUE_FULL)
        return table(out)

    one_more = compare(bursts((100, 600), 1), bursts((200, 500, 800), 2))
    assert one_more.verdict is not Verdict.REGRESSED  # 24 against 36 refusals are two full queues against three
    many = compare(bursts((100,), 1), bursts(range(0, 960, 60), 2))
    assert many.verdict is Verdict.REGRESSED


def test_bursts_are_seen_in_runs_that_were_days_apart_as_well():
    def run(first, seed, day):
        out = lognormal(1000, 200, 600, seed)
        for begin in first:
            for at in range(begin, begin + 12):
                out[at] = request(at, at_ms=at * 500.0, prefill_ms=1.0, reason=Reason.QUEUE_FULL)
        return table([msgspec.structs.replace(one, start_unix_ns=one.start_unix_ns + day * 86_400 * S) for one in out])

    a = [run((100,), 1, 0), run((600,), 2, 7)]
    b = [run((200, 800), 3, 1), run((500, 700), 4, 8)]
    assert compare(a, b).verdict is not Verdict.REGRESSED  # two full queues against four


def test_a_heavier_load_is_not_a_slower_system():
    def arm(documents, seed):
        rng = np.random.default_rng(seed)
        out = []
        for i in range(2000):
            long = rng.random() < documents
            # Everybody waits longer where there are more documents: a queue, which no weighting takes out.
            wait = float(100 * (1 + 20 * documents) * rng.lognormal(0, 0.3))
            out.append(request(i, at_ms=i * 80.0, lane="all", prompt=6000 if long else 300, prefill_ms=wait))
        return table(out)

    result = compare(arm(0.03, 1), arm(0.08, 2))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.observed is Verdict.REGRESSED
    assert "more prompt tokens a second" in result.summary
    assert "same rate" in result.summary
    # The other way round a lighter load did not make it slower: it is slower.
    slower = table([request(i, at_ms=i * 80.0, lane="all", prompt=300, prefill_ms=900.0 + i % 50) for i in range(2000)])
    assert compare(arm(0.08, 1), slower).verdict is Verdict.REGRESSED


def test_an_open_verdict_names_both_sides_of_a_trade():
    """Smaller prefill steps: first tokens come sooner, gaps grow, and the p99 itself decides nothing."""

    def arm(seed, *, waited, gap):
        rng, rows = np.random.default_rng(seed), []
        for i in range(600):
            wait = float(rng.uniform(40, 60))
            if i % 16 == 3:
                wait = float(rng.uniform(1000, 9000))  # whatever else happens: it makes the p95 and the p99 uncertain
            elif i % 8 == 1:
                wait = waited * float(np.exp(0.05 * rng.standard_normal()))
            gaps = [20.0 + float(rng.uniform(0, 2))] * 8 + [gap + float(rng.uniform(0, 5))] * 2
            if i % 16 == 5:
                gaps[4] = float(rng.uniform(1000, 9000))
            rows.append(request(i, at_ms=i * 500.0, prefill_ms=wait, gaps_ms=gaps))
        return table(rows)

    result = compare(arm(1, waited=900.0, gap=30.0), arm(2, waited=300.0, gap=90.0))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert [text for text in result.trade_offs if text.startswith("TTFT p90") and " fell from" in text]
    assert [text for text in result.trade_offs if text.startswith("chunk gap") and " rose from" in text]
    assert "It is a trade: TTFT p90 fell from" in result.summary
    assert " rose from " in result.summary


def test_no_trade_is_told_by_a_quantile_that_rests_on_one_request():
    few = [request(i, at_ms=i * 500.0, prefill_ms=2000.0 if i == 7 else 50.0 + i % 9) for i in range(60)]
    fewer = [request(i, at_ms=i * 500.0, prefill_ms=200.0 if i == 7 else 80.0 + i % 9) for i in range(60)]
    result = compare(table(few), table(fewer))
    assert not [text for text in result.trade_offs if "p99" in text or "p95" in text]
