"""The gateway, the front end, the client: what they do to streams that the engine served well."""

from __future__ import annotations

from tailrace.cli.objectives import parse_objectives
from tests.diagnose.altered import calm
from tests.diagnose.foreign_words import facts, table
from tests.diagnose.logs.lines import uvicorn
from tests.diagnose.logs.test_causes import retried as again
from tests.diagnose.scenes.scene import Scene, each, without
from tests.diagnose.simulated import without_state
from tests.diagnose.test_gateway_causes import held, lagging, slow_readers
from tests.diagnose.test_gateway_series_causes import gaps, growth, lags, restarts
from tests.diagnose.test_leaving_causes import at_random, leaving
from tests.diagnose.test_limit_causes import machine, serial
from tests.diagnose.test_network import far
from tests.diagnose.test_path_causes import few, pooled
from tests.diagnose.test_replica_causes import over, sessions
from tests.diagnose.test_stage_slow import of_service

READERS = {"objectives": lambda: parse_objectives(["e2e_p99=8s"])}
CPUS = table("CPU request | ITL mean (ms)", "2 | 62.1", "6 | 31.4")
EQUAL = facts(changed="cpu request", same=["gpu clocks", "batch", "kv usage"])
ROLLOUT = {
    "arms": {
        "before": {"ttft_p95_ms": 900, "offered_rps": 12},
        "after": {"ttft_p95_ms": 7100, "offered_rps": 12},
    },
    "changed": "new model version deployed",
    "cold_start_s": 277,
}
ADDED = "scaled out by 2 pods, no improvement for 15 min"
COLUMNS = "t_s,engine_running,gap_ms_stream_a,gap_ms_stream_b"


def serial_load():
    return serial(235)


def grouped(records, *, many=False):
    return [
        r if many and r.backend != "r0" else _of_tenant(r, f"t{i % 9}" if many or r.backend != "r0" else "big")
        for i, r in enumerate(records)
    ]


def _of_tenant(record, tenant):
    return each([record], tenant=tenant, cached_tokens=20)[0]


def skewed():
    return over(calm(), [8, 1, 1, 1])


