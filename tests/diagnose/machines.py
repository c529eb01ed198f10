"""Readings of machines and accelerators beside the simulated requests: what was withheld, and when."""

import msgspec

from tailrace.diagnose.hardware import Hardware
from tailrace.model.gpu_state import GpuProcess, GpuState
from tailrace.model.host_state import CgroupState, HostState, ProcessState, Role

S = 1_000_000_000
ENGINE_PID = 4711


def span(records):
    """(first start, last end) on the wall clock, ns."""
    return min(r.start_unix_ns for r in records), max(r.start_unix_ns + r.e2e_ns for r in records)


def bad_seconds(records, *, every=10, length=2):
    """Start of each bad interval, two seconds in ten."""
    begin, end = span(records)
    return [(at, at + length * S) for at in range(begin + 4 * S, end, every * S)]


def inside(at, intervals):
    return any(begin <= at < end for begin, end in intervals)


def delayed(records, intervals, ms):
    """Requests that begin in an interval wait so much longer for their first token."""
    out = []
    for record in records:
        wait = int(ms * 1e6) if inside(record.start_unix_ns, intervals) else 0
        line = record.timeline
        out.append(
            msgspec.structs.replace(
                record,
                unattributed_ns=wait,
                stage_sources={**record.stage_sources, "unattributed": "inferred(remainder)"},
                e2e_ns=record.e2e_ns + wait,
                ttft_ns=record.ttft_ns + wait,
                e2e_last_token_ns=record.e2e_last_token_ns + wait,
                timeline=msgspec.structs.replace(line, at_ns=[at + wait for at in line.at_ns]),
            )
        )
    return out


def host(records, intervals, *, wait=0.0, calm_wait=0.01, throttled=0, role=Role.ENGINE, pressure=None, quota=0.5):
    """One state a second; in the intervals the worst thread waits, or `throttled` of ten periods are."""
    begin, end = span(records)
    out = []
    for at in range(begin, end + S, S):
        bad = inside(at, intervals)
        stopped = throttled if bad else 0
        process = ProcessState(
            role=role,
            pids=[ENGINE_PID],
            cpu_cores=0.9,
            worst_thread_wait=wait if bad else calm_wait,
            cgroup=CgroupState(
                path="/engine",
                version=2,
                quota_cores=quota,
                periods=10 if quota else 0,
                throttled_periods=stopped,
                throttled_ns=stopped * S // 12,
            ),
        )
        out.append(
            HostState(
                at_ns=at + S,
                at_unix_ns=at + S,
                interval_ns=S,
                cpus=8,
                busy=0.5,
                pressure={} if pressure is None else {"cpu.some": pressure if bad else 0.0},
                processes=[process] if role else [],
            )
        )
    return Hardware(host=out, engine_pids=[ENGINE_PID])


def gpu(records, limited, *, low=1400.0, reasons=("sw_power_cap",), strangers=(), clock=True, zone=True, engine=True):
    """One reading a second; `limited(unix_ns)` says when the clock is low, or the strangers are there."""
    begin, end = span(records)
    out = []
    for at in range(begin, end + S, S):
        bad = limited(at)
        processes = [GpuProcess(pid=ENGINE_PID if engine else 1, name="VLLM::EngineCore", memory_bytes=70 << 30)]
        out.append(
            GpuState(
                index="0",
                at_ns=at,
                at_unix_ns=at if zone else None,
                source="nvml",
                utilisation=0.97,
                sm_clock_mhz=(low if bad else 1980.0) if clock else None,
                power_w=700.0 if bad else 600.0,
                power_limit_w=700.0,
                reasons=list(reasons) if bad else [],
                processes=[*processes, *(strangers if bad else ())],
            )
        )
    return Hardware(gpus=out, engine_pids=[ENGINE_PID])
