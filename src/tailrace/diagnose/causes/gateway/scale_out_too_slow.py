"""SCALE_OUT_TOO_SLOW: a replica was added in an incident and does nothing for longer than it takes to load."""

from __future__ import annotations

import re
from typing import ClassVar, Final, NamedTuple

from tailrace.diagnose.arm_evidence.rollout_timeline import rollout_timeline
from tailrace.diagnose.arm_evidence.scale_out_in_series import scale_out_in_series
from tailrace.diagnose.arms.asked import figure, number_stated, told
from tailrace.diagnose.arms.pairs import changed
from tailrace.diagnose.arms.shown import compared, evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Arm, Observed, Quoted, Role, Setting
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["ScaleOutTooSlow"]

WORSE: Final = 1.2
SAME_VOLUME: Final = 0.1
_ADDED: Final = re.compile(
    r"(?:replicas?|pods?|nodes?|instances?|gpus?|workers?|servers?|capacity).{0,40}(?:added|scaled|started|doubled|"
    r"brought up|spun up|raised)|(?:add(?:ed|ing)?|scal(?:ed|ing)[ -]?(?:out|up)|doubl\w+|spun up|autoscal\w+|hpa)"
    r".{0,40}(?:replicas?|pods?|nodes?|instances?|gpus?|workers?|servers?|out|up)|scale[ -]?(?:out|up)",
    re.IGNORECASE,
)
_NO_EFFECT: Final = re.compile(
    r"no (?:visible )?(?:effect|change|improvement|help|difference)|useless|did ?n.t help|not help|"
    r"without (?:any )?effect|"
    r"nothing changed|unchanged|still (?:slow|bad|high)|does not help|(?:only )?after \d+ ?min|took \d+ ?min",
    re.IGNORECASE,
)
_ROLLOUT: Final = re.compile(
    r"roll[ -]?out|deploy|releas|upgrad|new (?:model|version|build|image)|model (?:change|swap|switch|version)|"
    r"version|canary|migrat|config (?:change|push)",
    re.IGNORECASE,
)
_START: Final = re.compile(
    r"cold ?start|start ?up|warm ?up|load(?:ing)? (?:time|s$|weights)|model load|time to ready|ready (?:after|s$|time)|"
    r"replica (?:start|load|ready)|boot",
    re.IGNORECASE,
)
_EFFECTLESS: Final = re.compile(r"no effect|useless|without effect|effect (?:delay|after)|until effect", re.IGNORECASE)


class _Worse(NamedTuple):
    before: Arm
    after: Arm
    good: Quoted
    bad: Quoted


