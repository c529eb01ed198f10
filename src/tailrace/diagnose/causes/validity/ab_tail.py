"""AB_TAIL_REGRESSED and AB_TAIL_IMPROVED: what a table of two arms says of the tail, and how much it can carry."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

from tailrace.diagnose.arms.as_written import seen
from tailrace.diagnose.arms.asked import concurrency_of
from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.arms.pairs import before_and_after, unlike
from tailrace.diagnose.arms.repeats import Repeated, repeated
from tailrace.diagnose.arms.unfinished import lost_share
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding
from tailrace.stats.quantiles import needed

__all__ = ["AbTailImproved", "AbTailRegressed"]

WORSE: Final = 5.0
"""Percent from which a quoted tail is called worse or better: below it lies the spread of any repeated run."""
NOT_WORSE: Final = 2.0
MOVED: Final = 20.0
"""Percent by which a tail has left its middle behind: that may then have moved by `WORSE` as well (R4)."""
ENOUGH: Final = 1000
LONG_S: Final = 60.0
_METRICS: Final = ("ttft", "e2e", "tpot", "itl", "chunk_gap")
_RATES: Final = ("output_tok_s", "req_s", "total_tok_s")
_VERIFY: Final = "tailrace ab --a http://localhost:8000 --b http://localhost:8001 --rounds 6 --rate 5 --duration 120"


class _Change(NamedTuple):
    """How one latency moved, in percent."""

    metric: str
    middle: float | None
    tail: float
    stat: str
    arm: Arm
    numbers: list[Evidence]
    """What both were read from."""
    usual: str = "p50"
    """The statistic of `middle`."""

    def evidence(self, text: str) -> Evidence:
        """The tail's change, told so."""
        return Evidence(
            text=text,
            source=str(self.arm.place) or "facts",
            name=f"{self.metric}.{self.stat}",
            value=round(self.tail, 2),
            unit="%",
        )


class _Sides(NamedTuple):
    changes: list[_Change]
    rate: tuple[str, float] | None
    """(name, change in percent) of the throughput."""
    n: float | None
    duration_s: float | None
    failures: tuple[float, float] | None
    differs: list[str]
    label: str


@asked_once
def _sides(observed: Observed) -> list[_Sides]:
    """What each pair of arms, and each column of changes, says."""
    runs = {id(one.arm): one for one in repeated(observed)}
    out = [
        side
        for pair in before_and_after([one.arm for one in runs.values()])
        if (side := _of_pair(runs[id(pair.before)], runs[id(pair.after)], observed)) is not None
    ]
    out += [_of_changes(arm, observed) for arm in observed.arms if any(v.relative for v in arm.values.values())]
    return [item for item in out if item.changes]


def _of_pair(old_runs: Repeated, new_runs: Repeated, observed: Observed) -> _Sides | None:
    before, after = old_runs.arm, new_runs.arm
    changes = []
    for metric in _METRICS:
        for stat in ("p999", "p99", "p95"):
            old, new = before.quoted(metric, stat), after.quoted(metric, stat)
            if not old or not new or old.relative or new.relative or old.value <= 0 or old.unit != new.unit:
                continue
            if old_runs.apart(new_runs, old.key) is False:
                break  # repeated runs of one arm differ as much as the arms do
            mid = (before.quoted(metric, "p50", "mean"), after.quoted(metric, "p50", "mean"))
            if mid[0] and mid[1] and mid[0].stat != mid[1].stat:
                mid = (None, None)
            middle = _percent(mid[0], mid[1])
            tail = 100.0 * (new.value / old.value - 1.0)
            numbers = [seen(before, old), seen(after, new)]
            numbers += [
                seen(arm, one) for arm, one in zip((before, after), mid, strict=True) if one and middle is not None
            ]
            if old_runs.apart(new_runs, old.key):
                both = [", ".join(f"{value:g}" for value in runs.values(old.key)) for runs in (old_runs, new_runs)]
                words = f"every run of one side lies beyond every run of the other: {both[0]} against {both[1]}"
                numbers.append(Evidence(words, str(new.place), "runs_apart"))
            usual = mid[0].stat if mid[0] else "p50"
            changes.append(_Change(metric, middle, tail, stat, after, numbers, usual))
            break
    if not changes:
        return None
    n = [arm.get("n") for arm in (before, after)]
    fewest = min((one for one in n if one is not None), default=None) if any(n) else observed.number("n", "num_prompts")
    failed = (lost_share(before), lost_share(after))
    rate = next(
        (
            (name, change)
            for name in _RATES
            if (change := _percent(before.quoted(name), after.quoted(name))) is not None
        ),
        None,
    )
    duration = min((v for arm in (before, after) if (v := arm.get("duration")) is not None), default=None)
    return _Sides(
        changes,
        rate,
        fewest,
        duration if duration is not None else observed.number("duration_s", "window_s"),
        (failed[0], failed[1]) if failed[0] is not None and failed[1] is not None else _none_failed(n, observed),
        unlike(before, after),
        f"{before.name} -> {after.name}",
    )


