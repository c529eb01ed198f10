"""Logs read for what an engine was started with."""

import io
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.flags.start_log import LONGEST_LINE, StartLog, feed_bytes


def read(data: bytes, *, piece: int = 4096) -> StartLog:
    log = StartLog("x.log")
    stream = io.BytesIO(data)
    feed_bytes(log, lambda: stream.read(piece))
    return log


def values(log):
    return {key: fact.value for key, fact in log.facts.items()}


VLLM = b"""(APIServer pid=7) INFO 11-29 11:21:11 [api_utils.py:286] non-default args: {'model_tag': 'm', \
'port': 28711, 'model': 'm', 'max_model_len': 4096, 'served_model_name': ['tiny'], 'max_num_seqs': 16, \
'api_key': ['s3cret']}
(EngineCore pid=8) INFO 11-29 11:21:21 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m', \
dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=2, enable_prefix_caching=True, quantization=None
INFO [scheduler.py:308] Chunked prefill is enabled with max_num_batched_tokens=2048.
(EngineCore pid=8) INFO [kv_cache_utils.py:2327] GPU KV cache size: 2,097,152 tokens, Maximum concurrency for 4,096 \
tokens per request: 512.00x
"""
EXPECTED = {
    "model": "m",
    "port": 28711,
    "max_model_len": 4096,
    "max_num_seqs": 16,
    "version": "0.32.0",
    "dtype": "bfloat16",
    "tensor_parallel": 2,
    "prefix_caching": True,
    "max_num_batched_tokens": 2048,
    "kv_tokens": 2097152,
    "kv_max_concurrency": 512.0,
    "device": "cuda",
}


def test_vllm_says_what_it_was_started_with():
    log = read(VLLM)
    assert log.engine == "vllm"
    assert values(log) == EXPECTED
    assert log.facts["kv_tokens"].source == "x.log:4"
    assert "s3cret" not in str(log.facts)


@pytest.mark.parametrize(
    "prefix",
    [b"2026-11-29T11:21:11.123Z stdout F ", b"vllm-1  | ", b"\x1b[36mvllm-1  |\x1b[0m \x1b[1;32m", b'{"log":"'],
)
def test_what_collectors_put_in_front_changes_nothing(prefix):
    assert values(read(b"".join(prefix + line for line in VLLM.splitlines(keepends=True)))) == EXPECTED


@given(st.integers(min_value=1, max_value=400))
def test_any_split_of_the_bytes_gives_the_same(piece):
    assert values(read(VLLM, piece=piece)) == EXPECTED


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_without_an_error(data):
    log = read(data, piece=97)
    assert log.lines <= data.count(b"\n") + 1


@pytest.mark.needs("shared")
def test_the_captured_start_up_log(shared):
    path = shared / "data" / "engine_samples" / "vllm" / "server_log_0.32.0.txt"
    log = read(path.read_bytes())
    said = values(log)
    assert log.engine == "vllm"
    assert (said["version"], said["max_num_seqs"], said["kv_tokens"]) == ("0.32.0", 16, 2097152)
    assert said["device"] == "cpu"
    assert said["enforce_eager"] is True
    assert log.load.lines == 20
    assert log.load.waiting == 2
    assert log.load.kv_usage == 1.0
    assert [problem.code for problem in log.problems] == ["LOG_ENGINE_DIED"]


@pytest.mark.needs("shared")
@pytest.mark.parametrize(
    ("name", "engine", "lines", "preemptions"),
    [
        ("SC-16.vllm.log", "vllm", 4, 1),
        ("SC-14.vllm.log", "vllm", 5, 0),
        ("SC-12.sglang.log", "sglang", 11, 1),
        ("MT-16.sglang.log", "sglang", 5, 0),
        ("GW-08.nginx.log", "", 0, 0),
    ],
)
def test_logs_of_public_cases(shared, name, engine, lines, preemptions):
    log = read((shared / "data" / "cases" / "inputs" / name).read_bytes())
    assert (log.engine, log.load.lines, log.load.preemptions) == (engine, lines, preemptions)


def test_jit_in_traffic_is_a_problem(request):
    line = b"(EngineCore_0 pid=7) WARNING [jit_monitor.py:88] Triton kernel JIT compilation during inference: _k.\n"
    assert [problem.code for problem in read(line * 2).problems] == ["LOG_JIT", "LOG_JIT"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"vllm serve: error: unrecognized arguments: auto", "LOG_OPTION_REFUSED"),
        (
            b"argument --enable-chunked-prefill: error: argument x: ignored explicit argument 'auto'",
            "LOG_OPTION_REFUSED",
        ),
        (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "LOG_OUT_OF_MEMORY"),
        (
            b"ValueError: To serve at least one request with the model's max seq len (131072), (16 GiB KV cache is",
            "LOG_KV_TOO_SMALL",
        ),
    ],
)
def test_refusals_are_recognised(line, code):
    assert [problem.code for problem in read(line).problems] == [code]


