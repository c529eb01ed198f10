"""Caps, batchers, instances, deadlocks, serial sections: limits that are no lack of capacity; and which comes first."""

import heapq

import msgspec
import numpy as np

from tailrace.diagnose.causes.compute.encode_slow import EncodeSlow
from tailrace.diagnose.causes.gateway.lock_contention import LockContention
from tailrace.diagnose.causes.scheduler.admission_deadlock import AdmissionDeadlock
from tailrace.diagnose.causes.scheduler.batcher_wait import BatcherWait
from tailrace.diagnose.causes.scheduler.instance_limit import InstanceLimit
from tailrace.diagnose.causes.scheduler.tune_not_scale import TuneNotScale
from tailrace.diagnose.engine import rank
from tailrace.diagnose.hardware import Hardware
from tailrace.diagnose.triage import triage
from tailrace.model.engine_state import EngineState
from tailrace.model.finding import Finding, Layer, Level
from tailrace.model.host_state import HostState
from tests.diagnose.altered import S, calm, restamped, stamps
from tests.diagnose.machines import gpu
from tests.diagnose.simulated import MS, as_gateway, evidence, served, without_state


def capped(**extra):
    return as_gateway(served(rate=12.0, long_share=0.0, max_num_seqs=16, **extra))


def test_a_cap_at_which_tokens_are_as_quick_as_below_it():
    finding = TuneNotScale().judge(evidence(capped()))
    assert (finding.code, finding.layer, finding.level) == ("TUNE_NOT_SCALE", Layer.SCHEDULER, Level.SUSPECTED)
    assert "sweep" in finding.missing[0], "one window is no sweep"
    assert "--max-num-seqs 32" in finding.advice
    slow = [msgspec.structs.replace(r, chunk_gap_p50_ns=75 * MS, tpot_ns=75 * MS) for r in capped()]
    assert TuneNotScale().judge(evidence(slow)) is None
    full = [msgspec.structs.replace(r, kv_usage_at_admission=0.97) for r in capped()]
    assert TuneNotScale().judge(evidence(full)) is None
    assert TuneNotScale().cannot_run(evidence(without_state(capped())))
    assert TuneNotScale().judge(evidence(calm())) is None


def device(records, use):
    return Hardware(
        gpus=[msgspec.structs.replace(state, utilisation=use) for state in gpu(records, lambda _: False).gpus]
    )


def test_instances_that_are_all_busy_on_an_idle_device():
    few = [
        msgspec.structs.replace(r, engine="triton")
        for r in as_gateway(served(rate=4.0, long_share=0.0, max_num_seqs=4))
    ]
    finding = InstanceLimit().judge(evidence(few, hardware=device(few, 0.2)))
    assert (finding.code, finding.level) == ("SCHED_INSTANCE_LIMIT", Level.CONSISTENT)
    assert InstanceLimit().judge(evidence(few)).level is Level.SUSPECTED
    assert InstanceLimit().judge(evidence(few, hardware=device(few, 0.95))) is None


def batched(ms, *, told="reported(queue)", spread=1.0):
    rng = np.random.default_rng(0)
    out = []
    for record in calm(rate=1.0, n=200):
        wait = int(ms * MS * rng.uniform(1.0 / spread, 1.0))
        late = restamped(record, stamps(record) + wait)
        out.append(
            msgspec.structs.replace(
                late,
                queue_ns=wait,
                queue_engine_ns=wait,
                unattributed_ns=record.queue_ns,
                stage_sources={**late.stage_sources, "queue": told},
            )
        )
    return out


def test_a_batcher_that_waits_for_company():
    finding = BatcherWait().judge(evidence(batched(180)))
    assert (finding.code, finding.level) == ("SCHED_BATCHER_WAIT", Level.CONSISTENT)
    assert "max_queue_delay" in finding.advice
    assert BatcherWait().judge(evidence(batched(180, spread=60.0))) is None
    assert BatcherWait().judge(evidence(batched(3))) is None
    assert BatcherWait().judge(evidence(batched(180, told="inferred(steps)"))) is None


def scrapes(running, waiting, tokens):
    return [
        EngineState(at_ns=i * 5 * S, running=a, waiting=b, generation_tokens_total=c, prompt_tokens_total=0.0)
        for i, (a, b, c) in enumerate(zip(running, waiting, tokens, strict=True))
    ]


def test_a_queue_whose_head_can_never_be_admitted():
    stuck = scrapes([3, 0, 0, 0], [0, 4, 5, 6], [10.0, 20.0, 20.0, 20.0])
    finding = AdmissionDeadlock().judge(evidence(calm(), states=stuck))
    assert (finding.code, finding.level) == ("SCHED_ADMISSION_DEADLOCK", Level.CONSISTENT)
    moving = scrapes([3, 0, 0, 0], [0, 4, 5, 6], [10.0, 20.0, 21.0, 22.0])
    assert AdmissionDeadlock().judge(evidence(calm(), states=moving)) is None
    assert AdmissionDeadlock().judge(evidence(calm(), states=scrapes([3, 3, 3, 3], [0, 4, 5, 6], [1.0] * 4))) is None
    blind = [msgspec.structs.replace(s, generation_tokens_total=None) for s in stuck]
    assert AdmissionDeadlock().judge(evidence(calm(), states=blind)).level is Level.SUSPECTED
    assert AdmissionDeadlock().cannot_run(evidence(calm()))


