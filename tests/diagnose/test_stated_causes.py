"""Causes from forms, tables, series and chunks: positive, near miss, and with an input dropped."""

import json

import pytest

from tailrace.model.finding import Level
from tests.diagnose.evidence_texts import asked, facts, found, said, table


def form(arms=None, **context):
    return json.dumps({"facts": 1, "arms": arms or {}, "context": context})


# -- GW_LANE_QUEUE


def lane(queue=3600, **context):
    return form({"run": {"ttft_p99_ms": 4200, "gateway_queue_p99_ms": queue, "n": 3000}}, **context)


def test_a_lane_that_holds_requests_back_while_the_engine_has_room(tmp_path):
    result = asked(tmp_path, a_json=lane(engine_waiting=0, kv_usage_pct=31))
    assert (result.findings[0].code, result.findings[0].level) == ("GW_LANE_QUEUE", Level.CONSISTENT)
    assert "86%" in result.findings[0].statement
    assert found(tmp_path, "GW_LANE_QUEUE", a_json=lane(engine_waiting=40, kv_usage_pct=31)) is None
    assert found(tmp_path, "GW_LANE_QUEUE", a_json=lane(engine_waiting=0, kv_usage_pct=99)) is None
    assert found(tmp_path, "GW_LANE_QUEUE", a_json=lane(900, engine_waiting=0, kv_usage_pct=31)) is None
    blind = found(tmp_path, "GW_LANE_QUEUE", a_json=lane(kv_usage_pct=31))
    assert blind.level is Level.SUSPECTED
    assert any("waiting" in item for item in blind.missing)


@pytest.mark.parametrize("full", [{"kv_usage": 99}, {"kv_usage": 0.99}, {"kv_usage_pct": 99}])
def test_a_cache_that_is_full_in_whatever_unit_clears_the_lane(tmp_path, full):
    assert found(tmp_path, "GW_LANE_QUEUE", a_json=lane(engine_waiting=0, kv_usage=40)) is not None
    assert found(tmp_path, "GW_LANE_QUEUE", a_json=lane(engine_waiting=0, **full)) is None


# -- LOCK_CONTENTION


def along(times, *, cpu="6", unit="ms", name="preprocess p50"):
    scale = 1.0 if unit == "ms" else 1e-3
    rows = [(k, scale * time, 60, *([cpu] if cpu else [])) for k, time in times]
    return table(f"concurrency,{name} ({unit}),prefill p50 (ms)" + (",host CPU util (%)" if cpu else ""), rows)


GROWS = [(1, 14), (4, 55), (8, 111), (32, 447)]


@pytest.mark.parametrize("unit", ["ms", "s"])
@pytest.mark.parametrize("name", ["preprocess p50", "encode mean", "postprocess p95"])
def test_a_stage_that_grows_in_step_with_the_concurrency(tmp_path, unit, name):
    finding = found(tmp_path, "LOCK_CONTENTION", t_csv=along(GROWS, unit=unit, name=name))
    assert finding.level is Level.CONSISTENT
    assert "lock" in finding.statement


def test_no_lock_where_the_host_is_busy_or_the_stage_does_not_grow(tmp_path):
    assert found(tmp_path, "LOCK_CONTENTION", t_csv=along(GROWS, cpu="97")) is None
    assert found(tmp_path, "LOCK_CONTENTION", t_csv=along([(1, 14), (4, 15), (8, 16), (32, 18)])) is None
    blind = found(tmp_path, "LOCK_CONTENTION", t_csv=along(GROWS, cpu=""))
    assert blind.level is Level.SUSPECTED
    assert any("processors" in item for item in blind.missing)


# -- CLIENT_SLOW_READER


def chunks(lag, *, others=True):
    rows = []
    for k in range(100):
        rows.append(("slow", k, 220, 500 + 40 * k, 500 + 40 * k + lag(k)))
        if others:
            rows.append(("other", k, 220, 511 + 40 * k, 514 + 40 * k))
    return table("req,chunk,bytes,t_upstream_ms,t_client_ms", rows)


