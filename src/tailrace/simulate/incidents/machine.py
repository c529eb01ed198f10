"""What the gateway's readers of host and accelerator see beside the requests: the same structs, with ordinary noise."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.model.gpu_state import GpuProcess, GpuState
from tailrace.model.host_state import CgroupState, HostState, ProcessState, Role
from tailrace.model.thresholds import S
from tailrace.simulate.cost import PS_PER_NS, PS_PER_S
from tailrace.simulate.incidents.site import Site
from tailrace.simulate.incidents.world import Sample
from tailrace.simulate.presets import preset

ENGINE_PID: Final = 4711
GATEWAY_PID: Final = 1203
STRANGER_PID: Final = 9120
_CLOCK: Final = {"a100": 1410.0, "h100": 1980.0}
_LIMIT: Final = {"a100": 400.0, "h100": 700.0}
_PERIOD_S: Final = 0.1
_CPUS: Final = 16


def host_states(site: Site, samples: list[Sample], rng: np.random.Generator, *, wall_ns: int) -> list[HostState]:
    """One an interval between two samples."""
    wear, out = site.wear, []
    step_s = preset(site.preset).accelerator.step_s
    noise = rng.random((len(samples), 5))
    for i in range(1, len(samples)):
        last, this = samples[i - 1], samples[i]
        seconds = (this.at_ns - last.at_ns) / S
        a, b, c, d, e = noise[i].tolist()
        # What the engine's own work a step takes beyond its processor time is time without a processor.
        lacks = 0.0
        if wear.cause in ("quota", "contention") and (this.worn or last.worn):
            lacks = min((wear.host - 1) * step_s * (this.steps - last.steps) / seconds, 0.97)
        quota = wear.cause == "quota"
        periods = round(seconds / _PERIOD_S)
        stopped = round(periods * min(lacks * 1.2, 1.0)) if quota else 0
        busy = min((this.busy_ps - last.busy_ps) / PS_PER_S / seconds, 1.0)
        engine = ProcessState(
            role=Role.ENGINE,
            pids=[ENGINE_PID],
            threads=90,
            cpu_cores=round((0.3 + 0.9 * busy) * (0.9 + 0.2 * a), 3),
            busiest_thread=round(min((0.2 + 0.6 * busy) * (0.9 + 0.2 * b), 1.0), 3),
            worst_thread_wait=round(0.002 + 0.02 * c + (0.0 if quota else lacks), 4),
            wait_share=round(0.002 + 0.01 * d + (0.0 if quota else lacks * 0.6), 4),
            cgroup=CgroupState(
                path="/engine",
                version=2,
                quota_cores=2.0 if quota else None,
                periods=periods if quota else None,
                throttled_periods=stopped if quota else None,
                throttled_ns=round(lacks * seconds * S) if quota else None,
            ),
        )
        gateway = ProcessState(
            role=Role.GATEWAY,
            pids=[GATEWAY_PID],
            threads=6,
            cpu_cores=round(0.05 + 0.15 * e, 3),
            busiest_thread=round(0.05 + 0.13 * e, 3),
            worst_thread_wait=round(0.001 + 0.01 * a, 4),
        )
        crowded = wear.cause == "contention" and lacks > 0
        out.append(
            HostState(
                at_ns=this.at_ns,
                at_unix_ns=wall_ns + this.at_ns,
                interval_ns=this.at_ns - last.at_ns,
                cpus=_CPUS,
                busy=round(min(0.9 + 0.1 * b, 1.0) if crowded else 0.1 + 0.15 * b, 3),
                steal=0.0,
                pressure={"cpu.some": round(min(lacks * (0.7 + 0.3 * c), 1.0) + 0.004 * d, 4)},
                processes=[engine, gateway],
            )
        )
    return out


def gpu_states(site: Site, samples: list[Sample], rng: np.random.Generator, *, wall_ns: int) -> list[GpuState]:
    """One a sample after the first."""
    wear, out = site.wear, []
    name = site.preset.partition("-")[0]
    top, limit = _CLOCK[name], _LIMIT[name]
    noise = rng.random((len(samples), 5))
    # A healthy device under load touches its power limit now and then, for a clock that is some per cent lower.
    touches = rng.random() < 0.25
    heat = 52.0 + 8 * rng.random()
    for i in range(1, len(samples)):
        last, this = samples[i - 1], samples[i]
        a, b, c, d, e = noise[i].tolist()
        busy = min((this.busy_ps - last.busy_ps) / ((this.at_ns - last.at_ns) * PS_PER_NS), 1.0)
        worn = this.worn and last.worn and wear.cause in ("thermal", "power", "neighbour")
        clock, power = top - 15 * round(2 * a), limit * (0.2 + 0.68 * busy) * (0.95 + 0.1 * b)
        reasons: list[str] = []
        target = 62 + 12 * busy
        if worn and wear.cause == "thermal":
            clock, reasons, target = clock * wear.compute, ["sw_thermal"] if c < 0.7 else ["hw_thermal"], 88.0
        elif worn and wear.cause == "power":
            clock, reasons, power = clock * wear.compute, ["sw_power_cap"], limit * (0.97 + 0.03 * b)
        elif touches and busy > 0.5 and c < 0.2:
            clock, reasons, power = clock * (0.96 + 0.03 * d), ["sw_power_cap"], limit * 0.99
        # The card warms within some ten seconds.
        heat += (target - heat) * min((this.at_ns - last.at_ns) / S / 12, 1.0)
        processes = [GpuProcess(pid=ENGINE_PID, name="VLLM::EngineCore", memory_bytes=70 << 30)]
        if worn and wear.cause == "neighbour":
            processes.append(GpuProcess(pid=STRANGER_PID, name="python", memory_bytes=6 << 30))
            busy, power = min(0.9 + 0.1 * d, 1.0), limit * (0.8 + 0.15 * b)
        out.append(
            GpuState(
                index="0",
                at_ns=this.at_ns,
                at_unix_ns=wall_ns + this.at_ns,
                source="nvml",
                name=name.upper(),
                utilisation=round(busy, 3),
                sm_clock_mhz=round(clock),
                max_sm_clock_mhz=top,
                reasons=reasons,
                power_w=round(power, 1),
                power_limit_w=limit,
                temperature_c=round(heat + 2 * e, 1),
                processes=processes,
            )
        )
    return out
