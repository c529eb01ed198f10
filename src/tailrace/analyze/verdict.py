"""The rules by which numbers become a verdict (docs/decisions/0043-verdict-of-a-comparison.md says why).

One metric: its 95 % interval inside +-`TOLERANCE` is `no_difference`; wholly below 0 is `improved`; wholly above 0
with a change above `TOLERANCE` is `regressed`; everything else, and every quantile that n cannot support, is
`inconclusive`.

The comparison. Its *headline* is, for the interactive requests, the p99 and the p95 of the longest wait (the longest
time in which a reader saw nothing new: TTFT or a chunk gap), of TTFT, of each request's longest chunk gap and of E2E,
then TTFT and E2E of each other class (p95 or p90 where n does not support p99). Of these, only changes that survive
Benjamini-Hochberg at 5 % count. The median is not in it: a p50 that rose is named, and is not fatal. The p99 of all
gaps pooled is shown but decides nothing: where about 1 % of the gaps are stalls it stands on a cliff, and its interval
reaches from one side to the other.

Between runs with other arrivals a change of less than `TOLERANCE_OTHER_ARRIVALS` does not decide: the arrivals alone
move a tail by that much, and an arm of fewer than `MANY_BLOCKS` blocks of time has not seen how much.

1. Failures, timeouts, cancellations or refusals rose (one-sided, 5 %): `regressed`, whatever the latencies did. Where
   the tail fell meanwhile, load was shed, and the cap or timeout that did it is named.
2. An interactive headline improved: `improved`, unless another interactive one lost as many milliseconds or more
   than the best one gained; then `regressed`. What got worse is a named trade-off.
3. None improved and one regressed: `regressed`.
4. Nothing moved for interactive requests: the other classes decide in the same way.
5. Nothing moved at all: `no_difference` if the intervals of the longest wait and of E2E of interactive requests allow
   no change larger than `EQUIVALENCE` (the largest that they allow is told), else `inconclusive`, with the number of
   requests that would decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tailrace.model.measurement import MetricDelta, Verdict
from tailrace.stats.bootstrap import QuantileChange
from tailrace.stats.quantiles import supported
from tailrace.stats.tests import benjamini_hochberg

__all__ = [
    "EQUIVALENCE",
    "MANY_BLOCKS",
    "TOLERANCE",
    "TOLERANCE_OTHER_ARRIVALS",
    "Headline",
    "equivalent",
    "judge_metric",
    "overall",
    "surviving",
    "too_small_for_other_arrivals",
]

TOLERANCE: Final = 0.05
"""Changes of less than this share do not matter to anybody."""
TOLERANCE_OTHER_ARRIVALS: Final = 0.10
MANY_BLOCKS: Final = 40
"""From so many blocks of time on, the interval itself knows what other arrivals do."""
EQUIVALENCE: Final = 0.10
"""Where an interval allows no change larger than this, two arms are told to be equal within what it allows."""


def judge_metric(change: QuantileChange) -> Verdict:
    """The verdict on one quantile of one metric."""
    if not supported(change.p, min(change.n_a, change.n_b)):
        return Verdict.INCONCLUSIVE
    if change.low >= -TOLERANCE and change.high <= TOLERANCE:
        return Verdict.NO_DIFFERENCE
    if change.high < 0:
        return Verdict.IMPROVED
    if change.low > 0 and change.change > TOLERANCE:
        return Verdict.REGRESSED
    return Verdict.INCONCLUSIVE


class Headline(NamedTuple):
    """One statistic on which the verdict rests."""

    name: str
    interactive: bool
    decisive: bool
    """Whether it must be within the tolerance for `no_difference` (longest wait, E2E of interactive requests)."""
    delta: MetricDelta
    change: QuantileChange


def surviving(headlines: Sequence[Headline], rate: float = 0.05) -> dict[str, Verdict]:
    """The verdicts of the headline after Benjamini-Hochberg: a change that does not survive is inconclusive."""
    kept = benjamini_hochberg([item.change.p_value for item in headlines], rate)
    return {
        item.name: item.delta.verdict
        if (keep and not too_small_for_other_arrivals(item.change)) or item.delta.verdict is Verdict.NO_DIFFERENCE
        else Verdict.INCONCLUSIVE
        for item, keep in zip(headlines, kept, strict=True)
    }


def overall(headlines: Sequence[Headline], *, failures_rose: bool) -> tuple[Verdict, str]:
    """(verdict, name of the headline that decided it; empty where none did)."""
    if failures_rose:
        return Verdict.REGRESSED, "failures"
    verdicts = surviving(headlines)
    for interactive in (True, False):
        group = [item for item in headlines if item.interactive is interactive]
        better = [item for item in group if verdicts[item.name] is Verdict.IMPROVED]
        worse = [item for item in group if verdicts[item.name] is Verdict.REGRESSED]
        best = max(better, key=_milliseconds, default=None)
        worst = max(worse, key=_milliseconds, default=None)
        if best is not None and (worst is None or _milliseconds(worst) < _milliseconds(best)):
            return Verdict.IMPROVED, better[0].name  # the most telling one, not the one with the most milliseconds
        if worst is not None:
            return Verdict.REGRESSED, worst.name
    decisive = [item for item in headlines if item.decisive]
    if decisive and all(equivalent(item.change) for item in decisive):
        return Verdict.NO_DIFFERENCE, max(decisive, key=lambda item: item.change.bound).name
    return Verdict.INCONCLUSIVE, ""


def equivalent(change: QuantileChange, within: float = EQUIVALENCE) -> bool:
    """Whether the interval of a supported quantile allows no change larger than `within`."""
    return supported(change.p, min(change.n_a, change.n_b)) and change.bound <= within


def too_small_for_other_arrivals(change: QuantileChange) -> bool:
    """Whether so small a change may be the arrivals' doing, and the arms are too short to know."""
    return not change.paired and change.blocks < MANY_BLOCKS and abs(change.change) < TOLERANCE_OTHER_ARRIVALS


def _milliseconds(item: Headline) -> float:
    return abs(item.change.b - item.change.a)
