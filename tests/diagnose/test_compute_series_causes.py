"""Causes in compute from stacks, readings of accelerators, requests and chunks: positives, near misses, less input."""

import pytest

from tailrace.diagnose.readers.formats import format_of
from tailrace.diagnose.readers.nvidia_smi_q import read_smi_q
from tailrace.diagnose.readers.pyspy import class_of, read_pyspy
from tests.diagnose.evidence_texts import facts, found, said, table

# -- COMPUTE_JIT

COMPILING = """Process 2011: VLLM::Worker_TP0
Python v3.12.3 (/usr/bin/python3.12)

Thread 2011 (active): "MainThread"
    {0}
    forward (model_executor/layers/attention.py:210)
    execute_model (v1/worker/gpu_worker.py:402)
Thread 2050 (idle): "Thread-1"
    wait (threading.py:359)
"""
SMI = "timestamp, index, utilization.gpu [%], power.draw [W], clocks.sm [MHz]\n"


def readings(*, idle=True):
    cells = [(5, 98, 485), (10, 0 if idle else 97, 290), (20, 0 if idle else 96, 290), (30, 96, 484)]
    rows = [f"2026/03/02 09:10:{at:02d}.000, 0, {used} %, {power}.00 W, 1830 MHz" for at, used, power in cells]
    return SMI + "\n".join(rows) + "\n"


STALLED = facts(stall_s=20, running=4, pyspy_taken_in_stall=True)


@pytest.mark.parametrize(
    "frame",
    [
        "ast_to_ttir (triton/compiler/code_generator.py:1377)",
        "compile (/usr/lib/python3.12/site-packages/tilelang/jit/kernel.py:88)",
        "compile_fx (torch/_inductor/compile_fx.py:1200)",
        "build_and_load (flashinfer/jit/core.py:130)",
    ],
)
def test_a_compiler_on_the_stack_of_an_idle_device(tmp_path, frame):
    stack = COMPILING.format(frame)
    finding = found(tmp_path, "COMPUTE_JIT", d_txt=stack, g_csv=readings(), f_json=STALLED)
    assert finding.level == "proven"
    assert "0 %" in finding.statement
    assert found(tmp_path, "COMPUTE_JIT", d_txt=stack, f_json=STALLED).level == "consistent"
    (tmp_path / "f.json").unlink()
    alone = found(tmp_path, "COMPUTE_JIT", d_txt=stack, g_csv=readings())
    assert alone.level == "suspected"
    assert "when the stack was taken" in alone.missing[0]


def test_a_device_that_works_waits_for_no_compiler(tmp_path):
    stack = COMPILING.format("ast_to_ttir (triton/compiler/code_generator.py:1377)")
    assert found(tmp_path, "COMPUTE_JIT", d_txt=stack, g_csv=readings(idle=False), f_json=STALLED) is None


def test_other_stacks_and_idle_compilers_are_none(tmp_path):
    stack = COMPILING.format("forward (vllm/model_executor/models/llama.py:400)")
    assert found(tmp_path, "COMPUTE_JIT", d_txt=stack, g_csv=readings(), f_json=STALLED) is None
    idle = COMPILING.replace("(active)", "(idle)").format("ast_to_ttir (triton/compiler/code_generator.py:1377)")
    assert found(tmp_path, "COMPUTE_JIT", d_txt=idle, g_csv=readings(), f_json=STALLED) is None


@pytest.mark.parametrize(
    ("frame", "wanted"),
    [
        ("gc_collect_main (gcmodule.c:1300)", "gc"),
        ("encode_batch (tokenizers/implementations/base_tokenizer.py:202)", "tokenizer"),
        ("resize (PIL/Image.py:2200)", "image"),
        ("load (librosa/core/audio.py:176)", "audio"),
        ("all_reduce (torch/distributed/distributed_c10d.py:2500)", "collective"),
        ("fill_next_token_bitmask (xgrammar/matcher.py:300)", "grammar"),
        ("acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:470)", "waiting"),
        ("forward (models/llama.py:1)", ""),
    ],
)
def test_frames_are_classed_by_their_path(frame, wanted):
    assert class_of([frame, "step (engine.py:1)"])[0] == wanted
    assert class_of(["wait (threading.py:359)", frame])[0] == (wanted if wanted not in ("", "waiting") else "waiting")


def test_a_dump_is_read_thread_by_thread(tmp_path):
    path = tmp_path / "d"
    path.write_text(COMPILING.format("compile (triton/compiler/compiler.py:273)") * 2 + "noise\n")
    seen = read_pyspy(path, "d")
    assert [event.attributes["state"] for event in seen.events] == ["active", "idle"] * 2
    assert seen.understood[0].total - seen.understood[0].understood == 1
    assert format_of(path.read_text(), "x").name == "py-spy dump"


# -- COMPUTE_RANK_SKEW


