"""How far numbers carry: who left is not in them, a slow start is, two windows did other work, some were dropped."""

import msgspec
import numpy as np
import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.causes.validity.warm_up import WarmUp
from tailrace.diagnose.readers.source import read_source
from tailrace.diagnose.steady_part import steady_observed
from tailrace.model.finding import Action, Level, Part
from tailrace.model.outcome import OutcomeKind, Reason
from tests.diagnose.machines import delayed
from tests.diagnose.simulated import MS, answer, as_gateway, served
from tests.diagnose.test_metric_observations import AFTER, BEFORE, histogram, seen
from tests.diagnose.test_validity_causes import diagnosed, found, table, told

TTFT, E2E = "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"


def counter(name, value, labels=""):
    return f"# TYPE {name} counter\n{name}{{{labels}}} {value}\n"


def aborts(n):
    return counter("vllm:request_success_total", n, 'engine="0",finished_reason="abort"')


# -- METRIC_SURVIVOR_BIAS

BIAS = "METRIC_SURVIVOR_BIAS"


@pytest.mark.parametrize(
    "cancelled",
    [
        aborts,
        lambda n: counter("sglang:num_aborted_requests_total", n),
        lambda n: counter("my_router_requests_cancelled_total", n),
        lambda n: counter("app_request_timeouts_total", n),
    ],
    ids=["vllm", "sglang", "router", "timeouts"],
)
def test_cancelled_requests_beside_a_histogram_that_lacks_them(cancelled):
    finding = found(BIAS, seen(histogram(E2E, BEFORE) + cancelled(10), histogram(E2E, AFTER) + cancelled(65)))
    assert finding.level is Level.CONSISTENT
    assert "55/(55 + 220) = 20.0%" in finding.relation
    assert "AB_TAIL_IMPROVED" in finding.statement
    assert "blocked" in finding.statement


def test_few_cancelled_requests_hide_no_tail():
    counts = [100 * count for count in AFTER]
    assert found(BIAS, seen(histogram(E2E, BEFORE) + aborts(0), histogram(E2E, counts) + aborts(40))) is None
    assert found(BIAS, seen(histogram(E2E, BEFORE) + aborts(9), histogram(E2E, AFTER) + aborts(9))) is None


def test_a_setting_of_a_timeout_is_no_cancelled_request():
    limit = counter("app_request_timeout_seconds_total", 900)
    assert found(BIAS, seen(histogram(E2E, BEFORE), histogram(E2E, AFTER) + limit)) is None


def test_one_scrape_lowers_the_level_and_names_the_second():
    finding = found(BIAS, seen(histogram(E2E, AFTER) + aborts(65)))
    assert finding.level is Level.SUSPECTED
    assert "second scrape" in finding.missing[0]


