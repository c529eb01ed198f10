"""What people copy from a terminal: a profiler, a recogniser's lag lines, a gateway's bars, a table of turns."""

import json

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.readers.source import read_source


def asked(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return diagnose_sources([str(folder / name.replace("_", ".")) for name in files])


def first(folder, **files):
    return asked(folder, **files).findings[0]


# -- py-spy top

TOP = """Collecting samples from 'python3 -m vllm.entrypoints.openai.api_server --model x' (python v3.11.7)
Total Samples 3000
GIL: 97.00%, Active: 99.00%, Threads: 14

  %Own   %Total  OwnTime  TotalTime  Function (filename)
 61.00%  61.00%   18.20s    18.20s   {} (transformers/{}.py)
  9.00%   9.00%    2.70s     2.70s   run_once (asyncio/base_events.py)
  4.00%  77.00%    1.10s    22.90s   serve (vllm/entrypoints/openai/serving_engine.py)
Press Control-C to quit, or ? for help.
"""


def test_a_screen_of_py_spy_top_names_the_work_on_the_loop(tmp_path):
    result = asked(tmp_path, top_txt=TOP.format("_encode_plus", "tokenization_utils_fast"))
    finding = result.findings[0]
    assert (finding.code, finding.level) == ("FE_EVENTLOOP_BLOCK", "suspected")
    assert "tokenizer work for 61% of the time" in finding.statement
    assert "loop's lag" in finding.missing[0]
    assert result.not_understood == []


def test_a_full_interpreter_with_nothing_to_move_off_asks_for_processes(tmp_path):
    finding = first(tmp_path, top_txt=TOP.format("step", "engine"))
    assert (finding.code, finding.level) == ("FE_CPU_STARVED", "suspected")
    assert "97%" in finding.statement
    calm = TOP.format("step", "engine").replace("GIL: 97.00%", "GIL: 12.00%")
    assert first(tmp_path / "calm", top_txt=calm).code == "INSUFFICIENT_EVIDENCE"


# -- a stack without its process

STACK = """Thread 1234 (active): "MainThread"
    execute_model (vllm/v1/executor/abstract.py:60)
    step (vllm/v1/engine/core.py:240)
Thread 1240 (idle): "Thread-1"
    wait (threading.py:320)
"""


def load(rate):
    return "\n".join(
        f"INFO 05-11 17:50:{at}4 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
        f"throughput: {90.0 if at == 2 else rate} tokens/s, Running: 7 reqs, Waiting: 0 reqs, GPU KV cache usage: "
        "6.4%, Prefix cache hit rate: 8.3%"
        for at in (2, 3, 4)
    )


def test_a_stack_without_its_process_is_a_stall_only_beside_a_line_without_progress(tmp_path):
    assert first(tmp_path / "alone", dump_txt=STACK).code == "INSUFFICIENT_EVIDENCE"
    assert first(tmp_path / "stalls", dump_txt=STACK, vllm_log=load(0.0)).code == "ENGINE_STALL"
    assert first(tmp_path / "runs", dump_txt=STACK, vllm_log=load(88.0)).code != "ENGINE_STALL"


# -- whisper_streaming


def lag_lines(growth):
    return "\n".join(
        f"2026-03-09 10:0{i}:04,120 DEBUG ## last processed {60 * i + 3 - growth * i:.2f} s, now is {60 * i + 4:.2f}, "
        f"the latency is {1 + growth * i:.2f}"
        for i in range(8)
    )


def test_lag_lines_of_whisper_streaming(tmp_path):
    finding = first(tmp_path, log_txt=lag_lines(0.8))
    assert (finding.code, finding.level) == ("ASR_LAG_GROWS", "suspected")
    assert "1000.00 -> 6600.00 ms" in finding.statement
    steady = asked(tmp_path / "steady", log_txt=lag_lines(0.0))
    assert steady.findings[0].code == "INSUFFICIENT_EVIDENCE"
    assert steady.not_understood == []


def test_its_output_is_read_by_the_audio_that_each_piece_is_of(tmp_path):
    text = "\n".join(
        f"{5000 * i + 900 * i + 1500:.4f} {5000 * i - 4000} {5000 * i} piece {i} of it" for i in range(1, 9)
    )
    (tmp_path / "out.txt").write_text(text)
    received, processed = read_source(str(tmp_path / "out.txt"), None).observed.series
    assert (received.values - processed.values).tolist() == [1500.0 + 900.0 * i for i in range(1, 9)]
    assert asked(tmp_path, out_txt=text).findings[0].code == "ASR_LAG_GROWS"


# -- a table of turns


def turns(cached, separator="|"):
    rows = [("turn", "prompt tokens", "cached tokens"), *((i + 1, 2000 + 2100 * i, cached(i)) for i in range(5))]
    if separator == ",":
        return "\n".join(",".join(map(str, row)) for row in rows) + "\n"
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([lines[0], "|---|---|---|", *lines[1:]]) + "\n"


@pytest.mark.parametrize(("name", "separator"), [("t_md", "|"), ("t_csv", ",")])
def test_turns_whose_history_is_never_found(tmp_path, name, separator):
    finding = first(tmp_path, **{name: turns(lambda i: 16 if i else 0, separator)})
    assert (finding.code, finding.level) == ("MIX_CACHE_MISS", "suspected")
    assert "= 64 / 20600 = 0%" in finding.relation
    assert "byte for byte" in finding.missing[0]
    hits = asked(tmp_path / "hits", **{name: turns(lambda i: 2000 + 2100 * (i - 1) if i else 0, separator)})
    assert "MIX_CACHE_MISS" not in [item.code for item in hits.findings]


# -- bars and nested objects of Azure's Application Gateway


def azure(kind, status, taken):
    pairs = {
        "timeStamp": "2026-03-09T10:00:00Z", "httpMethod": "POST", "requestUri": "/v1/chat/completions",
        "httpStatus": status, "timeTaken": taken, "serverResponseLatency": taken, "sentBytes": 160,
    }  # fmt: skip
    if kind == "json":
        return json.dumps({"timeStamp": pairs.pop("timeStamp"), "properties": pairs})
    if kind == "pairs":
        return "|".join(f"{key}={value}" for key, value in pairs.items())
    return "|".join(f"{key}|{value}" for key, value in pairs.items())


@pytest.mark.parametrize("kind", ["json", "pairs", "bars"])
def test_requests_between_bars(tmp_path, kind):
    lines = [
        azure(kind, 504, "20.002"),
        azure(kind, 200, "3.2"),
        azure(kind, 504, "20.001"),
        azure(kind, 504, "20.003"),
    ]
    result = asked(tmp_path, access_log="\n".join(lines) + "\n")
    finding = result.findings[0]
    assert finding.code == "GW_UPSTREAM_TIMEOUT"
    assert "3 requests ended with 504" in finding.statement
    assert result.not_understood == []


# -- a log line among a printed result

RESULT = """Slow with 0.11:

```
============ Serving Benchmark Result ============
Successful requests:                     1000
Request throughput (req/s):              4.10
Median TTFT (ms):                        310.20
P99 TTFT (ms):                           9200.00
==================================================
{}```
"""
JIT = (
    "(EngineCore_0 pid=71) WARNING 05-11 17:00:05 [jit_monitor.py:12] Triton kernel JIT compilation during inference: "
    "_fwd_kernel. This causes a latency spike\n"
)


def test_a_log_line_inside_the_fence_of_a_result_is_read_too(tmp_path):
    assert first(tmp_path, issue_md=RESULT.format(JIT)).code == "COMPUTE_JIT"
    without = asked(tmp_path / "without", issue_md=RESULT.format(""))
    assert "COMPUTE_JIT" not in [item.code for item in without.findings]
