"""What rules say of numbers: capacity, memory, steps, buckets; every advice has an effect and a price."""

import json
import re
import shlex
from pathlib import Path

import pytest

import tailrace
from tailrace.engines.advice.capacity import kv_tokens, requests_held
from tailrace.engines.advice.card import CARDS, find_card
from tailrace.engines.advice.case import Case
from tailrace.engines.advice.lengths import Of, lengths_of_scrape
from tailrace.engines.advice.memory import plan_memory, step_seconds
from tailrace.engines.advice.model_shape import shape_of_config, shape_of_name, shape_of_size
from tailrace.engines.facts import EngineFacts, Fact
from tailrace.engines.flags.start_log import LoadSeen
from tailrace.engines.flags.triton_model import triton_model
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.model.check import Weight
from tailrace.model.engine_state import EngineState
from tailrace.model.thresholds import MS, Objectives
from tests.engines.advice.cases import command_case, facts, findings, lengths

CHAT = lengths((1000, 900, 200))
MIXED = lengths((950, 200, 100), (50, 6000, 100))


def vllm(**known) -> Case:
    return Case(name="e", engine="vllm", facts=facts(version="0.32.0", **known))


# -- memory


def test_the_card_s_memory_against_a_measured_run():
    """RTX 4090, Llama-3.1-8B, vLLM 0.19 at 0.9 and 2,048 tokens a step: 2,588 blocks of 16 tokens."""
    plan = plan_memory(
        shape_of_size("8b"),
        find_card("rtx-4090"),
        dtype="bf16",
        kv_dtype="auto",
        share=0.9,
        batched_tokens=2048,
        seqs=256,
    )
    assert plan.kv_tokens == pytest.approx(2588 * 16, rel=0.03)


def test_prefill_time_against_published_kernel_sums():
    """2,048 tokens of an 8B model: 115.6 ms of kernels on an A100, 38.2 ms on an H100; A100 sources differ by 25 %."""
    shape = shape_of_size("8b")
    assert step_seconds(shape, find_card("a100-80g"), 2048, dtype="bf16") == pytest.approx(0.130, rel=0.25)
    assert step_seconds(shape, find_card("h100"), 2048, dtype="bf16") == pytest.approx(0.0382, rel=0.30)


def test_bytes_of_kv_cache_a_token():
    assert shape_of_size("8b").kv_bytes() == 131_072
    assert shape_of_size("8b").kv_bytes("fp8_e4m3") == 65_536
    assert shape_of_size("70b").kv_bytes() == 327_680
    assert shape_of_size("27b").kv_bytes() is None


def test_a_model_s_own_configuration_gives_its_size():
    shape = shape_of_config(
        {
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 128256,
        },
        source="config.json",
    )
    assert shape.parameters == pytest.approx(8.03e9, rel=0.01)
    assert shape.kv_bytes() == 131_072
    assert shape_of_config({"model_type": "x"}, source="s") is None


def test_precision_is_what_the_engine_says_then_what_the_name_says():
    assert vllm(model="org/Llama-3.3-70B-Instruct-FP8").precision == "fp8"
    assert vllm(model="m-AWQ", quantization="none", dtype="float32").precision == "float32"
    assert vllm(quantization="awq", dtype="float16").precision == "awq"
    assert vllm(model="fp8fan").precision == "bfloat16"


def test_weights_in_8_bit_keep_a_cache_in_16_bit():
    shape, card = shape_of_size("8b"), find_card("h100")
    plans = [
        plan_memory(shape, card, dtype=dtype, kv_dtype=kv, share=0.9, batched_tokens=2048, seqs=256)
        for dtype, kv in (("fp8", "auto"), ("fp8", "fp8"))
    ]
    assert plans[1].kv_tokens == pytest.approx(2 * plans[0].kv_tokens)
    assert plans[0].weights == pytest.approx(8.03e9)


