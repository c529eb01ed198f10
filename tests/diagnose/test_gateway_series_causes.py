"""Causes of the gateway's layer from series, chunks, `cpu.stat`: positives in several forms, near misses, less."""

import json
import math

import pytest

from tests.diagnose.evidence_texts import asked, facts, found, said, table

# -- GW_PROXY_BUFFERING

CHUNKS = "arm,req,chunk,bytes,t_upstream_ms,t_client_ms"


def streams(*, size=247, period=250, n=200, buffer=16384, upstream=True, direct=True, names=CHUNKS, scale=1.0):
    """A direct stream, and one whose chunks a buffer holds until it is full (or the stream ends)."""
    rows, held = [], []
    for at in range(n):
        sent = 500 + at * period
        if direct and at < 60:
            rows.append(("direct", "d", at, size, sent * scale if upstream else None, (sent + 2) * scale))
        held.append((at, sent))
        if len(held) * size > buffer - size or at == n - 1:
            seen = (sent + 2) * scale
            rows += [("via", "v", one, size, when * scale if upstream else None, seen) for one, when in held]
            held = []
    return table(names, rows)


@pytest.mark.parametrize(
    ("size", "period", "buffer"),
    [(247, 250, 16384), (310, 40, 4096), (180, 20, 8192), (512, 100, 32768), (95, 15, 4096)],
)
def test_bursts_are_a_buffer_that_fills(tmp_path, size, period, buffer):
    finding = found(tmp_path, "GW_PROXY_BUFFERING", a_csv=streams(size=size, period=period, buffer=buffer, n=600))
    assert finding.level == "consistent"
    assert f"{buffer}/{size}" in finding.relation
    assert "proxy_buffering" in finding.advice


def test_other_headings_units_and_no_direct_path(tmp_path):
    names = "path,request_id,seq,size,sent_s,recv_s"
    finding = found(tmp_path, "GW_PROXY_BUFFERING", a_csv=streams(names=names, scale=1e-3, direct=False))
    assert finding.level == "consistent"
    assert "16384/247 = 66.3" in finding.relation


def test_without_stamps_before_the_hop_and_without_another_path_it_is_suspected(tmp_path):
    finding = found(tmp_path, "GW_PROXY_BUFFERING", a_csv=streams(upstream=False, direct=False))
    assert finding.level == "suspected"
    assert "t_upstream_ms" in finding.missing[0]
    assert found(tmp_path, "GW_PROXY_BUFFERING", b_csv=streams(upstream=False)).level == "consistent"


def test_without_bytes_no_buffer_is_named(tmp_path):
    text = "\n".join(",".join(cells.split(",")[:3] + cells.split(",")[4:]) for cells in streams().splitlines())
    finding = found(tmp_path, "GW_PROXY_BUFFERING", a_csv=text)
    assert finding.level == "suspected"
    assert "bytes" in finding.missing[0]


