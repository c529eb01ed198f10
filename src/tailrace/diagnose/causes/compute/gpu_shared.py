"""COMPUTE_GPU_SHARED: another process computes on the engine's device."""

from __future__ import annotations

from typing import ClassVar, Final

from tailrace.diagnose.arm_evidence.gpu_shared_observed import gpu_shared_observed
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.equal_work import slower_parts
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.hardware import Hardware, shares_of_gpu
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.pace import compare_pace
from tailrace.diagnose.record_evidence.slower_than_before import slower_than_before
from tailrace.diagnose.series_evidence.strangers_on_devices import strangers_on_devices
from tailrace.model.finding import Action, Evidence, Finding, Level
from tailrace.model.gpu_state import GpuProcess, GpuState

__all__ = ["GpuShared"]

SLOWER: Final = 0.05
CONTEXT_BYTES: Final = 768 << 20
"""A process that only holds a context on the device has some 300 to 600 MB there, and takes no time from anybody."""


class GpuShared(Cause):
    """Tokens are slower while a process that is none of the engine's is on its device."""

    code: ClassVar[str] = "COMPUTE_GPU_SHARED"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "processes on the device (NVML or nvidia-smi)",
        "the engine's own processes among them",
        "requests with and without the other process",
    )
    disproof: ClassVar[str] = "Requests while the other process is there are as fast as those without it."
    action: ClassVar[Action] = Action.FIX

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """The engine's process must be recognised on the device: only then is any other one a stranger."""
        hardware = evidence.meanwhile
        if not any(state.processes is not None for state in hardware.gpus):
            return "processes on the accelerator (NVML or nvidia-smi on the engine's machine)"
        if not any(_strangers(state, hardware) is not None for state in hardware.gpus):
            return "which process on the accelerator is the engine's (signals.engine_pid, in the same pid namespace)"
        return ""

    def observe(self, observed: Observed) -> Finding | None:
        """From tables and forms, or the processes that `nvidia-smi` lists."""
        return surest([gpu_shared_observed(self, observed), strangers_on_devices(self, observed)])

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """A stranger was there for some of the time, and the requests of that time were slower."""
        if self.cannot_run(evidence):
            return None
        window, hardware = evidence.now, evidence.meanwhile
        for device, states in hardware.devices().items():
            known = [(state, found) for state in states if (found := _strangers(state, hardware)) is not None]
            there = [found for _, found in known if found]
            if not there:
                continue
            shares = shares_of_gpu(window, [(state, float(bool(found))) for state, found in known])
            pace = None if shares is None else compare_pace(window, shares)
            if pace is None or not pace.known:
                since = self._since_before(evidence, device, there, len(known))
                if since is not None:
                    return since
                return self._found(
                    device, there, len(known), missing=["20 requests with and 20 without the other process"]
                )
            if not pace.slower:
                continue
            explains = window.explain(self.code, pace.explains)
            if self.carries(evidence, explains):
                return self._found(device, there, len(known), explains_ms=explains, pace=pace.words(), n=pace.n_inside)
        return None

    def _since_before(
        self, evidence: EvidenceSet, device: str, there: list[list[GpuProcess]], readings: int
    ) -> Finding | None:
        """It is there all the time: felt if the engine is slower at equal work than in the window before."""
        before, window = evidence.before, evidence.now
        if before is None:
            return None
        slower = slower_parts(before, window, least=SLOWER)
        if not slower:
            return self._by_expected_pace(evidence, device, there, readings)
        words = "; ".join(f"{item.words} since the window before" for item in slower)
        explains = sum(item.explains for item in slower)
        return self._found(device, there, readings, explains_ms=explains, pace=words, n=slower[0].n_b)

    def _by_expected_pace(
        self, evidence: EvidenceSet, device: str, there: list[list[GpuProcess]], readings: int
    ) -> Finding | None:
        """A slower engine has so much more under way that no equal company is left to compare."""
        found = slower_than_before(evidence, self.code)
        if found is None:
            return None
        return self._found(device, there, readings, explains_ms=found.explains, pace=found.relation, n=found.n)

    def _found(
        self,
        device: str,
        there: list[list[GpuProcess]],
        readings: int,
        *,
        explains_ms: float | None = None,
        pace: str = "",
        n: int = 0,
        missing: list[str] | None = None,
    ) -> Finding:
        largest = max((process for some in there for process in some), key=lambda process: process.memory_bytes or 0)
        held = "" if largest.memory_bytes is None else f", {largest.memory_bytes / (1 << 30):.1f} GiB"
        name = f"{largest.name or 'a process'} (pid {largest.pid}{held})"
        return self.finding(
            statement=f"Another process computes on the engine's GPU {device}: {name}.",
            evidence=[
                Evidence(
                    text=f"{name} is on GPU {device} in {len(there)} of {readings} readings",
                    source="gpu:processes",
                    name="foreign_process",
                    value=float(largest.pid),
                ),
                *([Evidence(text=f"requests meanwhile: {pace}", source="record")] if pace else []),
            ],
            explains_ms=explains_ms,
            relation=pace or f"present in {len(there)} / {readings} readings",
            n=n,
            advice="Give the engine a device of its own, or move the other process; if both must stay, partition it.",
            price="A device more, or the other work runs elsewhere.",
            verify=(
                "tailrace bench http://localhost:8000 --rate 5 --duration 60 --out alone.run && tailrace "
                "compare before.run alone.run  # without the other process: nvidia-smi "
                "--query-compute-apps=pid,process_name,used_memory --format=csv"
            ),
            missing=missing,
            level=Level.SUSPECTED if missing else Level.CONSISTENT,
        )


def _strangers(state: GpuState, hardware: Hardware) -> list[GpuProcess] | None:
    """Processes on the device that are none of the engine's and hold more than a context.

    `None` where the engine's own is not seen there: then nobody is known to be a stranger.
    """
    here = state.processes
    engine = set(hardware.engine_pids)
    if here is None or not engine & {process.pid for process in here}:
        return None
    return [
        process
        for process in here
        if process.pid not in engine and (process.memory_bytes is None or process.memory_bytes >= CONTEXT_BYTES)
    ]