def test_a_client_that_falls_ever_further_behind(tmp_path):
    finding = found(tmp_path, "CLIENT_SLOW_READER", chunks_csv=chunks(lambda k: 3 + 55 * k))
    assert finding.level is Level.CONSISTENT
    assert "5448 ms" in finding.statement
    alone = found(tmp_path, "CLIENT_SLOW_READER", chunks_csv=chunks(lambda k: 3 + 55 * k, others=False))
    assert alone.level is Level.SUSPECTED
    assert "other clients" in alone.missing[0]
    assert found(tmp_path, "CLIENT_SLOW_READER", chunks_csv=chunks(lambda _: 300)) is None
    # a buffer that is sent when it is full falls back each time
    assert found(tmp_path, "CLIENT_SLOW_READER", chunks_csv=chunks(lambda k: 40 * (19 - k % 20))) is None


# -- FE_GC_PAUSE


def test_a_collection_that_was_timed(tmp_path):
    told = {"gc_collect_s": 5.4, "gc_objects": 21_000_000, "gc_freed": 0}
    finding = found(tmp_path, "FE_GC_PAUSE", a_json=facts(**told, stall_s=5.5, all_streams_frozen=True))
    assert finding.level is Level.CONSISTENT
    assert "frees nothing" in finding.statement
    assert found(tmp_path, "FE_GC_PAUSE", a_json=facts(**told)).level is Level.SUSPECTED
    assert found(tmp_path, "FE_GC_PAUSE", a_json=facts(gc_collect_s=0.01, stall_s=5.5)) is None
    assert found(tmp_path, "FE_GC_PAUSE", a_json=facts(gc_collect_s=0.4, stall_s=5.5)) is None
    assert found(tmp_path, "FE_GC_PAUSE", a_json=facts(**told, stall_s=5.5, all_streams_frozen=False)) is None


def hourly(length, *, alone=False):
    rows = []
    for hour in range(1, 6):
        for at, gap in ((3600 * hour - 60, 25), (3600 * hour, length(hour)), (3600 * hour + 60, 25)):
            rows.append((at, gap, 25 if alone else gap + 3, 25 if alone else gap, 12))
    return table("t_s,gap_ms_stream_a,gap_ms_stream_b,gap_ms_stream_c,running", rows)


def test_common_stops_that_grow_with_the_hours(tmp_path):
    finding = found(tmp_path, "FE_GC_PAUSE", s_csv=hourly(lambda hour: 4000 * hour))
    assert "4 s an hour" in said(finding)
    assert found(tmp_path, "FE_GC_PAUSE", s_csv=hourly(lambda _: 4000)) is None
    assert found(tmp_path, "FE_GC_PAUSE", s_csv=hourly(lambda hour: 4000 * hour, alone=True)) is None


# -- GW_IDLE_TIMEOUT


def test_connections_that_end_at_one_age(tmp_path):
    ages = [15.0, 15.0, 15.01, 15.0, 15.02]
    finding = found(tmp_path, "GW_IDLE_TIMEOUT", a_json=facts(disconnects_at_min=ages, bytes_received=0))
    assert finding.level is Level.SUSPECTED
    assert "900" in finding.statement
    assert "15 min" in finding.statement
    assert found(tmp_path, "GW_IDLE_TIMEOUT", a_json=facts(failure_ages_s=[30.0, 30.01, 30.0])) is not None
    assert found(tmp_path, "GW_IDLE_TIMEOUT", a_json=facts(disconnects_at_min=[2.0, 9.0, 15.0, 28.0])) is None
    assert found(tmp_path, "GW_IDLE_TIMEOUT", a_json=facts(disconnects_at_min=[15.0, 15.0])) is None


# -- CANCEL_NOT_PROPAGATED


def flights(running):
    rows = [(0, 4, 4), (1, 4, 4), *((t, 0, running(t)) for t in (2, 3, 5, 10, 20, 30))]
    return table("t_s,inflight_client,engine_running", rows)


