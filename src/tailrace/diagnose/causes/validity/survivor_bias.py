"""METRIC_SURVIVOR_BIAS: percentiles of those who waited to the end say nothing of those who left."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec
import numpy as np

from tailrace.diagnose.arms.again import MEASURE
from tailrace.diagnose.arms.as_written import called, name_of, seen, shown
from tailrace.diagnose.arms.pairs import before_and_after
from tailrace.diagnose.arms.unfinished import lost_share, unfinished_of
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Arm, Histogram, Observed
from tailrace.model.finding import Action, Evidence, Finding, Level
from tailrace.stats.quantiles import quantile, supported
from tailrace.stats.tests import two_proportion_p_value

__all__ = ["SurvivorBias"]

SHARE: Final = 0.01
"""From this share on, those who left alone could fill what lies above the p99."""
LEAST: Final = 5
BETTER: Final = 0.95
MORE: Final = 0.005
APART: Final = 1.02
_HISTOGRAMS: Final = ("e2e", "ttft", "queue", "decode", "tpot")
_ADVICE: Final = (
    "Count the requests that were cancelled, refused or timed out beside every percentile, with how long they had "
    "waited (a gateway or the client knows), and compare goodput: requests within their objective over all "
    "that were sent."
)
_BLOCKS: Final = (
    "Until then no quantile of it says that things are well or became better: AB_TAIL_IMPROVED and `nothing is slow` "
    "are blocked, every other latency is a lower bound."
)


class SurvivorBias(Cause):
    """Requests that were cancelled or timed out are in no latency, and they were the slow ones."""

    code: ClassVar[str] = "METRIC_SURVIVOR_BIAS"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = (
        "how many were cancelled or timed out in the window of the latencies", "how long they had waited",
    )  # fmt: skip
    disproof: ClassVar[str] = "Those that left had waited less than the p50 of those that stayed."
    action: ClassVar[Action] = Action.COLLECT
    beside: ClassVar[bool] = True

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """A p99 that is better than before, and more requests that did not complete."""
        before, now = evidence.before, evidence.now
        if before is None:
            return None
        lost = [(len(side.every) - side.n, len(side.every)) for side in (before, now)]
        if not lost[0][1] or not lost[1][1]:
            return None
        shares = [count / n for count, n in lost]
        if shares[1] < shares[0] + MORE or two_proportion_p_value(*lost[0], *lost[1]) > 0.05:
            return None
        for metric in ("ttft", "e2e"):
            values = [side.done.ms(metric) for side in (before, now)]
            values = [one[~np.isnan(one)] for one in values]
            p = 0.99 if supported(0.99, min(one.size for one in values)) else 0.95
            if not supported(p, min(one.size for one in values)):
                continue
            old, new = (quantile(one, p) for one in values)
            if new <= BETTER * old:
                return self._better(
                    f"{metric.upper()} p{100 * p:.0f}", (old, new), shares, now.n, "record", evidence.verify_command
                )
        return None

    def observe(self, observed: Observed) -> Finding | None:
        """Counters beside a histogram; a histogram that holds less than was sent; a better tail with more failures."""
        found = [self._window(item, observed) for name in _HISTOGRAMS for item in observed.windows(name)]
        found += [self._begun(observed), self._sent(observed)]
        found += [self._pair(pair.before, pair.after) for pair in before_and_after(observed.arms)]
        return surest(found)

    def _window(self, item: Histogram, observed: Observed) -> Finding | None:
        count, raw, place = unfinished_of(observed, item.order)
        share = count / (count + item.n) if count else 0.0
        if count < LEAST or item.n <= 0 or share < SHARE:
            return None
        name = called(item.name)
        return self.finding(
            statement=f"{count:.0f} requests were cancelled or timed out and are not among the {item.n:.0f} values of "
            f"{name} ({share:.1%} of both): its percentiles are those of the requests that stayed. {_BLOCKS}",
            evidence=[
                Evidence(text=f"{count:.0f} counted by {raw}", source=place or raw, name="unfinished", value=count),
                Evidence(
                    text=f"{item.n:.0f} values in {item.raw or item.name}; {share:.1%} of both are not in it",
                    source=str(item.place) or item.raw, name="n", value=item.n,
                ),
            ],
            explains_ms=None,
            relation=f"{count:.0f}/({count:.0f} + {item.n:.0f}) = {share:.1%}, more than the 1 % above a p99",
            n=int(item.n),
            advice=_ADVICE,
            price="None.",
            verify=MEASURE,
            missing=["a second scrape: these are all requests since the start"] if item.lifetime else [],
        )  # fmt: skip

    def _begun(self, observed: Observed) -> Finding | None:
        """First tokens that were seen, against requests that ended: what is between left after its first token."""
        ended = {item.order: item for item in observed.windows("e2e")}
        for first in observed.windows("ttft"):
            last = ended.get(first.order)
            if last is None or last.lifetime or first.lifetime or unfinished_of(observed, first.order)[0]:
                continue
            running = [item.values[np.isfinite(item.values)] for item in observed.of_series("running")]
            grew = sum(max(float(one[-1] - one[0]), 0.0) for one in running if one.size > 1)
            gone = first.n - last.n - grew
            if gone < LEAST or gone < 0.02 * first.n:
                continue
            return self.finding(
                statement=f"{first.n:.0f} requests saw a first token and {last.n:.0f} ended ({grew:.0f} more run than "
                f"at the start): {gone:.0f} left, and E2E does not hold them. {_BLOCKS}",
                evidence=[
                    Evidence(text=f"{first.n:.0f} values in {first.raw}", source=str(first.place), value=first.n),
                    Evidence(text=f"{last.n:.0f} values in {last.raw}", source=str(last.place), value=last.n),
                    Evidence(text=f"running grew by {grew:.0f}", source="running", name="running", value=grew),
                ],
                explains_ms=None,
                relation=f"{first.n:.0f} - {last.n:.0f} - {grew:.0f} = {gone:.0f}",
                n=int(last.n),
                advice=_ADVICE,
                price="None.",
                verify=MEASURE,
                missing=["how many requests were cancelled or timed out in this window"],
                rivals=["METRIC_GAP"],
            )
        return None

    def _sent(self, observed: Observed) -> Finding | None:
        """What a client sent, against what the engine's histogram holds."""
        for item in [*observed.windows("e2e"), *observed.windows("ttft")]:
            for arm in observed.arms:
                n = arm.get("n")
                if not n or item.lifetime or item.n <= 0 or n < APART * item.n + LEAST or n > 3 * item.n:
                    continue
                return self.finding(
                    statement=f"{arm.name} has {n:.0f} requests, the engine's {item.name} {item.n:.0f}: "
                    f"{n - item.n:.0f} are not in its percentiles. {_BLOCKS}",
                    evidence=[
                        Evidence(text=f"{arm.name}: n = {n:.0f}", source=str(arm.place) or "facts", name="n", value=n),
                        Evidence(
                            text=f"{item.n:.0f} values in {item.raw or item.name}; {n - item.n:.0f} less",
                            source=str(item.place) or item.raw, value=item.n,
                        ),
                    ],
                    explains_ms=None,
                    relation=f"{n:.0f} - {item.n:.0f} = {n - item.n:.0f}",
                    n=int(n),
                    advice=_ADVICE,
                    price="None.",
                    verify=MEASURE,
                    missing=["that both are of the same window, and how the others ended"],
                )  # fmt: skip
        return None

    def _pair(self, before: Arm, after: Arm) -> Finding | None:
        lost = (lost_share(before), lost_share(after))
        if lost[0] is None or lost[1] is None or lost[1] < lost[0] + MORE:
            return None
        for metric in ("ttft", "e2e", "queue"):
            for stat in ("p999", "p99", "p95", "mean"):
                old, new = before.quoted(metric, stat), after.quoted(metric, stat)
                if not old or not new or old.relative or new.relative or new.value > BETTER * old.value:
                    continue
                n = after.get("n")
                found = self._better(
                    name_of(new), (old.value, new.value), [lost[0], lost[1]], int(n or 0), str(after.place) or "facts",
                    MEASURE, [] if n else ["n of both arms"],
                )  # fmt: skip
                return _with(found, [seen(before, old), seen(after, new)])
        return None

    def _better(
        self, name: str, ms: tuple[float, float], shares: list[float], n: int, source: str, verify: str,
        missing: list[str] | None = None,
    ) -> Finding:  # fmt: skip
        words = f"{shares[0]:.1%} -> {shares[1]:.1%}"
        return self.finding(
            statement=f"{name} went {shown(ms[0])} -> {shown(ms[1])} ms while the requests that did not complete rose "
            f"{words}: it is better only among those that stayed. {_BLOCKS}",
            evidence=[
                Evidence(
                    text=f"{name} {shown(ms[0])} -> {shown(ms[1])} ms", source=source, name=name, value=ms[1], unit="ms"
                ),
                Evidence(
                    text=f"not completed: {words} of all", source=source, name="unfinished", value=round(shares[1], 4)
                ),
            ],
            explains_ms=None,
            relation=f"x {ms[1] / ms[0]:.2f} for those that stayed, {words} left or failed",
            n=n,
            advice=_ADVICE,
            price="None.",
            verify=verify,
            missing=missing,
            level=Level.SUSPECTED if missing else Level.CONSISTENT,
        )


def _with(finding: Finding, evidence: list[Evidence]) -> Finding:
    return msgspec.structs.replace(finding, evidence=[*finding.evidence, *evidence])