def test_first_tokens_without_an_end_left_in_between():
    short = [count // 2 for count in AFTER]
    both = [histogram(TTFT, BEFORE) + histogram(E2E, BEFORE), histogram(TTFT, AFTER) + histogram(E2E, short)]
    zero = [histogram(TTFT, BEFORE) + histogram(E2E, [0] * 6), histogram(TTFT, AFTER) + histogram(E2E, short)]
    finding = found(BIAS, seen(*zero))
    assert "220 - 210 - 0 = 10" in finding.relation
    assert finding.level is Level.SUSPECTED
    running = ["vllm:num_requests_running 1\n", "vllm:num_requests_running 11\n"]
    assert found(BIAS, seen(*(text + more for text, more in zip(zero, running, strict=True)))) is None
    assert found(BIAS, seen(both[0], both[0])) is None


def test_a_client_that_sent_more_than_the_engine_counts(tmp_path):
    bench = "mean TTFT: 500 ms\nP99 TTFT: 900 ms\nSuccessful requests: 300\n"
    result = diagnosed(tmp_path, a_prom=histogram(E2E, BEFORE), b_prom=histogram(E2E, AFTER), bench_txt=bench)
    (bias,) = [item for item in result.validity if item.code == BIAS]
    assert bias.level is Level.SUSPECTED
    assert "300 - 220 = 80" in bias.relation


@pytest.mark.parametrize("word", ["failed", "cancelled", "timeouts", "aborted"])
def test_a_tail_that_is_better_among_those_that_stayed(word):
    text = (
        f"| run | n | TTFT p99 (ms) | {word} |\n|---|---|---|---|\n"
        "| before | 2000 | 900 | 10 |\n| after | 1800 | 400 | 150 |\n"
    )
    finding = found(BIAS, table(text))
    assert "900 -> 400 ms" in finding.statement
    assert finding.level is Level.CONSISTENT
    assert found("AB_TAIL_IMPROVED", table(text)) is None
    assert found(BIAS, table(text.replace("| 150 |", "| 9 |"))) is None
    assert found(BIAS, table(text.replace("| 400 |", "| 890 |"))) is None


def test_shares_without_n_are_a_suspicion():
    text = "| run | TTFT p99 (ms) | error rate (%) |\n|---|---|---|\n| before | 900 | 0.5 |\n| after | 400 | 6 |\n"
    finding = found(BIAS, table(text))
    assert (finding.level, finding.missing) == (Level.SUSPECTED, ["n of both arms"])


def test_records_that_left_make_the_rest_look_better():
    before = as_gateway(served(1, rate=4.0, long_share=0.0))
    slow = [msgspec.structs.replace(r, ttft_ns=900 * MS) if i % 10 == 0 else r for i, r in enumerate(before)]
    gone = {"outcome": OutcomeKind.CANCELLED, "reason": Reason.CLIENT_DISCONNECT}
    after = [msgspec.structs.replace(r, **gone) if i % 10 == 0 else r for i, r in enumerate(before)]
    (bias,) = [item for item in answer(after, before=slow).validity if item.code == BIAS]
    assert bias.level is Level.CONSISTENT
    assert "0.0% -> 10.0%" in bias.statement
    assert not [item for item in answer(before, before=slow).validity if item.code == BIAS]


# -- exporter drops


@pytest.mark.parametrize(
    ("dropped", "passed"),
    [
        ("otelcol_processor_dropped_spans", "otelcol_exporter_sent_spans"),
        ("otelcol_exporter_send_failed_spans_total", "otelcol_exporter_sent_spans_total"),
        ("otelcol_receiver_refused_metric_points_total", "otelcol_receiver_accepted_metric_points_total"),
        ("tailrace_records_dropped_total", "tailrace_records_acknowledged_total"),
        ("vllm:events_dropped_total", "vllm:events_total"),
    ],
)
def test_more_than_one_percent_dropped_concludes_nothing(tmp_path, dropped, passed):
    def scrapes(lost):
        return (
            histogram(TTFT, BEFORE) + counter(dropped, 0) + counter(passed, 0),
            histogram(TTFT, AFTER) + counter(dropped, lost) + counter(passed, 1000),
        )

    for lost, stops in ((30, True), (3, False)):
        before, after = scrapes(lost)
        result = diagnosed(tmp_path, a_prom=before, b_prom=after)
        assert any("dropped" in item for item in result.findings[0].missing) is stops
        if stops:
            assert result.findings[0].code == "INSUFFICIENT_EVIDENCE"
            assert result.action is Action.COLLECT
            assert "30 of 1030 (2.9%)" in result.findings[0].missing[0]


def test_drops_of_an_unknown_whole_do_not_end_it(tmp_path):
    lost = counter("otelcol_processor_dropped_spans", 3)
    result = diagnosed(tmp_path, a_prom=histogram(TTFT, BEFORE), b_prom=histogram(TTFT, AFTER) + lost)
    assert result.findings[0].code == "METRIC_BUCKET_CEILING"


# -- METRIC_WARM_UP


def warm(records, seconds, factor):
    begin = min(record.start_unix_ns for record in records)
    return [
        msgspec.structs.replace(record, ttft_ns=factor * record.ttft_ns, timeline=None)
        if record.start_unix_ns - begin < seconds * 1e9
        else msgspec.structs.replace(record, timeline=None)
        for record in records
    ]


def warm_ups(result):
    return [item for item in result.validity if item.code == "METRIC_WARM_UP"]


def test_a_slow_first_minute_is_told_with_the_tail_without_it():
    records = as_gateway(served(rate=2.0, n=600, long_share=0.0))
    (finding,) = warm_ups(answer(warm(records, 60, 8)))
    assert "are a warm-up" in finding.statement
    assert finding.missing
    assert finding.level is Level.SUSPECTED
    assert warm_ups(answer(records)) == []
    assert warm_ups(answer(warm(records, 10_000, 8))) == []


def slow_start(records):
    begin = min(record.start_unix_ns for record in records)
    return delayed(records, [(begin, begin + 50 * 10**9)], 20_000)


def test_the_answer_is_that_of_the_steady_part_and_both_are_told():
    # Short requests wait behind documents all the time; the first minute is slow besides.
    records = as_gateway(served(rate=6.0, n=1500, max_num_batched_tokens=512))
    cold = slow_start(records)
    result = answer(cold)
    assert warm_ups(result)
    first = result.findings[0]
    assert (first.code, first.part) == ("SCHED_HOL_LONG_PREFILL", Part.STEADY)
    assert result.tail.lost_ms < 0.5 * answer(cold[:500]).tail.lost_ms, "the tail is that of the steady part"
    assert "came once it was warm; with the start in it, it was " in result.steady
    assert result.steady in result.paragraph
    assert answer(records).steady == ""


def test_a_start_that_alone_is_slow_says_what_holds_once_it_is_warm():
    result = answer(slow_start(as_gateway(served(rate=4.0, n=900, long_share=0.0))))
    assert warm_ups(result)
    assert result.steady.startswith("That holds for the start alone. Once warm (n = ")
    assert "Nothing is wrong: TTFT p99" in result.steady
    assert {finding.part for finding in result.findings} <= {Part.START}


def test_a_log_with_a_warm_up_is_judged_again_without_its_first_minute(tmp_path):
    waits = "Waiting: 0 reqs"
    slow = log([20] * 6 + [200] * 30).splitlines()
    (tmp_path / "vllm.log").write_text(
        "\n".join(line.replace(waits, "Waiting: 9 reqs") if i < 5 else line for i, line in enumerate(slow)) + "\n"
    )
    late = steady_observed(read_source(str(tmp_path / "vllm.log"), None).observed)
    assert {len(item) for item in late.series} == {30}
    result = diagnose_sources([str(tmp_path / "vllm.log")])
    assert all(item.part is not Part.STEADY for item in result.findings), "nothing is wrong once it is warm"


def log(rates, extra=""):
    lines = [
        f"INFO 05-11 17:{i // 6:02d}:{i % 6}0 [loggers.py:271] Engine 000: Avg prompt throughput: 100.0 tokens/s, Avg "
        f"generation throughput: {rate:.1f} tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 5.4%, "
        "Prefix cache hit rate: 8.3%"
        for i, rate in enumerate(rates)
    ]
    return "\n".join(lines[:1] + ([extra] if extra else []) + lines[1:]) + "\n"


JIT = (
    "WARNING 05-11 17:00:05 [jit_monitor.py:12] Triton kernel JIT compilation during inference: _k. This causes a "
    "latency spike"
)


@pytest.mark.parametrize(("extra", "level"), [("", Level.SUSPECTED), (JIT, Level.CONSISTENT)])
def test_a_log_that_begins_slow(tmp_path, extra, level):
    path = tmp_path / "vllm.log"
    path.write_text(log([20] * 6 + [200] * 30, extra))
    finding = WarmUp().observe(read_source(str(path), None).observed)
    assert finding.level is level
    path.write_text(log([20] * 6 + [200] * 20 + [20] * 3 + [200] * 7))
    assert WarmUp().observe(read_source(str(path), None).observed) is None
    path.write_text(log([200] * 36))
    assert WarmUp().observe(read_source(str(path), None).observed) is None


# -- METRIC_UNEQUAL_WORK

WORK = "METRIC_UNEQUAL_WORK"


@pytest.mark.parametrize(
    ("heading", "old", "new", "equal"),
    [
        ("ISL", 512, 2048, 540),
        ("output tokens", 128, 512, 130),
        ("concurrency", 8, 64, 8),
        ("cache hit rate (%)", 80, 20, 78),
        ("error rate (%)", 0, 9, 1),
    ],
)
def test_arms_that_did_other_work(heading, old, new, equal):
    text = f"| run | TTFT p99 (ms) | {heading} |\n|---|---|---|\n| before | 400 | {old} |\n| after | 900 | {{}} |\n"
    finding = found(WORK, table(text.format(new)))
    assert finding.level is Level.SUSPECTED
    assert "differs" in told(finding)
    assert found(WORK, table(text.format(equal))) is None


def test_it_stands_before_the_cause_and_does_not_lead(tmp_path):
    text = (
        "| run | TTFT p50 (ms) | TTFT p99 (ms) | ISL |\n|---|---|---|---|\n"
        "| before | 90 | 400 | 500 |\n| after | 80 | 900 | 4000 |\n"
    )
    path = tmp_path / "t.md"
    path.write_text(text)
    result = diagnose_sources([str(path)])
    assert WORK not in [item.code for item in result.findings]
    assert WORK in [item.code for item in result.validity]


def test_windows_with_other_lengths():
    rng = np.random.default_rng(1)
    before = as_gateway(served(1, rate=4.0, long_share=0.0))
    after = [msgspec.structs.replace(r, prompt_tokens=int(r.prompt_tokens * rng.uniform(2, 4))) for r in before]
    (finding,) = [item for item in answer(after, before=before).validity if item.code == WORK]
    assert "prompt tokens p50" in finding.statement
    assert not [item for item in answer(before, before=before).validity if item.code == WORK]


def test_what_only_says_how_far_others_carry_is_never_an_end():
    assert not [cause.code for cause in CAUSES if cause.beside and cause.ends]
