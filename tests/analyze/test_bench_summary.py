import msgspec
import numpy as np
import pytest

from tailrace.analyze.bench_summary import summarise, summarise_run
from tailrace.model.measurement import BenchSummary, ClientHealth
from tailrace.model.outcome import Reason
from tailrace.model.thresholds import MS, Objectives
from tailrace.store.run_file import RunTrailer
from tests.analyze.tables import request, run, table


def test_counts_and_rates():
    records = [request(i, at_ms=i * 100, gaps_ms=[10] * 9) for i in range(20)]
    records.append(request(20, reason=Reason.QUEUE_FULL, prefill_ms=0))
    trailer = RunTrailer(n=21, duration_s=4.0, client=ClientHealth(limited=True, why="cpu"))
    summary = summarise_run(run(records, trailer=trailer))
    assert (summary.n, summary.errors, summary.run) == (21, {"queue_full": 1}, "a.run")
    assert summary.requests_per_s == 5.0
    assert summary.tokens_per_s == 20 * 10 / 4.0
    assert summary.goodput_per_s == 5.0
    assert summary.client.limited
    assert summary.mix == {"short": 21}


def test_gaps_are_pooled_from_the_timelines():
    summary = summarise(table([request(0, gaps_ms=[10, 30]), request(1, gaps_ms=[20])]))
    gap = summary.metrics["chunk_gap_ms"]
    assert (gap.n, gap.mean, gap.min, gap.max) == (3, 20.0, 10.0, 30.0)
    # Gaps of one stall belong together: an interval that takes them for independent would lie.
    assert gap.p99_ci is None


def test_itl_is_the_gap_by_its_tokens_once_for_each_token():
    record = request(0, gaps_ms=[40, 10])
    record = type(record)(
        **{
            **{name: getattr(record, name) for name in record.__struct_fields__},
            "timeline": type(record.timeline)(at_ns=record.timeline.at_ns, kind=[0, 0, 0], tokens=[1, 4, 1]),
            "output_tokens": 6,
        }
    )
    itl = summarise(table([record])).metrics["itl_ms"]
    assert (itl.n, itl.mean, itl.max) == (5, 10.0, 10.0)


def test_token_counts_that_nobody_gave_leave_itl_unknown():
    record = request(0, gaps_ms=[10] * 5, tokens=False, output_tokens=None)
    metric = summarise(table([record])).metrics["itl_ms"]
    assert metric.n == 0
    assert metric.mean is None
    assert metric.reason == "no event said how many tokens it brought"


def test_one_chunk_a_token_is_known_when_the_total_says_so():
    assert summarise(table([request(0, gaps_ms=[10] * 5, tokens=False)])).metrics["itl_ms"].n == 5


def test_failures_never_enter_a_latency_percentile():
    fine = [request(i, gaps_ms=[10] * 3) for i in range(30)]
    bad = [request(100 + i, prefill_ms=60_000, reason=Reason.FIRST_TOKEN_TIMEOUT) for i in range(10)]
    summary = summarise(table(fine + bad))
    assert summary.metrics["e2e_ms"].n == 30
    assert summary.metrics["e2e_ms"].max == 60.0
    assert summary.errors == {"first_token_timeout": 10}


def test_goodput_counts_every_kind_of_miss():
    records = [
        request(0, at_ms=0, prefill_ms=400, gaps_ms=[10] * 3),
        request(1, at_ms=0, prefill_ms=600, gaps_ms=[10] * 3),  # TTFT missed
        request(2, at_ms=0, prefill_ms=30, gaps_ms=[100] * 3),  # TPOT missed
        request(3, at_ms=0, prefill_ms=30),  # a single token has no TPOT to miss
        request(4, at_ms=0, reason=Reason.CLIENT_DISCONNECT),
        request(5, at_ms=0, reason=Reason.QUEUE_FULL),
    ]
    assert summarise(table(records), duration_s=1.0).goodput_per_s == 2.0
    loose = Objectives(bounds={"ttft": {0.99: 700 * MS}})
    assert summarise(table(records), duration_s=1.0, objectives=loose).goodput_per_s == 4.0
    lane = Objectives(bounds={"ttft": {0.99: 700 * MS}, "short/ttft": {0.99: 100 * MS}})
    assert summarise(table(records), duration_s=1.0, objectives=lane).goodput_per_s == 2.0


def test_quantiles_without_support_are_absent_and_the_maximum_stays():
    metric = summarise(table([request(i, prefill_ms=30 + i) for i in range(200)])).metrics["ttft_ms"]
    assert metric.p95 is not None
    assert (metric.p99, metric.p999) == (None, None)
    assert metric.max == 229.0
    assert metric.p99_ci is not None
    assert metric.p99_ci[1] is None


def test_p99_with_support_has_its_interval():
    rng = np.random.default_rng(0)
    metric = summarise(table([request(i, prefill_ms=rng.exponential(100)) for i in range(600)])).metrics["ttft_ms"]
    assert metric.p99 is not None
    assert metric.p99_ci is not None
    low, high = metric.p99_ci
    assert low is not None
    assert high is not None
    assert low < metric.p99 < high


def test_from_schedule_adds_the_late_send():
    records = [
        request(i, gaps_ms=[10], run_offset_ns=i * MS, intended_to_sent_ns=7 * MS, vantage="client") for i in range(20)
    ]
    summary = summarise(table(records))
    assert summary.from_schedule["ttft_ms"].mean == pytest.approx(37.0)
    assert summary.metrics["ttft_ms"].mean == pytest.approx(30.0)
    assert summarise(table([request(0)])).from_schedule == {}