GATEWAY = (
    Scene(
        "GW_LANE_QUEUE",
        "consistent",
        {"records": lambda: held(calm(), 2000)},
        {"records": lambda: held(calm(), 2000, waiting_at_admission=7)},
        {"records": lambda: held(without_state(calm()), 2000)},
        "waiting|KV",
    ),
    Scene(
        "GW_SELF_BOTTLENECK",
        "consistent",
        {"records": lambda: lagging(calm(), 800)},
        {"records": lambda: lagging(calm(), 2000, lag=0.08)},
        {"records": lambda: lagging(calm(), 800, cpu=None)},
        "CPU",
    ),
    Scene(
        "GW_NETWORK",
        "consistent",
        {"records": lambda: far(calm(), 1500)},
        {"records": lambda: far(calm(), 1500, prefill=8.0)},
        {"records": lambda: each(far(calm(), 1500), prefill_ns=None)},
        "prefill",
    ),
    Scene(
        "CLIENT_SLOW_READER",
        "consistent",
        {"records": lambda: slow_readers(calm(), 9000), **READERS},
        {"records": lambda: slow_readers(calm(), 9000, factor=3.0)},
        {"records": lambda: each(slow_readers(calm(), 9000), chunk_gap_p50_ns=None, timeline=None)},
        "gap",
    ),
    Scene(
        "LOCK_CONTENTION",
        "consistent",
        {"records": serial_load, "hardware": lambda: machine(serial_load(), 0.2)},
        {"hardware": lambda: machine(serial_load(), 0.97)},
        {"hardware": None},
        "CPU",
    ),
    Scene(
        "PREPROCESS_SLOW",
        "consistent",
        {"records": of_service},
        {"records": lambda: of_service(died="model", budget="model")},
        {"records": lambda: each(of_service(), parts_ns={})},
        "how long .* took",
    ),
    Scene(
        "POSTPROCESS_SLOW",
        "consistent",
        {"records": lambda: of_service(died="postprocess.safety", budget="postprocess.safety")},
        {"records": lambda: of_service(n=300, slow=2, died="postprocess.safety", budget="postprocess.safety")},
        {"records": lambda: each(of_service(died="postprocess.safety", budget="postprocess.safety"), parts_ns={})},
        "how long .* took",
    ),
    Scene(
        "GW_CONN_POOL_CAP",
        "consistent",
        {"records": lambda: pooled(few())},
        {"records": lambda: pooled(few(), waiting=9)},
        {"records": lambda: pooled(few(), waiting=None)},
        "waiting",
    ),
    Scene(
        "CANCEL_NOT_PROPAGATED",
        "consistent",
        {"records": lambda: leaving(0.1, at_random, cancel_slot_ns=9_000_000_000, cancel_upstream_ns=3_000_000)},
        {"records": lambda: leaving(0.1, at_random, cancel_slot_ns=300_000_000)},
        {"records": lambda: without_state(leaving(0.1, at_random))},
        "slot was seen free",
    ),
    Scene(
        "CANCEL_STORM",
        "consistent",
        {"records": lambda: leaving(0.3, at_random), "before": lambda: leaving(0.01, at_random)},
        {"before": lambda: leaving(0.3, at_random, seed=1)},
        {"before": None},
        "before",
    ),
    Scene(
        "CANCEL_UNATTRIBUTED",
        "suspected",
        {"a.log": "\n".join([uvicorn()] * 13), "f.json": facts(summary_lines=4)},
        {"f.json": facts(summary_lines=13)},
        {"f.json": None},
    ),
    Scene(
        "RETRY_STORM",
        "consistent",
        {"access.log": again([2, 3, 3, 3, 3, 3, 3, 3])},
        {"access.log": again([2, 2], good=40)},
        {"access.log": again([1] * 8)},
    ),
    Scene(
        "LB_HOTSPOT",
        "consistent",
        {"records": lambda: grouped(skewed())},
        {"records": lambda: grouped(skewed(), many=True)},
        {"records": lambda: each(grouped(skewed()), cached_tokens=None)},
        "cached|hits",
    ),
    Scene(
        "LB_CACHE_AFFINITY_LOST",
        "consistent",
        {"records": lambda: sessions(stay=0.5), "before": sessions},
        {"records": lambda: sessions(seed=1)},
        {"before": None},
        "before",
    ),
    Scene(
        "LB_SKEW",
        "consistent",
        {"records": skewed},
        {"records": lambda: over(calm(), [1, 1, 1, 1], slow_ms=0)},
        {"records": lambda: each(skewed(), backend=None)},
        "replica",
    ),
    Scene(
        "GW_PROBE_KILL",
        "consistent",
        {"a.csv": restarts(), "f.json": facts(probe_timeout_s=2, probe_path="/health")},
        {"a.csv": restarts(errors=1)},
        {"f.json": None},
        "timeout",
    ),
    Scene(
        "FE_EVENTLOOP_BLOCK",
        "consistent",
        {"a.csv": lags()},
        {"a.csv": lags(lag=60.0)},
        {"a.csv": lags(with_gaps=False)},
        "streams",
    ),
    Scene(
        "FE_GC_PAUSE",
        "consistent",
        {"a.csv": gaps()},
        {"a.csv": gaps(running=lambda at: 60 if at % 3 == 1 else 18)},
        {"a.csv": without(gaps(), "engine_running")},
        "running",
    ),
    Scene(
        "FE_CPU_STARVED",
        "consistent",
        {"a.md": CPUS, "f.json": EQUAL},
        {"a.md": CPUS.replace("62.1", "31.9")},
        {"f.json": None},
        "equal in all arms",
    ),
    Scene(
        "FE_DETOKENIZE_GROWTH",
        "consistent",
        {"a.csv": growth()},
        {"a.csv": growth(running=lambda at: 4 * at)},
        {"a.csv": without(growth(), "running")},
        "running",
    ),
    Scene(
        "SCALE_OUT_TOO_SLOW",
        "suspected",
        {"f.json": facts(**ROLLOUT, action=ADDED)},
        {
            "f.json": facts(
                {**ROLLOUT["arms"], "after": {"ttft_p95_ms": 7100, "offered_rps": 40}},
                **{k: v for k, v in ROLLOUT.items() if k != "arms"},
                action=ADDED,
            )
        },
        {"f.json": facts(ROLLOUT["arms"], cold_start_s=277)},
    ),
)