class ScaleOutTooSlow(Cause):
    """The change coincides with a rollout at equal volume, and the replica that was added has no effect yet."""

    code: ClassVar[str] = "SCALE_OUT_TOO_SLOW"
    stage: ClassVar[str] = "queue"
    needs: ClassVar[tuple[str, ...]] = (
        "latency before and after at equal volume",
        "when the rollout was, when the replica was added, and when it served its first request",
        "how long a replica takes to load and warm up",
    )
    disproof: ClassVar[str] = "The volume rose at the same time."
    action: ClassVar[Action] = Action.ROLLBACK

    def observe(self, observed: Observed) -> Finding | None:
        """A replica that was added without effect; and what the latency and the volume did."""
        added = _added(observed)
        if added is None:
            return rollout_timeline(self, observed) or scale_out_in_series(self, observed)
        worse = _worse(observed)
        volume = _volume(worse)
        if volume is not None and abs(volume[1].value / volume[0].value - 1.0) > SAME_VOLUME:
            return None
        what = changed(observed)
        rollout = what if _ROLLOUT.search(what) else _rollout(observed)
        start = _start(observed)
        missing = self._missing(worse, volume, rollout, start)
        statement, evidence = self._words(observed, added, worse, volume, rollout)
        return self.finding(
            statement=statement,
            evidence=[*evidence, *([] if start is None else [evidence_of_setting(start)])],
            explains_ms=None if worse is None else worse.bad.value - worse.good.value,
            relation=self._relation(worse, volume, start),
            n=2 if worse is not None else 1,
            advice="Roll back first"
            + (f" ({rollout})" if rollout else "")
            + "; meanwhile shed load (429) or shorten outputs (max_tokens). A scale-out is no incident action: a "
            "replica "
            "needs minutes to load its weights and warm up before it takes traffic.",
            price="Users lose what the rollout brought; refused requests are to be retried by their clients.",
            verify="tailrace diagnose http://127.0.0.1:9480 --before before.run  # after the rollback",
            missing=missing,
            disproof_checked=self._checked(volume),
        )

    @staticmethod
    def _missing(
        worse: _Worse | None, volume: tuple[Quoted, Quoted] | None, rollout: str, start: Setting | None
    ) -> list[str]:
        missing = []
        if worse is None:
            missing.append("latency before and after")
        if volume is None:
            missing.append("the request volume before and after (it must be equal)")
        if not rollout:
            missing.append("what was rolled out, and when")
        missing.append(
            "the time of the rollout and of the replica's first served request beside a series of the load"
            if start is not None
            else "how long a replica takes to load and warm up, and the time of its first served request"
        )
        return missing

    @staticmethod
    def _words(
        observed: Observed,
        added: Setting | Evidence,
        worse: _Worse | None,
        volume: tuple[Quoted, Quoted] | None,
        rollout: str,
    ) -> tuple[str, list[Evidence]]:
        del observed
        told_ = added if isinstance(added, Evidence) else evidence_of_setting(added)
        evidence = [told_]
        words = "A replica was added and has no effect: it must load its weights and warm up first"
        if worse is not None:
            evidence = [evidence_of(worse.before, worse.good), evidence_of(worse.after, worse.bad), *evidence]
            words = (
                f"{quantity(worse.bad)} went from {number(worse.good.value, worse.good.unit)} to "
                f"{number(worse.bad.value, worse.bad.unit)}"
            )
            if volume is not None and worse is not None:
                evidence += [evidence_of(worse.before, volume[0]), evidence_of(worse.after, volume[1])]
                words += f" at an equal volume ({number(volume[1].value, volume[1].unit)})"
            if rollout:
                words += f" with a {rollout}" if not rollout.lower().startswith(("a ", "the ")) else f" with {rollout}"
            words += ", and the added replica has no effect: it must load its weights and warm up first"
        if rollout:
            evidence.append(Evidence(text=f"changed: {rollout}", source="form"))
        return f"{words}. Roll back before adding capacity.", evidence

    @staticmethod
    def _relation(worse: _Worse | None, volume: tuple[Quoted, Quoted] | None, start: Setting | None) -> str:
        parts = []
        if worse is not None:
            parts.append(f"{quantity(worse.bad)}: {compared('', worse.good, worse.bad).strip()}")
        if volume is not None:
            parts.append(f"volume {number(volume[0].value)} -> {number(volume[1].value)}: equal")
        if start is not None and start.number is not None:
            parts.append(f"a replica takes {number(start.number, start.unit)} before it serves")
        return "; ".join(parts)

    @staticmethod
    def _checked(volume: tuple[Quoted, Quoted] | None) -> list[str]:
        if volume is None:
            return ["the volume is not known"]
        return [f"volume {number(volume[0].value, volume[0].unit)} -> {number(volume[1].value, volume[1].unit)}"]


def _added(observed: Observed) -> Setting | Evidence | None:
    """What says that capacity was added without effect."""
    for item in told(observed):
        text = f"{item.name.replace('_', ' ')}: {item.value}"
        if not isinstance(item.value, bool) and _ADDED.search(text) and _NO_EFFECT.search(text):
            return item
    after = next((item for item in told(observed) if _EFFECTLESS.search(item.name.replace("_", " "))), None)
    grown = next((item for item in told(observed) if _ADDED.search(item.name.replace("_", " "))), None)
    if after is not None and (grown is not None or _ADDED.search(str(after.value))):
        return after
    if grown is not None and _start(observed) is not None:
        return grown
    return None


def _rollout(observed: Observed) -> str:
    """A statement of what was rolled out."""
    for item in told(observed):
        if _ROLLOUT.search(item.name.replace("_", " ")) and isinstance(item.value, str):
            return item.value
    found = next(
        (
            item
            for item in told(observed)
            if isinstance(item.value, str) and _ROLLOUT.search(item.value) and item.name != "action"
        ),
        None,
    )
    return "" if found is None else str(found.value)


def _start(observed: Observed) -> Setting | None:
    found = number_stated(observed, _START.pattern)
    if found is None or found.number is None or in_unit(found.number, found.unit, "ms") is None:
        return None
    return found


def _worse(observed: Observed) -> _Worse | None:
    arms = sorted(observed.arms, key=lambda arm: arm.role is Role.AFTER)
    worst = None
    for place, before in enumerate(arms):
        for after in arms[place + 1 :]:
            for name in ("ttft", "e2e", "queue"):
                for stat in ("p99", "p95", "p90", "p50", "mean", ""):
                    good, bad = figure(before, name, stats=(stat,)), figure(after, name, stats=(stat,))
                    if good is None or bad is None or not good.value or bad.value < WORSE * good.value:
                        continue
                    if worst is None or bad.value / good.value > worst.bad.value / worst.good.value:
                        worst = _Worse(before, after, good, bad)
    return worst


def _volume(worse: _Worse | None) -> tuple[Quoted, Quoted] | None:
    if worse is None:
        return None
    for name in ("offered_rps", "req_s", "concurrency"):
        one, two = figure(worse.before, name), figure(worse.after, name)
        if one is not None and two is not None and one.value:
            return one, two
    return None
