import numpy as np
import pytest

from tailrace.analyze.classes import classify
from tailrace.analyze.compare import compare
from tailrace.model.measurement import ClientHealth, Verdict
from tailrace.model.outcome import Reason
from tailrace.store.run_file import RunTrailer
from tests.analyze.tables import request, run, table


def traffic(
    seed=1,
    *,
    n=540,
    rate=12.0,
    stall_ms=0.0,
    stall_share=0.05,
    long_share=0.1,
    long_prefill_ms=500.0,
    step_ms=20.0,
    ttft_ms=60.0,
    noise=0,
    failed=0,
    stall_step_ms=None,
):
    """Chat with some documents. `seed` fixes arrivals and lengths, `noise` what the system does to them."""
    rng, jitter = np.random.default_rng(seed), np.random.default_rng(1000 + noise)
    at = np.cumsum(rng.exponential(1000 / rate, n))
    out = []
    for i in range(n):
        long = rng.random() < long_share
        tokens = int(rng.integers(30, 80))
        gaps = step_ms * jitter.lognormal(0, 0.1, tokens)
        if not long and stall_ms:
            gaps[jitter.random(tokens) < stall_share] += stall_ms * jitter.uniform(0.7, 1.3)
        if not long and stall_step_ms:
            gaps[jitter.random(tokens) < 0.08] = stall_step_ms
        out.append(
            request(
                i,
                at_ms=float(at[i]),
                lane="long" if long else "short",
                prompt=8000 if long else 200,
                prefill_ms=float((long_prefill_ms if long else ttft_ms) * jitter.lognormal(0, 0.3)),
                gaps_ms=gaps.tolist(),
            )
        )
    for i in range(failed):
        out[i * 7] = request(i * 7, at_ms=float(at[i * 7]), reason=Reason.TOTAL_TIMEOUT, prefill_ms=9000)
    return out


def test_a_large_gain_in_an_arm_of_45_s_is_decided_and_its_price_is_named():
    a = table(traffic(stall_ms=600, noise=1))
    b = table(traffic(stall_ms=0, long_prefill_ms=900, noise=2))
    result = compare(a, b)
    assert result.verdict is Verdict.IMPROVED
    assert result.headline[0] == "short/longest_wait_ms.p95"  # 486 short requests do not support a p99
    assert result.interactive == ["short"]
    assert result.same_work["same"]
    assert result.same_work["arrivals"]
    text = " ".join(result.trade_offs)
    assert "TTFT" in text
    assert "of long (long prompts) rose" in text
    assert "improved" in result.summary.lower()
    assert result.min_detectable_pct is not None
    delta = result.metrics["ttft_ms.p99"]
    assert (delta.n_a, delta.n_b) == (540, 540)
    low, high = result.metrics["short/longest_wait_ms.p95"].ci_pct
    assert low is not None
    assert high is not None
    assert low < result.metrics["short/longest_wait_ms.p95"].delta_pct < high < 0


def test_the_reverse_is_a_regression():
    a, b = table(traffic(stall_ms=0, noise=1)), table(traffic(stall_ms=600, noise=2))
    assert compare(a, b).verdict is Verdict.REGRESSED


def test_a_lower_quantile_that_rose_while_the_tail_fell_is_named():
    # Chunked prefill: no long stalls any more, but a tenth of the gaps is a little longer.
    a = table(traffic(stall_ms=700, stall_share=0.03, noise=1))
    b = table(traffic(stall_step_ms=45.0, noise=2))
    result = compare(a, b)
    assert result.verdict is Verdict.IMPROVED
    assert any("chunk gap p95" in text and "while its p99 fell" in text for text in result.trade_offs)


def test_a_run_against_itself_is_no_difference():
    a = table(traffic())
    result = compare(a, a)
    assert result.verdict is Verdict.NO_DIFFERENCE
    assert result.trade_offs == []
    assert result.metrics["e2e_ms.p99"].ci_pct == [0.0, 0.0]


@pytest.mark.parametrize("noise", range(6))
def test_two_runs_of_one_system_are_not_called_different(noise):
    result = compare(table(traffic(noise=10 + noise)), table(traffic(noise=30 + noise)))
    assert result.verdict in (Verdict.NO_DIFFERENCE, Verdict.INCONCLUSIVE)


def test_a_small_change_in_a_small_run_is_inconclusive_and_says_what_it_could_have_seen():
    rng = np.random.default_rng(0)

    def arm(scale, seed):
        draw = np.random.default_rng(seed)
        return table([request(i, at_ms=i * 80, prefill_ms=float(draw.lognormal(5, 1) * scale)) for i in range(300)])

    result = compare(arm(1.0, 1), arm(1.15, 2), rng=rng)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.min_detectable_pct is not None
    assert result.min_detectable_pct > 15
    assert "could have seen" in result.summary
    assert any("p99 rests on 3" in text for text in result.checks)


def test_a_very_large_change_is_decided_with_200_requests():
    def arm(scale, seed):
        draw = np.random.default_rng(seed)
        return table([request(i, at_ms=i * 200, prefill_ms=float(draw.lognormal(0, 0.5) * scale)) for i in range(200)])

    assert compare(arm(1700, 1), arm(400, 2)).verdict is Verdict.IMPROVED