def test_a_default_that_nobody_reached_is_only_advice():
    known = {"kv_tokens": 110_400, "block_size": 16}
    case = vllm(**known)
    case.facts = EngineFacts({**case.facts.known, "max_num_seqs": Fact(1024, "default of vllm 0.32.0")})
    case.lengths = CHAT
    assert findings(case)["SEQS_ABOVE_KV"].weight is Weight.ADVICE
    case.state = EngineState(at_ns=0, running=90, waiting=4, kv_usage=0.98)
    assert findings(case)["SEQS_ABOVE_KV"].weight is Weight.WARNING


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3-8b"),
        ("/models/Llama-3.3-70B-Instruct-FP8", "llama-3-70b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("my-own-model", None),
    ],
)
def test_well_known_models_are_known_by_name(name, known):
    shape = shape_of_name(name)
    assert (shape.name if shape is not None else None) == known


def test_cards_by_the_names_that_drivers_give():
    assert find_card("NVIDIA A100-SXM4-80GB") is CARDS["a100-80g"]
    assert find_card("NVIDIA H100 80GB HBM3") is CARDS["h100-80g"]
    assert find_card("GeForce RTX 4090") is CARDS["rtx-4090"]
    assert find_card("abacus") is None


def test_a_model_that_does_not_fit_is_an_error_with_the_sum():
    case = vllm(dtype="bfloat16", gpu_memory_utilization=0.9)
    case.shape, case.card = shape_of_size("70b"), find_card("a100-80g")
    finding = findings(case)["MODEL_DOES_NOT_FIT"]
    assert finding.weight is Weight.ERROR
    assert "141.2 GB" in finding.statement


@pytest.mark.parametrize(
    ("known", "code", "weight"),
    [
        ({"gpu_memory_utilization": 0.98}, "MEMORY_SHARE_HIGH", Weight.WARNING),
        ({"gpu_memory_utilization": 1.2}, "MEMORY_SHARE_RANGE", Weight.ERROR),
        ({"gpu_memory_utilization": 0.4}, "MEMORY_SHARE_LOW", Weight.ADVICE),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 256}, "BATCH_TOKENS_BELOW_SEQS", Weight.ERROR),
        (
            {"chunked_prefill": False, "max_num_batched_tokens": 2048, "max_model_len": 4096},
            "BATCH_TOKENS_BELOW_CONTEXT",
            Weight.ERROR,
        ),
        ({"chunked_prefill": False}, "CHUNKED_PREFILL_OFF", Weight.WARNING),
        (
            {"long_prefill_token_threshold": 4096, "max_num_batched_tokens": 2048},
            "LONG_PREFILL_WITHOUT_EFFECT",
            Weight.WARNING,
        ),
        ({"long_prefill_token_threshold": 9000, "max_model_len": 4096}, "LONG_PREFILL_ABOVE_CONTEXT", Weight.ERROR),
        ({"kv_tokens": 2000, "max_model_len": 4096}, "CONTEXT_ABOVE_KV", Weight.ERROR),
        ({"prefix_caching": False}, "PREFIX_CACHING_OFF", Weight.ADVICE),
        ({"block_size": 16, "device": "cpu"}, "BLOCK_SIZE_CPU", Weight.ERROR),
        ({"enforce_eager": True}, "ENFORCE_EAGER", Weight.WARNING),
        ({"disable_log_stats": True}, "STATS_OFF", Weight.WARNING),
        ({"enable_log_outputs": True}, "LOG_PER_TOKEN", Weight.WARNING),
        ({"stream_interval": 8}, "CHUNKS_OF_TOKENS", Weight.INFO),
        ({"scheduling_policy": "priority"}, "PRIORITY_SIGN", Weight.INFO),
        ({"max_queued": 4, "max_num_seqs": 8}, "QUEUE_BOUND_BELOW_SEQS", Weight.WARNING),
        ({"max_queued": 64, "max_num_seqs": 8}, "QUEUE_BOUND_SHAPE", Weight.INFO),
    ],
)
def test_one_setting_one_finding(known, code, weight):
    assert findings(vllm(**known))[code].weight is weight


# -- capacity


def test_requests_take_whole_blocks():
    assert requests_held(1600, 17, 16) == 50
    assert kv_tokens(vllm(num_gpu_blocks=100, block_size=16))[0] == 1600
    assert kv_tokens(vllm(kv_max_concurrency=1.25, max_model_len=2048))[0] == 2560
    assert kv_tokens(vllm()) is None


