"""MIX_BURSTY_ARRIVALS: requests come in bursts: they queue although the server is mostly idle."""

from __future__ import annotations

import re
from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.arm_evidence.bursts_on_arms import bursts_on_arms
from tailrace.diagnose.arm_evidence.server_figures import server_figures
from tailrace.diagnose.arms.arrivals import VARIATION, cv_stated
from tailrace.diagnose.arms.measures import measures_of
from tailrace.diagnose.arms.whole_tables import part_of
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Arm, Observed
from tailrace.diagnose.readers.request_arms import arms_of_requests
from tailrace.diagnose.record_evidence.bursts import bursts_in_records
from tailrace.diagnose.series_evidence.queue_mean import QueueMean, queue_mean
from tailrace.model.finding import Evidence, Finding, Level

__all__ = ["Bursty"]

_RATES: Final = (
    "offered_rps",
    "completed_rps",
    "req_s",
    "mean_rate_rps",
    "rate_rps",
    "rps",
    "mean_rate",
    "arrival_rate",
)
SHARE: Final = 0.5
BUSY: Final = 0.75
"""A server that is busy for less of the time queues only what comes together."""
UNEVEN: Final = 1.5
EVEN: Final = 0.5
LEAST_ARRIVALS: Final = 20
FEWEST_ARRIVALS: Final = 12
_WORK: Final = re.compile(r"service|compute|infer|process|execut", re.IGNORECASE)


