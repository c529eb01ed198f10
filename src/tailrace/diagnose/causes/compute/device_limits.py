"""COMPUTE_MEMORY_BOUND and COMPUTE_COMM: what the device is busy with while decoding is slow."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arm_evidence.comm_observed import comm_observed
from tailrace.diagnose.arm_evidence.memory_bound_observed import memory_bound_observed
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding
from tailrace.model.gpu_state import GpuState

__all__ = ["Comm", "MemoryBound"]

DRAM: Final = 0.6
SM_LOW: Final = 0.5
LEAST: Final = 3
AT_LINK: Final = 0.7
FLAT: Final = 1.15
GIB: Final = 1e9
NVLINK: Final = {
    "B200": 900.0,
    "GB200": 900.0,
    "H100": 450.0,
    "H200": 450.0,
    "H800": 200.0,
    "A100": 300.0,
    "A800": 200.0,
    "V100": 150.0,
}
"""NVLink of all links, GB/s in one direction, by the device's name (vendor data sheets)."""
PCIE: Final = {
    "B200": 64.0,
    "H100": 64.0,
    "H200": 64.0,
    "L40": 32.0,
    "L4": 32.0,
    "A100": 32.0,
    "A10": 32.0,
    "4090": 32.0,
    "3090": 32.0,
    "5090": 64.0,
    "T4": 16.0,
}
"""PCIe x16, GB/s in one direction, by the device's name."""


class _Pace(NamedTuple):
    tpot_ms: float
    bound_ms: float
    explains: float


def _slow_decode(evidence: EvidenceSet) -> _Pace | None:
    """Whether decoding itself misses its objective: the pace at p50 or p99, and what the slow ones lose by it."""
    window = evidence.now
    bounds = evidence.objectives.bounds.get("tpot", {})
    pace = window.done.ms("tpot")
    rows = ~np.isnan(pace)
    if not bounds or rows.sum() < 20:
        return None
    bound = min(bounds.values()) / 1e6
    middle = float(np.median(pace[rows]))
    if middle < 0.7 * bound:
        return None
    tokens = np.nan_to_num(window.done.column("output_tokens"), nan=0.0)
    slow = rows & (pace >= np.quantile(pace[rows], 0.95))
    return _Pace(middle, bound, float((np.maximum(pace - 0.5 * bound, 0.0) * tokens)[slow].mean()))