def _none_failed(n: list[float | None], observed: Observed) -> tuple[float, float] | None:
    """No failure in either arm, where the form says so or as many completed as were sent; else not known."""
    stated = observed.number("errors", "failed", "failed_requests", "error_count", "errors_total", "error_rate_pct")
    sent = observed.number("num_prompts", "requests_sent", "sent")
    if stated == 0 or (stated is None and sent is not None and all(one == sent for one in n)):
        return 0.0, 0.0
    return None


def _of_changes(arm: Arm, observed: Observed) -> _Sides:
    changes = []
    for metric in _METRICS:
        for stat in ("p999", "p99", "p95"):
            tail = arm.quoted(metric, stat)
            if tail is None or not tail.relative:
                continue
            middle = arm.quoted(metric, "p50", "mean")
            numbers = [seen(arm, tail), *([seen(arm, middle)] if middle else [])]
            changes.append(
                _Change(metric, middle.value if middle and middle.relative else None, tail.value, stat, arm, numbers)
            )
            break
    rate = next(((name, v.value) for name in _RATES if (v := arm.quoted(name)) is not None and v.relative), None)
    n = arm.get("n") or observed.number("n", "num_prompts")
    return _Sides(changes, rate, n, observed.number("duration_s", "window_s"), None, [], arm.name)


def _slack(tail: float) -> float:
    """Percent by which the middle may be worse where the tail is worse by so much."""
    return WORSE if tail >= MOVED else NOT_WORSE


def _percent(old: Quoted | None, new: Quoted | None) -> float | None:
    if old is None or new is None or old.relative or new.relative or old.value <= 0 or old.unit != new.unit:
        return None
    return 100.0 * (new.value / old.value - 1.0)


class _AbTail(Cause):
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("two arms with p50 and p99", "n >= 1000 of each", "at least a minute of load")

    @staticmethod
    def _opposite(change: _Change, observed: Observed) -> tuple[list[str], list[Evidence]]:
        """(what is missing where another source says the opposite of the same latency, that as evidence)."""
        source = change.arm.place.source
        for sides in _sides(observed):
            for other in sides.changes:
                if (other.metric, other.stat) != (change.metric, change.stat) or other.arm.place.source == source:
                    continue
                if min(abs(other.tail), abs(change.tail)) < WORSE or (other.tail > 0) == (change.tail > 0):
                    continue
                name = f"{other.metric.upper()} {other.stat} {other.tail:+.1f} %"
                seen_there = Evidence(
                    text=f"the opposite: {name} ({sides.label})",
                    source=str(other.arm.place) or "facts",
                    name=f"{other.metric}.{other.stat}",
                    value=round(other.tail, 2),
                    unit="%",
                )
                wants = f"which of {source} and {other.arm.place.source} holds: they say the opposite of each other"
                return [wants], [seen_there]
        return [], []

    def _carries(self, sides: _Sides) -> tuple[list[str], list[Evidence], str]:
        """(what is missing for more than a suspicion, evidence of it, words)."""
        missing, evidence, words = [], [], ""
        if sides.n is None:
            missing.append(f"the number of samples in each arm: a p99 needs {needed(0.99)}, a change of it {ENOUGH}")
        elif sides.n < ENOUGH:
            missing.append(f"more samples: a change of a p99 needs {ENOUGH} in each arm")
            evidence.append(Evidence(text=f"n = {sides.n:.0f}", source="facts", name="n", value=sides.n))
        if sides.duration_s is not None and sides.duration_s < LONG_S:
            missing.append(f"longer runs: {sides.duration_s:g} s is too short for a p99")
            evidence.append(
                Evidence(
                    text=f"the run took {sides.duration_s:g} s",
                    source="facts",
                    name="duration",
                    value=sides.duration_s,
                    unit="s",
                )
            )
            words = f" A run of {sides.duration_s:g} s is too short for a p99: ask for more samples."
        elif sides.n is None or sides.n < ENOUGH:
            words = " The samples are too few, or not told, to be sure of a p99."
        if sides.differs:
            missing.append(f"equal work in both arms (they differ: {', '.join(sides.differs)})")
        return missing, evidence, words