def test_failures_that_rose_beat_any_latency():
    a, b = table(traffic(stall_ms=600, noise=1)), table(traffic(noise=2, failed=25))
    result = compare(a, b)
    assert result.verdict is Verdict.REGRESSED
    assert "did not complete" in result.summary


def test_a_regression_elsewhere_is_not_swallowed():
    # Gaps improve a little; the first token becomes much later.
    a, b = table(traffic(step_ms=25, noise=1)), table(traffic(step_ms=20, ttft_ms=900, noise=2))
    result = compare(a, b)
    assert result.verdict is Verdict.REGRESSED
    assert "TTFT" in result.summary or "longest wait" in result.summary


def test_documents_alone_that_got_slower_are_a_regression():
    a, b = table(traffic(noise=1, n=1500)), table(traffic(noise=2, n=1500, long_prefill_ms=1500))
    result = compare(a, b)
    assert result.verdict is Verdict.REGRESSED
    assert "long" in result.summary


def test_more_documents_are_not_a_slower_system():
    # One class (no lanes): the share of long prompts doubles, nothing else changes.
    def arm(share, seed):
        draw = np.random.default_rng(seed)
        out = []
        for i in range(6000):
            long = draw.random() < share
            out.append(
                request(
                    i,
                    at_ms=i * 40,
                    lane="default",
                    prompt=700 if long else 200,
                    prefill_ms=float((150 if long else 50) * draw.lognormal(0, 0.1)),
                    gaps_ms=[20.0] * 5,
                )
            )
        return table(out)

    result = compare(arm(0.007, 1), arm(0.05, 2))
    assert not result.same_work["prompt_tokens"]
    assert result.verdict is not Verdict.REGRESSED
    split = result.mix_within["ttft_ms.p99"]
    assert split["mix_ms"] > 5 * abs(split["within_ms"])
    assert any("Not the same work" in text for text in result.checks)


def test_a_limited_client_gives_no_verdict():
    records = traffic(stall_ms=600)
    trailer = RunTrailer(n=len(records), duration_s=45, client=ClientHealth(limited=True, why="its loop lagged 80 ms"))
    result = compare(run(records, trailer=trailer), run(traffic(noise=2)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.refused[0].startswith("client_limited")


def test_lost_records_give_no_verdict():
    a, b = table(traffic(stall_ms=600)), table(traffic())
    assert compare(a, b, dropped=(0.0, 0.02)).refused
    assert compare(a, b, dropped=(0.0, 0.009)).verdict is Verdict.IMPROVED


def test_too_few_requests_give_no_verdict():
    assert compare(table(traffic(n=10)), table(traffic(n=10))).refused
    assert compare(table([]), table([])).verdict is Verdict.INCONCLUSIVE


def test_throughput_that_fell_is_a_trade_off():
    a = table(traffic(stall_ms=600, noise=1))
    b = table(traffic(noise=2, rate=10.5))
    result = compare(a, b)
    assert result.verdict is Verdict.IMPROVED
    assert any(text.startswith("Completed requests per second fell") for text in result.trade_offs)
    assert not result.same_work["arrivals"]


def test_a_better_tail_under_a_lighter_load_is_not_told_to_be_an_improvement():
    result = compare(table(traffic(stall_ms=600, noise=1)), table(traffic(noise=2, rate=9)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.observed is Verdict.IMPROVED
    assert "fewer requests a second" in result.summary
    # A worse tail under a lighter load needs no excuse.
    assert compare(table(traffic(noise=1)), table(traffic(stall_ms=600, noise=2, rate=9))).verdict is Verdict.REGRESSED


def test_lanes_that_one_arm_lacks_are_replaced_by_prompt_length():
    a = table([type(r)(**{**{f: getattr(r, f) for f in r.__struct_fields__}, "lane": "default"}) for r in traffic()])
    result = compare(a, table(traffic(noise=3)))
    assert result.interactive == ["short"]
    assert "long/ttft_ms.p50" in result.metrics


def test_the_answer_depends_on_nothing_but_its_inputs():
    a, b = table(traffic(stall_ms=100, noise=1)), table(traffic(noise=2))
    assert compare(a, b) == compare(a, b)


def test_nine_documents_that_all_waited_longer_are_named():
    # Too few for any quantile; but each is compared with itself, because both runs replayed the same arrivals.
    a = table(traffic(stall_ms=600, noise=1, long_share=0.016))
    b = table(traffic(noise=2, long_share=0.016, long_prefill_ms=2500))
    result = compare(a, b)
    assert result.verdict is Verdict.IMPROVED
    assert "long/ttft_ms.p50" not in result.metrics
    (text,) = [text for text in result.trade_offs if text.startswith("TTFT of long")]
    assert "each against itself" in text
    same = compare(a, table(traffic(noise=2, long_share=0.016)))
    assert not any("each against itself" in text for text in same.trade_offs)


def test_the_one_class_that_somebody_named_is_not_divided_by_length():
    """Lengths within a class spread: a few prompts of four times the median are no class of their own."""
    records = [request(i, at_ms=i * 50, lane="chat", prompt=600 if i % 20 == 0 else 100) for i in range(400)]
    named = classify(table(records), table(records))
    assert (named.names, named.interactive) == (["chat"], frozenset({"chat"}))
    for lane in ("default", "trace"):
        unnamed = [request(i, at_ms=i * 50, lane=lane, prompt=600 if i % 20 == 0 else 100) for i in range(400)]
        assert classify(table(unnamed)).names == ["short", "long"]