def test_bursts_that_the_engine_itself_makes_are_none_of_the_hops(tmp_path):
    rows = [("via", "v", at, 247, 500 + at // 66 * 16500, 502 + at // 66 * 16500) for at in range(200)]
    assert found(tmp_path, "GW_PROXY_BUFFERING", a_csv=table(CHUNKS, rows)) is None


def test_chunks_that_come_singly_are_no_bursts(tmp_path):
    rows = [("via", "v", at, 247, 500 + at * 250, 503 + at * 250 + 40 * (at % 3)) for at in range(200)]
    assert found(tmp_path, "GW_PROXY_BUFFERING", a_csv=table(CHUNKS, rows)) is None


def test_a_whole_answer_that_is_held(tmp_path):
    rows = [("via", "v", at, 200, 500 + at * 50, 3010) for at in range(50)]
    rows += [("direct", "d", at, 200, 500 + at * 50, 502 + at * 50) for at in range(50)]
    finding = found(tmp_path, "GW_PROXY_BUFFERING", a_csv=table(CHUNKS, rows))
    assert finding.level == "consistent"
    assert "holds the whole answer" in finding.statement


# -- GW_PROBE_KILL

RESTARTS = "t_s,health_rtt_max_s,engine_running,engine_waiting,iterations_total,restarts_total,engine_errors_total"


def restarts(*, rtt=2.4, errors=0, queue=180, heading=RESTARTS, days=8):
    rows = []
    for day in range(days):
        rows += [
            (day * 3 * 3600, 0.05, 22, 12, 253_000, day, day * errors),
            ((day * 3 + 1) * 3600, 0.05, 22, 12, 505_000, day, day * errors),
            ((day * 3 + 2) * 3600, rtt, 40, queue, 0, day + 1, (day + 1) * errors),
        ]
    return table(heading, rows)


def test_a_probe_that_kills_the_busy(tmp_path):
    finding = found(tmp_path, "GW_PROBE_KILL", a_csv=restarts(), f_json=facts(probe_timeout_s=2, probe_path="/health"))
    assert finding.level == "consistent"
    assert "8 of 8 restarts" in finding.statement
    assert "progress" in finding.advice


def test_endpoints_that_go_under_load(tmp_path):
    heading = "t_s,health_rtt_ms,queue_depth,ready_endpoints,errors_total"
    rows = [(at * 10, 30, 5, 4, 0) for at in range(10)]
    for at in (3, 6, 9):
        rows[at] = (at * 10, 1500, 90, 3, 0)
    finding = found(tmp_path, "GW_PROBE_KILL", a_csv=table(heading, rows), f_json=facts(probe_timeout_s=1))
    assert finding.level == "consistent"


def test_errors_before_the_restarts_clear_the_probe(tmp_path):
    assert found(tmp_path, "GW_PROBE_KILL", a_csv=restarts(errors=1), f_json=facts(probe_timeout_s=2)) is None


def test_a_probe_that_was_answered_in_time_did_not_do_it(tmp_path):
    assert found(tmp_path, "GW_PROBE_KILL", a_csv=restarts(rtt=0.2), f_json=facts(probe_timeout_s=2)) is None


def test_restarts_without_load_are_another_matter(tmp_path):
    assert found(tmp_path, "GW_PROBE_KILL", a_csv=restarts(queue=12), f_json=facts(probe_timeout_s=2)) is None


def test_a_probe_whose_timeout_nobody_states_is_suspected(tmp_path):
    finding = found(tmp_path, "GW_PROBE_KILL", a_csv=restarts())
    assert finding.level == "suspected"
    assert "timeout" in finding.missing[0]
    without = "\n".join(line.rsplit(",", 1)[0] for line in restarts().splitlines())
    finding = found(tmp_path, "GW_PROBE_KILL", b_csv=without, f_json=facts(probe_timeout_s=2))
    assert finding.level == "suspected"
    assert "errors" in finding.missing[0]


# -- FE_GC_PAUSE


TWO = "t_s,engine_running,gap_ms_stream_a,gap_ms_stream_b"


def gaps(*, every=3, n=60, usual=24, stop=180, heading=TWO, running=18, step=0.5):
    rows = []
    for at in range(n):
        gap = stop + 10 * (at % 4) if at % every == 1 else usual
        rows.append((at * step, running if not callable(running) else running(at), gap, gap + 1))
    return table(heading, rows)


@pytest.mark.parametrize(
    ("options", "period"),
    [
        ({}, "1.5 s"),
        ({"every": 5, "stop": 90, "usual": 12}, "2.5 s"),
        ({"heading": "time_s,running,stream_1_gap_ms,stream_2_gap_ms"}, "1.5 s"),
        ({"every": 4, "step": 1.0, "stop": 2000}, "4 s"),
    ],
)
def test_stops_of_all_streams_on_a_beat(tmp_path, options, period):
    finding = found(tmp_path, "FE_GC_PAUSE", a_csv=gaps(**options))
    assert finding.level == "consistent"
    assert period in finding.statement
    assert "all 2 streams" in finding.statement


def test_a_beat_without_the_batch_is_suspected(tmp_path):
    text = "\n".join(",".join(line.split(",")[:1] + line.split(",")[2:]) for line in gaps().splitlines())
    finding = found(tmp_path, "FE_GC_PAUSE", a_csv=text)
    assert finding.level == "suspected"
    assert "running" in finding.missing[0]


def test_stops_that_follow_the_batch_are_none_of_the_collector(tmp_path):
    assert found(tmp_path, "FE_GC_PAUSE", a_csv=gaps(running=lambda at: 60 if at % 3 == 1 else 18)) is None


def test_stops_of_one_stream_alone_are_none(tmp_path):
    rows = [(at * 0.5, 18, 200 if at % 3 == 1 else 24, 24) for at in range(60)]
    assert found(tmp_path, "FE_GC_PAUSE", a_csv=table("t_s,running,gap_ms_stream_a,gap_ms_stream_b", rows)) is None


def places(ratio, *, start=200, n=20):
    out = [start]
    while len(out) < n:
        out.append(math.ceil(out[-1] * ratio))
    return out


@pytest.mark.parametrize("ratio", [1.23, 1.25, 1.24])
def test_pauses_that_come_ever_rarer_by_a_quarter(tmp_path, ratio):
    rows = [(place, 400 + 50 * at, 12) for at, place in enumerate(places(ratio))]
    text = table("iteration,wall_ms,typical_wall_ms", rows)
    finding = found(tmp_path, "FE_GC_PAUSE", a_csv=text, f_json=facts(iterations_total=30000))
    assert finding.level == "consistent"
    assert f"{ratio:.2f} times" in finding.statement
    assert "quarter" in finding.statement
    alone = found(tmp_path, "FE_GC_PAUSE", b_csv=text)
    assert alone.level == "suspected"
    assert "iterations there were" in alone.missing[0]


def test_every_iteration_is_listed(tmp_path):
    slow = set(places(1.25, start=20, n=16))
    rows = [(at, 0.5 if at in slow else 0.012) for at in range(1, 800)]
    finding = found(tmp_path, "FE_GC_PAUSE", a_csv=table("step,wall_s", rows))
    assert finding.level == "consistent"
    assert finding.n == 799


@pytest.mark.parametrize("ratio", [1.05, 1.6, 2.0])
def test_outliers_at_other_distances_are_none(tmp_path, ratio):
    rows = [(place, 400, 12) for place in places(ratio, n=14)]
    assert found(tmp_path, "FE_GC_PAUSE", a_csv=table("iteration,wall_ms,typical_wall_ms", rows)) is None


def test_pauses_that_grow_with_age_are_a_leak(tmp_path):
    finding = found(tmp_path, "FE_GC_PAUSE", a_csv=table("uptime_h,gc_pause_s", [(1, 5), (2, 10), (4, 20), (6, 30)]))
    assert "5 s an hour" in finding.statement
    assert finding.level == "suspected"
    flat = table("uptime_h,gc_pause_s", [(1, 5), (2, 5.1), (4, 4.9), (6, 5)])
    assert found(tmp_path, "FE_GC_PAUSE", b_csv=flat) is None


# -- FE_EVENTLOOP_BLOCK


def lags(*, lag=900.0, name="loop_lag_ms", n=40, with_gaps=True):
    rows = []
    for at in range(n):
        blocked = at in (5, 11, 12, 20, 33)
        gap = lag if blocked else 30
        cells = [at, lag if blocked else 4, 6 if blocked else 1]
        rows.append(tuple(cells + ([gap, gap + 2] if with_gaps else [])))
    heading = f"t_s,{name},images_in_preprocess" + (",gap_ms_stream_a,gap_ms_stream_b" if with_gaps else "")
    return table(heading, rows)


@pytest.mark.parametrize("name", ["loop_lag_ms", "health_rtt_ms", "event_loop_delay_ms"])
def test_a_loop_that_lags_while_all_streams_stop(tmp_path, name):
    finding = found(tmp_path, "FE_EVENTLOOP_BLOCK", a_csv=lags(name=name))
    assert finding.level == "consistent"
    assert "900 ms" in finding.statement
    assert "images_in_preprocess" in said(finding)


def test_a_lag_without_streams_is_suspected(tmp_path):
    finding = found(tmp_path, "FE_EVENTLOOP_BLOCK", a_csv=lags(with_gaps=False))
    assert finding.level == "suspected"
    assert "streams" in finding.missing[0]


def test_a_loop_that_was_on_time_in_the_stops_is_cleared(tmp_path):
    rows = [(at, 900 if at == 3 else 4, *((700, 701) if at in (10, 15, 21, 22, 30) else (30, 30))) for at in range(40)]
    text = table("t_s,loop_lag_ms,gap_ms_stream_a,gap_ms_stream_b", rows)
    assert found(tmp_path, "FE_EVENTLOOP_BLOCK", a_csv=text) is None
    assert found(tmp_path, "FE_EVENTLOOP_BLOCK", b_csv=lags(lag=60.0)) is None


STACK = """Process 7: python api_server
Thread 7 (active+gil): "MainThread"
    {}
    run_forever (asyncio/base_events.py:603)
"""


def test_a_stack_in_the_stall_names_the_work(tmp_path):
    stack = STACK.format("encode_batch (tokenizers/implementations/base_tokenizer.py:202)")
    finding = found(tmp_path, "FE_EVENTLOOP_BLOCK", a_csv=lags(), d_txt=stack, f_json=facts(pyspy_taken_in_stall=True))
    assert finding.level == "proven"
    assert "tokenizer" in finding.statement


# -- FE_DETOKENIZE_GROWTH


def growth(*, slope=0.077, base=4.3, running=16, heading="output_position,cpu_ms_per_step,running", n=8, position=8000):
    rows = [
        (at * position, base + slope * at * position / 1e3, running if not callable(running) else running(at))
        for at in range(1, n)
    ]
    return table(heading, [row if "running" in heading else row[:2] for row in rows])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"slope": 0.3, "base": 2.0},
        {"heading": "generated_tokens,step_cpu_ms,num_running"},
        {"n": 30, "position": 500, "slope": 0.5},
    ],
)
def test_a_step_costs_more_the_more_was_said(tmp_path, options):
    finding = found(tmp_path, "FE_DETOKENIZE_GROWTH", a_csv=growth(**options))
    assert finding.level == "consistent"
    assert "grows with the output position" in finding.statement


