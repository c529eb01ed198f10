"""What else changed between two runs, what cannot be compared, and from when latency counts."""

import numpy as np
import pytest

from tailrace.analyze.bench_summary import summarise_run
from tailrace.analyze.compare import compare
from tailrace.model.conditions import Conditions
from tailrace.model.measurement import ClientHealth, Verdict
from tailrace.model.thresholds import Objectives
from tailrace.store.run_file import Arrival, RunTrailer
from tests.analyze.tables import MS, request, run


def steady(seed=1, n=1000, **extra):
    rng = np.random.default_rng(seed)
    return [
        request(i, at_ms=i * 100.0, prefill_ms=float(100 * rng.lognormal(0, 0.2)), gaps_ms=[20.0, 21.0], **extra)
        for i in range(n)
    ]


def test_every_condition_that_differs_is_told_in_a_sentence():
    one = Conditions(
        engine="vllm", engine_version="0.33.0", model="m", dtype="bfloat16", gpu=["A100"], gpu_memory_bytes=80 << 30,
        engine_flags={"max_num_seqs": 256, "block_size": 16}, warmup="10 requests", host={"cores": 2},
    )  # fmt: skip
    two = Conditions(
        engine="vllm", engine_version="0.34.0", model="m", dtype="float8", gpu=["H100"], gpu_memory_bytes=94 << 30,
        engine_flags={"max_num_seqs": 64, "block_size": 16}, warmup="none", host={"cores": 8},
    )  # fmt: skip
    result = compare(run(steady(), conditions=one), run(steady(2), conditions=two))
    assert result.same_work["changed"] == [
        "engine version: 0.33.0 in A, 0.34.0 in B",
        "dtype: bfloat16 in A, float8 in B",
        "GPU: A100 in A, H100 in B",
        "GPU memory: 80.0 GiB in A, 94.0 GiB in B",
        "warm-up: 10 requests in A, none in B",
        "engine flag max_num_seqs: 256 in A, 64 in B",
        "client's machine, cores: 2 in A, 8 in B",
    ]
    assert result.same_work["conditions"] is False
    assert result.unknown == ["quantisation"]


def test_what_is_unknown_is_no_difference_but_is_named():
    result = compare(run(steady(), conditions=Conditions(dtype="bfloat16")), run(steady(2)))
    assert result.same_work["changed"] == []
    assert result.same_work["conditions"] is True
    assert {"dtype", "engine version", "GPU", "engine flags"} <= set(result.unknown)


def test_the_load_itself_is_a_condition():
    closed = run(steady(), arrival=Arrival(kind="closed", concurrency=8))
    result = compare(closed, run(steady(2), arrival=Arrival(kind="poisson", rate=10.0)))
    assert any("closed loop of 8 in A, poisson arrivals at 10/s in B" in text for text in result.same_work["changed"])
    assert any("not of the same kind" in text for text in result.checks)


def test_another_shape_of_the_load_is_told():
    one = run(steady(), arrival=Arrival(kind="gamma", rate=10.0, burstiness=0.3))
    two = run(steady(2), arrival=Arrival(kind="gamma", rate=10.0, burstiness=4.0))
    assert compare(one, two).same_work["changed"] == [
        "load: gamma 0.3 arrivals at 10/s in A, gamma 4 arrivals at 10/s in B"
    ]


def test_work_beside_the_lengths_is_told():
    def work(**traits):
        return {"chat": {"weight": 1.0, **({"traits": traits} if traits else {})}}

    pool = {"pool": 5, "tokens": None, "hit": 0.6, "zipf": 0.0}
    think = {"type": "fixed", "tokens": 5000}
    one = run(steady(), classes=work())
    two = run(steady(2), classes=work(prefixes=pool | {"scale": 1.2}, sessions={"think": think, "follow_up": None}))
    assert compare(one, two).same_work["changed"] == [
        "work of chat: plain in A, prefixes: pool 5, hit 0.6, zipf 0.0; sessions: think tokens 5000 in B"
    ]
    other_seed = run(steady(3), classes=work(prefixes=pool | {"scale": 1.3}, sessions={"think": think}))
    assert compare(two, other_seed).same_work["changed"] == []


def test_goodput_is_judged_by_the_runs_own_objectives():
    own, other = (Objectives(bounds={"ttft": {0.99: bound * MS}}) for bound in (100, 1))
    result = compare(run(steady(), objectives=own), run(steady(2), objectives=own))
    assert result.rates["goodput_per_s"].a == pytest.approx(
        summarise_run(run(steady(), objectives=own)).goodput_per_s, abs=1e-3
    )
    assert 0 < result.rates["goodput_per_s"].a < 0.8 * result.rates["requests_per_s"].a
    assert not any("objectives" in text for text in result.checks)
    apart = compare(run(steady(), objectives=own), run(steady(2), objectives=other))
    assert apart.rates["goodput_per_s"].b == result.rates["goodput_per_s"].b
    assert any("goodput is judged by those of A" in text for text in apart.checks)
    named = compare(run(steady(), objectives=own), run(steady(2), objectives=other), objectives=other)
    assert named.rates["goodput_per_s"].b == 0