def test_warm_up_is_left_out():
    records = [request(i, prefill_ms=5000, lane="warmup") for i in range(5)]
    records += [request(10, run_offset_ns=-5, prefill_ms=5000)]
    records += [request(20 + i, at_ms=i * 100, run_offset_ns=i * 100 * MS) for i in range(11)]
    summary = summarise(table(records), duration_s=99.0)
    assert summary.n == 11
    assert summary.metrics["ttft_ms"].max == 30.0
    assert summary.requests_per_s == pytest.approx(11 / 1.03)


def test_longest_wait_is_the_worse_of_first_token_and_gap():
    summary = summarise(table([request(0, prefill_ms=50, gaps_ms=[10, 700]), request(1, prefill_ms=900, gaps_ms=[10])]))
    assert summary.metrics["longest_wait_ms"].min == 700.0
    assert summary.metrics["longest_wait_ms"].max == 900.0


def test_nothing_completed():
    summary = summarise(table([request(0, reason=Reason.ENGINE_UNREACHABLE)]))
    assert summary.metrics["ttft_ms"].n == 0
    assert summary.metrics["ttft_ms"].reason
    assert summary.requests_per_s == 0.0
    assert summarise(table([])).n == 0


def two_classes(n=400):
    rng = np.random.default_rng(8)
    records = []
    for i in range(n):
        bad = i % 40 == 0
        records.append(
            request(
                i,
                at_ms=i * 10,
                lane="document" if i % 4 == 0 else "chat",
                prompt=6000 if i % 4 == 0 else 300,
                prefill_ms=float(rng.exponential(100)),
                gaps_ms=() if bad else rng.exponential(20, int(rng.integers(1, 30))),
                reason=Reason.QUEUE_FULL if bad else Reason.NONE,
                vantage="client",
                run_offset_ns=i * 10 * MS,
                intended_to_sent_ns=2 * MS,
            )
        )
    return table(records)


def test_classes_and_buckets_add_up_to_the_whole():
    summary = summarise(two_classes())
    assert set(summary.classes) == set(summary.classes_from_schedule) == set(summary.mix) == {"chat", "document"}
    for key, whole in summary.metrics.items():
        assert sum(one[key].n for one in summary.classes.values()) == whole.n
        assert sum(one[key].failed for one in summary.classes.values()) == whole.failed
        if whole.n:
            assert min(one[key].min for one in summary.classes.values()) == whole.min
            assert max(one[key].max for one in summary.classes.values()) == whole.max
    assert sum(bucket.n for bucket in summary.buckets) == summary.completed
    assert sum(bucket.metrics["e2e_ms"].n for bucket in summary.buckets) == summary.metrics["e2e_ms"].n
    # Buckets count from the origin of the headline: 2 ms later than the send.
    longest = max(bucket.metrics["e2e_ms"].max for bucket in summary.buckets)
    assert longest == pytest.approx(summary.from_schedule["e2e_ms"].max) == summary.metrics["e2e_ms"].max + 2
    assert summary.completed + summary.failed + summary.left == summary.n


def test_one_class_is_not_told_twice():
    assert summarise(table([request(i) for i in range(5)])).classes == {}


def test_the_headline_is_from_the_intended_time_where_there_is_one():
    assert summarise(two_classes()).headline == "from_schedule"
    assert summarise(table([request(0)])).headline == "metrics"


def test_failures_stand_beside_every_percentile_and_make_the_adjusted_one():
    summary = summarise(two_classes())
    assert summary.failed == 10
    for key in ("ttft_ms", "tpot_ms", "e2e_ms", "longest_wait_ms"):
        assert summary.metrics[key].failed == 10
        assert summary.metrics[key].adjusted["p50"] >= summary.metrics[key].p50
    # 10 of 400 failed: what lies above the 97.5th percentile is a failure.
    assert summary.from_schedule["e2e_ms"].adjusted["p95"] is not None
    assert summarise(two_classes(800)).from_schedule["e2e_ms"].adjusted["p99"] is None
    # Gaps are not one a request: they say how many requests are missing, and no more.
    assert (summary.metrics["chunk_gap_ms"].failed, summary.metrics["chunk_gap_ms"].adjusted) == (10, {})


def test_what_the_client_left_on_purpose_is_no_failure():
    records = [request(i, vantage="client", gaps_ms=[10]) for i in range(20)]
    records += [request(50 + i, vantage="client", reason=Reason.CLIENT_DISCONNECT) for i in range(5)]
    records += [request(60, vantage="client", reason=Reason.OPERATOR)]
    summary = summarise(table(records))
    assert (summary.completed, summary.failed, summary.left) == (20, 0, 6)
    assert summary.metrics["e2e_ms"].adjusted["p50"] == summary.metrics["e2e_ms"].p50
    # At a gateway an operator's cancel is the server's side.
    gateways = [request(0, gaps_ms=[10]), request(1, reason=Reason.OPERATOR)]
    assert summarise(table(gateways)).failed == 1


def test_the_readers_tokens_a_second_and_the_factor_of_audio():
    fast = summarise(table([request(i, gaps_ms=[20] * 10, audio_seconds=10.0) for i in range(20)]), duration_s=5.0)
    assert fast.user_tokens_per_s.p50 == pytest.approx(50.0)
    assert fast.tokens_per_s == 20 * 11 / 5.0
    # 230 ms for ten seconds of audio.
    assert fast.metrics["rtf"].p50 == pytest.approx(0.023)
    assert "rtf" not in summarise(table([request(0)])).metrics


def test_a_summary_survives_json():
    summary = summarise(two_classes())
    assert msgspec.json.decode(msgspec.json.encode(summary), type=BenchSummary) == summary
