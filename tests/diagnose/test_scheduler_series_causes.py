"""Causes in scheduler and mix from scrapes, gauges, requests: positives in several forms, near misses, less input."""

import numpy as np
import pytest

from tailrace.diagnose.causes.scheduler.hol_long_prefill import HolLongPrefill
from tailrace.diagnose.readers.requests import read_requests
from tests.diagnose.evidence_texts import facts, found, said, table

# -- SCHED_HOL_LONG_PREFILL

HEAD = "id,t_send_ms,t_first_ms,t_last_ms,prompt_tokens,output_tokens"


def burst(
    *, longs=18, shorts=11, long=24000, short=2000, rate=20000.0, heading=HEAD, fifo=True, scale=1.0, stagger=5.0
):
    """All sent nearly at once; prompts are computed one after the other (`fifo`), or the short ones first."""
    sizes = [long] * longs + [short] * shorts
    order = range(len(sizes)) if fifo else sorted(range(len(sizes)), key=lambda at: sizes[at])
    done, at_ms = {}, 0.0
    for one in order:
        at_ms = max(at_ms, one * stagger) + sizes[one] / rate * 1e3
        done[one] = at_ms
    rows = [
        (f"r{at}", at * stagger * scale, done[at] * scale, (done[at] + 2) * scale, size, 1)
        for at, size in enumerate(sizes)
    ]
    return table(heading, rows)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"longs": 5, "shorts": 40, "long": 60000, "short": 300, "rate": 9000.0},
        {"heading": "request_id,sent_s,first_token_s,finished_s,input_tokens,completion_tokens", "scale": 1e-3},
    ],
)
def test_short_prompts_behind_long_ones(tmp_path, options):
    finding = found(tmp_path, "SCHED_HOL_LONG_PREFILL", a_csv=burst(**options))
    assert finding.level == "consistent"
    n = options.get("longs", 18) + options.get("shorts", 11)
    assert f"n = {n}, so the p99 is the maximum" in said(finding)
    assert "retrieve fewer chunks" in finding.advice
    assert "tok/s" in finding.relation


def test_short_prompts_that_go_first_do_not_wait(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(burst(fifo=False))
    assert HolLongPrefill().observe(read_requests(path, "a.csv")) is None


def test_prompts_of_one_length_have_nothing_to_wait_behind(tmp_path):
    assert found(tmp_path, "SCHED_HOL_LONG_PREFILL", a_csv=burst(long=2400, short=2000)) is None


def test_without_send_stamps_the_queue_ahead_is_not_known(tmp_path):
    rows = [(f"r{at}", 20000 + at, 24000 if at < 18 else 2000, 1) for at in range(29)]
    finding = found(tmp_path, "SCHED_HOL_LONG_PREFILL", a_csv=table("id,ttft_ms,prompt_tokens,output_tokens", rows))
    assert finding.level == "suspected"
    assert "sent" in finding.missing[0]


# -- SCHED_KV_PREEMPTION and SCHED_QUEUE_SATURATION

VLLM = (
    "# TYPE vllm:num_preemptions_total counter\n"
    'vllm:num_preemptions_total{{engine="0"}} {preempted}\n'
    'vllm:num_requests_running{{engine="0"}} {running}\n'
    'vllm:num_requests_waiting{{engine="0"}} {waiting}\n'
    'vllm:kv_cache_usage_perc{{engine="0"}} {kv}\n'
)
SGLANG = (
    "# TYPE sglang:num_retracted_requests_total counter\n"
    "sglang:num_retracted_requests_total {preempted}\n"
    "sglang:num_running_reqs {running}\nsglang:num_queue_reqs {waiting}\nsglang:token_usage {kv}\n"
)


@pytest.mark.parametrize("text", [VLLM, SGLANG])
def test_a_preemption_counter_that_rises(tmp_path, text):
    pair = {
        "before_prom": text.format(preempted=0, running=72, waiting=184, kv=0.99),
        "after_prom": text.format(preempted=480, running=72, waiting=184, kv=0.993),
    }
    form = facts(kv_capacity_tokens=77088, max_num_seqs=256)
    finding = found(tmp_path, "SCHED_KV_PREEMPTION", **pair, f_json=form)
    assert finding.level == "consistent"
    assert "77088/1071 = 72 running" in finding.relation
    assert "Cap admission at about 72" in finding.advice
    alone = found(tmp_path, "SCHED_KV_PREEMPTION", **pair)
    assert alone.level == "consistent"
    assert "KV cache's size" in alone.missing[0]


def test_the_engines_own_configuration_gives_the_capacity(tmp_path):
    info = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="4818"} 1\n'
    pair = {
        "before_prom": info + VLLM.format(preempted=0, running=70, waiting=9, kv=0.99),
        "after_prom": info + VLLM.format(preempted=33, running=70, waiting=9, kv=0.99),
    }
    assert "77088" in found(tmp_path, "SCHED_KV_PREEMPTION", **pair).relation