def test_kv_capacity_in_concurrent_requests():
    case = vllm(kv_tokens=110_400, block_size=16, max_num_seqs=64)
    case.lengths = CHAT
    finding = findings(case)["KV_CAPACITY"]
    assert "carries 100 requests of median length" in finding.statement  # 1,100 tokens are 69 blocks = 1,104


def test_more_requests_than_the_cache_holds():
    case = vllm(kv_tokens=110_400, block_size=16, max_num_seqs=256)
    case.lengths = CHAT
    finding = findings(case)["SEQS_ABOVE_KV"]
    assert finding.advice.startswith("--max-num-seqs 100,")
    assert "preemptions" in finding.effect.lower()


def test_waiting_with_room_asks_for_more():
    case = vllm(kv_tokens=1_104_000, block_size=16, max_num_seqs=32)
    case.lengths = CHAT
    case.state = EngineState(at_ns=0, running=32, waiting=40, kv_usage=0.2)
    finding = findings(case)["SEQS_BELOW_KV"]
    assert finding.advice.startswith("--max-num-seqs 64")
    case.state = EngineState(at_ns=0, running=32, waiting=40, kv_usage=0.97)
    assert "SEQS_BELOW_KV" not in findings(case)


def test_preemptions_in_a_log():
    case = vllm(max_num_seqs=8)
    case.load = LoadSeen(lines=4, running=8, waiting=2, kv_usage=1.0, preemptions=3)
    assert "at least 3 times" in findings(case)["PREEMPTIONS_SEEN"].statement


def test_context_that_nobody_uses_and_prompts_beyond_it():
    case = vllm(max_model_len=131072, kv_tokens=400_000)
    case.lengths = CHAT
    assert findings(case)["CONTEXT_UNUSED"].advice == "--max-model-len 2048"
    case = vllm(max_model_len=4096, kv_tokens=400_000)
    case.lengths = MIXED
    assert findings(case)["PROMPTS_ABOVE_CONTEXT"].statement.startswith("5.0 % of prompts")


# -- steps


def test_share_of_prompts_longer_than_one_step():
    case = vllm(max_num_batched_tokens=2048)
    case.lengths = MIXED
    finding = findings(case)["BATCH_TOKENS"]
    assert finding.statement.startswith("5.0 % of prompts are longer than one step of 2048 tokens")
    assert "LONG_PREFILL_BLOCKS" in findings(case)


def test_most_prompts_longer_than_a_step():
    case = vllm(max_num_batched_tokens=512)
    case.lengths = CHAT
    assert findings(case)["BATCH_TOKENS_SMALL"].advice == "--max-num-batched-tokens 1024"


def test_a_step_longer_than_the_gap_that_counts():
    case = vllm(max_num_batched_tokens=8192)
    case.shape, case.card, case.lengths = shape_of_size("8b"), find_card("a100-80g"), lengths((600, 8000, 100))
    finding = findings(case)["BATCH_TOKENS_LARGE"]
    assert finding.weight is Weight.WARNING
    assert finding.advice == "--max-num-batched-tokens 1024"
    case.lengths = CHAT  # no prompt fills such a step
    assert "BATCH_TOKENS_LARGE" not in findings(case)


def test_mixed_lengths_in_order_of_arrival():
    case = vllm(scheduling_policy="fcfs", max_num_batched_tokens=2048)
    case.lengths = MIXED
    assert "FCFS_MIXED_LENGTHS" in findings(case)


# -- cards side by side


def test_tensor_parallelism():
    case = vllm(tensor_parallel=2, dtype="bfloat16")
    case.shape, case.card = shape_of_size("8b"), find_card("a100-80g")
    found = findings(case)
    assert found["TP_NOT_NEEDED"].advice.startswith("2 replicas")
    assert "TP_OVER_PCIE" not in found
    case.card = find_card("l4")
    assert findings(case)["TP_OVER_PCIE"].weight is Weight.WARNING
    case = vllm(tensor_parallel=3)
    case.shape = shape_of_size("8b")
    assert findings(case)["TP_DIVIDES_HEADS"].advice == "--tensor-parallel-size 2"
    case = vllm(tensor_parallel=16)
    case.shape = shape_of_size("8b")
    assert "TP_COPIES_KV" in findings(case)


