# ruff: noqa: E501, FLY002  (lines of logs are as long as they are)
"""Logs are read in whatever state they are pasted."""

from __future__ import annotations

import contextlib
import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.observed import Clock
from tailrace.diagnose.readers.formats import format_of
from tailrace.diagnose.readers.logs.lines import LONGEST, batches
from tailrace.diagnose.readers.logs.log import is_log, read_log, read_log_text
from tailrace.model.errors import InputError
from tests.diagnose.logs.lines import decode, ingress, jit, prefill, uvicorn, v0, v1


def values(found, name, **labels):
    (series,) = found.of_series(name, **labels)
    return series.values.tolist()


def whole(found):
    (account,) = found.understood
    return account.understood == account.total


# -- vLLM


def test_a_load_line_of_v1():
    line = v1(24, prompt=9177.3, made=0.5, running=6, waiting=2, kv=5.4, extra=", Deferred: 1 reqs, Preemptions: 3")
    found = read_log_text(line + ", MM cache hit rate: 76.7%\n", "vllm.log")
    shown = {series.name: series.values.tolist() for series in found.series}
    assert shown == {
        "prompt_tok_s": [9177.3],
        "output_tok_s": [0.5],
        "running": [6.0],
        "waiting": [2.0],
        "deferred": [1.0],
        "preemptions": [3.0],
        "kv_usage": [pytest.approx(0.054)],
        "prefix_hit": [0.2],
        "mm_hit": [pytest.approx(0.767)],
    }
    series = found.of_series("running")[0]
    assert (series.labels["engine"], series.clock, str(series.line_of(0))) == ("0", Clock.LOCAL, "vllm.log:1")
    # 11 May 17:00:24 as if in 1970.
    assert series.at.tolist() == [130 * 86400 + 17 * 3600 + 24]


def test_a_load_line_of_v0_has_two_caches():
    found = read_log_text(v0(4, running=2, swapped=1, pending=98, kv=97.2, cpu=41.0), "vllm.log")
    assert values(found, "kv_usage") == [pytest.approx(0.972)]
    assert values(found, "cpu_kv_usage") == [pytest.approx(0.41)]
    assert (values(found, "waiting"), values(found, "swapped")) == ([98.0], [1.0])


@pytest.mark.parametrize("label", ["GPU", "CPU", "TPU", "XPU"])
def test_the_only_cache_is_the_cache_whatever_the_build_calls_it(label):
    assert values(read_log_text(v1(1, kv=87.2, label=label), "a"), "kv_usage") == [pytest.approx(0.872)]


def test_engines_are_told_apart():
    text = "\n".join(v1(10 * i, engine=e, running=e * 3) for i in range(3) for e in range(4))
    found = read_log_text(text, "vllm.log")
    assert values(found, "running", engine="3") == [9.0] * 3
    assert len(found.of_series("running")) == 4


def test_what_cannot_be_is_dropped_and_counted():
    found = read_log_text("\n".join([v1(1), v1(11, kv=140.0), v1(21, made=-3.0)]), "vllm.log")
    assert values(found, "running") == [1.0]
    assert "dropped" in " ".join(found.understood[0].said) or found.understood[0].understood < 3


def test_steps_speculation_aborts_and_the_ends_of_requests():
    text = """
(APIServer pid=7) INFO 11-29 11:32:18 [loggers.py:199] Engine 000: Iteration(425): 1 context requests, 4054 context tokens, 6 generation requests, 6 generation tokens, iteration elapsed time: 9883.52 ms, CPU KV cache usage: 5.6%
(APIServer pid=7) INFO 11-29 11:32:19 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.51, Accepted throughput: 1.0 tokens/s, Per-position acceptance rate: 0.8, 0.6, Avg Draft acceptance rate: 55.0%
(APIServer pid=7) INFO 11-29 11:25:25 [async_llm.py:922] Aborted request(s) chatcmpl-disc-1-b5eb8fee.
(APIServer pid=7) INFO 11-29 11:25:25 [async_llm.py:783] Request chatcmpl-disc-1 aborted.
(APIServer pid=7) INFO 11-29 11:25:28 [request_logger.py:108] Generated response chatcmpl-a (streaming delta): output: ' w1', finish_reason: None
(APIServer pid=7) INFO 11-29 11:25:28 [request_logger.py:108] Generated response chatcmpl-a (streaming complete): output: 'w', finish_reason: streaming_complete
"""
    found = read_log_text(text, "vllm.log")
    assert values(found, "step") == [9883.52]
    assert values(found, "step_prompt_tokens") == [4054.0]
    assert values(found, "accept_length") == [2.51]
    assert values(found, "accept_share") == [pytest.approx(0.55)]
    assert [event.kind for event in found.events] == ["aborted", "finished"]
    assert whole(found)