def test_one_scrape_alone_is_suspected(tmp_path):
    finding = found(
        tmp_path, "SCHED_KV_PREEMPTION", after_prom=VLLM.format(preempted=480, running=72, waiting=184, kv=0.993)
    )
    assert finding.level == "suspected"
    assert "two scrapes" in finding.missing[0]


def test_a_counter_that_stands_still_clears_the_cache(tmp_path):
    pair = {
        name: VLLM.format(preempted=480, running=72, waiting=184, kv=0.85) for name in ("before_prom", "after_prom")
    }
    assert found(tmp_path, "SCHED_KV_PREEMPTION", **pair) is None


def load(*, waiting, running=64, kv=0.5, n=12, heading="t_s,engine_running,engine_waiting,kv_usage"):
    return table(heading, [(at * 10, running, waiting(at), kv) for at in range(n)])


def test_a_queue_that_does_not_end(tmp_path):
    form = facts(offered_rps=10, completed_rps=4, max_num_seqs=64)
    finding = found(tmp_path, "SCHED_QUEUE_SATURATION", a_csv=load(waiting=lambda at: 20 + 10 * at), f_json=form)
    assert finding.level == "consistent"
    assert finding.action in ("tune", "shed", "scale")
    alone = found(tmp_path, "SCHED_QUEUE_SATURATION", a_csv=load(waiting=lambda at: 20 + 10 * at))
    assert alone.level == "suspected"
    assert alone.missing


def test_a_queue_that_comes_and_goes_or_a_full_cache_is_no_saturation(tmp_path):
    short = load(waiting=lambda at: 30 if at == 4 else 0)
    assert found(tmp_path, "SCHED_QUEUE_SATURATION", a_csv=short) is None
    full = load(waiting=lambda at: 40, kv=0.995)
    assert found(tmp_path, "SCHED_QUEUE_SATURATION", b_csv=full) is None


# -- MIX_CACHE_MISS

CACHE = (
    '# TYPE vllm:{prefix}queries_total counter\nvllm:{prefix}queries_total{{{{engine="0"}}}} {{0}}\n'
    '# TYPE vllm:{prefix}hits_total counter\nvllm:{prefix}hits_total{{{{engine="0"}}}} {{1}}\n'
)
REPEATED = facts(prompts="the same 8 documents sent again", kv_usage_pct=21)


@pytest.mark.parametrize("prefix", ["prefix_cache_", "gpu_prefix_cache_"])
def test_repeated_prompts_that_miss(tmp_path, prefix):
    text = CACHE.format(prefix=prefix)
    pair = {"before_prom": text.format(1_200_000, 900_000), "after_prom": text.format(1_554_023, 900_000)}
    finding = found(tmp_path, "MIX_CACHE_MISS", **pair, f_json=REPEATED)
    assert finding.level == "consistent"
    assert "0/354023 = 0 %" in finding.relation
    assert "57.9 %" in finding.relation
    alone = found(tmp_path, "MIX_CACHE_MISS", **pair)
    assert alone.level == "suspected"
    assert "repeat" in alone.missing[0]
    half = {"before_prom": text.format(1_200_000, 900_000), "after_prom": text.format(1_554_023, 1_150_000)}
    assert found(tmp_path, "MIX_CACHE_MISS", **half, f_json=REPEATED) is None


def test_sglangs_counters_and_a_stated_share(tmp_path):
    text = "sglang:prompt_tokens_total {}\nsglang:cached_tokens_total {}\n"
    pair = {"before_prom": text.format(0, 0), "after_prom": text.format(100_000, 12_000)}
    finding = found(tmp_path, "MIX_CACHE_MISS", **pair, f_json=facts(repeat_ratio_offered=0.8))
    assert finding.level == "consistent"
    assert "80 %" in said(finding)
    # What does not repeat cannot be found.
    assert found(tmp_path, "MIX_CACHE_MISS", **pair, f_json=facts(repeat_ratio_offered=0.1)) is None


def test_one_scrape_hides_the_window(tmp_path):
    text = CACHE.format(prefix="prefix_cache_").format(354_023, 100)
    finding = found(tmp_path, "MIX_CACHE_MISS", after_prom=text, f_json=REPEATED)
    assert finding.level == "suspected"
    assert "second scrape" in finding.missing[0]


