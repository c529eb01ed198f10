"""What people paste in a hurry: one line of a log, a table without a name, a benchmark under a stamp."""

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.model.errors import InputError
from tailrace.model.finding import Level
from tests.diagnose.evidence_texts import unshown


@pytest.fixture
def ask(tmp_path):
    """text -> diagnosis, of a file that is called `name`."""

    def answer(text: str, name: str = "paste.txt"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        result = diagnose_sources([str(path)])
        for finding in result.findings:
            assert not unshown(finding), finding.statement
        return result

    return answer


def codes(result) -> list[str]:
    return [finding.code for finding in result.findings]


# -- a line or two of a log

SGLANG = (
    "Decode batch. #running-req: {run}, #token: 9000, token usage: {kv}, gen throughput (token/s): {made}, "
    "#queue-req: {wait}"
)


@pytest.mark.parametrize("stamp", ["", "[2026-01-02 03:04:05 TP0] ", "[03:04:05 TP0] "])
@pytest.mark.parametrize("words", ["", "\nwhy is the rate so low?\nlaunched on two cards\n"])
def test_one_line_with_a_deep_queue_is_a_suspicion(ask, stamp, words):
    result = ask(stamp + SGLANG.format(run=48, kv="0.07", made="310.5", wait=220) + words)
    first = result.findings[0]
    assert (first.code, first.level) == ("SCHED_QUEUE_SATURATION", Level.SUSPECTED)
    assert "220" in first.statement
    assert "TUNE_NOT_SCALE" in first.rivals  # the cache is nearly empty: a cap may be what holds them
    assert any("burst" in item for item in first.missing)


@pytest.mark.parametrize(
    "line",
    [
        SGLANG.format(run=48, kv="0.07", made="310.5", wait=2),
        SGLANG.format(run=48, kv="0.99", made="310.5", wait=220),
        SGLANG.format(run=48, kv="0.07", made="0.0", wait=220),
    ],
)
def test_a_shallow_queue_a_full_cache_or_a_standstill_is_no_queue_of_that_kind(ask, line):
    assert "SCHED_QUEUE_SATURATION" not in codes(ask(line))


def test_two_kinds_of_line_of_one_engine_are_one_engine(ask):
    lines = [
        f"[2026-01-02 03:04:{second:02d} TP0] Prefill batch. #new-seq: 2, #new-token: 400, #cached-token: 3, "
        f"token usage: 0.02, #running-req: 30, #queue-req: {70 - second}, "
        for second in range(0, 24, 4)
    ]
    lines[3:3] = ["[2026-01-02 03:04:10 TP0] " + SGLANG.format(run=32, kv="0.02", made="50.0", wait=60)]
    text = " ".join(item.statement for item in ask("\n".join(lines), "a.log").findings)
    assert "32" in text
    assert "62" not in text  # 32 of one kind and 30 of the other were never added


def test_prompts_at_one_speed_in_every_line_are_what_is_waited_for(ask):
    text = "\n".join(
        f"(APIServer pid=9) INFO 02-03 10:00:{10 * at:02d} [loggers.py:259] Engine 000: Avg prompt throughput: "
        f"9{at}00.0 tokens/s, Avg generation throughput: 2{at}.0 tokens/s, Running: {9 + at} reqs, "
        f"Waiting: {60 - 3 * at} reqs, "
        f"GPU KV cache usage: 2{at}.0%, Prefix cache hit rate: 0.0%"
        for at in range(4)
    )
    first = ask(text, "engine.log").findings[0]
    assert (first.code, first.level) == ("SCHED_QUEUE_SATURATION", Level.SUSPECTED)
    assert "prefill is what they wait for" in first.statement
    assert "drains" in first.statement


# -- proxies


def test_pairs_of_a_proxy_are_an_access_line(ask):
    line = (
        "[2026-02-01T10:00:00Z] method=POST path=/v1/chat/completions status={status} response_flags={flag} "
        "{time} response_size=0 upstream_host=10.0.0.7:8000\n"
    )
    result = ask(line.format(status=504, flag="UT", time="duration_ms=30002") * 3, "envoy.log")
    assert codes(result)[0] == "GW_UPSTREAM_TIMEOUT"
    assert "30" in result.findings[0].statement
    # A duration without a unit is a question, and a request that was answered is no timeout.
    assert "GW_UPSTREAM_TIMEOUT" not in codes(
        ask(line.format(status=200, flag="-", time="duration_ms=812") * 3, "e.log")
    )


@pytest.mark.parametrize(("told", "ms"), [("took=1m30s", 90_000), ("request_time=12.5", 12_500), ("elapsed_ms=40", 40)])
def test_times_of_pairs_have_the_unit_that_is_written(told, ms):
    from tailrace.diagnose.readers.logs.log import read_log_text

    rows = read_log_text(f"time=2026-02-01T10:00:00Z method=GET path=/x status=200 {told}\n", "a.log").table("access")[
        0
    ]
    assert rows.numbers("e2e")[0] == pytest.approx(ms)


def test_a_time_of_pairs_without_a_unit_is_no_value():
    from tailrace.diagnose.readers.logs.log import read_log_text

    with pytest.raises(InputError):
        read_log_text("method=GET path=/x status=200 duration=12\n", "a.log")


def test_a_proxy_s_debug_line_names_its_timer(ask):
    line = (
        "[2026-02-01 10:00:00.315][34][debug][http] [source/x.cc:79] [C4][S11] Resetting stream due to {why}. Prior\n"
    )
    assert codes(ask(line.format(why="upstream_response_timeout"), "envoy.log")) == ["GW_UPSTREAM_TIMEOUT"]
    with pytest.raises(InputError):
        ask(line.format(why="a request of the client"), "envoy.log")


def test_a_piece_of_a_listener_is_read(ask):
    text = (
        "filter_chains:\n- filters:\n  - name: hcm\n    typed_config:\n      common_http_protocol_options:\n"
        "        max_stream_duration: 5s\n"
    )
    result = ask(text, "listener.yaml")
    assert codes(result) == ["GW_UPSTREAM_TIMEOUT"]
    assert result.findings[0].level is Level.SUSPECTED


# -- benchmarks

TABLE = """============ Serving Benchmark Result ============
Successful requests:                     {n}
Benchmark duration (s):                  {span}
Total generated tokens:                  {tokens}
Request throughput (req/s):              {rate}
Output token throughput (tok/s):         {made}
---------------Time to First Token----------------
Mean TTFT (ms):                          {ttft}
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          {tpot}
---------------Inter-token Latency----------------
Mean ITL (ms):                           {itl}
==================================================
"""


def table(**given) -> str:
    usual = {
        "n": 500,
        "span": 200.0,
        "tokens": 50000,
        "rate": 2.5,
        "made": 250.0,
        "ttft": 300.0,
        "tpot": 20.0,
        "itl": 20.4,
    }
    return TABLE.format(**(usual | given))


def test_what_stands_above_a_table_is_of_that_table(ask):
    above = "{name}\nTraffic request rate: {rate}\nMaximum request concurrency: None\n100%|####| 500/500 [4it/s]\n"
    calm, fast = above.format(name="calm", rate=2.5) + table(), table(rate=4.0, span=125.0, made=400.0, ttft=31000.0)
    first = ask(calm + "\n" + above.format(name="busy", rate=9.0) + fast).findings[0]
    assert first.code == "SCHED_QUEUE_SATURATION"
    assert "9 requests/s are offered and 4/s completed" in first.statement
    # Where each serves what was offered to it, the rate of one is not held against the other.
    assert "SCHED_QUEUE_SATURATION" not in codes(ask(calm + "\n" + above.format(name="busy", rate=4.0) + fast))


def test_all_at_once_makes_a_place_in_a_queue_of_the_first_token(ask):
    busy = table(n=400, span=800.0, rate=0.5, tokens=80000, made=100.0, ttft=390000.0, tpot=10.0, itl=10.1)
    first = ask("Traffic request rate: inf\n" + busy).findings[0]
    assert first.code == "SCHED_QUEUE_SATURATION"
    assert "no service time" in first.statement
    assert "TUNE_NOT_SCALE" in first.rivals  # 100 tok/s x 10 ms: one at a time
    assert "SCHED_QUEUE_SATURATION" not in codes(ask(busy))  # who knows how they were sent
    assert "SCHED_QUEUE_SATURATION" not in codes(ask("Traffic request rate: inf\n" + table()))


def test_a_gap_of_many_tokens_is_one_of_chunks(ask):
    first = ask(table(itl=640.0, tpot=16.0)).findings[0]
    assert (first.code, first.level) == ("METRIC_UNIT", Level.CONSISTENT)
    assert "40.0 tokens" in first.statement
    # Speculation makes chunks of two or three: that is said by nobody here, and is no contradiction.
    assert "METRIC_UNIT" not in codes(ask(table(itl=48.0, tpot=16.0)))


def test_a_table_behind_stamps_is_a_table(ask):
    text = "".join(f"2026/01/02 03:04:05 {line}\n" for line in table(itl=640.0, tpot=16.0).splitlines())
    assert codes(ask(text)) == ["METRIC_UNIT"]


PERF = """Request concurrency: {held}
  Client:
    Request count: {n}
    Throughput: {rate} infer/sec
    Avg latency: {whole} usec (standard deviation 900 usec)
    p99 latency: 300000 usec
  Server:
    Inference count: {made}
    Execution count: 900
    Successful request count: {n}
    Avg request latency: {whole} usec (overhead 8 usec + queue {queue} usec + compute infer {work} usec)
"""


def test_the_server_s_parts_of_perf_analyzer_tell_the_queue(ask):
    first = ask(PERF.format(held=64, n=9000, rate=320.0, whole=200000, made=9000, queue=196000, work=3000)).findings[0]
    assert (first.code, first.level) == ("SCHED_QUEUE_SATURATION", Level.CONSISTENT)
    assert "98%" in first.statement
    alone = PERF.format(held=64, n=9000, rate=320.0, whole=200000, made=9000, queue=900, work=195000)
    assert "SCHED_QUEUE_SATURATION" not in codes(ask(alone))


def test_inferences_are_no_requests_where_a_request_holds_a_batch(ask):
    text = PERF.format(held=64, n=9000, rate=320.0 * 32, whole=200000, made=9000 * 32, queue=196000, work=3000)
    assert codes(ask(text))[0] == "SCHED_QUEUE_SATURATION"
    # Without the counts the rate cannot be one of requests: nothing is called a contradiction.
    cut = text[: text.index("  Server:")]
    assert not any("contradict" in item for item in ask(cut).findings[0].missing)


# -- tables


def test_rows_called_by_a_number_are_no_replicas(ask):
    text = "Tokens | First run | Second run\n-- | -- | --\n64 | 30s | 1.1s\n512 | 33s | 6.2s\n2048 | 51s | 22.4s\n"
    result = ask(text, "a.md")
    assert "LB_SKEW" not in codes(result)
    first = result.findings[0]
    assert (first.code, first.level) == ("COMPUTE_JIT", Level.SUSPECTED)
    assert "COMPUTE_IDLE_RAMP" in first.rivals


@pytest.mark.parametrize(
    "header",
    ["model | first request | steady", "model | 1st call | later calls", "model | first token | second token"],
)
def test_only_a_first_request_is_one(ask, header):
    text = f"{header}\n-- | -- | --\nsmall | 9.5 s | 2.0 s\nlarge | 21 to 28 s | 3.1 to 4.6 s\n"
    assert ("COMPUTE_JIT" in codes(ask(text, "a.md"))) == ("token" not in header)


def test_a_first_request_that_is_hardly_slower_is_none(ask):
    assert "COMPUTE_JIT" not in codes(ask("run | first request | steady\n-- | -- | --\nA | 4.1 s | 3.8 s\n", "a.md"))


@pytest.mark.parametrize(
    ("first", "last"), [("first event", "last event"), ("TTFT", "E2E"), ("first byte", "last byte")]
)
def test_a_first_that_comes_with_the_last_was_held(ask, first, last):
    text = f"path | {first} | {last}\n-- | -- | --\nold | 3010 ms | 3012 ms\nnew | 12 ms | 2950 ms\n"
    found = ask(text, "a.md").findings[0]
    assert (found.code, found.level) == ("GW_PROXY_BUFFERING", Level.CONSISTENT)
    # A short answer is no held one, and one that takes ten times as long is another engine.
    other = f"path | {first} | {last}\n-- | -- | --\nold | 3010 ms | 3012 ms\nnew | 12 ms | 290 ms\n"
    assert "GW_PROXY_BUFFERING" not in codes(ask(other, "a.md"))


def test_lengths_compared_with_one_request_at_once_are_no_closed_loop(ask):
    text = "ISL | OSL | Concur | TTFT (ms)\n-- | -- | -- | --\n256 | 64 | {held} | 900\n256 | 512 | {held} | 300\n"
    assert "BENCH_CLOSED_LOOP" in codes(ask(text.format(held=16), "a.md"))
    assert "BENCH_CLOSED_LOOP" not in codes(ask(text.format(held=1), "a.md"))


def test_hits_that_a_pin_brought_back_are_no_rollback(ask):
    text = "arm | cache share\n-- | --\nbaseline | 41.0%\nclient-side pin of the host | 83.0%\n"
    first = ask(text, "a.md").findings[0]
    assert (first.code, first.action) == ("LB_CACHE_AFFINITY_LOST", "fix")


# -- voice


def test_agent_lines_are_read_between_others(ask):
    text = (
        "Info: socket closed\n"
        '{"message": "Pipeline EOU metrics: sequence_id=a1, end_of_utterance_delay=3.40, transcription_delay=3.40"}\n'
        '{"message": "Pipeline LLM metrics: sequence_id=a1, ttft=1.10, output_tokens=21"}\n'
        '{"message": "Pipeline EOU metrics: sequence_id=b2, end_of_utterance_delay=0.60, transcription_delay=0.60"}\n'
    )
    first = ask(text, "agent.log").findings[0]
    assert first.code == "ASR_FINAL_LATE"
    assert "first turn" in first.statement


def test_a_speech_that_stops_before_it_starts_is_no_late_final(ask):
    said = (
        '{{"started_speaking_at": "2026-01-02T03:04:{start:02d}.000Z", '
        '"stopped_speaking_at": "2026-01-02T03:04:{stop:02d}.500Z", '
        '"transcription_delay": {delay}, "end_of_turn_delay": {delay}}}\n'
    )
    wrong = ask(said.format(start=50, stop=10, delay=41.2), "turn.json").findings[0]
    assert wrong.code == "METRIC_BUG"
    assert "before it started" in wrong.statement
    assert codes(ask(said.format(start=10, stop=50, delay=4.2), "turn.json")) == ["ASR_FINAL_LATE"]


# -- text that no reader knows


def test_unknown_text_with_numbers_is_listed_and_nothing_is_concluded(ask):
    result = ask("step 1 of 9\nweights 40%\nat 12:30 it hung\n", "notes.txt")
    assert codes(result) == ["INSUFFICIENT_EVIDENCE"]
    assert result.not_understood


def test_a_program_and_bare_words_are_refused(ask):
    with pytest.raises(InputError, match="no evidence that is known"):
        ask("import os\n\ndef f(x):\n    return x[1]\n\nclass A:\n    y = 2\n", "a.py")
    with pytest.raises(InputError, match="no evidence that is known"):
        ask("good morning\nall is well\n")


def test_words_with_a_number_at_their_end_are_no_scrape(ask):
    assert codes(ask("it has stopped at 5\nand again at 7\nthen at 9\n", "a.txt")) == ["INSUFFICIENT_EVIDENCE"]


SMI = """==============NVSMI LOG==============
Timestamp                                 : Tue Feb  3 10:00:00 2026
GPU 00000000:01:00.0
    Performance State                     : P2
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : {power}
        HW Slowdown                       : Not Active
        SW Thermal Slowdown               : {heat}
    Temperature
        GPU Current Temp                  : 71 C
"""


@pytest.mark.parametrize(
    ("power", "heat", "expected"),
    [
        ("Active", "Not Active", "COMPUTE_POWER_CAP"),
        ("Not Active", "Active", "COMPUTE_THERMAL"),
        ("Not Active", "Not Active", ""),
    ],
)
def test_one_look_at_a_device_is_a_suspicion_at_most(ask, power, heat, expected):
    result = ask(SMI.format(power=power, heat=heat), "smi.txt")
    assert codes(result) == [expected or "INSUFFICIENT_EVIDENCE"]
    assert result.findings[0].level in (Level.SUSPECTED, Level.INSUFFICIENT)


def test_a_wait_that_is_configured_comes_before_what_may_be_too_small(ask):
    text = (
        'name: "encoder"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 16\n'
        "dynamic_batching {\n  max_queue_delay_microseconds: 2500000\n}\n"
    )
    assert codes(ask(text, "config.pbtxt"))[:2] == ["SCHED_BATCHER_WAIT", "SCHED_INSTANCE_LIMIT"]
