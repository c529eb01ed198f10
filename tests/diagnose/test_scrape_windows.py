"""Between scrapes: a queue that makes the first token late, tokens that stand still, Triton's statistics."""

from __future__ import annotations

import json

import pytest

from tests.diagnose.evidence_texts import asked, facts, found, said

QUEUE, TTFT = "vllm:request_queue_time_seconds", "vllm:time_to_first_token_seconds"


def histogram(name: str, n: int, seconds: float) -> str:
    """All of it in one bucket: means are asked for."""
    cells = "".join(f'{name}_bucket{{engine="0",le="{edge}"}} {n}\n' for edge in ("20.0", "60.0", "+Inf"))
    return f'# TYPE {name} histogram\n{cells}{name}_count{{engine="0"}} {n}\n{name}_sum{{engine="0"}} {seconds}\n'


def scrape(
    *, n=1000, queued=9.0, first=71.0, running=31, waiting=0, kv=0.2, preempted=0, tokens=500_000, histograms=True
):
    lines = [
        "# TYPE vllm:num_requests_running gauge",
        f'vllm:num_requests_running{{engine="0"}} {running}',
        "# TYPE vllm:num_requests_waiting gauge",
        f'vllm:num_requests_waiting{{engine="0"}} {waiting}',
        "# TYPE vllm:kv_cache_usage_perc gauge",
        f'vllm:kv_cache_usage_perc{{engine="0"}} {kv}',
        "# TYPE vllm:num_preemptions_total counter",
        f'vllm:num_preemptions_total{{engine="0"}} {preempted}',
        "# TYPE vllm:generation_tokens_total counter",
        f'vllm:generation_tokens_total{{engine="0"}} {tokens}',
        "# TYPE vllm:request_success_total counter",
        f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {n}',
    ]
    text = "\n".join(lines) + "\n"
    return text + histogram(QUEUE, n, queued) + histogram(TTFT, n, first) if histograms else text


LATER = {"n": 1800, "queued": 7049.0, "first": 7671.0, "running": 64, "waiting": 240, "kv": 0.38, "tokens": 900_000}


def test_most_of_the_first_tokens_time_is_queue_and_more_came_than_left(tmp_path):
    finding = found(tmp_path, "SCHED_QUEUE_SATURATION", before_prom=scrape(), after_prom=scrape(**LATER))
    assert finding.level == "consistent"
    assert "1,073 came, 800 left" in finding.relation
    assert finding.explains_ms == pytest.approx(8800.0)


def test_a_queue_that_is_gone_at_the_end_may_have_been_a_burst(tmp_path):
    later = scrape(**{**LATER, "waiting": 0, "running": 31})
    finding = found(tmp_path, "SCHED_QUEUE_SATURATION", before_prom=scrape(), after_prom=later)
    assert finding.level == "suspected"
    assert any("BURSTY" in rival for rival in finding.rivals)


@pytest.mark.parametrize(
    "changes",
    [
        {"queued": 309.0},  # 0.4 s of queue in 9.5 s
        {"queued": 29.0, "first": 91.0},  # all of it is quick
        {"kv": 0.99},  # memory is what limits it
        {"preempted": 40},
    ],
)
def test_a_small_queue_or_a_full_cache_is_no_saturation(tmp_path, changes):
    later = scrape(**{**LATER, **changes})
    finding = found(tmp_path, "SCHED_QUEUE_SATURATION", before_prom=scrape(), after_prom=later)
    assert finding is None or "of the mean time to first token" not in finding.statement


def series(tokens: list[int], **more: object) -> dict[str, str]:
    return {f"s{at}_prom": scrape(tokens=count, histograms=False, **more) for at, count in enumerate(tokens)}