def test_metrics_that_a_tool_does_not_report_are_not_comparable_and_never_zero():
    foreign = run(steady(2), source="guidellm", granularity="mean", absent=["e2e_ms", "chunk_gap_ms"])
    result = compare(run(steady()), foreign)
    assert set(result.not_comparable) == {"e2e_ms", "chunk_gap_ms", "longest_gap_ms", "longest_wait_ms"}
    assert "guidellm" in result.not_comparable["e2e_ms"]
    assert not any(name.partition(".")[0] in result.not_comparable for name in result.metrics)
    assert result.headline[0] == "ttft_ms.p99"
    assert result.per_stage == {}
    assert "source of the measurement: tailrace in A, guidellm in B" in result.same_work["changed"]


def test_a_metric_that_no_request_of_one_arm_has_is_not_comparable():
    result = compare(run(steady()), run(steady(2, timeline=False)))
    assert "no request of arm B" in result.not_comparable["chunk_gap_ms"]


def scheduled(late_ms, seed=1, n=1000):
    """An open loop whose request `i` left `late_ms(i)` after its time."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        late = late_ms(i)
        out.append(
            request(
                i,
                at_ms=i * 100.0 + late,
                prefill_ms=float(100 * rng.lognormal(0, 0.2)),
                run_offset_ns=round(i * 100 * MS),
                intended_to_sent_ns=round(late * MS),
                vantage="client",
            )
        )
    return run(out, arrival=Arrival(kind="poisson", rate=10.0, concurrency=8))


def test_waiting_in_the_client_is_not_hidden():
    # Counted from the send both arms are the same; a user of B waited up to two seconds more.
    a, b = scheduled(lambda _: 0.1), scheduled(lambda i: 2000.0 * (i % 100 > 90), seed=2)
    result = compare(a, b)
    assert result.verdict is Verdict.REGRESSED
    assert result.origin == "intended"
    assert result.headline[0] == "longest_wait_from_schedule_ms.p99"
    assert "from the schedule" in result.summary
    assert abs(result.metrics["ttft_ms.p99"].delta_pct) < 15
    assert result.metrics["ttft_from_schedule_ms.p99"].b > 2000
    assert any("Latency is counted from the intended time" in text for text in result.checks)


def test_a_punctual_open_loop_keeps_the_familiar_names():
    result = compare(scheduled(lambda _: 0.2), scheduled(lambda _: 0.3, seed=2))
    assert result.origin == "send"
    assert not any("from_schedule" in name for name in result.metrics)


def closed_loop(stalls, seed=1, seconds=60.0, *, workers=4):
    """Four workers; nothing is answered during the stalls `(begin, end)` (s)."""
    rng = np.random.default_rng(seed)
    free = [0.0] * workers
    out = []
    while True:
        place = int(np.argmin(free))
        sent = free[place]
        if sent >= seconds:
            break
        end = sent + float(0.2 * rng.lognormal(0, 0.2))
        for begin, until in stalls:
            if sent < until and end > begin:
                end += until - max(sent, begin)
        free[place] = end
        out.append(request(len(out), at_ms=sent * 1e3, prefill_ms=(end - sent) * 1e3, vantage="client"))
    arrival = Arrival(kind="closed", concurrency=workers)
    return run(out, arrival=arrival, trailer=RunTrailer(n=len(out), duration_s=seconds))


def test_a_stall_that_a_closed_loop_hid_is_told_and_no_verdict_is_in_its_favour():
    result = compare(closed_loop([]), closed_loop([(20.0, 25.0)], seed=2))
    assert result.verdict is Verdict.INCONCLUSIVE
    text = " ".join([result.summary, *result.checks])
    assert "nothing answered for 5" in text
    assert "closed loop waited with it" in text
    assert "--rate" in text


def test_a_closed_loop_without_a_stall_has_nothing_to_hide():
    result = compare(closed_loop([]), closed_loop([], seed=2))
    assert "nothing answered" not in " ".join([result.summary, *result.checks])
    assert result.observed is None


@pytest.mark.parametrize("arms", [1, 3])
def test_a_limited_client_in_any_run_of_an_arm_gives_no_verdict(arms):
    limited = RunTrailer(n=1000, duration_s=100, client=ClientHealth(limited=True, why="it was late"))
    b = [run(steady(i + 2)) for i in range(arms - 1)] + [run(steady(9), trailer=limited)]
    result = compare([run(steady())], b)
    assert result.refused[0].startswith("client_limited")
