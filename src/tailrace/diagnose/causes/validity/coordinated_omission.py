"""BENCH_COORDINATED_OMISSION: the clock was started when the request was sent, not when it should have been."""

from __future__ import annotations

import re
from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.arms.again import MEASURE
from tailrace.diagnose.arms.as_written import seen, shown
from tailrace.diagnose.arms.asked import concurrency_of
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Arm, Observed, Rows
from tailrace.diagnose.record_evidence.late_sends import late_sends
from tailrace.model.finding import Action, Evidence, Finding, Level
from tailrace.stats.quantiles import needed, quantile, supported

__all__ = ["CoordinatedOmission"]

OFF: Final = 1.2
"""Mean (or p99) from the schedule / from the send."""
LEAST_MS: Final = 20.0
_ADVICE: Final = (
    "Keep both stamps of every request (intended and send) and report both latencies; compare by the intended one. "
    "Raise the concurrency limit or lower the rate until nothing waits at the client."
)
_PRICE: Final = "Latencies from the schedule are longer, and cannot be compared with older reports."


class CoordinatedOmission(Cause):
    """Latency from the intended start far above latency from the send."""

    code: ClassVar[str] = "BENCH_COORDINATED_OMISSION"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("t_intended and t_send of each request",)
    disproof: ClassVar[str] = "The difference between the two stamps is about 0."
    action: ClassVar[Action] = Action.COLLECT
    ends: ClassVar[bool] = True

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Records that were sent late."""
        return late_sends(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """Two stamps; a delay before the send; a rate that the limit cannot carry."""
        found = [self._rows(rows, observed) for rows in observed.table("requests")]
        found += [self._delay(arm) for arm in observed.arms]
        found += [self._two(arm) for arm in observed.arms]
        found += [self._limit(arm, observed) for arm in observed.arms]
        found.append(self._two_rows(observed.arms))
        return surest(found)

    def _rows(self, rows: Rows, observed: Observed) -> Finding | None:
        intended, send, last = (rows.numbers(name) for name in ("t_intended_ms", "t_send_ms", "t_last_ms"))
        known = np.isfinite(intended) & np.isfinite(send) & np.isfinite(last) & (last >= send)
        if not known.any():
            return None
        ours, theirs = (last - intended)[known], (last - send)[known]
        late = (send - intended)[known]
        n = int(known.sum())
        mean = (float(theirs.mean()), float(ours.mean()))
        tail = (quantile(theirs, 0.99), quantile(ours, 0.99))
        if float(late.mean()) < LEAST_MS or max(mean[1] / max(mean[0], 1e-9), tail[1] / max(tail[0], 1e-9)) < OFF:
            return None
        source = str(rows.place)
        limit, rate = observed.number("max_concurrency"), observed.number("request_rate")
        evidence = [
            Evidence(
                text=f"from the send: mean {mean[0]:.0f} ms, p99 {tail[0]:.0f} ms (n = {n})", source=source,
                name="from_send.mean", value=round(mean[0], 1), unit="ms",
            ),
            Evidence(
                text=f"from the intended start: mean {mean[1]:.0f} ms, p99 {tail[1]:.0f} ms", source=source,
                name="from_intended.mean", value=round(mean[1], 1), unit="ms",
            ),
            Evidence(
                text=f"sent {float(late.mean()):.0f} ms late on average, at most {late.max():.0f} ms", source=source,
                name="late.mean", value=round(float(late.mean()), 1), unit="ms",
            ),
        ]  # fmt: skip
        extra = ""
        if rate and limit:
            need = rate * mean[0] / 1e3
            extra = f"; {rate:g}/s x {mean[0] / 1e3:.3g} s = {need:.3g} at once, the limit is {limit:g}"
            evidence.append(
                Evidence(
                    text=f"offered {rate:g}/s with at most {limit:g} at once", source=str(_place(observed)),
                    name="max_concurrency", value=limit,
                )
            )  # fmt: skip
        few = "" if supported(0.99, n) else f" With n = {n} the p99 is about the maximum ({needed(0.99)} support one)."
        return self.finding(
            statement=f"Coordinated omission: from the intended start requests took {mean[1]:.0f} ms on average, "
            "from the "
            f"send {mean[0]:.0f} ms (p99 {tail[1]:.0f} and {tail[0]:.0f} ms). The wait at the client is not in the "
            "latter."
            f"{few}",
            evidence=evidence
            + (
                []
                if supported(0.99, n)
                else [Evidence(text=f"{needed(0.99)} requests support a p99", source="n(1 - p) >= 5")]
            ),
            explains_ms=mean[1] - mean[0],
            relation=f"{mean[0]:.0f} + {float(late.mean()):.0f} = {mean[1]:.0f} ms{extra}",
            n=n,
            advice=_ADVICE,
            price=_PRICE,
            verify=MEASURE,
            disproof_checked=[f"send - intended is {float(late.mean()):.0f} ms on average, not about 0"],
        )

    def _delay(self, arm: Arm) -> Finding | None:
        """A summary that tells the delay before the send beside the latency."""
        late = arm.quoted("late", "mean", "p50", "p99", "")
        whole = None if late is None else arm.quoted("e2e", late.stat, "mean", "p50")
        if late is None or whole is None or late.relative or whole.relative or late.unit != whole.unit:
            return None
        if late.value < max(LEAST_MS, (OFF - 1.0) * whole.value):
            return None
        return self._said(
            arm, whole.value, whole.value + late.value, [seen(arm, whole), seen(arm, late)], late.stat or "one"
        )

    def _two(self, arm: Arm) -> Finding | None:
        """A table with both: `reported` and `true`, `from send` and `from schedule`."""
        for stat in ("mean", "p50", "p99", ""):
            found = [
                v for v in arm.values.values() if v.quantity in {"e2e", "ttft"} and v.stat == stat and not v.relative
            ]
            ours = next((v for v in found if _OURS & set(f"{v.qualifier} {v.label}".lower().split())), None)
            theirs = next((v for v in found if v is not ours and (ours is None or v.quantity == ours.quantity)), None)
            if ours is None or theirs is None or theirs.value <= 0 or ours.value < OFF * theirs.value:
                continue
            return self._said(arm, theirs.value, ours.value, [seen(arm, theirs), seen(arm, ours)], stat or "one")
        return None

    def _two_rows(self, arms: list[Arm]) -> Finding | None:
        """One row from the send, one from the intended start, of the same latency."""
        for ours in arms:
            for theirs in arms:
                if not (_FROM_SCHEDULE.search(ours.label) and _FROM_SEND.search(theirs.label)):
                    continue
                if ours.place.source != theirs.place.source or _FROM_SCHEDULE.search(theirs.label):
                    continue
                for name, stat in ((name, stat) for name in ("e2e", "ttft") for stat in ("mean", "p50", "p99", "")):
                    long, short = ours.quoted(name, stat), theirs.quoted(name, stat)
                    if long is None or short is None or long.relative or short.relative or short.value <= 0:
                        continue
                    if long.unit == short.unit == "ms" and long.value >= OFF * short.value + LEAST_MS:
                        both = [seen(theirs, short), seen(ours, long)]
                        tails = [(arm, arm.quoted(name, "p99")) for arm in (theirs, ours) if stat != "p99"]
                        both += [seen(arm, tail) for arm, tail in tails if tail is not None]
                        return self._said(theirs, short.value, long.value, both, stat or "one")
        return None

    def _said(self, arm: Arm, theirs: float, ours: float, evidence: list[Evidence], stat: str) -> Finding:
        total = Evidence(
            text=f"from the intended start {stat} {shown(ours, 'ms')}", source=str(arm.place) or "facts",
            name="from_intended", value=ours, unit="ms",
        )  # fmt: skip
        return self.finding(
            statement=f"Coordinated omission: {arm.name} reports {shown(theirs, 'ms')} from the send, but from the "
            "intended "
            f"start it is {shown(ours, 'ms')}: the wait at the client is not in the former.",
            evidence=[*evidence, total],
            explains_ms=ours - theirs,
            relation=f"{shown(theirs)} + {shown(ours - theirs)} = {shown(ours)} ms",
            n=int(arm.get("n") or 0),
            advice=_ADVICE,
            price=_PRICE,
            verify=MEASURE,
        )

    def _limit(self, arm: Arm, observed: Observed) -> Finding | None:
        """Offered rate x latency above the limit of requests at once: the client must wait, and where that wait went
        nobody said.
        """
        whole = arm.quoted("e2e", "mean", "p50")
        rate = arm.get("offered_rps") or observed.number("request_rate", "offered_rps")
        limit = concurrency_of(arm, observed)
        if whole is None or whole.unit != "ms" or not rate or not limit or whole.relative:
            return None
        need = rate * whole.value / 1e3
        if need < 1.5 * limit:
            return None
        return self.finding(
            statement=f"{rate:g} requests/s of {shown(whole.value, 'ms')} need {need:.3g} at once, the limit is "
            f"{limit:g}: "
            "requests wait at the client, and latencies from the send leave that out.",
            evidence=[
                seen(arm, whole),
                Evidence(
                    text=f"offered {rate:g}/s, at most {limit:g} at once: {need:.3g} needed",
                    source=str(_place(observed)),
                ),
            ],
            explains_ms=None,
            relation=f"{rate:g} x {whole.value / 1e3:.3g} s = {need:.3g} > {limit:g}",
            n=int(arm.get("n") or 0),
            advice=_ADVICE,
            price=_PRICE,
            verify=MEASURE,
            missing=["the intended and the send stamp of each request: tools differ in where their timer starts"],
            rivals=["SCHED_QUEUE_SATURATION"],
            level=Level.SUSPECTED,
        )


_FROM_SCHEDULE: Final = re.compile(r"intended|schedul\w*|planned|corrected", re.IGNORECASE)
_FROM_SEND: Final = re.compile(r"\b(?:send|sent|sending|actual start|issue[ds]?)\b", re.IGNORECASE)
_OURS: Final = frozenset(
    {"true", "intended", "schedule", "scheduled", "corrected", "uncorrected-free", "real", "actual"}
)


def _place(observed: Observed) -> object:
    found = observed.setting("max_concurrency", "request_rate")
    return "facts" if found is None else found.place
