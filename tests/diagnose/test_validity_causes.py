"""Numbers that are wrong, benchmarks that measure themselves, and arms that differ only in the tail."""

from __future__ import annotations

import json

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.collect import what_to_collect
from tailrace.diagnose.observed import Arm, Histogram, Observed, Quoted
from tailrace.diagnose.readers.facts import observed_facts
from tailrace.diagnose.readers.text import observed_text
from tailrace.model.finding import Level


def cause(code):
    return next(item for item in CAUSES if item.code == code)


def table(text, **settings):
    observed = observed_text(list(enumerate(text.splitlines(), start=1)), "t.md")
    if settings:
        observed = Observed.joined([observed, observed_facts({"facts": 1, "context": settings}, "f.json")])
    return observed


def found(code, observed):
    return cause(code).observe(observed)


def told(finding):
    return " ".join([finding.statement, finding.relation, *(item.text for item in finding.evidence)])


def diagnosed(tmp_path, **files):
    paths = []
    for name, text in files.items():
        path = tmp_path / name.replace("_", ".")
        path.write_text(text)
        paths.append(str(path))
    return diagnose_sources(paths)


# -- METRIC_BUG


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("| run | TTFT mean (ms) |\n|---|---|\n| a | -1715507074412 |\n| b | 80 |\n", "epoch"),
        ("| run | TTFT mean (s) |\n|---|---|\n| a | 1715507074.4 |\n| b | 0.1 |\n", "epoch"),
        ("| run | queue p99 (ms) |\n|---|---|\n| a | -5 |\n| b | 6 |\n", "negative"),
        ("| run | TTFT p50 (ms) | TTFT p99 (ms) |\n|---|---|---|\n| a | 90 | 80 |\n| b | 1 | 2 |\n", "below"),
        ("| run | GPU util (%) |\n|---|---|\n| a | 140 |\n| b | 20 |\n", "140 %"),
        (
            "| run | TTFT mean (ms) | E2E mean (ms) |\n|---|---|---|\n| a | 900 | 800 |\n| b | 1 | 2 |\n",
            "longer than E2E",
        ),
        ("mean TTFT: 500 ms\nmax TTFT: 300 ms\n", "above its max"),
    ],
)
def test_a_number_that_cannot_be_is_proven_wrong(text, words):
    finding = found("METRIC_BUG", table(text))
    assert finding.level is Level.PROVEN
    assert words in told(finding)


def test_zeros_of_a_stream_that_took_time_are_a_bug():
    finding = found("METRIC_BUG", table("mean TTFT: 0 ms\nmean ITL: 0 ms\nmean E2E: 900 ms\n"))
    assert "0 while E2E is 900 ms" in finding.statement


def test_the_first_wait_among_the_gaps_is_consistent_with_a_bug():
    finding = found("METRIC_BUG", table("max TTFT: 900 ms\nmax ITL: 900 ms\nmean ITL: 10 ms\n"))
    assert finding.level is Level.CONSISTENT


@pytest.mark.parametrize(
    "text",
    [
        "| run | TTFT p50 (ms) | TTFT p99 (ms) |\n|---|---|---|\n| a | 80 | 80 |\n| b | 1 | 2 |\n",
        "| run | TTFT change (%) |\n|---|---|\n| a | -50 |\n| b | 250 |\n",
        "| run | GPU util (%) |\n|---|---|\n| a | 100 |\n| b | 0 |\n",
        "mean TTFT: 0 ms\nmean E2E: 0 ms\n",
        "| run | TTFT p99 (ms) | E2E p50 (ms) |\n|---|---|---|\n| a | 900 | 800 |\n| b | 1 | 2 |\n",
    ],
)
def test_possible_numbers_are_no_bug(text):
    assert found("METRIC_BUG", table(text)) is None


def test_a_histogram_that_was_never_set_is_a_bug():
    bounds = [100.0, 500.0]
    zero = Histogram(name="ttft", bounds=bounds, counts=[50.0, 0.0, 0.0], sum=0.0, unit="ms", raw="x_bucket")
    above = Histogram(name="ttft", bounds=bounds, counts=[50.0, 0.0, 0.0], sum=50 * 400.0, unit="ms")
    quick = Histogram(name="ttft", bounds=bounds, counts=[50.0, 0.0, 0.0], sum=50 * 40.0, unit="ms")
    assert found("METRIC_BUG", Observed(histograms=[zero])).level is Level.CONSISTENT
    assert found("METRIC_BUG", Observed(histograms=[above])).level is Level.PROVEN
    assert found("METRIC_BUG", Observed(histograms=[quick])) is None