def test_running_requests_of_nobody(tmp_path):
    finding = found(tmp_path, "CANCEL_NOT_PROPAGATED", s_csv=flights(lambda _: 4))
    assert "28 s" in finding.statement
    assert found(tmp_path, "CANCEL_NOT_PROPAGATED", s_csv=flights(lambda t: 0 if t > 2 else 4)) is None


# -- COMPUTE_*


def test_another_process_on_the_device(tmp_path):
    arms = {"before": {"tpot_p50_ms": 22, "n": 900}, "after": {"tpot_p50_ms": 37, "n": 900}}
    told = {"gpu_processes": 2, "other_process": "python train.py", "same": ["batch", "prompts"]}
    finding = found(tmp_path, "COMPUTE_GPU_SHARED", a_json=form(arms, **told))
    assert finding.level is Level.CONSISTENT
    assert "python train.py" in finding.statement
    assert found(tmp_path, "COMPUTE_GPU_SHARED", a_json=form(**told)).level is Level.SUSPECTED
    assert found(tmp_path, "COMPUTE_GPU_SHARED", a_json=form(arms, gpu_processes=1)) is None


def buckets(*, after=(26.3, 28.7), running=32, kv=41):
    rows = [
        ("before", "short", 20.1, 32, 41, 2000),
        ("before", "long", 22.0, 32, 41, 2000),
        ("after", "short", after[0], running, kv, 2000),
        ("after", "long", after[1], running, kv, 2000),
    ]
    return table("window,length bucket,TPOT p50 (ms),running,KV usage (%),n", rows)


def test_tokens_that_take_longer_in_every_bucket(tmp_path):
    finding = found(tmp_path, "DECODE_SLOWDOWN", t_csv=buckets())
    assert finding.level is Level.SUSPECTED
    assert "31%" in finding.statement
    assert found(tmp_path, "DECODE_SLOWDOWN", t_csv=buckets(running=64)) is None
    assert found(tmp_path, "DECODE_SLOWDOWN", t_csv=buckets(after=(20.0, 28.7))) is None
    assert found(tmp_path, "DECODE_SLOWDOWN", t_csv=buckets(after=(20.2, 22.1))) is None


def test_a_gap_at_one_position(tmp_path):
    told = {"gap_s": [5.2, 11.9], "gap_position": "closing brace", "structured_output": True}
    finding = found(tmp_path, "STREAM_GAP_AT_POSITION", a_json=facts(**told, streams=96, streams_with_gap=5))
    assert finding.level is Level.SUSPECTED
    assert "5 of 96" in finding.statement
    assert any(
        "in how many" in item for item in found(tmp_path, "STREAM_GAP_AT_POSITION", a_json=facts(**told)).missing
    )
    assert found(tmp_path, "STREAM_GAP_AT_POSITION", a_json=facts(gap_s=[5.2, 11.9], streams=96)) is None


SMI = """==============NVSMI LOG==============
Timestamp                                 : Tue Mar  3 10:00:00 2026
GPU 00000000:17:00.0
    Clocks Event Reasons
        SW Power Cap                      : {power}
        SW Thermal Slowdown               : {heat}
    Utilization
        Gpu                               : 99 %
    Temperature
        GPU Current Temp                  : 61 C
    GPU Power Readings
        Power Draw                        : {draw} W
        Current Power Limit               : 350.00 W
    Clocks
        SM                                : 1335 MHz
"""


def test_one_reading_of_the_device_is_a_suspicion(tmp_path):
    capped = SMI.format(power="Active", heat="Not Active", draw="349.80")
    finding = found(tmp_path, "COMPUTE_POWER_CAP", smi_txt=capped)
    assert finding.level is Level.SUSPECTED
    assert "1335 MHz" in said(finding)
    hot = SMI.format(power="Not Active", heat="Active", draw="280.00")
    assert found(tmp_path, "COMPUTE_THERMAL", smi_txt=hot).level is Level.SUSPECTED
    free = SMI.format(power="Not Active", heat="Not Active", draw="280.00")
    assert found(tmp_path, "COMPUTE_POWER_CAP", smi_txt=free) is None
    assert found(tmp_path, "COMPUTE_THERMAL", smi_txt=free) is None


