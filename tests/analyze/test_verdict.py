"""The rules of the verdict on constructed numbers."""

import pytest

from tailrace.analyze.trade_offs import latency_trade_offs, rate_trade_off
from tailrace.analyze.verdict import Headline, judge_metric, overall
from tailrace.model.measurement import MetricDelta, Verdict
from tailrace.stats.bootstrap import QuantileChange


def change(low, mid, high, *, a=1000.0, n=1000, p=0.99, p_value=0.001, paired=True):
    return QuantileChange(p, a, a * (1 + mid), n, n, mid, low, high, p_value, 0.1, 20, 2.0, paired)


def delta(item):
    return MetricDelta(a=item.a, b=item.b, delta_pct=0.0, ci_pct=[0.0, 0.0], verdict=judge_metric(item))


def head(name, item, *, interactive=True, decisive=False):
    return Headline(name, interactive, decisive, delta(item), item)


@pytest.mark.parametrize(
    ("low", "mid", "high", "verdict"),
    [
        (-0.5, -0.4, -0.3, Verdict.IMPROVED),
        (0.1, 0.3, 0.5, Verdict.REGRESSED),
        (-0.04, 0.0, 0.04, Verdict.NO_DIFFERENCE),
        (-0.02, -0.015, -0.01, Verdict.NO_DIFFERENCE),  # real, and too small to matter
        (0.01, 0.04, 0.3, Verdict.INCONCLUSIVE),
        (-0.2, 0.1, 0.3, Verdict.INCONCLUSIVE),
    ],
)
def test_one_metric(low, mid, high, verdict):
    assert judge_metric(change(low, mid, high)) is verdict


def test_a_quantile_that_n_cannot_support_decides_nothing():
    assert judge_metric(change(-0.5, -0.4, -0.3, n=499)) is Verdict.INCONCLUSIVE
    assert judge_metric(change(-0.5, -0.4, -0.3, n=500)) is Verdict.IMPROVED


BETTER, WORSE, SAME = change(-0.5, -0.4, -0.3), change(0.1, 0.2, 0.3), change(-0.01, 0.0, 0.01)


def test_failures_come_before_everything():
    assert overall([head("ttft_ms.p99", BETTER)], failures_rose=True)[0] is Verdict.REGRESSED


def test_the_larger_of_gain_and_loss_decides_and_both_are_in_milliseconds():
    gain, loss = head("longest_gap_ms.p99", BETTER), head("ttft_ms.p99", WORSE)
    assert overall([gain, loss], failures_rose=False) == (Verdict.IMPROVED, "longest_gap_ms.p99")
    # The sentence is about the most telling metric, the first, not about the one with the most milliseconds.
    more = head("e2e_ms.p99", change(-0.5, -0.4, -0.1, a=5000.0))
    assert overall([gain, more, loss], failures_rose=False) == (Verdict.IMPROVED, "longest_gap_ms.p99")
    heavy = head("e2e_ms.p99", change(0.1, 0.2, 0.3, a=5000.0))
    assert overall([gain, heavy], failures_rose=False) == (Verdict.REGRESSED, "e2e_ms.p99")


def test_other_classes_decide_only_where_interactive_ones_did_not_move():
    still = head("ttft_ms.p99", SAME, decisive=True)
    document = head("long/ttft_ms.p90", change(0.5, 1.0, 2.0, a=9000.0), interactive=False)
    assert overall([still, document], failures_rose=False)[0] is Verdict.REGRESSED
    assert overall([head("ttft_ms.p99", BETTER), document], failures_rose=False)[0] is Verdict.IMPROVED


def test_no_difference_must_be_shown():
    calm = [head("longest_wait_ms.p99", SAME, decisive=True), head("e2e_ms.p99", SAME, decisive=True)]
    assert overall(calm, failures_rose=False)[0] is Verdict.NO_DIFFERENCE
    vague = head("e2e_ms.p99", change(-0.3, 0.0, 0.4, p_value=0.9), decisive=True)
    assert overall([calm[0], vague], failures_rose=False)[0] is Verdict.INCONCLUSIVE
    assert overall([], failures_rose=False)[0] is Verdict.INCONCLUSIVE


def test_one_weak_change_among_many_does_not_survive():
    weak = head("ttft_ms.p99", change(0.01, 0.2, 0.4, p_value=0.04))
    others = [head(f"{name}.p99", change(-0.2, 0.0, 0.2, p_value=0.9)) for name in ("a_ms", "b_ms", "c_ms")]
    assert overall([weak], failures_rose=False)[0] is Verdict.REGRESSED
    assert overall([weak, *others], failures_rose=False)[0] is Verdict.INCONCLUSIVE


def test_other_arrivals_move_a_tail_by_themselves():
    small = change(-0.09, -0.08, -0.07, paired=False)
    assert overall([head("ttft_ms.p99", small)], failures_rose=False)[0] is Verdict.INCONCLUSIVE
    assert overall([head("ttft_ms.p99", small._replace(paired=True))], failures_rose=False)[0] is Verdict.IMPROVED


def test_trade_offs_are_sorted_and_say_each_thing_once():
    changes = {
        "ttft_ms.p99": WORSE,
        "long/ttft_ms.p95": change(0.5, 0.6, 0.8, a=4000.0, p=0.95),
        "long/longest_wait_ms.p95": change(0.5, 0.6, 0.8, a=4000.0, p=0.95),
        "short/chunk_gap_ms.p95": change(0.3, 0.5, 0.7, a=30.0, p=0.95),
        "short/chunk_gap_ms.p99": change(-0.9, -0.8, -0.7, a=500.0),
        "short/e2e_ms.p99": BETTER,
    }
    metrics = {name: delta(item) for name, item in changes.items()}
    texts = latency_trade_offs(Verdict.IMPROVED, metrics, changes, frozenset({"long"}))
    assert len(texts) == 2  # the overall TTFT is told by its class, the longest wait by the TTFT that it is
    assert texts[0].startswith("TTFT p95 of long (long prompts) rose from 4000 to 6400 ms (+60%")
    assert texts[1].startswith("chunk gap p95 of short rose from 30 to 45 ms")
    assert texts[1].endswith("while its p99 fell from 500 to 100 ms.")
    bought = latency_trade_offs(Verdict.REGRESSED, metrics, changes, frozenset({"long"}))
    assert any(text.startswith("E2E p99 of short fell") for text in bought)


def test_rates_are_named_when_they_move_against_the_verdict():
    assert rate_trade_off("Goodput", 10.0, 9.0, Verdict.IMPROVED) == ("Goodput fell from 10.0 to 9.0 (-10.0%).",)
    assert rate_trade_off("Goodput", 10.0, 9.9, Verdict.IMPROVED) == ()
    assert rate_trade_off("Goodput", 10.0, 12.0, Verdict.IMPROVED) == ()
    assert rate_trade_off("Goodput", 10.0, 12.0, Verdict.REGRESSED) == ("Goodput rose from 10.0 to 12.0 (+20.0%).",)
    assert rate_trade_off("Goodput", 0.0, 12.0, Verdict.IMPROVED) == ()