def requests(n, **changed):
    row = {"t_send_ms": 0, "t_first_ms": 50, "t_last_ms": 500, "output_tokens": 20, "status": "ok"}
    return "".join(
        json.dumps(
            {"id": f"r{i}", **{k: v + 1000 * i if k.startswith("t_") else v for k, v in {**row, **changed}.items()}}
        )
        + "\n"
        for i in range(n)
    )


def test_requests_that_end_before_they_begin_end_the_diagnosis(tmp_path):
    result = diagnosed(tmp_path, r_jsonl=requests(40, t_last_ms=-700, t_first_ms=-800))
    assert "METRIC_BUG" in {item.code for item in (*result.findings, *result.validity)}


# -- METRIC_UNIT


@pytest.mark.parametrize(
    ("mean", "peak", "accept", "level"),
    [(414.75, 111, 4.1, Level.PROVEN), (410.6, 113, None, Level.CONSISTENT), (300, 100, 1.2, Level.CONSISTENT)],
)
def test_a_peak_below_the_mean_counts_chunks(mean, peak, accept, level):
    text = f"Output token throughput (tok/s): {mean}\nPeak output token throughput (tok/s): {peak}\n"
    finding = found("METRIC_UNIT", table(text + (f"Accept length: {accept}\n" if accept else "")))
    assert finding.level is level
    assert f"{mean / peak:.2f}" in finding.statement


@pytest.mark.parametrize("unit", ["ms", "s"])
@pytest.mark.parametrize("label", ["Median ITL", "mean inter-token latency", "ITL p50"])
def test_a_gap_at_concurrency_1_must_fit_the_rate(unit, label):
    gap = 8.72 if unit == "ms" else 0.00872
    finding = found(
        "METRIC_UNIT", table(f"Max request concurrency: 1\nOutput tok/s: 292.29\n{label} ({unit}): {gap}\n")
    )
    assert "3.42 ms" in finding.statement
    assert "chunk" in finding.statement


@pytest.mark.parametrize(
    "text",
    [
        "Max request concurrency: 8\nOutput tok/s: 292\nMedian ITL (ms): 8.72\n",
        "Max request concurrency: 1\nOutput tok/s: 292\nMedian ITL (ms): 3.5\n",
        "Max request concurrency: 1\nOutput tok/s: 100\nMedian ITL (ms): 5\n",
        "Output tok/s: 292\nMedian ITL (ms): 8.72\n",
        "Output tok/s: 100\nPeak output token throughput (tok/s): 150\n",
    ],
)
def test_rates_that_fit_are_no_unit_error(text):
    assert found("METRIC_UNIT", table(text)) is None


def test_counts_of_client_and_server_must_agree(tmp_path):
    rows = requests(30, usage_completion_tokens=60)
    result = diagnosed(tmp_path, r_jsonl=rows)
    assert result.findings[0].code == "METRIC_UNIT"
    same = diagnosed(tmp_path, r_jsonl=requests(30, usage_completion_tokens=20))
    assert "METRIC_UNIT" not in {item.code for item in same.findings}


# -- METRIC_MEAN_DILUTION, METRIC_BUCKET_CEILING


def windows(first, second, bounds=(1.0, 5.0, 10.0, 400.0)):
    return Observed(
        histograms=[
            Histogram(name="ttft", bounds=list(bounds), counts=list(counts), sum=total, order=order, unit="ms", raw="t")
            for order, (counts, total) in enumerate((first, second))
        ]
    )


def test_a_mean_that_falls_by_more_completions_is_diluted():
    finding = found("METRIC_MEAN_DILUTION", windows(([0, 10, 0, 10, 0], 4960), ([0, 20, 30, 20, 0], 9660)))
    assert finding.level is Level.CONSISTENT
    assert "p50" in told(finding)
    assert "20 -> 70" in finding.statement