def serial(each_ms, *, stage="preprocess", rate=4.0, places=1):
    """One at a time (or as many as there are `places`): whoever comes while all are taken waits for the first free."""
    free, out = [0] * places, []
    for record in calm(rate=rate, n=300):
        done = max(record.start_unix_ns, heapq.heappop(free)) + int(each_ms * MS)
        heapq.heappush(free, done)
        spent = done - record.start_unix_ns
        late = restamped(record, stamps(record) + spent)
        out.append(
            msgspec.structs.replace(
                late,
                **{f"{stage}_ns": spent},
                unattributed_ns=record.unattributed_ns,
                stage_sources={**late.stage_sources, stage: "reported(server-timing)"},
            )
        )
    return out


def machine(records, busy):
    start = min(r.start_unix_ns for r in records)
    return Hardware(
        host=[HostState(at_ns=i * S, at_unix_ns=start + i * S, interval_ns=S, cpus=8, busy=busy) for i in range(1, 70)]
    )


def test_a_serial_section():
    records = serial(235)
    finding = LockContention().judge(evidence(records, hardware=machine(records, 0.2)))
    assert (finding.code, finding.stage, finding.level) == ("LOCK_CONTENTION", "preprocess", Level.CONSISTENT)
    assert LockContention().judge(evidence(records)).level is Level.SUSPECTED
    assert LockContention().judge(evidence(records, hardware=machine(records, 0.97))) is None
    flat = serial(235, rate=0.2)
    assert LockContention().judge(evidence(flat)) is None
    assert LockContention().cannot_run(evidence(calm()))
    pool = serial(16 * 235, rate=4.4, places=16)
    assert LockContention().judge(evidence(pool, hardware=machine(pool, 0.2))) is None, "sixteen at a time, all taken"


def encoding(ms):
    rng = np.random.default_rng(0)
    out = []
    for record in calm(n=300):
        spent = int((rng.uniform(0.5, 1.5) * ms if rng.random() < 0.05 else rng.uniform(15, 25)) * MS)
        late = restamped(record, stamps(record) + spent)
        out.append(
            msgspec.structs.replace(
                late,
                encode_ns=spent,
                unattributed_ns=record.unattributed_ns,
                stage_sources={**late.stage_sources, "encode": "reported(server-timing)"},
            )
        )
    return out


def test_an_encoder_that_makes_the_tail():
    finding = EncodeSlow().judge(evidence(encoding(3000)))
    assert (finding.code, finding.layer, finding.level) == ("ENCODE_SLOW", Layer.COMPUTE, Level.CONSISTENT)
    assert EncodeSlow().judge(evidence(encoding(20))) is None
    assert EncodeSlow().cannot_run(evidence(calm()))


def finding_of(code, ms, level=Level.CONSISTENT, **extra):
    return Finding(code=code, layer=Layer.SCHEDULER, stage="", level=level, statement="", explains_ms=ms, **extra)


def test_a_root_comes_before_what_it_brings_about():
    codes = [
        item.code
        for item in rank(
            [
                finding_of("SCHED_HOL_LONG_PREFILL", 900.0),
                finding_of("DECODE_SLOWDOWN", 300.0),
                finding_of("COMPUTE_THERMAL", 100.0),
                finding_of("COMPUTE_STALL", 950.0, Level.SUSPECTED),
                finding_of("FE_GC_PAUSE", 50.0, Level.SUSPECTED),
            ]
        )
    ]
    assert codes[0] == "COMPUTE_THERMAL"
    assert codes[-2:] == ["FE_GC_PAUSE", "COMPUTE_STALL"]


def test_two_rivals_at_one_level_are_both_there():
    pair = [finding_of("SCHED_PREFILL_STEALS_DECODE", 100.0), finding_of("SCHED_KV_PREEMPTION", 200.0)]
    assert [item.code for item in rank(pair)] == ["SCHED_KV_PREEMPTION", "SCHED_PREFILL_STEALS_DECODE"]


def test_twice_the_replicas_without_effect_is_r8():
    one = [msgspec.structs.replace(r, backend="a") for r in calm()]
    two = [msgspec.structs.replace(r, backend="ab"[i % 2]) for i, r in enumerate(one)]
    assert "R8" in triage(evidence(two, before=one))
    assert "R8" not in triage(evidence(one, before=one))
    quicker = [msgspec.structs.replace(r, e2e_ns=r.e2e_ns // 2, decode_ns=r.decode_ns // 3) for r in two]
    assert "R8" not in triage(evidence(quicker, before=one))