class MemoryBound(Cause):
    """Decoding waits for memory: the DRAM interface is busy, the processors are not."""

    code: ClassVar[str] = "COMPUTE_MEMORY_BOUND"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("DRAM and SM (or tensor) activity from DCGM", "TPOT and its objective")
    disproof: ClassVar[str] = "The tensor pipe is as busy, or a larger batch costs as much time as two small ones."
    action: ClassVar[Action] = Action.TUNE

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Profiling counters of the device."""
        seen = any(state.dram_active is not None for state in evidence.meanwhile.gpus)
        return "" if seen else "DRAM activity of the accelerator (DCGM_FI_PROF_DRAM_ACTIVE)"

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return memory_bound_observed(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """DRAM active above 60 %, SM or tensor pipe below 50 %, TPOT near or above its objective."""
        if self.cannot_run(evidence):
            return None
        pace = _slow_decode(evidence)
        device = _busiest(evidence, "dram_active")
        if pace is None or device is None:
            return None
        name, states = device
        dram = _median(states, "dram_active")
        other, word = (_median(states, "tensor_active"), "tensor pipe")
        if other is None:
            other, word = _median(states, "sm_active"), "SM"
        if dram is None or dram < DRAM or (other is not None and other >= SM_LOW):
            return None
        missing = [] if other is not None else ["SM or tensor activity of the same time (DCGM)"]
        batch = _batch(evidence.now)
        return self.finding(
            statement=f"Decoding is bound by memory: DRAM of GPU {name} is active {dram:.0%} of the time"
            + (f", its {word} {other:.0%}" if other is not None else "")
            + f", and a token takes {pace.tpot_ms:.1f} ms.",
            evidence=[
                Evidence(
                    f"DRAM active {dram:.0%}"
                    + (f", {word} active {other:.0%}" if other is not None else "")
                    + f" (medians, n = {len(states)}, GPU {name})",
                    f"gpu:{states[0].source or 'readings'}",
                    "dram_active",
                    round(dram, 4),
                ),
                Evidence(
                    f"TPOT p50 {pace.tpot_ms:.1f} ms, objective {pace.bound_ms:.0f} ms",
                    "record:tpot_ns",
                    "tpot_ms",
                    round(pace.tpot_ms, 2),
                    "ms",
                ),
                *(
                    [Evidence(f"batch {batch:.0f} (median)", "record:running_at_first_token", "batch", batch)]
                    if batch
                    else []
                ),
            ],
            explains_ms=pace.explains,
            relation=f"DRAM {dram:.0%} > {DRAM:.0%}"
            + (f" and {word} {other:.0%} < {SM_LOW:.0%}" if other is not None else ""),
            n=len(states),
            advice="Move fewer bytes a token: quantise the weights (FP8, INT4) or the KV cache (kv_cache_dtype fp8), "
            "shorten the contexts, or split the model over more devices; a larger batch is nearly free while it fits. "
            "A higher clock changes nothing.",
            price="Quantisation may cost quality; more devices cost money.",
            verify=evidence.verify_command,
            missing=missing,
            disproof_checked=[f"{word} active {other:.0%}"] if other is not None else [],
        )


class Comm(Cause):
    """The traffic between devices is at the link's limit, and the processors wait for it."""

    code: ClassVar[str] = "COMPUTE_COMM"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("NVLink or PCIe traffic from DCGM", "SM activity", "the link's limit")
    disproof: ClassVar[str] = "Traffic is below the link's limit, or the processors are full."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Traffic of the device."""
        seen = any(_traffic(state)[0] for state in evidence.meanwhile.gpus)
        return "" if seen else "NVLink or PCIe traffic of the accelerator (DCGM)"

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return comm_observed(self, observed)

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Traffic above 70 % of the link, SM below 50 %; without a known limit, traffic that is flat at its top."""
        if self.cannot_run(evidence):
            return None
        devices = {
            name: loaded
            for name, states in evidence.meanwhile.devices().items()
            if len(loaded := [state for state in states if _traffic(state)[0]]) >= LEAST
        }
        if len(evidence.meanwhile.devices()) < 2 or not devices:
            return None  # one device has nobody to talk to
        pace = _slow_decode(evidence)
        if pace is None:
            return None
        name, states = max(devices.items(), key=lambda item: float(np.median([_traffic(s)[0] for s in item[1]])))
        values = np.array([_traffic(state)[0] for state in states])
        link = _traffic(states[0])[1]
        limit = _limit(states[0].name, link)
        middle, top = float(np.median(values)) / GIB, float(np.quantile(values, 0.95)) / GIB
        at_limit = limit is not None and middle >= AT_LINK * limit
        flat = limit is None and top <= FLAT * middle and middle >= 10.0
        busy = _median(states, "sm_active")
        tensor = _median(states, "tensor_active")
        low = min((value for value in (busy, tensor) if value is not None), default=None)
        if not (at_limit or flat) or (low is not None and low >= SM_LOW):
            return None
        missing = []
        if limit is None:
            missing.append(f"the limit of the {link} link of this device")
        if low is None:
            missing.append("SM or tensor activity of the same time (DCGM)")
        of = f", {middle / limit:.0%} of the {limit:.0f} GB/s that the link has" if limit else ", flat at its top"
        return self.finding(
            statement=f"The link between the devices is full: {middle:.1f} GB/s over {link} at GPU {name}{of}, while "
            f"a token takes {pace.tpot_ms:.1f} ms.",
            evidence=[
                Evidence(
                    f"{link} {middle:.1f} GB/s (median), {top:.1f} GB/s (p95) at GPU {name}{of} (n = {len(states)})",
                    f"gpu:{states[0].source or 'readings'}",
                    "link_gb_per_s",
                    round(middle, 2),
                    "GB/s",
                ),
                *(
                    [Evidence(f"SM or tensor active {low:.0%}", "gpu", "sm_active", round(low, 4))]
                    if low is not None
                    else []
                ),
                Evidence(
                    f"TPOT p50 {pace.tpot_ms:.1f} ms, objective {pace.bound_ms:.0f} ms",
                    "record:tpot_ns",
                    "tpot_ms",
                    round(pace.tpot_ms, 2),
                    "ms",
                ),
            ],
            explains_ms=pace.explains,
            relation=f"traffic / link = {middle:.1f} / {limit:.0f} GB/s"
            if limit
            else f"p95 / p50 = {top / middle:.2f}",
            n=len(states),
            advice="Look at the topology (nvidia-smi topo -m): tensor parallel only over NVLink, pipeline or data "
            "parallel "
            "over PCIe; fewer ranks of a smaller or quantised model; NCCL's choice of transport (NCCL_DEBUG=INFO).",
            price="Fewer ranks leave less memory for the KV cache.",
            verify=evidence.verify_command + "  # and nvidia-smi topo -m",
            missing=missing,
            disproof_checked=[f"SM or tensor active {low:.0%}"] if low is not None else [],
        )


def _busiest(evidence: EvidenceSet, field: str) -> tuple[str, list[GpuState]] | None:
    devices = {
        name: known
        for name, states in evidence.meanwhile.devices().items()
        if len(known := [state for state in states if getattr(state, field) is not None]) >= LEAST
    }
    if not devices:
        return None
    return max(devices.items(), key=lambda item: _median(item[1], field) or 0.0)


def _median(states: list[GpuState], field: str) -> float | None:
    known = [value for state in states if (value := getattr(state, field)) is not None]
    return float(np.median(known)) if known else None


def _traffic(state: GpuState) -> tuple[float, str]:
    """(bytes/s in the fuller direction, which link): NVLink where it moves anything, else PCIe; 0 where unknown."""
    nvlink = max(state.nvlink_tx_bytes_per_s or 0.0, state.nvlink_rx_bytes_per_s or 0.0)
    pcie = max(state.pcie_tx_bytes_per_s or 0.0, state.pcie_rx_bytes_per_s or 0.0)
    return (nvlink, "NVLink") if nvlink > pcie else (pcie, "PCIe")


def _limit(name: str, link: str) -> float | None:
    table = NVLINK if link == "NVLink" else PCIE
    return next((value for part, value in table.items() if part in name.upper()), None)


def _batch(window: Window) -> float | None:
    seen = window.done.column("running_at_first_token")
    seen = seen[~np.isnan(seen)]
    return float(np.median(seen)) if seen.size else None