def test_a_mean_that_falls_with_its_median_is_no_dilution():
    assert found("METRIC_MEAN_DILUTION", windows(([0, 10, 0, 10, 0], 4960), ([70, 0, 0, 0, 0], 60))) is None


def test_one_window_cannot_tell_dilution():
    observed = windows(([0, 10, 0, 10, 0], 4960), ([0, 20, 30, 20, 0], 9660))
    observed.histograms.pop()
    assert found("METRIC_MEAN_DILUTION", observed) is None


def test_a_table_shows_dilution_less_surely():
    text = (
        "| build | TTFT mean (ms) | TTFT p50 (ms) | n |\n|---|---|---|---|\n| before | 248 | 2 | 20 |\n| after | "
        "138 | 7 | 70 |\n"
    )
    assert found("METRIC_MEAN_DILUTION", table(text)).level is Level.SUSPECTED


def test_a_quantile_above_the_top_edge_is_no_number():
    item = Histogram(name="e2e", bounds=[1000.0, 10000.0], counts=[50.0, 40.0, 10.0], unit="ms", raw="e")
    finding = found("METRIC_BUCKET_CEILING", Observed(histograms=[item]))
    assert "p99 > 10 s" in finding.statement
    assert "p90 10 s" in finding.statement
    inside = Histogram(name="e2e", bounds=[1000.0, 10000.0], counts=[50.0, 50.0, 0.0], unit="ms")
    assert found("METRIC_BUCKET_CEILING", Observed(histograms=[inside])) is None


def test_one_scrape_lowers_what_a_ceiling_says():
    item = Histogram(name="e2e", bounds=[1000.0], counts=[50.0, 50.0], unit="ms", lifetime=True)
    finding = found("METRIC_BUCKET_CEILING", Observed(histograms=[item]))
    assert finding.level is Level.SUSPECTED
    assert "second scrape" in finding.missing[0]


# -- METRIC_DEFINITION_CHANGE


def test_a_metric_that_jumps_with_the_version_alone():
    text = (
        "| version | TTFT from /metrics (ms) | client TTFT (ms) |\n|---|---|---|\n| 0.5.4 | 100 | 300 |\n| 0.6.0 "
        "| 250 | 302 |\n"
    )
    assert found("METRIC_DEFINITION_CHANGE", table(text)).level is Level.CONSISTENT
    moved = text.replace("302", "700")
    assert found("METRIC_DEFINITION_CHANGE", table(moved)) is None
    alone = "| version | TTFT from /metrics (ms) |\n|---|---|\n| 0.5.4 | 100 |\n| 0.6.0 | 250 |\n"
    finding = found("METRIC_DEFINITION_CHANGE", table(alone))
    assert finding.level is Level.SUSPECTED
    assert "client" in finding.missing[0]


# -- benchmarks


def late(n, by):
    rows = []
    for i in range(n):
        start = 500.0 * i
        rows.append({"id": f"b{i}", "t_intended_ms": start - by(i), "t_send_ms": start, "t_first_ms": start + 40,
                     "t_last_ms": start + 506, "output_tokens": 16, "status": "ok"})  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_clock_that_starts_at_the_send_leaves_the_wait_out(tmp_path):
    result = diagnosed(tmp_path, r_jsonl=late(30, lambda i: 50.0 * i))
    assert (result.findings[0].code, result.findings[0].level) == ("BENCH_COORDINATED_OMISSION", Level.CONSISTENT)
    assert "506" in told(result.findings[0])
    punctual = diagnosed(tmp_path, r_jsonl=late(30, lambda _: 1.0))
    assert "BENCH_COORDINATED_OMISSION" not in {item.code for item in punctual.findings}


def test_a_rate_above_the_limit_is_a_suspicion_without_both_stamps():
    text = "Mean E2E Latency (ms): 506\nMax request concurrency: 1\nSuccessful requests: 8\n"
    finding = found("BENCH_COORDINATED_OMISSION", table(text, request_rate=10))
    assert finding.level is Level.SUSPECTED
    assert "intended" in finding.missing[0]
    assert found("BENCH_COORDINATED_OMISSION", table(text, request_rate=1)) is None


def test_a_dispatch_delay_is_part_of_the_latency():
    finding = found("BENCH_COORDINATED_OMISSION", table("mean E2E: 506 ms\nmean request dispatch delay: 1426 ms\n"))
    assert "1932 ms" in finding.statement


