"""PREPROCESS_SLOW, POSTPROCESS_SLOW: a stage of the user's own service is what is slow, not the model behind it.

Two kinds of evidence. Where a service before the gateway reports its requests: those whose time is over in the stage.
Where one behind it reports its stages (`Server-Timing`, spans): the part of the tail that the stage carries.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Final

import msgspec
import numpy as np

from tailrace.diagnose.applications import ApplicationWindow
from tailrace.diagnose.arm_evidence.stage_on_arms import stage_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.log_evidence.served import preprocess_in_served
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.symptoms import more_often_than
from tailrace.diagnose.window import tail_of
from tailrace.model.finding import Action, Evidence, Finding, Level
from tailrace.store.table import RecordTable

__all__ = ["PostprocessSlow", "PreprocessSlow", "StageSlow"]

MOST: Final = 0.5
"""The stage is the cause if it has at least this share of what is late, or of the tail's excess."""
LATE_SHARE: Final = 0.01
MIN_OVER: Final = 8
MIN_LATE: Final = 3
MIN_WELL: Final = 5
"""Requests that ran in time, to compare with; fewer leave open whether the stage is ever fast."""
KNOWN: Final = 0.9
LARGE: Final = 0.04
MANY: Final = 0.4
"""Of the requests, those of which the stage must be known: answers that are not streamed have no last token."""