def test_requests_run_and_no_token_is_counted(tmp_path):
    finding = found(tmp_path, "ENGINE_STALL", **series([71_880, 74_720, 74_720, 74_720, 74_720], waiting=2))
    assert finding.level == "consistent"
    assert "74,720 - 74,720 = 0" in finding.relation
    assert found(tmp_path, "SCHED_QUEUE_SATURATION", **series([71_880, 74_720, 74_720, 74_720], waiting=2)) is None


def test_one_window_without_a_token_is_a_suspicion(tmp_path):
    finding = found(tmp_path, "ENGINE_STALL", **series([71_880, 74_720, 74_720]))
    assert finding.level == "suspected"
    assert "scrape" in finding.missing[0]
    alone = found(tmp_path, "ENGINE_STALL", **series([74_720, 74_720, 74_720]))
    assert alone.level == "suspected"
    assert "usual rate" in said(alone)


@pytest.mark.parametrize("changes", [{"running": 0}, {"kv": 0.97}])
def test_an_idle_or_a_full_engine_does_not_stand_still(tmp_path, changes):
    assert found(tmp_path, "ENGINE_STALL", **series([71_880, 74_720, 74_720, 74_720], **changes)) is None


def test_an_engine_that_makes_tokens_does_not_stand_still(tmp_path):
    assert found(tmp_path, "ENGINE_STALL", **series([71_880, 74_720, 74_721, 74_722])) is None


def statistics(n: int, runs: int, queue_ms: float, compute_ms: float, *, name: str = "rank") -> str:
    def part(ms: float) -> dict[str, float]:
        return {"count": n, "ns": n * ms * 1e6}

    stages = {
        "success": part(queue_ms + compute_ms),
        "fail": {"count": 0, "ns": 0},
        "queue": part(queue_ms),
        "compute_infer": part(compute_ms),
    }
    model = {"name": name, "version": "1", "inference_count": n, "execution_count": runs, "inference_stats": stages}
    return json.dumps({"model_stats": [model]})


CONFIG = 'name: "rank"\nmax_batch_size: 32\ndynamic_batching {\n  max_queue_delay_microseconds: 20000\n}\n'
STATISTICS = {"before_json": statistics(1000, 990, 20.0, 2.6), "after_json": statistics(1600, 1584, 20.0, 2.6)}


def test_tritons_statistics_are_its_counters(tmp_path):
    form = facts(window_s=60)
    finding = found(tmp_path, "SCHED_BATCHER_WAIT", **STATISTICS, config_pbtxt=CONFIG, f_json=form)
    assert finding.level == "consistent"
    assert "20 ms / 20 ms = 1.00" in finding.relation
    assert "600/594 = 1.01 a batch" in finding.relation
    assert found(tmp_path, "SCHED_BATCHER_WAIT", **STATISTICS, config_pbtxt=CONFIG).level == "suspected"


@pytest.mark.parametrize(("used", "level"), [(0.04, "consistent"), (0.8, "suspected")])
def test_a_device_that_does_little_says_that_the_load_is_low(tmp_path, used, level):
    def counters(n: int) -> str:
        cells = {
            "nv_inference_request_success": n,
            "nv_inference_exec_count": n * 0.99,
            "nv_inference_queue_duration_us": n * 20_000,
            "nv_inference_compute_infer_duration_us": n * 2600,
        }
        text = "".join(f'# TYPE {name} counter\n{name}{{model="rank"}} {value}\n' for name, value in cells.items())
        return text + f'# TYPE nv_gpu_utilization gauge\nnv_gpu_utilization{{gpu_uuid="GPU-1"}} {used}\n'

    finding = found(tmp_path, "SCHED_BATCHER_WAIT", t0_prom=counters(1000), t1_prom=counters(1600), c_pbtxt=CONFIG)
    assert finding.level == level


def test_statistics_of_no_model_are_refused_in_words(tmp_path):
    diagnosis_error = pytest.raises(Exception, match="statistics of no model")
    with diagnosis_error:
        asked(tmp_path, stats_json=json.dumps({"model_stats": []}))