# -- MIX_BURSTY_ARRIVALS, SCHED_BATCHER_WAIT, SCHED_INSTANCE_LIMIT

TRITON = (
    'nv_inference_request_success{{model="m"}} {n}\nnv_inference_queue_duration_us{{model="m"}} {queue}\n'
    'nv_inference_compute_infer_duration_us{{model="m"}} {compute}\nnv_inference_exec_count{{model="m"}} {runs}\n'
)
ZERO = TRITON.format(n=0, queue=0, compute=0, runs=0)


def triton(*, n=6000, queue_ms=8.0, compute_ms=2.0, batch=1.0):
    return {
        "before_prom": ZERO,
        "after_prom": TRITON.format(
            n=n, queue=int(n * queue_ms * 1e3), compute=int(n * compute_ms * 1e3), runs=int(n / batch)
        ),
    }


def arrivals(cv):
    rng = np.random.default_rng(7)
    if cv > 1:
        between = [0.001 if at % 10 else 100.0 for at in range(300)]
    else:
        between = rng.gamma(1 / max(cv, 1e-6) ** 2, cv**2, 300) * 10 if cv else [10.0] * 300
    stamps = np.cumsum(between)
    return table("id,t_send_ms,t_last_ms", [(f"r{at}", stamp, stamp + 10) for at, stamp in enumerate(stamps)])


def test_a_queue_before_an_idle_server_is_bursts(tmp_path):
    finding = found(tmp_path, "MIX_BURSTY_ARRIVALS", **triton(), f_json=facts(window_s=60))
    assert finding.level == "suspected"
    assert "8/(8 + 2) = 80 %" in finding.relation
    assert "Poisson" in finding.advice
    sure = found(tmp_path, "MIX_BURSTY_ARRIVALS", **triton(), f_json=facts(window_s=60), r_csv=arrivals(3))
    assert sure.level == "consistent"


def test_even_arrivals_and_a_full_server_are_no_bursts(tmp_path):
    assert found(tmp_path, "MIX_BURSTY_ARRIVALS", **triton(), f_json=facts(window_s=60), r_csv=arrivals(0)) is None
    assert found(tmp_path, "MIX_BURSTY_ARRIVALS", **triton(n=28_000), f_json=facts(window_s=60)) is None
    assert found(tmp_path, "MIX_BURSTY_ARRIVALS", **triton(queue_ms=0.5), f_json=facts(window_s=60)) is None


def test_a_batcher_that_waits_on_purpose(tmp_path):
    form = facts(window_s=60, max_queue_delay_microseconds=10000)
    finding = found(tmp_path, "SCHED_BATCHER_WAIT", **triton(queue_ms=9.2, batch=1.05), f_json=form)
    assert finding.level == "consistent"
    assert "9.2 ms / 10 ms = 0.92" in finding.relation
    assert found(tmp_path, "MIX_BURSTY_ARRIVALS", **triton(queue_ms=9.2), f_json=form) is None
    less = found(
        tmp_path, "SCHED_BATCHER_WAIT", **triton(queue_ms=9.2), f_json=facts(max_queue_delay_microseconds=10000)
    )
    assert less.level == "suspected"
    # A queue far beyond the window, or a busy server, is no batcher's wait.
    assert found(tmp_path, "SCHED_BATCHER_WAIT", **triton(queue_ms=80.0), f_json=form) is None
    assert found(tmp_path, "SCHED_BATCHER_WAIT", **triton(n=24_000), f_json=form) is None


def test_too_few_instances_on_an_idle_device(tmp_path):
    form = facts(window_s=60, instances=1, gpu_util_pct=12)
    finding = found(tmp_path, "SCHED_INSTANCE_LIMIT", **triton(n=6000, queue_ms=40, compute_ms=9.6), f_json=form)
    assert finding.level == "consistent"
    assert "96%" in finding.relation
    less = found(tmp_path, "SCHED_INSTANCE_LIMIT", **triton(queue_ms=40, compute_ms=9.6), f_json=facts(window_s=60))
    assert less.level == "suspected"
    busy = facts(window_s=60, instances=1, gpu_util_pct=97)
    assert found(tmp_path, "SCHED_INSTANCE_LIMIT", **triton(queue_ms=40, compute_ms=9.6), f_json=busy) is None
    four = facts(window_s=60, instances=4, gpu_util_pct=12)
    assert found(tmp_path, "SCHED_INSTANCE_LIMIT", **triton(queue_ms=40, compute_ms=9.6), f_json=four) is None
