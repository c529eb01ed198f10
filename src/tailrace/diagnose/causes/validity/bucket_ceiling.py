"""METRIC_BUCKET_CEILING: the quantile lies above the histogram's top edge, where no number is."""

from __future__ import annotations

from typing import ClassVar, Final

from tailrace.diagnose.arm_evidence.bucket_rows import histograms_in_rows
from tailrace.diagnose.arms.again import MEASURE
from tailrace.diagnose.arms.as_written import called, shown
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Histogram, Observed
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["BucketCeiling"]

LEAST: Final = 10
_ORDER: Final = ("e2e", "ttft", "queue", "prefill", "decode", "itl", "tpot")


class BucketCeiling(Cause):
    """A p99 (or less) of a scraped histogram falls into its last, open bucket."""

    code: ClassVar[str] = "METRIC_BUCKET_CEILING"
    stage: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("a histogram with its buckets, of two scrapes",)
    disproof: ClassVar[str] = "The quantile lies in a bucket with an upper edge."
    action: ClassVar[Action] = Action.COLLECT

    def observe(self, observed: Observed) -> Finding | None:
        """The histogram of which the lowest quantile is beyond its top edge."""
        worst: tuple[int, int, Histogram] | None = None
        for item in [*observed.histograms, *histograms_in_rows(observed)]:
            if item.n < LEAST or not item.bounds or item.name not in _ORDER:
                continue
            beyond = [p for p in (50, 90, 95, 99) if item.quantile(p / 100) == float("inf")]
            if beyond and (worst is None or (beyond[0], _ORDER.index(item.name)) < worst[:2]):
                worst = (beyond[0], _ORDER.index(item.name), item)
        if worst is None:
            return None
        lowest, _, item = worst
        top, above = item.bounds[-1], item.counts[-1]
        name = called(item.name)
        place = str(item.place) or item.raw
        known = [(p, item.quantile(p / 100) or 0.0) for p in (50, 90, 95) if p < lowest]
        below = ", ".join(f"p{p} {_time(value, item.unit)}" for p, value in known)
        evidence = [
            Evidence(
                text=f"{above:.0f} of {item.n:.0f} values lie above the top edge {_time(top, item.unit)}: p{lowest} "
                "and p99 do",
                source=place, name=f"{item.name}.above", value=above,
            )
        ]  # fmt: skip
        evidence += [
            Evidence(
                text=f"p{p} = {_time(value, item.unit)} from the buckets", source=place, name=f"{item.name}.p{p}",
                value=value, unit=item.unit,
            )
            for p, value in known
        ]  # fmt: skip
        return self.finding(
            statement=f"{name} p99 > {_time(top, item.unit)}, the histogram's top edge (from p{lowest} on): the "
            "buckets hold no number "
            f"for it.{f' Below it: {below}.' if below else ''}",
            evidence=evidence,
            explains_ms=None,
            relation=f"{above:.0f}/{item.n:.0f} = {above / item.n:.1%} above the top edge, more than {100 - lowest} %",
            n=int(item.n),
            advice="Say `> top edge`, never a number. Measure at the client or a gateway, or widen the buckets "
            "(older vLLM ends at 60 s, newer at 7680 s).",
            price="More buckets are more series.",
            verify=MEASURE,
            missing=[] if not item.lifetime else ["a second scrape: these are all values since the start"],
        )


def _time(value: float, unit: str) -> str:
    """`10 s`, `9 s`, `0.875 s`, `80 ms`."""
    return f"{value / 1000:.4g} s" if unit == "ms" and value >= 500 else shown(round(value, 3), unit)