def test_a_number_beside_its_old_one_makes_two_arms(tmp_path):
    told = {"changed": "engine 0.9.1 -> 0.10.0", "same": ["prompts", "batch"]}
    slower = facts(**told, prefill_tok_s=6100, prefill_tok_s_old=9800)
    assert found(tmp_path, "COMPUTE_KERNEL_REGRESSION", a_json=slower).level is Level.CONSISTENT
    same = facts(**told, prefill_tok_s=9750, prefill_tok_s_old=9800)
    assert found(tmp_path, "COMPUTE_KERNEL_REGRESSION", a_json=same) is None


# -- scheduler and load


@pytest.mark.parametrize("stall", [12.1, 4.0])
def test_one_long_prompt_in_steps(tmp_path, stall):
    arms = {"short alone": {"ttft_p99_ms": 180}, "with long": {"ttft_p99_ms": 12_300}}
    told = {"prompt_tokens": 130_000, "max_num_batched_tokens": 512, "step_ms": 48, "stall_s": stall}
    finding = found(tmp_path, "SCHED_HOL_LONG_PREFILL", a_json=form(arms, **told))
    if stall == 4.0:
        assert finding is None
        return
    assert finding.level is Level.CONSISTENT
    assert "254 steps" in said(finding)
    bare = found(tmp_path, "SCHED_HOL_LONG_PREFILL", a_json=form(**told))
    assert bare.level is Level.SUSPECTED