def test_growth_without_the_batch_is_suspected_and_gaps_have_a_rival(tmp_path):
    finding = found(tmp_path, "FE_DETOKENIZE_GROWTH", a_csv=growth(heading="output_position,cpu_ms_per_step"))
    assert finding.level == "suspected"
    assert "running" in finding.missing[0]
    finding = found(tmp_path, "FE_DETOKENIZE_GROWTH", b_csv=growth(heading="output_position,itl_ms,running"))
    assert finding.level == "suspected"
    assert "COMPUTE_MEMORY_BOUND" in finding.rivals[0]


def test_growth_that_follows_the_batch_or_is_none(tmp_path):
    assert found(tmp_path, "FE_DETOKENIZE_GROWTH", a_csv=growth(running=lambda at: 4 * at)) is None
    assert found(tmp_path, "FE_DETOKENIZE_GROWTH", b_csv=growth(slope=0.0)) is None
    assert found(tmp_path, "FE_DETOKENIZE_GROWTH", c_csv=growth(slope=-0.05)) is None


# -- FE_CPU_STARVED from cpu.stat


def stat(periods, throttled, held, *, v1=False):
    key, factor = ("throttled_time", 1_000_000) if v1 else ("throttled_usec", 1000)
    return f"nr_periods {periods}\nnr_throttled {throttled}\n{key} {held * factor}\n"