class StageSlow(Cause):
    """Shared by them; the subclasses name the stage."""

    needs: ClassVar[tuple[str, ...]] = (
        "records of the service before the gateway, or the stage reported by one behind it",
        "stage times of requests that ran in time",
    )
    action: ClassVar[Action] = Action.FIX
    of_applications: ClassVar[bool] = True
    advice: ClassVar[str]
    part: ClassVar[str] = ""
    """What the stage is called where no part of it is known."""

    def cannot_run(self, evidence: EvidenceSet) -> str:
        """Nobody but a service knows its stages."""
        known = len(evidence.applications) or not np.isnan(evidence.now.done.ms(self.stage)).all()
        return "" if known else f"{self.stage} times reported by the service (tailrace.stages, or Server-Timing)"

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """By the service's own records where there are some, else by the gateway's."""
        if len(evidence.applications):
            found = self._by_budgets(evidence.application)
            if found is not None:
                return found
        return self._after_tokens(evidence) if self.stage == "postprocess" else self._by_tail(evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """From rows of a table that tell the stage's time."""
        return stage_on_arms(self, observed, advice=self.advice.format(part=self.part or self.stage))

    # -- requests whose time is over in the stage

    def _by_budgets(self, window: ApplicationWindow) -> Finding | None:
        parts = window.late_in(self.stage)
        rows = np.array([bool(part) for part in parts], dtype=bool)
        count, late = int(rows.sum()), int(window.late.sum())
        if count < MIN_LATE or not more_often_than(count, window.n, LATE_SHARE) or count < MOST * late:
            return None
        part, times = Counter(name for name in parts if name).most_common(1)[0]
        here = np.array([name == part for name in parts], dtype=bool)
        spent = window.part_ms(part)
        usual = spent[window.well & ~np.isnan(spent)]
        known = spent[here & ~np.isnan(spent)]
        missing = []
        if known.size < KNOWN * times:
            missing.append(f"how long {part} took in the requests that ended there")
        if usual.size < MIN_WELL:
            missing.append(f"{MIN_WELL} requests in which {part} was in time (n = {usual.size})")
        shares = known / np.maximum(window.table.ms("e2e")[here & ~np.isnan(spent)], 1e-9)
        if known.size and float(np.median(shares)) < MOST:
            return None  # its time was over there, and had been spent elsewhere
        stopped = int(sum(1 for name in window.ended_in if name == part))
        slow_ms = float(np.median(known)) if known.size else None
        usual_ms = float(np.median(usual)) if usual.size else None
        return self._finding(window, part, times, late, stopped, slow_ms, usual_ms, missing)

    def _finding(
        self,
        window: ApplicationWindow,
        part: str,
        times: int,
        late: int,
        stopped: int,
        slow_ms: float | None,
        usual_ms: float | None,
        missing: list[str],
    ) -> Finding:
        how = f"time out in {part}" if stopped else f"overrun the budget of {part}"
        evidence = [
            Evidence(
                text=f"{times} of {window.n} requests {how}",
                source="record:died_in, record:slow (vantage application)",
                name="late",
                value=float(times),
            ),
            Evidence(
                text=f"{late} of {window.n} requests were late in any stage", source="record:died_in, record:slow"
            ),
        ]
        contrast = ""
        if slow_ms is not None:
            evidence.append(
                Evidence(
                    text=f"those spent {slow_ms:.0f} ms in {part} (median)",
                    source="record:parts_ns",
                    name="late_ms",
                    value=round(slow_ms, 1),
                    unit="ms",
                )
            )
            contrast = f": they spend {slow_ms:.0f} ms there"
        if usual_ms is not None:
            evidence.append(
                Evidence(
                    text=f"those that ran in time spent {usual_ms:.0f} ms in {part} (median)",
                    source="record:parts_ns",
                    name="usual_ms",
                    value=round(usual_ms, 1),
                    unit="ms",
                )
            )
            contrast += f", the others {usual_ms:.0f} ms" if contrast else ""
        excess = None if slow_ms is None or usual_ms is None else slow_ms - usual_ms
        finding = self.finding(
            statement=f"{times} of {window.n} requests of the service {how}{contrast}. The model behind it is not the "
            "cause.",
            evidence=evidence,
            explains_ms=excess,
            relation=f"{times} of {late} late requests are late in {part}"
            + ("" if excess is None else f"; {slow_ms:.0f} - {usual_ms:.0f} = {excess:.0f} ms"),
            n=window.n,
            advice=self.advice.format(part=part),
            price="An answer without this stage's full result is a worse answer; a longer budget makes its users wait.",
            verify="tailrace records query --vantage application --ask failures",
            missing=missing,
            disproof_checked=[f"late requests spent most of their time in {part}"] if slow_ms is not None else [],
        )
        return msgspec.structs.replace(finding, stage=part)

    # -- the tail of the gateway's own records

    def _by_tail(self, evidence: EvidenceSet) -> Finding | None:
        window = evidence.now
        times = window.done.ms(self.stage)
        if window.n < 20 or float((~np.isnan(times)).mean()) < KNOWN or not window.tail.size:
            return None
        times = np.nan_to_num(times, nan=0.0)
        ttft = np.nan_to_num(window.done.ms("ttft"), nan=0.0)[window.interactive]
        usual, usual_ttft = float(np.median(times[window.interactive])), float(np.median(ttft))
        bound = min(evidence.objectives.bounds.get("ttft", {}).values(), default=0) / 1e6
        if 0 < bound < usual_ttft and usual >= MOST * usual_ttft:
            part = self._longest_part(window.done)
            return self._of_tail(
                evidence,
                part,
                f"Requests spend {usual:.0f} ms in {part}, before the engine has them: most of their "
                f"{usual_ttft:.0f} ms to the first token.",
                (usual, f"{usual:.0f} ms in {self.stage} (median)"),
                (usual_ttft, f"{usual_ttft:.0f} ms to the first token (median)"),
            )
        grown = self._grown_before_token(evidence, usual, usual_ttft)
        if grown is not None:
            return grown
        waits = np.nan_to_num(window.done.ms("ttft"), nan=0.0)
        over = np.flatnonzero(window.interactive & (waits > bound)) if bound else np.empty(0, dtype=np.int64)
        if over.size >= MIN_OVER and float(np.median(times[over] / waits[over])) >= MOST:
            theirs, whole = float(np.median(times[over])), float(np.median(waits[over]))
            return self._of_tail(
                evidence,
                self._longest_part(window.done.where(over)),
                f"The {over.size} requests over the objective of {bound:.0f} ms spend {theirs:.0f} ms in {self.stage}, "
                f"before the engine has them: most of their {whole:.0f} ms to the first token.",
                (theirs, f"{theirs:.0f} ms in {self.stage} (median of the {over.size} over {bound:.0f} ms)"),
                (whole, f"{whole:.0f} ms to the first token (median of those)"),
            )
        excess = np.maximum(times - usual, 0.0)
        explains = window.explain(self.code, excess)
        of_tail = excess[window.tail]
        low = explains - 1.96 * float(of_tail.std()) / max(of_tail.size, 1) ** 0.5
        lost = window.tail_lost_ms
        if low <= 0 or explains < MOST * lost or not self.carries(evidence, explains):
            return None
        part = self._longest_part(window.done.where(window.tail))
        return self._of_tail(
            evidence,
            part,
            f"The slow requests spend {explains:.0f} ms more than usual in {part}, before the engine has them: most of "
            f"the {lost:.0f} ms that they lose.",
            (explains, f"{explains:.0f} ms more than the median in {self.stage} (95 % interval from {low:.0f} ms)"),
            (lost, f"they lost {lost:.0f} ms"),
        )

    def _grown_before_token(self, evidence: EvidenceSet, usual: float, usual_ttft: float) -> Finding | None:
        """Of all requests, against the window before: most of what the first token came later."""
        before = evidence.before
        if before is None or before.n < 20:
            return None
        old_times, old_ttft = before.done.ms(self.stage), before.done.ms("ttft")
        if float((~np.isnan(old_times)).mean()) < KNOWN or np.isnan(old_ttft).all():
            return None
        old, first = float(np.nanmedian(old_times)), float(np.nanmedian(old_ttft))
        grown, later = usual - old, usual_ttft - first
        if later <= 0 or grown < MOST * later or not self.carries(evidence, grown):
            return None
        part = self._longest_part(evidence.now.done)
        return self._of_tail(
            evidence,
            part,
            f"Requests spend {usual:.0f} ms in {part}, {old:.0f} ms before: most of the {later:.0f} ms by which their "
            "first token comes later.",
            (grown, f"{usual:.0f} ms in {self.stage} (median of {evidence.now.n}), {old:.0f} ms before"),
            (later, f"TTFT {first:.0f} -> {usual_ttft:.0f} ms (median)"),
        )

    def _after_tokens(self, evidence: EvidenceSet) -> Finding | None:
        """What comes after the last token is in no first token and no gap: whole requests decide."""
        window = evidence.now
        times, e2e = window.done.ms(self.stage), window.done.ms("e2e")
        known = ~np.isnan(times)
        if known.sum() < 20 or float(known.mean()) < MANY:
            return None
        times, e2e = times[known], e2e[known]
        return (
            self._since_before(evidence, times, e2e)
            or self._few_slow(evidence, np.flatnonzero(known), times, e2e)
            or self._large(evidence, times, e2e)
        )

    def _since_before(self, evidence: EvidenceSet, times: np.ndarray, e2e: np.ndarray) -> Finding | None:
        """The stage took a tenth of the time in the window before, and its growth is the requests'."""
        before, window = evidence.before, evidence.now
        usual = float(np.median(times))
        bound = min(evidence.objectives.bounds.get("e2e", {}).values(), default=0) / 1e6
        if before is not None and before.n >= 20 and not np.isnan(before.done.ms(self.stage)).all():
            old = float(np.nanmedian(before.done.ms(self.stage)))
        elif bound and self._kept_without(e2e, times, bound):
            old = 0.0
        else:
            return None
        grown = usual - old
        whole = float(np.median(e2e))
        if grown < max(50.0, 0.02 * whole) or usual < 2.0 * old:
            return None
        part = self._longest_part(window.done)
        since = f", {old:.0f} ms before" if old else f"; without it the objective of {bound:.0f} ms is met"
        return self._of_tail(
            evidence,
            part,
            f"Requests spend {usual:.0f} ms in {part}, after their last token{since}.",
            (grown, f"{usual:.0f} ms in {self.stage} (median of {window.n}){since}"),
            (whole, f"{whole:.0f} ms end to end (median)"),
        )

    @staticmethod
    def _kept_without(e2e: np.ndarray, times: np.ndarray, bound: float) -> bool:
        """The end-to-end objective is missed, and would not be if the stage took a tenth of its time."""
        missed = int((e2e > bound).sum())
        rest = int((e2e - 0.9 * times > bound).sum())
        return more_often_than(missed, e2e.size, LATE_SHARE) and not more_often_than(rest, e2e.size, LATE_SHARE)

    def _large(self, evidence: EvidenceSet, times: np.ndarray, e2e: np.ndarray) -> Finding | None:
        """Nothing to compare with, and the stage is a part of the time that one may do without: a suspicion."""
        usual, whole = float(np.median(times)), float(np.median(e2e))
        bound = min(evidence.objectives.bounds.get("e2e", {}).values(), default=0) / 1e6
        missed = bound and more_often_than(int((e2e > bound).sum()), e2e.size, LATE_SHARE)
        holds = self._holds_the_lane(evidence, usual)
        if evidence.before is not None or not (missed or holds) or usual < max(100.0, LARGE * whole):
            return None
        part = self._longest_part(evidence.now.done)
        finding = self._of_tail(
            evidence,
            part,
            f"Requests spend {usual:.0f} ms in {part}, after their last token, of {whole:.0f} ms end to end"
            + (", and hold their places in the gateway's lane meanwhile." if holds else "."),
            (usual, f"{usual:.0f} ms in {self.stage} (median of {times.size})"),
            (whole, f"{whole:.0f} ms end to end (median)"),
        )
        missing = ["what the stage takes in a usual window (--before FILE)"]
        return msgspec.structs.replace(finding, level=Level.SUSPECTED, missing=missing)

    @staticmethod
    def _holds_the_lane(evidence: EvidenceSet, usual: float) -> bool:
        """Whether the tail waits for a place in the gateway, and those who have one spend most of their time here."""
        window = evidence.now
        waits = np.nan_to_num(window.done.ms("queue_gateway"), nan=0.0)
        inside = float(np.median(np.nan_to_num(window.done.ms("e2e"), nan=0.0) - waits))
        return window.in_tail(waits) >= MOST * window.tail_lost_ms > 0.0 and usual >= MOST * inside

    def _few_slow(self, evidence: EvidenceSet, rows: np.ndarray, times: np.ndarray, e2e: np.ndarray) -> Finding | None:
        window = evidence.now
        usual, usual_e2e = float(np.median(times)), float(np.median(e2e))
        # A long answer is slow by itself: those that are slow for the stage and no more than usual besides.
        slow = tail_of(times + np.maximum(e2e - times - usual_e2e, 0.0))
        of_tail = np.maximum(times[slow] - usual, 0.0)
        explains = float(of_tail.mean())
        low = explains - 1.96 * float(of_tail.std()) / max(of_tail.size, 1) ** 0.5
        excess = float(np.maximum(e2e[slow] - usual_e2e, 0.0).mean())
        if explains < max(50.0, MOST * excess) or low <= 0:
            return None
        part = self._longest_part(window.done.where(rows[slow]))
        return self._of_tail(
            evidence,
            part,
            f"The slow requests spend {explains:.0f} ms more than usual in {part}, after their last token: most of "
            f"the {excess:.0f} ms by which they are slower.",
            (explains, f"{explains:.0f} ms more than the median in {self.stage} (95 % interval from {low:.0f} ms)"),
            (excess, f"they take {excess:.0f} ms more than the median"),
        )

    def _longest_part(self, rows: RecordTable) -> str:
        sums: Counter[str] = Counter()
        for row in rows.column("parts_ns"):
            sums.update({name: value for name, value in row.items() if name.startswith(f"{self.stage}.")})
        return sums.most_common(1)[0][0] if sums else self.stage

    def _of_tail(
        self,
        evidence: EvidenceSet,
        part: str,
        statement: str,
        explained: tuple[float, str],
        whole: tuple[float, str],
    ) -> Finding:
        done = evidence.now.done
        sources = Counter(row.get(self.stage, "") for row in done.column("stage_sources"))
        finding = self.finding(
            statement=statement,
            evidence=[
                Evidence(
                    text=explained[1],
                    source=f"record:{self.stage}_ns, {sources.most_common(1)[0][0]}",
                    name="explains_ms",
                    value=round(explained[0], 1),
                    unit="ms",
                ),
                Evidence(text=whole[1], source="record:ttft_ns", value=round(whole[0], 1), unit="ms"),
            ],
            explains_ms=explained[0],
            relation=f"{explained[0]:.0f} of {whole[0]:.0f} ms",
            n=len(done),
            advice=self.advice.format(part=part),
            price="A budget that ends the stage costs its result.",
            verify=evidence.verify_command,
            disproof_checked=[explained[1]],
        )
        return msgspec.structs.replace(finding, stage=part)


class PreprocessSlow(StageSlow):
    """What the service does before it calls the model is slow: retrieval, templating, tokenising."""

    code: ClassVar[str] = "PREPROCESS_SLOW"
    stage: ClassVar[str] = "preprocess"
    disproof: ClassVar[str] = "The stage takes as long in the requests that are in time."
    advice: ClassVar[str] = (
        "Mend {part}: look at what it waits for (its index, its pool of threads or connections, a lock), bound how "
        "many run at once, keep what repeats. Where the answer can do without it, give it a short budget and go on. A "
        "longer budget only makes its users wait; tuning or adding engines changes nothing."
    )

    def observe(self, observed: Observed) -> Finding | None:
        """From tables that tell the stage, or a server's log that tells the stages of each request."""
        return surest([super().observe(observed), preprocess_in_served(self, observed)])


class PostprocessSlow(StageSlow):
    """What the service does after the model has answered is slow: safety checks, formatting."""

    code: ClassVar[str] = "POSTPROCESS_SLOW"
    stage: ClassVar[str] = "postprocess"
    disproof: ClassVar[str] = "The stage takes as long in the requests that are in time."
    advice: ClassVar[str] = (
        "Mend {part}: look at what it waits for (another model, a pool of threads or connections, a lock), bound how "
        "many run at once, and begin it while the answer is still streaming. Tuning or adding engines changes nothing."
    )
