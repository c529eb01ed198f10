"""COMPUTE_POWER_CAP and COMPUTE_THERMAL: the device lowers its clock under load."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from tailrace.diagnose.arm_evidence.clock_on_arms import power_on_arms, thermal_on_arms
from tailrace.diagnose.arm_evidence.clock_stated import clock_stated
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.clock_fall import ClockFall, clock_fall
from tailrace.diagnose.commands import CLOCK_OVER_TIME
from tailrace.diagnose.equal_work import equal_pace, slower_parts
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.hardware import Hardware, shares_of_gpu
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.pace import Pace, compare_pace
from tailrace.diagnose.series_evidence.clock_in_series import clock_in_series
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["PowerCap", "Thermal"]

MUCH: Final = 0.12
VERY_MUCH: Final = 0.25
"""Of the device's own maximum. Less is the usual play of a full device."""
SLOWER: Final = 0.05


class _GpuClock(Cause):
    """The clock fell, and the device says what lowered it."""

    stage: ClassVar[str] = "prefill"
    action: ClassVar[Action] = Action.FIX
    heat: ClassVar[bool]
    why: ClassVar[str]
    advice: ClassVar[str]
    price: ClassVar[str]

    def observe(self, observed: Observed) -> Finding | None:
        """From foreign evidence."""
        return clock_in_series(self, observed, heat=self.heat)

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Clocks must have been read."""
        clocked = any(state.sm_clock_mhz is not None for state in evidence.meanwhile.gpus)
        return "" if clocked else "accelerator clocks over the window (DCGM, NVML or nvidia-smi)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """The largest fall, and whether the requests under it were slower."""
        fall = self._largest(evidence.meanwhile)
        if fall is None:
            return None
        window = evidence.now
        if fall.always:
            return self._always(evidence, fall)
        limited = {id(state) for state in fall.limited}
        shares = shares_of_gpu(window, [(state, float(id(state) in limited)) for state in fall.loaded])
        if shares is None or not window.n:
            return self._found(
                fall, None, missing=["the time zone of the accelerator's log, to lay it beside requests"]
            )
        pace = compare_pace(window, shares)
        if not pace.known:
            return self._found(fall, None, missing=["20 requests under the limit and 20 without it, to compare"])
        if not pace.slower:
            return None  # it fell, and nobody was slower for it: a memory-bound decode does not follow the clock
        explains = window.explain(self.code, pace.explains)
        return self._found(fall, pace, explains_ms=explains) if self.carries(evidence, explains) else None

    def _always(self, evidence: EvidenceSet, fall: ClockFall) -> Finding | None:
        """Limited in every reading: felt if the engine is slower at equal work than in the window before."""
        before, window = evidence.before, evidence.now
        if fall.share < MUCH:
            return None
        if before is None:
            missing = [] if fall.share >= VERY_MUCH else ["requests without the limit (--before FILE)"]
            explains = window.in_tail(window.lost.total) * fall.share
            return self._found(fall, None, explains_ms=explains, missing=missing)
        slower = slower_parts(before, window, least=SLOWER)
        if not slower:
            if fall.share < VERY_MUCH or equal_pace(before, window, "prefill") is not None:
                return None
            # Prefill follows the clock, and no equal prefills are there to show it: so much of the clock is felt.
            explains = window.in_tail(window.lost.total) * fall.share
            return self._found(fall, None, explains_ms=explains, missing=["prefills of equal work in both windows"])
        text = "; ".join(item.words for item in slower)
        found = self._found(fall, None, explains_ms=sum(item.explains for item in slower))
        return msgspec.structs.replace(
            found,
            evidence=[*found.evidence, Evidence(text, "record:chunk_gap_p50_ns, record:prefill_ns", "pace")],
            n=slower[0].n_b,
        )

    def without_requests(self, hardware: Hardware) -> Finding | None:
        """What the readings alone show: the relation, and not whether anybody felt it."""
        fall = self._largest(hardware)
        return None if fall is None else self._found(fall, None, missing=["records of requests from the same time"])

    def _largest(self, hardware: Hardware) -> ClockFall | None:
        falls = [
            fall
            for device, states in hardware.devices().items()
            if (fall := clock_fall(device, states, heat=self.heat)) is not None
        ]
        return max(falls, key=lambda fall: fall.share, default=None)

    def _found(
        self, fall: ClockFall, pace: Pace | None, *, explains_ms: float | None = None, missing: list[str] | None = None
    ) -> Finding:
        source = f"gpu:{fall.limited[0].source or 'readings'}"
        clock = Evidence(
            text=f"SM clock of GPU {fall.device}: {fall.high:.0f} -> {fall.low:.0f} MHz under load, -{fall.share:.1%}",
            source=source,
            name="sm_clock_mhz",
            value=round(fall.low),
            unit="MHz",
        )
        return self.finding(
            statement=f"GPU {fall.device} lowers its SM clock from {fall.high:.0f} to {fall.low:.0f} MHz "
            f"(-{fall.share:.1%}) {self.why}.",
            evidence=[
                clock,
                Evidence(
                    text=f"{len(fall.limited)} of {len(fall.loaded)} readings under load are limited so: "
                    + self._limit_words(fall),
                    source=source,
                    name="limited",
                    value=float(len(fall.limited)),
                ),
                *([Evidence(text=f"requests under the limit: {pace.words()}", source="record")] if pace else []),
            ],
            explains_ms=explains_ms,
            relation=f"1 - {fall.low:.0f} / {fall.high:.0f} = {fall.share:.1%}",
            n=pace.n_inside if pace else 0,
            advice=self.advice,
            price=self.price,
            verify=CLOCK_OVER_TIME,
            missing=missing,
            level=Level.SUSPECTED if missing else Level.CONSISTENT,
        )

    def _limit_words(self, fall: ClockFall) -> str:
        last = fall.limited[-1]
        parts = []
        if last.power_w is not None:
            of = f" of {last.power_limit_w:.0f}" if last.power_limit_w else ""
            parts.append(f"{last.power_w:.0f}{of} W")
        if last.temperature_c is not None:
            parts.append(f"{last.temperature_c:.0f} °C")
        if last.reasons:
            parts.append("reasons " + "+".join(last.reasons))
        return ", ".join(parts)


class PowerCap(_GpuClock):
    """The device is at its power limit and lowers its clock; heat is not what limits it."""

    code: ClassVar[str] = "COMPUTE_POWER_CAP"
    needs: ClassVar[tuple[str, ...]] = (
        "SM clock, power and clock-event reasons over time",
        "requests under the limit and without it",
    )
    disproof: ClassVar[str] = "Its power is below its limit, or the requests under the limit are as fast as the others."
    heat: ClassVar[bool] = False
    why: ClassVar[str] = "because it is at its power limit"
    advice: ClassVar[str] = (
        "Raise the power limit (nvidia-smi -pl), or run fewer prefills at once; otherwise plan with this clock."
    )
    price: ClassVar[str] = "More power and heat, or a longer queue for prefills."

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return surest(
            [super().observe(observed), power_on_arms(self, observed), clock_stated(self, observed, heat=False)]
        )


class Thermal(_GpuClock):
    """The device is too hot and lowers its clock."""

    code: ClassVar[str] = "COMPUTE_THERMAL"
    needs: ClassVar[tuple[str, ...]] = (
        "SM clock and clock-event reasons over time",
        "requests under the limit and without it",
    )
    disproof: ClassVar[str] = "Its clock is flat, or the requests under the limit are as fast as the others."
    heat: ClassVar[bool] = True
    why: ClassVar[str] = "because it is too hot"
    advice: ClassVar[str] = (
        "Look at its cooling (fans, airflow, neighbours), or lower its power limit to what it can cool."
    )
    price: ClassVar[str] = "A lower power limit costs speed at all times; cooling costs money."

    def observe(self, observed: Observed) -> Finding | None:
        """From tables, forms and printed benchmarks."""
        return surest(
            [super().observe(observed), thermal_on_arms(self, observed), clock_stated(self, observed, heat=True)]
        )