# -- buckets


def test_of_a_few_requests_the_longest_stands_in_for_a_p95():
    case = command_case("vllm serve m --max-num-batched-tokens 2048", also={"kv_tokens": 432_000})
    case.lengths = lengths((7, 50, 14), (1, 3000, 200))
    found = findings(case)
    assert "(135 as long as the longest of 8)" in found["KV_CAPACITY"].statement
    assert "the longest of 8 takes 2 steps" in found["BATCH_TOKENS"].statement
    assert not any("p95" in one.text for one in found["KV_CAPACITY"].evidence)
    case.lengths = lengths((700, 50, 14), (100, 3000, 200))
    found = findings(case)
    assert "of p95 length" in found["KV_CAPACITY"].statement
    assert "a prompt at p95 takes 2 steps" in found["BATCH_TOKENS"].statement


@pytest.mark.needs("shared")
def test_buckets_below_300ms_refused(shared):
    """vLLM's phases begin at 0.3 s: no percentile below; the option that mends it is printed, in one piece."""
    text = (shared / "data" / "engine_samples" / "vllm" / "metrics_0.32.0.prom").read_text()
    case = vllm()
    case.scrape = parse_scrape(text)
    finding = findings(case)["METRIC_BUCKETS_COARSE"]
    assert "begin at 300 ms" in finding.statement
    option, value = shlex.split(finding.advice)
    assert option == "--custom-histogram-buckets"
    fitted = json.loads(value)
    assert set(fitted) == {"request_latency", "inter_token_latency"}  # the TTFT objective of 500 ms is an edge already
    assert 0.08 in fitted["inter_token_latency"]
    assert fitted["request_latency"][0] < 0.05
    for bounds in fitted.values():
        assert bounds == sorted(set(bounds))
    assert 0.5 in case.scrape.histogram("vllm:time_to_first_token_seconds").bounds
    assert 0.08 not in case.scrape.histogram("vllm:request_time_per_output_token_seconds").bounds


def test_buckets_follow_the_objectives():
    case = vllm()
    case.objectives = Objectives({"ttft": {0.99: 350 * MS}, "tpot": {0.5: 50 * MS}})
    fitted = json.loads(shlex.split(findings(case)["METRIC_BUCKETS_COARSE"].advice)[1])
    assert 0.35 in fitted["time_to_first_token"]
    assert "inter_token_latency" not in fitted


def test_an_old_version_cannot_change_its_buckets():
    case = Case(name="e", engine="vllm", facts=facts(version="0.16.0"))
    assert "METRIC_BUCKETS_COARSE" not in findings(case)
    assert any("scrape of /metrics" in need for need in case.needs)
    case.scrape = parse_scrape('vllm:e2e_request_latency_seconds_bucket{le="0.3"} 1\n')
    finding = findings(case)["METRIC_BUCKETS_COARSE"]
    assert "--custom-histogram-buckets" not in finding.advice
    assert "gateway" in finding.advice


def test_read_in_source_sglang_500ms_slo_not_readable():
    """Bucket lists of 0.5.23: nothing between 0.4 and 0.6 s."""
    case = Case(name="e", engine="sglang", facts=facts(version="0.5.23"))
    finding = findings(case)["METRIC_BUCKETS_COARSE"]
    assert "500 ms lies between 400 ms and 600 ms" in finding.statement
    assert "--bucket-time-to-first-token" in finding.advice


def test_fitted_buckets_satisfy_the_check():
    case = vllm()
    fitted = json.loads(shlex.split(findings(case)["METRIC_BUCKETS_COARSE"].advice)[1])
    names = {
        "inter_token_latency": "vllm:request_time_per_output_token_seconds",
        "request_latency": "vllm:e2e_request_latency_seconds",
    }
    lines = [f'{names[family]}_bucket{{le="{bound}"}} 0' for family, bounds in fitted.items() for bound in bounds]
    case = vllm()
    case.scrape = parse_scrape("\n".join(lines))
    assert "METRIC_BUCKETS_COARSE" not in findings(case)