ITL = json.dumps({"facts": 1, "arms": {"now": {"itl_mean_ms": 62.1}}})


@pytest.mark.parametrize("v1", [False, True])
def test_a_limit_that_stops_the_engine(tmp_path, v1):
    two = {"a_stat": stat(1000, 100, 5000, v1=v1), "b_stat": stat(4000, 1900, 95_000, v1=v1)}
    finding = found(tmp_path, "FE_CPU_STARVED", **two, t_json=ITL)
    assert finding.level == "consistent"
    assert "1800/3000 = 60%" in finding.relation
    assert "50 ms each time" in finding.relation
    finding = found(tmp_path, "FE_CPU_STARVED", **two)
    assert finding.level == "suspected"
    assert "ITL" in finding.missing[0]


def test_one_copy_counts_since_the_start(tmp_path):
    finding = found(tmp_path, "FE_CPU_STARVED", b_stat=stat(3000, 1800, 90_000), t_json=ITL)
    assert finding.level == "suspected"
    assert "second cpu.stat" in finding.missing[0]


def test_one_copy_alone_lacks_the_window_and_the_tokens(tmp_path):
    finding = found(tmp_path, "FE_CPU_STARVED", b_stat=stat(3000, 2900, 90_000))
    assert finding.level == "suspected"
    assert ["second cpu.stat" in finding.missing[0], "ITL" in finding.missing[1]] == [True, True]


def test_some_of_the_periods_need_the_window_and_the_tokens(tmp_path):
    finding = found(tmp_path, "FE_CPU_STARVED", b_stat=stat(3000, 700, 30_000), t_json=ITL)
    assert finding.level == "suspected"
    assert "second cpu.stat" in finding.missing[0]
    two = {"a_stat": stat(1000, 100, 5000), "b_stat": stat(4000, 900, 45_000)}
    assert found(tmp_path, "FE_CPU_STARVED", **two, t_json=ITL).level == "consistent"
    finding = found(tmp_path, "FE_CPU_STARVED", **two)
    assert finding.level == "suspected"
    assert "ITL" in finding.missing[0]


def test_few_or_no_throttled_periods_are_no_cause(tmp_path):
    assert found(tmp_path, "FE_CPU_STARVED", a_stat=stat(3000, 60, 500)) is None
    assert asked(tmp_path, b_stat=stat(0, 0, 0)).findings[0].code == "INSUFFICIENT_EVIDENCE"
