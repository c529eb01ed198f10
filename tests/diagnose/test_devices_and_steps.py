"""One look at the devices and who is on them; TensorRT-LLM's iterations; a pace that steps up in a log."""

from __future__ import annotations

import json

import pytest

from tailrace.diagnose.causes.compute.decode_slowdown import DecodeSlowdown
from tailrace.diagnose.readers.logs.log import read_log_text
from tailrace.diagnose.readers.nvidia_smi_table import read_smi_table
from tests.diagnose.evidence_texts import asked, found

PROCESS = "|    0   N/A  N/A     {pid}      {kind}   {name:<40}{mib:>8}MiB |"
TABLE = """Tue Jun  9 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 560.35.03              Driver Version: 560.35.03      CUDA Version: 12.6     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   64C    P0             512W / 700W |   74512MiB /  81559MiB |     99%      Default |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|=========================================================================================|
{0}
+-----------------------------------------------------------------------------------------+
"""


def devices(*processes: tuple[str, str, int]) -> str:
    """(type, name, MiB) of each process."""
    lines = [
        PROCESS.format(pid=12000 + at, kind=kind, name=name, mib=mib) for at, (kind, name, mib) in enumerate(processes)
    ]
    return TABLE.format("\n".join(lines))


ENGINE, TRAINING = ("C", "VLLM::EngineCore", 62110), ("C", "python train_lora.py", 12300)


def test_what_the_table_says_of_a_device(tmp_path):
    path = tmp_path / "smi.txt"
    path.write_text(devices(ENGINE, TRAINING))
    seen = read_smi_table(path, path.name)
    values = {series.name: float(series.values[0]) for series in seen.series}
    assert values["gpu_util"] == 0.99
    assert (values["power"], values["power_limit"], values["temperature"]) == (512.0, 700.0, 64.0)
    assert values["memory_used"] == 74512 * 2**20
    assert [event.attributes["name"] for event in seen.events] == ["VLLM::EngineCore", "python train_lora.py"]
    assert seen.understood[0].understood == seen.understood[0].total


def test_a_stranger_on_the_engines_device_is_a_suspicion(tmp_path):
    finding = found(tmp_path, "COMPUTE_GPU_SHARED", smi_txt=devices(ENGINE, TRAINING))
    assert finding.level == "suspected"
    assert "train_lora.py" in finding.statement
    assert "TPOT with and without" in finding.missing[0]


@pytest.mark.parametrize(
    "others",
    [
        (),
        (("C", "VLLM::Worker_TP1", 60000),),
        (("G", "/usr/lib/xorg/Xorg", 900),),
        (("C", "nv-hostengine", 800),),
        (("C", "python watch.py", 310),),  # a context alone
    ],
)
def test_its_own_workers_and_what_watches_it_are_no_strangers(tmp_path, others):
    diagnosis = asked(tmp_path, smi_txt=devices(ENGINE, *others))
    assert diagnosis.findings[0].code == "INSUFFICIENT_EVIDENCE"


def iterations(
    *, used: int = 1996, paused: int = 4, queued: int = 30, context: int = 0, took: float = 22.0, n: int = 20
) -> str:
    return json.dumps(
        [
            {
                "iter": 1000 + at,
                "iterLatencyMS": (1840.0 if context and at % 5 == 2 else took) + at % 3,
                "numActiveRequests": 64,
                "numQueuedRequests": queued + at,
                "kvCacheStats": {"maxNumBlocks": 2000, "usedNumBlocks": used, "tokensPerBlock": 32},
                "inflightBatchingStats": {
                    "numContextRequests": int(bool(context and at % 5 == 2)),
                    "numCtxTokens": context if at % 5 == 2 else 0,
                    "numGenRequests": 60,
                    "numPausedRequests": paused,
                    "numScheduledRequests": 60,
                },
            }
            for at in range(n)
        ]
    )


def test_paused_requests_before_a_full_cache(tmp_path):
    finding = found(tmp_path, "SCHED_KV_PREEMPTION", stats_json=iterations())
    assert finding.level == "suspected"
    assert "99.8%" in finding.relation
    roomy = iterations(used=700, paused=0, queued=0)
    assert found(tmp_path, "SCHED_KV_PREEMPTION", b_json=roomy) is None


def test_iterations_with_prompts_hold_the_others_up(tmp_path):
    finding = found(tmp_path, "SCHED_PREFILL_STEALS_DECODE", stats_json=iterations(used=700, paused=0, context=8132))
    assert "8,132 prompt tokens" in finding.statement
    assert found(tmp_path, "SCHED_PREFILL_STEALS_DECODE", b_json=iterations(used=700, paused=0)) is None


def paced(milliseconds: list[float], *, tokens: int = 120, later: int = 120) -> str:
    lines = []
    for at, pace in enumerate(milliseconds):
        count = tokens if at < len(milliseconds) // 2 else later
        lines += [
            f"slot print_timing: id  0 | task {at} | ",
            "prompt eval time =     210.00 ms /   420 tokens (    0.50 ms per token,  2000.00 tokens per second)",
            f"       eval time =  {pace * count:.2f} ms /   {count} tokens ({pace:8.2f} ms per token)",
        ]
    return "\n".join(lines)


def slower(text: str):
    return DecodeSlowdown().observe(read_log_text(text, "server.log"))


def test_a_pace_that_steps_up_in_a_log():
    finding = slower(paced([14.0, 14.2, 13.9, 14.1, 14.0, 14.1, 61.0, 60.5, 61.8, 61.1, 60.9, 61.3]))
    assert finding is not None
    assert finding.level == "suspected"
    assert "4.3" in finding.relation
    assert "ran at once" in finding.missing[0]


@pytest.mark.parametrize(
    "text",
    [
        paced([14.0] * 12),
        paced([14.0 + 4 * at for at in range(12)]),  # it drifts
        paced([14.0, 61.0] * 6),  # it alternates
        paced([14.0] * 6 + [20.0] * 6),  # a fuller batch does as much
        paced([14.0] * 6 + [61.0] * 6, later=900),  # longer answers
        paced([14.0] * 3 + [61.0] * 3),  # too few
    ],
)
def test_what_is_no_step_of_the_pace(text):
    assert slower(text) is None