@pytest.mark.needs("shared")
def test_lengths_from_the_engine_s_own_histograms(shared):
    text = (shared / "data" / "engine_samples" / "vllm" / "metrics_0.32.0.prom").read_text()
    found = lengths_of_scrape(parse_scrape(text), source="/metrics")
    assert not found.exact
    assert found.count() > 0
    assert found.quantile(0.5) <= found.quantile(0.95)
    assert found.quantile(0.5, Of.TOTAL) == found.quantile(0.5) + found.quantile(0.5, Of.OUTPUT)
    assert lengths_of_scrape(parse_scrape("x 1"), source="s") is None


# -- other engines


def sglang(text: str):
    return findings(command_case(f"python -m sglang.launch_server --model-path m {text}"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("--chunked-prefill-size -1", "CHUNKED_PREFILL_OFF"),
        ("--enable-priority-scheduling", "PRIORITY_SIGN"),
        ("--schedule-policy lpm", "POLICY_PREFERS_HITS"),
        ("--allow-auto-truncate", "SILENT_TRUNCATION"),
        ("--stream-interval 4", "CHUNKS_OF_TOKENS"),
        ("--schedule-conservativeness 0.1", "ADMITS_TOO_EAGERLY"),
        ("", "QUEUE_UNBOUNDED"),
        ("", "STATS_OFF"),
        ("", "TRAP_PREFILL_INCLUDES_QUEUE"),
    ],
)
def test_read_in_source_sglang(text, code):
    assert code in sglang(text)


def test_priority_sign():
    """vLLM: lower first; SGLang: higher first unless told otherwise."""
    assert "lower number goes first" in findings(vllm(scheduling_policy="priority"))["PRIORITY_SIGN"].statement
    assert "The higher number" in sglang("--enable-priority-scheduling")["PRIORITY_SIGN"].statement
    turned = sglang("--enable-priority-scheduling --schedule-low-priority-values-first")
    assert "The lower number" in turned["PRIORITY_SIGN"].statement


def test_llama_cpp_slots_pieces_threads():
    case = command_case("llama-server -m a.gguf -c 8192 -np 8 -b 512 -t 8", also={"cores": 8})
    case.lengths = lengths((900, 200, 100), (100, 1500, 100))
    found = findings(case)
    assert found["SLOT_CONTEXT_SMALL"].statement.startswith("A slot has 1,024 tokens, and 10 % of requests")
    assert found["SLOT_CONTEXT_SMALL"].advice.startswith("-c 12800 with -np 8")
    assert "3,023 ms" in str(found["BATCH_TOKENS_LARGE"].evidence)
    assert found["THREADS_SPIN"].weight is Weight.WARNING
    assert "QUEUE_UNBOUNDED" in found
    assert "STATS_OFF" in found
    assert "CONTINUOUS_BATCHING_OFF" in findings(command_case("llama-server -m a.gguf -nocb"))


def triton(**said):
    model = triton_model({"name": "m", "max_batch_size": 8, **said}, source="config.pbtxt")
    return findings(Case(name="e", engine="triton", models=[model]))


@pytest.mark.parametrize(
    ("said", "code", "weight"),
    [
        ({}, "BATCHING_OFF", Weight.ADVICE),
        ({"dynamic_batching": {"preferred_batch_size": [4, 16]}}, "PREFERRED_ABOVE_MAX", Weight.ERROR),
        ({"dynamic_batching": {"preferred_batch_size": [4]}}, "PREFERRED_SIZES", Weight.ADVICE),
        ({"dynamic_batching": {"max_queue_delay_microseconds": 200_000}}, "BATCH_DELAY_LONG", Weight.WARNING),
        ({"dynamic_batching": {"priority_levels": 2}}, "QUEUE_POLICY_STALLS", Weight.WARNING),
        ({"dynamic_batching": {"priority_levels": 2}}, "PRIORITY_WITHOUT_DEFAULT", Weight.ERROR),
        (
            {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 16}}},
            "QUEUE_POLICY_STALLS",
            Weight.WARNING,
        ),
        ({"dynamic_batching": {"default_queue_policy": {"max_queue_size": 16}}}, "QUEUE_BOUND_SHAPE", Weight.INFO),
        ({"dynamic_batching": {}}, "QUEUE_UNBOUNDED", Weight.ADVICE),
        ({"dynamic_batching": {}, "max_batch_size": 0}, "BATCHER_WITHOUT_BATCHES", Weight.WARNING),
        ({"model_transaction_policy": {"decoupled": True}}, "TRAP_STREAM_DURATIONS", Weight.INFO),
        ({"ensemble_scheduling": {"step": [{"model_name": "a"}, {"model_name": "b"}]}}, "ENSEMBLE", Weight.INFO),
    ],
)
def test_triton(said, code, weight):
    assert triton(**said)[code].weight is weight