def test_a_rank_that_comes_late(tmp_path):
    finding = found(tmp_path, "COMPUTE_RANK_SKEW", f_json=facts(step_ms=100, cumulative_skew_ms=30))
    assert finding.level == "consistent"
    assert "30/100 = 30 %" in finding.relation
    derived = found(
        tmp_path, "COMPUTE_RANK_SKEW", f_json=facts(step_ms=50, rank_skew_us_p50=200, allreduce_per_step=160)
    )
    assert derived.level == "suspected"
    assert found(tmp_path, "COMPUTE_RANK_SKEW", f_json=facts(step_ms=100, cumulative_skew_ms=5)) is None


def test_ranks_that_wait_in_a_collective_for_one(tmp_path):
    ranks = [
        f'Process {pid}: VLLM::Worker_TP{pid}\nThread {pid} (active): "MainThread"\n    {frame}\n'
        for pid, frame in enumerate(
            ["all_reduce (torch/distributed/distributed_c10d.py:2500)"] * 3 + ["dump (json/__init__.py:179)"]
        )
    ]
    finding = found(tmp_path, "COMPUTE_RANK_SKEW", d_txt="\n".join(ranks))
    assert finding.level == "suspected"
    assert "3 of 4 ranks" in finding.statement
    assert found(tmp_path, "COMPUTE_RANK_SKEW", d_txt="\n".join(ranks[:3])) is None


# -- COMPUTE_POWER_CAP, COMPUTE_THERMAL

CLOCKS = "timestamp, index, clocks.sm [MHz], power.draw [W], power.limit [W], temperature.gpu, {}.active\n"
SLOWER = "| t (s) | tok/s |\n|---|---|\n| 0 | 1450 |\n| 10 | 1440 |\n| 60 | 1237 |\n"


def clocks(mask, *, low=1580, power=1000, heat=66, reasons="clocks_event_reasons"):
    cells = [(0, 1965, 820, 52, "0x0"), (10, 1965, 900, 56, "0x0"), (20, 1940, 930, 57, "0x0")]
    cells += [(30 + 10 * at, low, power, heat, mask) for at in range(3)]
    rows = [
        f"2026/02/27 16:00:{at:02d}.000, 0, {clock} MHz, {draw}.00 W, 1000.00 W, {temperature}, {told}"
        for at, clock, draw, temperature, told in cells
    ]
    return CLOCKS.format(reasons) + "\n".join(rows) + "\n"


@pytest.mark.parametrize("reasons", ["clocks_event_reasons", "clocks_throttle_reasons"])
def test_a_clock_at_the_power_limit(tmp_path, reasons):
    log = clocks("0x0000000000000004", reasons=reasons)
    finding = found(tmp_path, "COMPUTE_POWER_CAP", g_csv=log, t_md=SLOWER)
    assert finding.level == "consistent"
    assert "1580" in finding.statement
    assert "19.6%" in finding.relation
    assert found(tmp_path, "COMPUTE_THERMAL", g_csv=log, t_md=SLOWER) is None
    (tmp_path / "t.md").unlink()
    alone = found(tmp_path, "COMPUTE_POWER_CAP", g_csv=log)
    assert alone.level == "suspected"
    assert "throughput or latency" in alone.missing[0]


def test_a_clock_by_heat(tmp_path):
    log = clocks("0x0000000000000020", power=700, heat=88)
    finding = found(tmp_path, "COMPUTE_THERMAL", g_csv=log, t_md=SLOWER)
    assert finding.level == "consistent"
    assert found(tmp_path, "COMPUTE_POWER_CAP", g_csv=log, t_md=SLOWER) is None


def test_a_clock_that_hardly_falls_is_no_cause(tmp_path):
    log = clocks("0x0000000000000004", low=1920)
    assert found(tmp_path, "COMPUTE_POWER_CAP", g_csv=log, t_md=SLOWER) is None


SMI_Q = """==============NVSMI LOG==============

Timestamp                                 : Mon Mar  2 09:10:0{second} 2026
Driver Version                            : 550.54
Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100
    Utilization
        Gpu                               : 99 %
        Memory                            : 40 %
    Temperature
        GPU Current Temp                  : 86 C
        GPU Slowdown Temp                 : 87 C
    {section}
        Idle                              : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
        SW Thermal Slowdown               : Active
    GPU Power Readings
        Power Draw                        : 512.30 W
        Current Power Limit               : 700.00 W
    Clocks
        SM                                : 1200 MHz
    Max Clocks
        SM                                : 1980 MHz
"""


@pytest.mark.parametrize("section", ["Clocks Event Reasons", "Clocks Throttle Reasons"])
def test_a_print_of_nvidia_smi(tmp_path, section):
    path = tmp_path / "q.txt"
    path.write_text("".join(SMI_Q.format(second=second, section=section) for second in (1, 3)))
    seen = read_smi_q(path, "q.txt")
    values = {item.name: (list(item.values), list(item.at)) for item in seen.series if "reason" not in item.labels}
    assert values["sm_clock"] == ([1200.0, 1200.0], [0.0, 2.0])
    assert values["max_sm_clock"][0] == [1980.0, 1980.0]
    assert values["gpu_util"][0] == [0.99, 0.99]
    assert values["power"][0] == [512.3, 512.3]
    assert values["power_limit"][0] == [700.0, 700.0]
    assert {event.attributes["reason"] for event in seen.events} == {"sw_thermal"}
    assert seen.settings[0].name == "gpu_slowdown_temp"
    assert format_of(path.read_text(), "x").name == "nvidia-smi -q"