class AbTailRegressed(_AbTail):
    """p50 as good or better, and the tail worse."""

    code: ClassVar[str] = "AB_TAIL_REGRESSED"
    disproof: ClassVar[str] = "The interval of the tail's change contains 0."
    action: ClassVar[Action] = Action.ROLLBACK

    def observe(self, observed: Observed) -> Finding | None:
        """The latency whose tail grew most while its middle did not."""
        worst: tuple[float, _Sides, _Change] | None = None
        for sides in _sides(observed):
            for change in sides.changes:
                if change.tail < WORSE or (change.middle is not None and change.middle > _slack(change.tail)):
                    continue
                if change.middle is None and sides.differs:
                    continue  # more work, and no middle to tell a worse tail from a slower whole
                if worst is None or change.tail > worst[0]:
                    worst = (change.tail, sides, change)
        if worst is None:
            return None
        _, sides, change = worst
        missing, evidence, words = self._carries(sides)
        opposed, opposite = self._opposite(change, observed)
        missing += opposed
        if change.middle is None:
            missing.append(f"{change.metric.upper()} p50 of both arms: it tells a worse tail from a slower whole")
        name = change.metric.upper()
        alone = ""
        if concurrency_of(change.arm, observed) == 1:
            alone = (
                " At concurrency 1 nothing queues: look at an extra prefill (a draft model's), compilation (JIT) or a "
                "graph that was not captured."
            )
        price = "Reject it, or give its gain at the median up."
        if sides.rate is not None:
            rate = f"{sides.rate[0].replace('_', ' ')} {sides.rate[1]:+.1f} %"
            evidence.append(
                Evidence(
                    text=rate,
                    source=str(change.arm.place) or "facts",
                    name=sides.rate[0],
                    value=sides.rate[1],
                    unit="%",
                )
            )
            words += f" Throughput changed by {sides.rate[1]:+.1f} %."
        middle = "" if change.middle is None else f"{change.usual} changed by {change.middle:+.1f} % while "
        relation = (
            f"{name} "
            + ("" if change.middle is None else f"{change.usual} {change.middle:+.1f} %, ")
            + f"{change.stat} {change.tail:+.1f} %"
        )
        evidence.insert(0, change.evidence(relation))
        return self.finding(
            statement=f"{name} {middle}{change.stat} changed by {change.tail:+.1f} %: the tail regressed "
            f"({sides.label}).{words}",
            evidence=[*evidence, *change.numbers, *opposite],
            explains_ms=None,
            relation=relation,
            n=int(sides.n or 0),
            advice="Reject the change for users who wait for the tail; if the gain at the median matters, find what "
            "the slow "
            "requests share (length, queue, cache, a second prefill) with the requests one by one." + alone,
            price=price,
            verify=_VERIFY,
            missing=missing,
            # Nobody rolls back on a word that another takes back.
            action=Action.COLLECT if opposed else None,
        )


class AbTailImproved(_AbTail):
    """The tail better beyond the spread, and not more failures."""

    code: ClassVar[str] = "AB_TAIL_IMPROVED"
    disproof: ClassVar[str] = "Repeated runs of one arm differ as much."
    action: ClassVar[Action] = Action.NONE

    def observe(self, observed: Observed) -> Finding | None:
        """Every latency's tail better or equal, one clearly better; the price is said."""
        for sides in _sides(observed):
            best = min(sides.changes, key=lambda change: change.tail)
            if best.tail > -2 * WORSE or any(change.tail >= WORSE for change in sides.changes):
                continue
            if sides.failures is not None and sides.failures[1] > sides.failures[0] + 0.001:
                continue  # It may be better only because the slow ones failed.
            missing, evidence, words = self._carries(sides)
            opposed, opposite = self._opposite(best, observed)
            missing += opposed
            if sides.failures is None:
                missing.append("failed requests of both arms: those that fail do not wait")
            name = best.metric.upper()
            price = "None is visible in these numbers."
            if sides.rate is not None:
                rate = f"{sides.rate[0].replace('_', ' ')} {sides.rate[1]:+.1f} %"
                price = f"{rate}." + (" Watch it." if sides.rate[1] < -1.0 else "")
                evidence.append(
                    Evidence(
                        text=rate,
                        source=str(best.arm.place) or "facts",
                        name=sides.rate[0],
                        value=sides.rate[1],
                        unit="%",
                    )
                )
            if sides.failures is not None:
                old, new = (100.0 * share for share in sides.failures)
                text = f"errors {old:.3g} % -> {new:.3g} %: not more requests fail"
                evidence.append(Evidence(text, str(best.arm.place) or "facts", "failed_share", sides.failures[1]))
            relation = f"{name} {best.stat} {best.tail:+.1f} %"
            evidence.insert(0, best.evidence(relation))
            return self.finding(
                statement=f"{name} {best.stat} changed by {best.tail:+.1f} %: the tail improved "
                f"({sides.label}).{words}",
                evidence=[*evidence, *best.numbers, *opposite],
                explains_ms=None,
                relation=relation,
                n=int(sides.n or 0),
                advice="Accept it, and keep watching the throughput and the failures.",
                price=price,
                verify=_VERIFY,
                missing=missing,
            )
        return None