class Bursty(Cause):
    """Queue time makes most of a request while the mean rate keeps the server busy for a small part of the time."""

    code: ClassVar[str] = "MIX_BURSTY_ARRIVALS"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = ("queue and compute time over a window", "the arrivals (send stamps)")
    disproof: ClassVar[str] = "The arrivals are regular (coefficient of variation near 0)."

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """From records and timelines."""
        return bursts_in_records(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From counters and the mean rate; from stamps where they are there."""
        mean = queue_mean(observed)
        cv = _cv(observed)
        parted = None if mean is not None else self._of_parts(observed)
        if parted is not None:
            return parted
        if mean is None and cv is not None and cv[0] >= UNEVEN:
            mean = _stated_mean(observed)
        if cv is not None and cv[0] < EVEN:
            return None
        if mean is None or mean.share <= SHARE:
            return bursts_on_arms(self, observed)
        rate = mean.n / mean.window_s if mean.window_s else observed.number(*_RATES)
        instances = observed.number("instances", "instance_count", "count") or 1.0
        busy = rate * mean.compute_ms / 1e3 / instances if rate else None
        if busy is not None and busy >= BUSY:
            return None  # it is full, whatever the arrivals
        delay = observed.number("batch_delay_us", "max_queue_delay_microseconds")
        stated = server_figures(observed).delay
        window = delay / 1e3 if delay is not None else stated.value if stated is not None else None
        if window is not None and mean.queue_ms <= 1.3 * window:
            return None  # the batcher waits on purpose
        return self._found(observed, mean, cv, rate, busy, _even(observed, mean))

    def _of_parts(self, observed: Observed) -> Finding | None:
        """A table of several arms: each has arrivals of its own, and an even one beside is a benchmark of the same."""
        for rows in observed.table("requests"):
            names = [name for name in rows.members("arm") if name]
            if len(names) < 2:
                continue
            arms = np.array(rows.texts("arm"), dtype=object)
            parts = {name: Observed(rows=[part_of(rows, arms == name)]) for name in names}
            told = [(name, cv, mean) for name, part in parts.items()
                    if (cv := _cv(part)) is not None and (mean := _stated_mean(part)) is not None]  # fmt: skip
            uneven = [one for one in told if one[1][0] >= UNEVEN and one[2].share > SHARE]
            if not uneven:
                continue
            _, cv, mean = max(uneven, key=lambda one: one[2].queue_ms)
            rate = mean.n / mean.window_s if mean.window_s else None
            busy = rate * mean.compute_ms / 1e3 if rate else None
            if busy is not None and busy >= BUSY:
                continue
            calm = [
                (arm, whole)
                for other, other_cv, other_mean in told
                if other_cv[0] < EVEN and other_mean.queue_ms < 0.2 * mean.queue_ms
                for arm in arms_of_requests(Observed(rows=[rows]))
                if arm.label == other and (whole := arm.get("ttft", "p99", "p95", "mean")) is not None
            ]
            return self._found(observed, mean, cv, rate, busy, calm[0] if calm else None)
        return None

    def _found(
        self,
        observed: Observed,
        mean: QueueMean,
        cv: tuple[float, int, str] | None,
        rate: float | None,
        busy: float | None,
        even: tuple[Arm, float] | None,
    ) -> Finding:
        queue, work = (f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}" for ms in (mean.queue_ms, mean.compute_ms))
        share = f"{mean.share:.0%}".replace("%", " %")
        missing, rivals = [], []
        evidence = [
            Evidence(
                text=f"queue {queue} ms and compute {work} ms a request "
                f"({f'mean of {mean.n:.0f}' if mean.n else 'as stated'}): the queue is {share}",
                source=mean.place,
                name="queue_mean",
                value=mean.queue_ms,
                unit="ms",
            )
        ]
        relation = [f"{queue}/({queue} + {work}) = {share}"]
        if rate is None or busy is None:
            missing.append("the length of the window (window_s), for the rate at which requests came")
        else:
            relation.append(f"{rate:.4g}/s x {work} ms = {busy:.0%} busy")
            evidence.append(
                Evidence(
                    text=f"{rate:.4g} requests a second keep it busy {busy:.0%} of the time",
                    source=mean.place,
                    name="busy",
                    value=busy,
                )
            )
        if cv is None:
            missing.append("the arrivals one by one (send stamps): their coefficient of variation decides")
        else:
            evidence.append(
                Evidence(
                    text=f"the times between arrivals vary by {cv[0]:.2f} (coefficient of variation, "
                    f"{f'n = {cv[1]}' if cv[1] else 'as stated'}; 1 is Poisson)",
                    source=cv[2],
                    name="cv",
                    value=cv[0],
                )
            )
            relation.append(f"CV {cv[0]:.2f}")
        if even is not None:
            arm, slow = even
            evidence.append(
                Evidence(
                    text=f"an evenly paced benchmark ({arm.label or arm.name}) sees {slow:.4g} ms at its slow end at "
                    "the same "
                    "server",
                    source=str(arm.place),
                    name="benchmark",
                    value=slow,
                    unit="ms",
                )
            )
        settled = cv is not None and cv[0] >= UNEVEN
        if not settled and observed.number("batch_delay_us", "max_queue_delay_microseconds") is None:
            rivals.append("SCHED_BATCHER_WAIT: the batcher's own delay is not known")
        return self.finding(
            statement=f"Requests come in bursts: they queue {queue} ms for {work} ms of compute ({share} of the two)"
            + (f" although the server is busy only {busy:.0%} of the time" if busy is not None else "")
            + (", and an evenly paced benchmark does not see it." if even is not None else "."),
            evidence=evidence,
            explains_ms=mean.queue_ms,
            relation="; ".join(relation),
            n=int(mean.n) or 1,
            advice="Test with Poisson arrivals or a trace of the real ones, not with an even pace; smooth the bursts "
            "where "
            "they are made (timers that fire together, batch jobs), let the batcher gather them "
            "(`max_queue_delay_microseconds`, preferred batch sizes), and keep an instance spare for the peak.",
            price="Smoothing and batching make single requests wait a little; a spare instance costs memory.",
            verify=(
                f"tailrace bench http://localhost:8000 --rate {rate or 100:.3g} --arrival poisson "
                f"--duration 60 --out poisson.run && tailrace bench http://localhost:8000 --rate {rate or 100:.3g} "
                "--arrival constant --duration 60 --out even.run && tailrace compare even.run poisson.run"
            ),
            missing=missing,
            rivals=[] if settled else rivals,
            disproof_checked=[
                f"the arrivals are not regular: CV {cv[0]:.2f}" if cv is not None else "the arrivals were not given"
            ],
            level=Level.CONSISTENT if not missing and settled else Level.SUSPECTED,
        )


def _cv(observed: Observed) -> tuple[float, int, str] | None:
    """(coefficient of variation of the times between sends, n or 0 where it is only stated, where)."""
    for rows in observed.table("requests"):
        stamps = rows.numbers("t_intended_ms") if rows.has("t_intended_ms") else rows.numbers("t_send_ms")
        stamps = np.sort(stamps[np.isfinite(stamps)])
        least = LEAST_ARRIVALS if queue_mean(observed) is not None else FEWEST_ARRIVALS
        if stamps.size >= least and stamps[-1] > stamps[0]:
            between = np.diff(stamps)
            return float(between.std() / max(between.mean(), 1e-12)), int(stamps.size), str(rows.place)
    if len(observed.arms) > 1:
        return None  # each has its own: the pair is judged
    groups = measures_of(observed)
    stated = next((found for group in groups if (found := group.find(VARIATION, "service|ttft|run"))), None)
    value = None if stated is None else cv_stated(stated.words, stated.value)
    return None if stated is None or value is None else (value, 0, stated.place)


def _stated_mean(observed: Observed) -> QueueMean | None:
    """Queue and compute time by request, or as a form states their means."""
    for rows in observed.table("requests"):
        # Streams decode together: of an engine that tells its stages, what is done one after the other is the prefill.
        works = [*(name for name in rows.columns if _WORK.search(name)), "prefill_ms"]
        work = next((name for name in works if rows.has(name)), "")
        if rows.has("queue_ms") and work:
            queue, took, sent = rows.numbers("queue_ms"), rows.numbers(work), rows.numbers("t_send_ms")
            known = np.isfinite(queue) & np.isfinite(took)
            if known.any():
                span = float(np.nanmax(sent) - np.nanmin(sent)) / 1e3 if np.isfinite(sent).any() else None
                means = float(queue[known].mean()), float(took[known].mean())
                return QueueMean(*means, float(known.sum()), span or None, str(rows.place))
    for group in measures_of(observed):
        waited = next((m for m in group.own + group.common if m.ms and re.search(r"queue", m.words)), None)
        worked = next((m for m in group.own + group.common if m.ms and _WORK.search(m.words)), None)
        if waited is not None and worked is not None:
            return QueueMean(waited.ms or 0.0, worked.ms or 0.0, 0.0, None, waited.place)
    return None


def _even(observed: Observed, mean: QueueMean) -> tuple[Arm, float] | None:
    """A benchmark of the same server whose slow end is below what the queue alone takes here."""
    for arm in observed.arms:
        slow = arm.get("e2e", "p99", "p95", "max", "p90")
        if slow is not None and slow < mean.queue_ms:
            return arm, slow
    return None