def test_read_in_source_sglang_arguments():
    """Shapes read in the source of 0.5.23; not captured."""
    log = read(
        b"[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', context_length=8192, mem_fraction_static=0.88, "
        b"max_running_requests=64, chunked_prefill_size=8192, schedule_policy='lpm', tp_size=2, api_key='k')\n"
        b"[2026-01-01 00:00:09 TP0] max_total_num_tokens=460000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        b"max_running_requests=64, context_len=8192\n"
    )
    assert log.engine == "sglang"
    said = values(log)
    assert said["kv_tokens"] == 460000
    assert said["scheduling_policy"] == "lpm"
    assert said["max_num_seqs"] == 64
    assert said["max_model_len"] == 8192
    assert "api_key" not in said


def test_llama_cpp_s_own_lines():
    """Captured from xllamacpp 2026.10."""
    log = read(
        b"0.00.001.913 I srv          init: build_info: b6730-a1b2c3d\n"
        b"0.00.003.082 I srv    load_model: loading model '/models/SmolLM2-135M-Instruct.Q4_1.gguf'\n"
        b"0.01.390.122 I cmn          init: llama threadpool init, n_threads = 1\n"
        b"0.01.573.667 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 4096, kv_unified = 'false'\n"
    )
    assert log.engine == "llamacpp"
    assert values(log) == {
        "version": "b6730-a1b2c3d",
        "model": "/models/SmolLM2-135M-Instruct.Q4_1.gguf",
        "threads": 1,
        "slots": 4,
        "slot_ctx": 4096,
        "kv_unified": False,
    }


def test_read_in_source_llama_cpp_load_lines():
    log = read(
        b"system_info: n_threads = 8 (n_threads_batch = 8) / 8 | CPU : SSE3 = 1\n"
        b"print_info: file type   = Q4_1\n"
        b"llama_context: n_seq_max     = 8\nllama_context: n_ctx         = 8192\n"
        b"llama_context: n_ctx_per_seq = 1024\nllama_context: n_batch       = 512\nllama_context: n_ubatch      = 512\n"
    )
    assert log.engine == "llamacpp"
    assert values(log) == {
        "threads": 8,
        "cores": 8,
        "quantization": "Q4_1",
        "slots": 8,
        "ctx_size": 8192,
        "slot_ctx": 1024,
        "n_batch": 512,
        "n_ubatch": 512,
    }


def test_a_restart_with_other_options_starts_anew():
    again = VLLM.replace(b"'max_num_seqs': 16", b"'max_num_seqs': 32").replace(b"2,097,152", b"1,000")
    said = values(read(VLLM + b"INFO: Shutting down\n" * 50 + again))
    assert (said["max_num_seqs"], said["kv_tokens"]) == (32, 1000)
    # The same options printed by a second process of the same start change nothing.
    first = VLLM.splitlines(keepends=True)[0]
    assert values(read(VLLM + first)) == EXPECTED


@pytest.mark.parametrize(
    "text", [b"args: Namespace(" + b"k=[" * 40_000, b"max_total_num_tokens=" * 6_000, b"slot" * 30_000]
)
def test_a_hostile_line_costs_little(text):
    started = time.process_time()
    read(text + b"\n")
    assert time.process_time() - started < 5


def test_a_line_without_end_takes_no_memory():
    """16 MiB without a line break: at most some pieces are held."""
    piece = b"x" * 65536
    left = 256

    def more() -> bytes:
        nonlocal left
        left -= 1
        return piece if left >= 0 else b""

    log = StartLog("x.log")
    tracemalloc.start()
    try:
        feed_bytes(log, more)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert log.cut == 1
    assert peak < 20 * LONGEST_LINE


def test_read_in_source_vllm_0_6_6():
    """The older lines: all arguments in a Namespace, blocks instead of tokens."""
    log = read(
        b"INFO 12-01 08:00:00 api_server.py:712] vLLM API server version 0.6.6\n"
        b"INFO 12-01 08:00:00 api_server.py:713] args: Namespace(subparser='serve', model_tag='m', host=None, "
        b"allowed_origins=['*'], api_key='hush', model='m', max_model_len=8192, block_size=16, swap_space=4, "
        b"enable_prefix_caching=None, max_num_seqs=256, dispatch_function=<function serve at 0x7f6a2c>)\n"
        b"INFO 12-01 08:00:40 gpu_executor.py:76] # GPU blocks: 27896, # CPU blocks: 2048\n"
        b"INFO 12-01 08:00:40 gpu_executor.py:80] Maximum concurrency for 8192 tokens per request: 54.48x\n"
    )
    said = values(log)
    assert (said["version"], said["max_num_seqs"], said["swap_space"]) == ("0.6.6", 256, 4)
    assert (said["num_gpu_blocks"], said["kv_max_concurrency"]) == (27896, 54.48)
    assert not {"host", "prefix_caching", "api_key", "dispatch_function"} & set(said)