def test_preemptions_of_v0_with_their_count():
    line = (
        "WARNING 10-28 11:16:46 scheduler.py:1325] Sequence group 7 is preempted by PreemptionMode.SWAP mode because there "
        "is not enough KV cache space. This can affect the end-to-end performance. total_num_cumulative_preemption=51"
    )
    (event,) = read_log_text(line, "a").of_kind("preempted")
    assert event.attributes == {"group": "7", "mode": "swap", "cumulative": 51.0}


def test_what_the_engine_was_started_with_is_a_setting():
    text = (
        "(APIServer pid=7) INFO 11-29 11:21:11 [api_utils.py:286] non-default args: {'model': 'models/tiny', "
        "'max_num_seqs': 16, 'max_num_batched_tokens': 8192}\n"
        "(EngineCore pid=7) INFO 11-29 11:21:32 [kv_cache_utils.py:2327] GPU KV cache size: 77,088 tokens\n" + v1(1)
    )
    found = read_log_text(text, "vllm.log")
    assert found.number("max_num_batched_tokens") == 8192
    assert found.number("max_num_seqs") == 16
    assert found.number("kv_capacity_tokens") == 77088


# -- damage

PLAIN = [v1(10 * i, running=i + 1, made=10.0 * i, kv=i) for i in range(6)]
TRUTH = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    "head",
    [
        "",
        "vllm-1  | ",
        "2026-05-11T10:00:24.123456789Z ",
        "2026-05-11T10:00:24.123456789Z stdout F ",
        "[pod/vllm-0/vllm] ",
        "May 11 17:00:24 gpu1 vllm[1234]: ",
        "vllm-1  | 2026-05-11T10:00:24Z ",
    ],
)
def test_collectors_write_before_each_line(head):
    found = read_log_text("\n".join(head + line for line in PLAIN), "vllm.log")
    assert values(found, "running") == TRUTH
    assert whole(found)