def test_waves_of_the_tests_own_are_a_client_queue():
    text = "n: 40\nconcurrency: 4\nmax TTFT: 19 s\nmean TPOT: 20 ms\nmean output tokens: 101\n"
    finding = found("BENCH_CLIENT_QUEUE", table(text))
    assert finding.level is Level.SUSPECTED
    assert "10 waves" in finding.statement
    assert found("BENCH_CLIENT_QUEUE", table(text.replace("19 s", "0.2 s"))) is None
    assert found("BENCH_CLIENT_QUEUE", table(text.replace("n: 40\n", ""))) is None


def test_longer_outputs_in_a_closed_loop_lower_ttft():
    text = (
        "| run | concurrency | OSL | TTFT mean (ms) |\n|---|---|---|---|\n| a | 32 | 1 | 900 |\n| b | 32 | 256 | "
        "300 |\n"
    )
    assert found("BENCH_CLOSED_LOOP", table(text)).level is Level.CONSISTENT
    assert found("BENCH_CLOSED_LOOP", table(text.replace("| b | 32 |", "| b | 64 |"))) is None
    assert found("BENCH_CLOSED_LOOP", table(text.replace("| 256 |", "| 1 |"))) is None
    assert found("BENCH_CLOSED_LOOP", table(text, request_rate=4)).level is Level.SUSPECTED


def test_runs_that_differ_among_themselves_are_unstable():
    text = (
        "| run | TTFT mean (s) | ITL mean (ms) |\n|---|---|---|\n| run 1 | 1.0 | 10 |\n| run 2 | 1.1 | 10.1 |\n| "
        "run 3 | 4.0 | 9.9 |\n"
    )
    finding = found("BENCH_UNSTABLE", table(text))
    assert finding.level is Level.CONSISTENT
    assert "0.84" in finding.statement
    without = "\n".join(line.rsplit("|", 2)[0] + "|" for line in text.splitlines())
    assert found("BENCH_UNSTABLE", table(without)).level is Level.SUSPECTED
    assert found("BENCH_UNSTABLE", table(text.replace("4.0", "1.05"))) is None
    assert found("BENCH_UNSTABLE", table(text.replace("9.9", "90"))) is None


def test_a_slow_first_run_is_warm_up():
    text = "| trial | TTFT mean (s) |\n|---|---|\n| 1 | 4.0 |\n| 2 | 1.1 |\n| 3 | 1.0 |\n"
    assert "warm-up" in found("BENCH_UNSTABLE", table(text)).statement


# -- AB


AB = (
    "| arm | TTFT p50 (ms) | TTFT p99 (ms) | n | errors (%) |\n|---|---|---|---|---|\n| before | 100 | 400 | {n} | "
    "1 |\n| after | {p50} | {p99} | {n} | {errors} |\n"
)


def test_a_better_median_with_a_worse_tail_is_a_regression():
    finding = found("AB_TAIL_REGRESSED", table(AB.format(n=2000, p50=50, p99=552, errors=1)))
    assert finding.level is Level.CONSISTENT
    assert "+38.0 %" in finding.statement
    few = found("AB_TAIL_REGRESSED", table(AB.format(n=200, p50=50, p99=552, errors=1)))
    assert few.level is Level.SUSPECTED
    assert "samples" in few.missing[0]
    short = found("AB_TAIL_REGRESSED", table(AB.format(n=2000, p50=50, p99=552, errors=1), duration_s=40))
    assert short.level is Level.SUSPECTED
    assert "40 s" in short.statement


def test_a_tail_that_grows_with_the_whole_is_no_tail_regression():
    assert found("AB_TAIL_REGRESSED", table(AB.format(n=2000, p50=200, p99=800, errors=1))) is None
    assert found("AB_TAIL_REGRESSED", table(AB.format(n=2000, p50=100, p99=410, errors=1))) is None