def waves(n, limit, *, spread=0.0):
    return "".join(
        json.dumps(
            {
                "id": str(i),
                "t_send_ms": spread * i,
                "t_first_ms": spread * i + (i // limit) * 2000 + 150,
                "t_last_ms": spread * i + (i // limit) * 2000 + 2000,
                "output_tokens": 100,
                "status": "ok",
            }
        )
        + "\n"
        for i in range(n)
    )


def test_requests_sent_at_once_in_waves(tmp_path):
    command = "vllm bench serve --num-prompts 40 --max-concurrency 4 --request-rate inf\n"
    finding = found(tmp_path, "BENCH_CLIENT_QUEUE", r_jsonl=waves(40, 4), c_txt=command)
    assert finding.level is Level.SUSPECTED
    assert "10 waves" in finding.statement
    assert found(tmp_path, "BENCH_CLIENT_QUEUE", r_jsonl=waves(40, 4, spread=2000), c_txt=command) is None
    assert found(tmp_path, "BENCH_CLIENT_QUEUE", r_jsonl=waves(40, 4)) is None


# -- numbers that cannot be right


def bench(first_gap):
    ttfts = [0.2 + 0.01 * i for i in range(12)]
    return json.dumps(
        {
            "backend": "vllm",
            "completed": 12,
            "duration": 30.0,
            "request_throughput": 0.4,
            "mean_ttft_ms": 255.0,
            "ttfts": ttfts,
            "itls": [[first_gap or ttft] + [0.011] * 15 for ttft in ttfts],
            "input_lens": [512] * 12,
            "output_lens": [17] * 12,
        }
    )


def test_the_first_token_among_the_gaps(tmp_path):
    result = asked(tmp_path, b_json=bench(None))
    assert result.findings[0].code == "METRIC_BUG"
    assert "12 of 12" in result.findings[0].statement
    assert all(finding.code != "METRIC_BUG" for finding in asked(tmp_path, b_json=bench(0.012)).findings)


def test_a_metric_that_means_another_thing_is_no_slow_network(tmp_path):
    def arms(old, new):
        return form(
            {
                "old": {"server_ttft_mean_ms": old, "client_ttft_mean_ms": 310, "n": 2000},
                "new": {"server_ttft_mean_ms": new, "client_ttft_mean_ms": 312, "n": 2000},
            },
            changed="engine 0.4.6 -> 0.4.7",
        )

    assert [one.code for one in asked(tmp_path, a_json=arms(140, 305)).findings] == ["METRIC_DEFINITION_CHANGE"]
    assert found(tmp_path, "METRIC_DEFINITION_CHANGE", a_json=arms(300, 305)) is None


# -- speech


def sawtooth(back=True):
    rows = [
        (u * 14 + k, k if back else u * 10 + k, 35 + 48 * (k if back else u * 10 + k))
        for u in range(3)
        for k in range(1, 11)
    ]
    return table("t_s,utterance_age_s,decode_ms_per_partial", rows)


def test_work_that_grows_with_the_utterance(tmp_path):
    finding = found(tmp_path, "ASR_REDECODE_GROWTH", s_csv=sawtooth())
    assert "48 ms for each second" in finding.statement
    assert found(tmp_path, "ASR_REDECODE_GROWTH", s_csv=sawtooth(back=False)) is None


def received(pace, behind=0.1, *, processed=True):
    heading = "t_s,audio_received_s" + (",audio_processed_s" if processed else "")
    rows = [(t, pace * t, *([max(pace * t - behind * t, 0)] if processed else [])) for t in range(0, 40, 2)]
    return table(heading, rows)


def test_audio_that_comes_late_from_its_client(tmp_path):
    finding = found(tmp_path, "CLIENT_UPLOAD_LATE", s_csv=received(0.8, 0.0))
    assert finding.level is Level.CONSISTENT
    assert "7.6 s" in finding.statement
    assert found(tmp_path, "CLIENT_UPLOAD_LATE", s_csv=received(0.8, processed=False)).level is Level.SUSPECTED
    assert found(tmp_path, "CLIENT_UPLOAD_LATE", s_csv=received(1.0, 0.0)) is None
    assert found(tmp_path, "CLIENT_UPLOAD_LATE", s_csv=received(0.8, 0.5)) is None


def test_chunks_that_words_wait_for(tmp_path):
    assert "800 ms" in found(tmp_path, "ASR_CHUNK_TOO_LARGE", a_json=facts(chunk_ms=1600, first_word_s=1.9)).statement
    assert found(tmp_path, "ASR_CHUNK_TOO_LARGE", a_json=facts(chunk_ms=100, first_word_s=1.9)) is None
    assert found(tmp_path, "ASR_CHUNK_TOO_LARGE", a_json=facts(chunk_ms=1600)) is None


def test_bytes_a_second_tell_the_rate(tmp_path):
    finding = found(tmp_path, "AUDIO_RATE_MISMATCH", a_json=facts(sample_rate_hz=16_000, bytes_per_s=48_000, wall_s=60))
    assert finding.level is Level.SUSPECTED
    assert "1.500 times" in finding.statement
    right = facts(sample_rate_hz=16_000, bytes_per_s=32_000, wall_s=60)
    assert found(tmp_path, "AUDIO_RATE_MISMATCH", a_json=right) is None
    assert found(tmp_path, "AUDIO_RATE_MISMATCH", a_json=facts(sample_rate_hz=16_000, bytes_per_s=48_000)) is None


@pytest.mark.parametrize("early", [True, False])
def test_results_before_their_audio(tmp_path, early):
    events = []
    for u in range(8):
        for k in range(6):
            end = 6.0 * u + k + 1
            events.append(
                {"kind": "audio", "t_recv": end, "audio_start_s": end - 1, "audio_end_s": end, "voiced": True}
            )
        at = 6.0 * u + (1.0 if early else 4.5)
        events.append({"kind": "final", "t_recv": at, "text": "x", "audio_start_s": 6.0 * u + 2, "audio_end_s": 6.0 * u + 4})  # fmt: skip  # noqa: E501
    text = "".join(
        json.dumps({"stream_id": "s", "utt_id": "u", "seq": n, **one}) + "\n" for n, one in enumerate(events)
    )
    finding = found(tmp_path, "METRIC_BUG", e_jsonl=text)
    assert (finding is not None) is early


def test_a_pasted_issue_without_numbers_is_asked_for_them(tmp_path):
    text = "### It is slow\n\nSee the picture.\n\n![graph](https://example.com/a.png)\n- [X] I searched\n"
    result = asked(tmp_path, issue_md=text)
    assert result.findings[0].code == "INSUFFICIENT_EVIDENCE"
    assert result.findings[0].missing