def test_what_triton_refuses():
    """As 2.51.0 refused these files: default level out of range; preferred size above the largest."""
    assert "PRIORITY_WITHOUT_DEFAULT" in triton(dynamic_batching={"priority_levels": 2, "default_priority_level": 5})
    assert "PRIORITY_WITHOUT_DEFAULT" not in triton(
        dynamic_batching={"priority_levels": 2, "default_priority_level": 2}
    )
    case = Case(name="e", engine="triton", not_ready=[("m", "not found")])
    assert findings(case)["MODEL_NOT_READY"].statement == "m is not ready: not found."


def test_plain_dynamic_batching_has_no_stall():
    assert "QUEUE_POLICY_STALLS" not in triton(dynamic_batching={"max_queue_delay_microseconds": 1000})


def test_read_in_source_tgi_limits():
    found = findings(
        command_case(
            "text-generation-launcher --model-id m --max-input-tokens 4096 --max-total-tokens 4096 "
            "--max-batch-prefill-tokens 2048"
        )
    )
    assert found["INPUT_ABOVE_TOTAL"].weight is Weight.ERROR
    assert found["PREFILL_BELOW_INPUT"].weight is Weight.ERROR


def test_tensorrt_llm_is_marked_not_run():
    found = findings(command_case("trtllm-serve serve m --max_batch_size 8"))
    assert list(found) == ["NOT_RUN"]
    assert "never run" in found["NOT_RUN"].statement


# -- all of them


def test_every_advice_has_an_effect_a_price_and_a_way_to_verify():
    cases = [
        vllm(
            gpu_memory_utilization=0.98,
            chunked_prefill=False,
            max_num_seqs=256,
            kv_tokens=50_000,
            prefix_caching=False,
            enforce_eager=True,
            scheduling_policy="fcfs",
            max_model_len=131072,
        ),
        command_case("vllm serve m --enable-chunked-prefill auto --swap-space 4 --bogus 1", version="0.32.0"),
        command_case("python -m sglang.launch_server --model-path m --chunked-prefill-size -1 --allow-auto-truncate"),
        command_case("llama-server -m a.gguf -c 8192 -np 8 -t 8"),
    ]
    for case in cases:
        case.lengths = MIXED
        for finding in findings(case).values():
            if finding.weight is not Weight.INFO:
                assert finding.advice, finding.code
                assert finding.effect, finding.code
                assert finding.price, finding.code
                assert finding.verify, finding.code


def test_without_evidence_it_says_what_to_provide():
    case = vllm(max_num_seqs=256, max_num_batched_tokens=2048)
    findings(case)
    words = " ".join(case.needs)
    assert "--lengths" in words
    assert "--gpu" in words
    assert "start-up log" in words


def test_every_code_is_on_its_page():
    """`docs/how-to/check.md` lists what can be found, and nothing else."""
    root = Path(tailrace.__file__).parent
    sources = [*(root / "engines" / "advice").glob("*.py"), root / "engines" / "flags" / "start_log.py"]
    sources += (root / "app").glob("check_*.py")
    code = re.compile(r'"([A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+)"')
    raised = {found for path in sources for found in code.findall(path.read_text())} | {"ENSEMBLE"}
    page = (root.parent.parent / "docs" / "how-to" / "check.md").read_text()
    listed = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", page))
    assert raised == listed