def test_a_better_tail_is_an_improvement_unless_requests_failed_for_it():
    assert found("AB_TAIL_IMPROVED", table(AB.format(n=2000, p50=98, p99=220, errors=0.5))).level is Level.CONSISTENT
    assert found("AB_TAIL_IMPROVED", table(AB.format(n=2000, p50=98, p99=220, errors=9))) is None
    assert found("AB_TAIL_IMPROVED", table(AB.format(n=200, p50=98, p99=220, errors=1))).level is Level.SUSPECTED
    assert found("AB_TAIL_IMPROVED", table(AB.format(n=2000, p50=98, p99=390, errors=1))) is None


def test_arms_without_roles_are_not_judged():
    text = AB.format(n=2000, p50=50, p99=552, errors=1).replace("before", "outlines").replace("after", "xgrammar")
    assert found("AB_TAIL_REGRESSED", table(text)) is None


def test_a_worse_tail_without_any_queue_names_what_is_left():
    text = "| speculation | concurrency | p99 TTFT (ms) |\n|---|---|---|\n| no draft | 1 | 310 |\n| draft | 1 | 480 |\n"
    finding = found("AB_TAIL_REGRESSED", table(text))
    assert "JIT" in finding.advice
    assert "JIT" not in found("AB_TAIL_REGRESSED", table(text.replace("| 1 |", "| 32 |"))).advice


def test_failed_requests_inside_a_summary_are_said_to_be_there(tmp_path):
    metrics = {
        "successful": {"mean": 300, "count": 900},
        "errored": {"mean": 9000},
        "total": {"mean": 1350, "count": 1024},
    }
    data = {"benchmarks": [{"metrics": {"time_to_first_token_ms": metrics}}]}
    first = diagnosed(tmp_path, g_json=json.dumps(data)).findings[0]
    assert (first.code, first.level) == ("METRIC_BUG", Level.SUSPECTED)
    metrics["total"]["mean"] = 301
    assert diagnosed(tmp_path, g_json=json.dumps(data)).findings[0].code == "INSUFFICIENT_EVIDENCE"


# -- nothing, or contradictions


def test_numbers_that_contradict_each_other_get_no_verdict(tmp_path):
    text = (
        "Successful requests: 100\nBenchmark duration (s): 10\nRequest throughput (req/s): 40\nPeak output token "
        "throughput (tok/s): 5\n"
    )
    result = diagnosed(tmp_path, b_txt=text)
    (only,) = result.findings
    assert (only.code, only.level, only.statement) == ("INSUFFICIENT_EVIDENCE", Level.INSUFFICIENT, "")
    assert "100 requests / 10 s = 10/s, but 40/s" in only.missing[0]


def test_little_s_law_is_checked_on_one_run():
    arm = Arm(
        name="x",
        values={
            "concurrency": Quoted(quantity="concurrency", value=4, unit="count"),
            "req_s": Quoted(quantity="req_s", value=10, unit="1/s"),
            "e2e.mean": Quoted(quantity="e2e", stat="mean", value=2000, unit="ms"),
        },
    )
    assert "Little" in found("INSUFFICIENT_EVIDENCE", Observed(arms=[arm])).missing[0]
    arm.values["concurrency"] = Quoted(quantity="concurrency", value=20, unit="count")
    assert found("INSUFFICIENT_EVIDENCE", Observed(arms=[arm])) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("We see spikes with our users when they talk at once, see the picture.", "as text"),
        ("| arm | TTFT p99 |\n|---|---|\n| red | 8 |\n| blue | 9 |\n", "unit"),
        ("| arm | TTFT p99 (ms) |\n|---|---|\n| red | 8 |\n| blue | 9 |\n", "which of the two is from before"),
    ],
)
def test_what_is_missing_is_named_by_what_was_given(tmp_path, text, words):
    result = diagnosed(tmp_path, t_md=text)
    assert result.findings[0].code == "INSUFFICIENT_EVIDENCE"
    assert any(words in item for item in result.findings[0].missing)


def test_a_sweep_without_queue_times_asks_for_them():
    observed = table("| max_num_seqs | ITL mean (ms) |\n|---|---|\n| 16 | 8 |\n| 32 | 9 |\n")
    assert what_to_collect(observed)[0].startswith("queue time")


def test_a_p99_of_few_samples_is_said_to_be_one(tmp_path):
    result = diagnosed(tmp_path, t_md=AB.format(n=29, p50=50, p99=552, errors=1))
    assert any("n = 29" in item for item in result.needs)