def test_docker_keeps_lines_as_objects():
    import json

    lines = [json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-05-11T10:00:24.1Z"}) for line in PLAIN]
    found = read_log_text("\n".join(lines), "vllm.log")
    assert values(found, "running") == TRUTH
    # 17:00:00 on the engine's clock, 10:00:24 UTC: seven hours apart, and not the few seconds of the first lines.
    assert found.number("clock_offset_s") is not None


def test_a_line_that_the_runtime_cut_is_put_together():
    first, second = PLAIN[0][:90], PLAIN[0][90:]
    text = f"2026-05-11T10:00:24Z stdout P {first}\n2026-05-11T10:00:24Z stdout F {second}\n"
    assert values(read_log_text(text, "a"), "running") == [1.0]


def test_two_containers_with_the_same_engine_number_are_two_engines():
    text = "\n".join(f"{name}  | {line}" for line in PLAIN for name in ("vllm-1", "vllm-2"))
    found = read_log_text(text, "compose.log")
    assert sorted(series.labels["replica"] for series in found.of_series("running")) == ["vllm-1", "vllm-2"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_a_byte_order_mark(end, mark):
    assert values(read_log_text(mark + end.join(PLAIN), "a"), "running") == TRUTH


def test_glued_lines():
    mixed = "".join([PLAIN[0], uvicorn(), PLAIN[1], jit(12), PLAIN[2]])
    found = read_log_text(mixed + "\n" + "".join(PLAIN[3:]), "a")
    assert values(found, "running") == TRUTH
    assert len(found.of_kind("jit")) == 1
    assert found.rows[0].numbers("count").tolist() == [1.0]


@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_lines_that_a_terminal_broke_in_the_middle_of_words(width):
    text = "\n".join(line[at : at + width] for line in PLAIN for at in range(0, len(line), width))
    found = read_log_text(text, "a")
    assert values(found, "running") == TRUTH
    assert whole(found)


def test_lines_that_an_editor_broke_between_words():
    import textwrap

    text = "\n".join(part for line in PLAIN for part in textwrap.wrap(line, 90))
    assert values(read_log_text(text, "a"), "running") == TRUTH


def test_a_broken_line_of_the_compiler():
    line = jit(6)
    assert len(read_log_text(f"{line[:110]}\n{line[110:]}\n{v1(10)}", "a").of_kind("jit")) == 1


def test_colours_and_nul_bytes(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_bytes(b"\0" * 3000 + b"".join(b"\x1b[32m" + line.encode() + b"\x1b[0m\n" for line in PLAIN))
    assert values(read_log(path, "vllm.log"), "running") == TRUTH


def test_gzip_and_a_consoles_utf16(tmp_path):
    text = "\n".join(PLAIN)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.log").write_text(text, encoding="utf-16")
    assert values(read_log(tmp_path / "a.log.gz", "a"), "running") == TRUTH
    assert values(read_log(tmp_path / "b.log", "b"), "running") == TRUTH


def test_a_packed_log_that_is_cut_is_read_up_to_there_and_said_to_be_cut(tmp_path):
    # Numbers that hardly repeat: packed bytes and lines are lost alike.
    lines = [v1(10.0 * n, running=n * 7919 % 997, waiting=n * 104729 % 991) for n in range(4000)]
    packed = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "vllm.log.gz"
    path.write_bytes(packed)
    whole = read_log(path, "vllm.log")
    path.write_bytes(packed[: len(packed) * 3 // 4])
    cut = read_log(path, "vllm.log")
    here, there = values(cut, "running"), values(whole, "running")
    assert 0.6 * len(there) < len(here) < len(there)
    assert here == there[: len(here)]
    (account,) = cut.understood
    assert account.understood == account.total == len(here)
    assert any("cannot be read to its end" in said and "is missing" in said for said in account.said)
    assert not any("read to its end" in said for said in whole.understood[0].said)
    assert any("cannot be read to its end" in remark for remark in diagnose_sources([str(path)]).remarks)


def test_a_packed_log_whose_bytes_changed_is_read_up_to_there(tmp_path):
    lines = [v1(10.0 * n, running=n * 7919 % 997) for n in range(4000)]
    packed = bytearray(gzip.compress("\n".join(lines).encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 400] = bytes(400)
    path = tmp_path / "vllm.log.gz"
    path.write_bytes(packed)
    read = read_log(path, "vllm.log")
    assert 0 < len(values(read, "running")) < 4000
    assert any("cannot be read to its end" in said for said in read.understood[0].said)


@pytest.mark.parametrize("kept", [5, 30])
def test_of_a_packed_log_without_one_line_it_is_an_error_that_it_is_cut(tmp_path, kept):
    path = tmp_path / "c.log.gz"
    path.write_bytes(gzip.compress("\n".join(PLAIN).encode())[:kept])
    with pytest.raises(InputError, match="cannot be read to its end"):
        read_log(path, "c")
    with pytest.raises(InputError, match="cannot be read to its end"):
        diagnose_sources([str(path)])


def test_stamps_rise_over_the_new_year():
    text = "\n".join([v1(0, month=12, day=31, hour=23), v1(10, month=1, day=1, hour=0)])
    series = read_log_text(text, "a").of_series("running")[0]
    assert np.diff(series.at).tolist() == [3600 + 10]


def test_without_stamps_lines_count():
    found = read_log_text("\n".join(line.split("] ")[1] for line in PLAIN), "a")
    (series,) = found.of_series("running")
    assert (series.axis, series.clock, series.values.tolist()) == ("line", Clock.NONE, TRUTH)


def test_a_log_that_holds_several_formats():
    text = "\n".join(
        [
            uvicorn(),
            v1(10),
            jit(12),
            "(APIServer pid=412) ERROR 05-11 17:00:13 [serving.py:929] Traceback (most recent call last):",
            '  File "async_llm.py", line 849, in output_handler',
            "    outputs = await engine_core.get_output_async()",
            uvicorn(path="/health"),
            v1(20),
        ]
    )
    found = read_log_text(text, "vllm.log")
    assert found.understood[0].format == "uvicorn access log + vllm log + jit lines"
    assert [event.kind for event in found.events] == ["jit", "error"]
    assert whole(found)


def test_what_is_not_understood_is_counted_and_shown():
    found = read_log_text("\n".join([v1(10), "", "%%% what is this", v1(20)]), "vllm.log")
    (account,) = found.understood
    assert (account.understood, account.total) == (2, 3) or account.examples == []
    assert account.total == 3 or whole(found)


# -- any damage at all


@given(
    st.lists(st.sampled_from([*PLAIN, decode(3), prefill(1), ingress(3), uvicorn(), jit(4), "", "garbage \x00 \ufffd"]), max_size=20),
    st.sampled_from(["\n", "\r\n", "\n\n", ""]),
    st.integers(1, 4000),
    st.binary(max_size=40),
)  # fmt: skip
def test_any_split_of_any_mixture_is_read_the_same(lines, end, size, noise):
    raw = end.join(lines).encode() + noise
    at_once = [line for batch in batches([raw]) for line in batch.lines]
    in_pieces = [
        line for batch in batches([raw[at : at + size] for at in range(0, len(raw), size)]) for line in batch.lines
    ]
    assert at_once == in_pieces
    with contextlib.suppress(InputError):
        assert read_log_text(raw, "a").understood


@given(st.binary(max_size=3000))
def test_no_bytes_break_the_reader(raw):
    try:
        found = read_log_text(raw, "a")
    except InputError:
        return
    (account,) = found.understood
    assert 0 < account.understood <= account.total


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.integers(-(10**30), 10**30), st.floats(0, 1e6))
def test_any_numbers(made, prompt, running, kv):
    line = (
        v1(1).replace("throughput: 30.0", f"throughput: {made!r}").replace("throughput: 0.0", f"throughput: {prompt!r}")
    )
    line = line.replace("Running: 1", f"Running: {running}").replace("usage: 5.0%", f"usage: {kv!r}%")
    try:
        found = read_log_text(line, "a")
    except InputError:
        return
    for series in found.series:
        assert (np.isnan(series.values) | (series.values >= 0)).all()
        if series.unit == "share":
            assert (series.values <= 1).all()


def test_ten_megabytes_on_one_line_are_read_in_pieces():
    line = "".join(PLAIN)
    raw = (line * (10_000_000 // len(line))).encode()
    sizes = [
        len(piece)
        for batch in batches([raw[at : at + (1 << 20)] for at in range(0, len(raw), 1 << 20)])
        for piece in batch.lines
    ]
    assert max(sizes) <= LONGEST
    assert sum(sizes) == len(raw)
    found = read_log_text(raw[: 1 << 20], "a")
    assert len(found.of_series("running")[0]) > 4000
    garbage = b"x" * 10_000_000 + b"\n" + PLAIN[0].encode()
    assert values(read_log_text(garbage, "a"), "running") == [1.0]


# -- SGLang, TGI, llama.cpp


@pytest.mark.parametrize("rank", [" TP0", " TP0 EP0", " DP1 TP1 EP1", ""])
@pytest.mark.parametrize("old", [True, False])
def test_a_decode_line_of_sglang(rank, old):
    found = read_log_text(decode(3, made=429.34, running=4, waiting=3, usage=1.0, rank=rank, old=old), "sglang.log")
    (series,) = found.of_series("output_tok_s", line="decode")
    assert series.values.tolist() == [429.34]
    assert series.labels["engine"] == ("1" if "DP1" in rank else "0")
    assert (values(found, "kv_usage"), values(found, "cuda_graph"), values(found, "waiting")) == ([1.0], [1.0], [3.0])


def test_sglang_with_a_lost_bracket_other_keys_and_a_wrap():
    text = (
        "2026-05-24 03:51:44 TP0] Decode batch, #running-req: 4, #full token: 2642, full token usage: 1.00, cuda graph: "
        "False, accept len: 3.21, accept rate: 0.80, gen throughput (token/s): 429.34, #queue-req: 3\n"
        "[2026-05-24 03:51:45 TP0] Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, full token usage: 0.10, "
        "#running-req: 0, #queue-req: 1, #pending-token: 46401, npu graph: False, input throughput (token/s): 8072.80\n"
    )
    found = read_log_text(text, "a")
    assert values(found, "accept_length") == [3.21]
    assert values(found, "pending_tokens") == [46401.0]
    assert values(found, "prompt_tok_s") == [8072.8]
    assert values(found, "cuda_graph", line="decode") == [0.0]


@pytest.mark.parametrize("width", [70, 90, 120])
def test_lines_of_sglang_that_a_terminal_broke(width):
    text = [decode(i, made=100.0 + i, waiting=i) for i in range(5)]
    broken = "\n".join(line[at : at + width] for line in text for at in range(0, len(line), width))
    found = read_log_text(broken, "a")
    assert values(found, "output_tok_s") == [100.0, 101.0, 102.0, 103.0, 104.0]
    assert values(found, "waiting") == [0.0, 1.0, 2.0, 3.0, 4.0]
    lone = read_log_text(decode(1).partition(", #queue-req")[0], "a")
    assert values(lone, "output_tok_s") == [84.0]


@pytest.mark.parametrize(
    "words",
    [
        "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.32 -> 1.00",
        "Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.8024 -> 0.9085",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 646, #new_token_ratio: 0.09 -> 0.34",
    ],
)
def test_retractions_of_sglang(words):
    (event,) = read_log_text(f"[2026-05-24 03:51:58 TP0] {words}", "a").of_kind("retracted")
    assert event.attributes["requests"] == 1.0
    assert event.attributes["ratio_after"] > event.attributes["ratio_before"]


def test_the_first_decode_line_after_idle_is_marked():
    text = "\n".join([prefill(1), decode(2), decode(3), prefill(9, running=1), decode(9), prefill(20), decode(21)])
    assert values(read_log_text(text, "a"), "after_idle", line="decode") == [1.0, 0.0, 0.0, 1.0]


def test_tgi_and_tei_write_a_unit_with_each_time():
    text = (
        "2024-05-06T08:40:09.123456Z  INFO generate_stream{parameters=GenerateParameters { grammar: Some(Json), "
        'max_new_tokens: Some(200) } total_time="7.21s" validation_time="4.1ms" queue_time="1.08s" inference_time="6.1s" '
        'time_per_token="23.8ms" seed="None"}: text_generation_router::server: Success\n'
        '2024-05-06T08:40:10Z  INFO embed{total_time="9.1ms" tokenization_time="312.5µs" queue_time="686.203µs" '
        'inference_time="8.0ms"}: text_embeddings_router::http::server: Success\n'
    )
    (rows,) = read_log_text(text, "tgi.log").rows
    assert rows.numbers("queue").tolist() == [1080.0, pytest.approx(0.686203)]
    assert rows.numbers("preprocess").tolist() == [pytest.approx(4.1), pytest.approx(0.3125)]
    assert rows.texts("grammar") == ["yes", ""]
    assert rows.clock is Clock.UTC


LLAMA_OLD = """slot launch_slot_: id  0 | task 388 | processing task
slot update_slots: id  0 | task 388 | new prompt, n_ctx_slot = 4096, n_keep = 0, n_prompt_tokens = 631
slot print_timing: id  0 | task 388 |
prompt eval time =    3023.12 ms /   531 tokens (    5.69 ms per token,   175.65 tokens per second)
       eval time =    1180.00 ms /    60 tokens (   19.67 ms per token,    50.85 tokens per second)
      total time =    4203.12 ms /   591 tokens
slot      release: id  0 | task 388 | stop processing: n_past = 691, truncated = 0
srv  update_slots: all slots are idle
srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 200
"""
LLAMA_NEW = """[42027] 1.37.495.377 I slot print_timing: id  3 | task 9 | prompt eval time =     789.03 ms /    27 tokens (   29.22 ms per token,    34.22 tokens per second)
[42027] 1.37.495.378 I slot print_timing: id  3 | task 9 |        eval time =   16112.50 ms /   192 tokens (   83.92 ms per token,    11.92 tokens per second)
[42027] 1.37.495.379 I slot print_timing: id  3 | task 9 |       total time =   16901.53 ms /   219 tokens
[42027] 1.37.495.428 I slot      release: id  3 | task 9 | stop processing: n_tokens = 218, truncated = 0
"""


def test_timings_of_llamacpp_in_both_forms():
    found = read_log_text(LLAMA_OLD + LLAMA_NEW, "llama.log")
    rows = next(rows for rows in found.rows if rows.kind == "requests")
    assert rows.numbers("prefill").tolist() == [3023.12, 789.03]
    assert rows.numbers("decode").tolist() == [1180.0, 16112.5]
    assert rows.numbers("tpot").tolist() == [20.0, pytest.approx(16112.5 / 191)]
    assert rows.texts("slot") == ["0", "3"]
    assert rows.numbers("cached_tokens").tolist()[0] == 100.0
    assert whole(found)


# -- access logs


def test_nginx_in_the_order_of_the_ingress_with_retries():
    line = ingress(5, status=200, took="6.201", upstream="5.000, 1.2", size="0, 900", last="504, 200", addresses="10.0.0.1:80, 10.0.0.2:80")  # fmt: skip
    (rows,) = read_log_text(line, "nginx.log").rows
    one = {
        name: rows.numbers(name)[0]
        for name in ("e2e", "upstream", "upstream_last", "attempts", "upstream_bytes", "status")
    }
    assert one == {"e2e": 6201.0, "upstream": 6200.0, "upstream_last": 1200.0, "attempts": 2.0, "upstream_bytes": 900.0, "status": 200.0}  # fmt: skip
    assert rows.clock is Clock.UTC


@pytest.mark.parametrize(
    "line",
    [
        '10.0.4.7 - - [11/Feb/2026:09:02:11 +0100] "POST /v1/completions HTTP/1.1" 200 18 "-" "curl/8.5.0" 1.200 1.199',
        '10.0.4.7 - - [11/Feb/2026:09:02:11 +0100] "POST /v1/completions HTTP/1.1" 200 18 "-" "curl/8.5.0" "-" "1.200" "1.199"',
        '10.0.4.7 - - [11/Feb/2026:09:02:11 +0100] "POST /v1/completions HTTP/1.1" 200 18 "-" "curl" rt=1.200 uct="0.001" urt="1.199"',
        '10.0.4.7 - - [11/Feb/2026:09:02:11 +0100] "POST /v1/completions HTTP/1.1" 200 18 "-" "curl" request_time=1.2 upstream_response_time=1.199',
        '10.0.4.7 - - [11/Feb/2026:09:02:11 +0100] llm.local "POST /v1/completions HTTP/1.1" 200 18 1.200 "-" "curl" 10.0.0.1:80 200 1.199 "http://llm/v1"',
        '{"time_iso8601": "2026-02-11T09:02:11+01:00", "request_method": "POST", "uri": "/v1/completions", "status": "200", "request_time": "1.200", "upstream_response_time": "1.199"}',
    ],
)
def test_times_in_other_orders(line):
    (rows,) = read_log_text(line, "access.log").rows
    assert (rows.numbers("e2e").tolist(), rows.numbers("upstream").tolist()) == ([1200.0], [1199.0])
    assert rows.numbers("at").tolist() == [1770796931.0]
    assert rows.texts("path") == ["/v1/completions"]


def test_the_plain_combined_format_says_that_it_has_no_times(tmp_path):
    path = tmp_path / "access.log"
    path.write_text(
        '10.0.4.7 - - [11/Feb/2026:09:02:11 +0000] "POST /v1/completions HTTP/1.1" 200 1841 "-" "curl/8.5.0"\n' * 3
    )
    result = diagnose_sources([str(path)])
    assert result.findings[0].code == "INSUFFICIENT_EVIDENCE"
    assert "$request_time and $upstream_response_time" in result.findings[0].missing[0]
    assert any("no times" in note for note in result.remarks)


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ('[2026-02-11T09:02:11.123Z] "POST /v1/completions HTTP/1.1" 504 UT 912 24 60000 - "-" "curl" "id-1" "llm" "10.0.9.21:8000"', "UT"),
        ('[2026-02-11T09:02:11.123Z] "POST /v1/completions HTTP/1.1" 504 UT upstream_response_timeout - "-" 912 24 60000 - "-" "curl" "id" "llm" "10.0.9.21:8000" outbound|80||llm - 10.0.0.1:80 10.0.0.2:3 - default', "UT"),
        ('{"start_time": "2026-02-11T09:02:11.123Z", "method": "POST", "path": "/v1/completions", "response_code": 504, "response_flags": "UT", "duration": 60000, "bytes_sent": 24}', "UT"),
    ],
)  # fmt: skip
def test_envoy_as_text_and_as_objects(line, flags):
    (rows,) = read_log_text(line, "envoy.log").rows
    assert (rows.numbers("e2e").tolist(), rows.numbers("status").tolist(), rows.texts("flags")) == (
        [60000.0],
        [504.0],
        [flags],
    )


def test_objects_of_litellm_higress_and_traefik():
    text = "\n".join(
        [
            '{"litellm_call_id": "a", "call_type": "acompletion", "startTime": "2026-02-11T09:02:11.000Z", "endTime": "2026-02-11T09:02:15.500Z", "completionStartTime": "2026-02-11T09:02:11.900Z", "status": "success", "litellm_overhead_time_ms": 12.5}',
            '{"authority": "llm", "duration": 4500, "response_code": 200, "response_flags": "-", "start_time": "2026-02-11T09:02:11.000Z", "ai_log": "{\\"llm_first_token_duration\\":\\"900\\",\\"output_token\\":\\"120\\"}"}',
            '{"DownstreamStatus": 200, "Duration": 4500000000, "OriginDuration": 4400000000, "RetryAttempts": 1, "RequestPath": "/v1", "StartUTC": "2026-02-11T09:02:11Z"}',
        ]
    )
    (rows,) = read_log_text(text, "gateway.log").rows
    assert rows.numbers("e2e").tolist() == [4500.0, 4500.0, 4500.0]
    assert rows.numbers("ttft").tolist()[:2] == [pytest.approx(900.0), 900.0]
    assert rows.numbers("overhead")[0] == 12.5
    assert rows.numbers("attempts")[2] == 2.0


@pytest.mark.parametrize(("took", "ms"), [("1m2.5s", 62500.0), ("890.5ms", 890.5), ("2.1s", 2100.0), ("350µs", 0.35)])
def test_lines_of_gin(took, ms):
    line = f'[GIN] 2026/02/11 - 09:02:11 | 200 | {took:>13} |       127.0.0.1 | POST     "/api/chat"'
    (rows,) = read_log_text(line, "ollama.log").rows
    assert rows.numbers("e2e").tolist() == [pytest.approx(ms)]
    assert rows.numbers("at").tolist() == [1770800531.0]
    assert rows.texts("path") == ["/api/chat"]


def test_a_duration_without_a_unit_is_no_value():
    found = read_log_text('{"status": 200, "duration": 3.2, "request": {"method": "POST", "uri": "/v1"}}', "a.log")
    assert not found.rows[0].has("e2e")
    assert any("no unit" in said for said in found.understood[0].said)


def test_lines_of_uvicorn_are_counted():
    text = "\n".join(
        [uvicorn(f"10.0.0.{i}:{40000 + i}") for i in range(40)] + [uvicorn(status="503 Service Unavailable")]
    )
    (rows,) = read_log_text(text, "uvicorn.log").rows
    assert dict(zip(rows.numbers("status"), rows.numbers("count"), strict=True)) == {200.0: 40.0, 503.0: 1.0}


# -- telling logs from other things


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(PLAIN),
        "\n".join([decode(1), decode(2)]),
        "\n".join([uvicorn(), uvicorn()]),
        ingress(3),
        LLAMA_OLD,
        "vllm-1  | " + "\nvllm-1  | ".join(PLAIN),
        "INFO:     Started server process [1]\nINFO:     Waiting for application startup.\n" + PLAIN[0],
    ],
)
def test_a_log_is_known_by_its_beginning(text):
    found = format_of(text, "x.txt")
    assert found is not None
    assert found.name == "log"


@pytest.mark.parametrize(
    "text",
    [
        "| arm | TTFT p99 (ms) |\n|---|---|\n| a | 3 |\n| b | 4 |\n",
        '{"id": "q1", "t_send_ms": 8000, "t_first_ms": 8140, "status": "ok", "duration_ms": 3}\n',
        "vllm:num_requests_running 3\n",
        "a,b\n1,2\n",
        "We see a p99 of 3 s since yesterday.\n",
        'Process 2011: VLLM::Worker_TP0\nThread 2011 (active): "MainThread"\n',
    ],
)
def test_other_things_are_no_log(text):
    assert not is_log(text, "x.log")


@pytest.mark.needs("shared")
def test_a_real_server_log_is_understood_whole(shared):
    path = shared / "data" / "engine_samples" / "vllm" / "server_log_0.32.0.txt"
    found = read_log(path, path.name)
    (account,) = found.understood
    assert account.understood >= 0.9 * account.total, account.examples
    assert len(found.of_kind("aborted")) == 3
    assert found.of_kind("died")
    assert found.number("max_num_seqs") == 16


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "a picture"),
        (b"PK\x03\x04" + bytes(100), "zip"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd"),
        (bytes(range(9)) * 100, "binary"),
    ],
)
def test_what_is_no_text_is_named(head, words, tmp_path):
    path = tmp_path / "vllm.log"
    path.write_bytes(head)
    with pytest.raises(InputError, match=words):
        diagnose_sources([str(path)])


def test_a_log_that_begins_with_a_hole_is_read(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_bytes(bytes(200_000) + "\n".join(v1(10 * i, made=0.0, running=0, waiting=3) for i in range(4)).encode())
    assert diagnose_sources([str(path)]).findings[0].code == "SCHED_ADMISSION_DEADLOCK"


def test_a_packed_log_is_diagnosed(tmp_path):
    path = tmp_path / "vllm.log.gz"
    path.write_bytes(gzip.compress("\n".join(v1(10 * i, made=0.0, running=0, waiting=3) for i in range(4)).encode()))
    assert diagnose_sources([str(path)]).findings[0].code == "SCHED_ADMISSION_DEADLOCK"
    path.write_text("\n".join(v1(10 * i, made=0.0, running=0, waiting=3) for i in range(4)), encoding="utf-16")
    assert diagnose_sources([str(path)]).findings[0].code == "SCHED_ADMISSION_DEADLOCK"


# -- clocks that go back


def test_the_end_of_summer_time_does_not_turn_a_log_round():
    """02:00 comes twice: the queue grows on, it does not jump."""
    minutes = [(1, 40), (1, 50), (2, 0), (2, 20), (2, 40), (2, 59), (2, 0), (2, 20), (2, 40), (3, 0)]
    text = "".join(f"{v1(60.0 * m, waiting=n, hour=h)}\n" for n, (h, m) in enumerate(minutes))
    found = read_log_text(text, "vllm.log")
    (waiting,) = found.of_series("waiting")
    assert waiting.values.tolist() == list(range(10))
    assert waiting.at[-1] - waiting.at[0] == 2 * 3600 + 20 * 60
    assert "go back by an hour at line 7: taken for the end of summer time" in " ".join(found.understood[0].said)


def test_a_clock_that_was_set_is_said():
    text = "".join(f"{v1(60.0 * m, waiting=m)}\n" for m in (0, 10, 20, 30, 5, 15))
    found = read_log_text(text, "vllm.log")
    assert "go back by 25 min at line 5" in " ".join(found.understood[0].said)
    steady = read_log_text("".join(f"{v1(10.0 * n)}\n" for n in range(5)), "vllm.log")
    assert "go back" not in " ".join(steady.understood[0].said)