def test_dmon_rows(tmp_path):
    text = """# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk
# Idx      W      C      C      %      %    MHz    MHz
    0    310     60      -     97     40   2619   1980
    0    312     61      -      0      0   2619   1410
"""
    seen = format_of(text, "x")
    path = tmp_path / "m"
    path.write_text(text)
    values = {item.name: list(item.values) for item in seen.read(path, "m").series}
    assert values["sm_clock"] == [1980.0, 1410.0]
    assert values["gpu_util"] == [0.97, 0.0]


# -- COMPUTE_IDLE_RAMP

IDLE = "id,t_send_ms,t_first_ms,t_last_ms,prompt_tokens,output_tokens"


def paused(*, pause=10_000.0, slow=420.0, fast=38.0, prompt=lambda at: 128, heading=IDLE, scale=1.0, n=24):
    rows, at_ms = [], 0.0
    for at in range(n):
        ttft = slow if at % 3 == 0 and at else fast
        at_ms += pause if at % 3 == 0 and at else 300.0
        last = at_ms + ttft + 300
        rows.append((f"r{at}", at_ms * scale, (at_ms + ttft) * scale, last * scale, prompt(at), 32))
        at_ms = last
    return table(heading, rows)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pause": 60_000.0, "slow": 2500.0, "fast": 90.0},
        {"heading": "req,start_s,first_token_s,end_s,input_len,output_len", "scale": 1e-3},
    ],
)
def test_the_first_request_after_a_pause(tmp_path, options):
    finding = found(tmp_path, "COMPUTE_IDLE_RAMP", a_csv=paused(**options))
    assert finding.level == "consistent"
    assert f"{options.get('pause', 10_000.0) / 1e3:.3g} s idle" in finding.statement


def test_longer_prompts_after_a_pause_or_no_difference_are_none(tmp_path):
    assert found(tmp_path, "COMPUTE_IDLE_RAMP", a_csv=paused(prompt=lambda at: 4000 if at % 3 == 0 else 128)) is None
    assert found(tmp_path, "COMPUTE_IDLE_RAMP", b_csv=paused(slow=40.0)) is None


def test_without_prompt_lengths_it_is_suspected(tmp_path):
    text = "\n".join(",".join(line.split(",")[:4]) for line in paused().splitlines())
    finding = found(tmp_path, "COMPUTE_IDLE_RAMP", a_csv=text)
    assert finding.level == "suspected"
    assert "prompt tokens" in finding.missing[0]


# -- COMPUTE_STALL


def steps(*, at_changes=True, n=40):
    rows, running = [], 8
    for at in range(n):
        changes = at in (4, 9, 17, 18, 29, 36)
        running += 1 if changes and at_changes else 0
        gap = 700 + at if changes else 25
        rows.append((at, running, gap, gap + 1))
    return table("t_s,running,gap_ms_stream_a,gap_ms_stream_b", rows)


def test_stops_at_changes_of_the_batch(tmp_path):
    finding = found(tmp_path, "COMPUTE_STALL", a_csv=steps())
    assert finding.level == "suspected"
    assert "stack dump" in finding.missing[0]
    assert found(tmp_path, "COMPUTE_STALL", b_csv=steps(at_changes=False)) is None


def test_a_named_compiler_is_no_nameless_stall(tmp_path):
    stack = COMPILING.format("ast_to_ttir (triton/compiler/code_generator.py:1377)")
    assert found(tmp_path, "COMPUTE_STALL", a_csv=steps(), d_txt=stack) is None


# -- STREAM_GAP_AT_POSITION


def positions(*, spread=0, streams=6, heading="req,chunk,text_offset,bytes,t_client_ms,text"):
    rows = []
    for stream in range(streams):
        at_ms = 0.0
        for chunk in range(60):
            stop = stream < 4 and chunk == 40 + spread * stream
            at_ms += 6000.0 + 500 * stream if stop else 20.0
            rows.append((f"s{stream}", chunk, chunk * 5, 240, at_ms + 7 * stream, "}" if stop else "word"))
    return table(heading, rows)


def test_streams_that_stop_at_one_place(tmp_path):
    finding = found(tmp_path, "STREAM_GAP_AT_POSITION", a_csv=positions())
    assert finding.level == "consistent"
    assert "4 of 6 streams" in finding.statement
    assert "character 200" in finding.statement
    assert found(tmp_path, "STREAM_GAP_AT_POSITION", b_csv=positions(spread=4)) is None


def test_without_offsets_it_is_suspected(tmp_path):
    text = "\n".join(",".join(cells.split(",")[:2] + cells.split(",")[3:5]) for cells in positions().splitlines())
    finding = found(tmp_path, "STREAM_GAP_AT_POSITION", a_csv=text)
    assert finding.level == "suspected"
    assert "offset" in said(finding)
