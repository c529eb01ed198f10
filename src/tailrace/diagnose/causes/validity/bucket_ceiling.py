"""METRIC_BUCKET_CEILING: the quantile lies above the histogram's top edge, where no number is."""

from __future__ import annotations

from typing import ClassVar, Final

from tailrace.diagnose.arm_numbers import shown
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
        for item in observed.histograms:
            if item.n < LEAST or not item.bounds or item.name not in _ORDER:
                continue
            beyond = [p for p in (50, 90, 95, 99) if item.quantile(p / 100) == float("inf")]
            if beyond and (worst is None or (beyond[0], _ORDER.index(item.name)) < worst[:2]):
                worst = (beyond[0], _ORDER.index(item.name), item)
        if worst is None:
            return None
        p, _, item = worst
        top, above = item.bounds[-1], item.counts[-1]
        known = next((q for q in (99, 95, 90, 50) if q < p and item.quantile(q / 100) is not None), None)
        name = item.name.upper() if len(item.name) < 5 else item.name
        below = ""
        evidence = [
            Evidence(
                text=f"{above:.0f} of {item.n:.0f} values lie above the top edge {shown(top, item.unit)}, so p{p} does",
                source=str(item.place) or item.raw, name=f"{item.name}.above", value=above,
            )
        ]  # fmt: skip
        if known is not None:
            value = item.quantile(known / 100) or 0.0
            below = f" p{known} is {shown(round(value, 3), item.unit)}."
            evidence.append(
                Evidence(
                    text=f"p{known} = {shown(round(value, 3), item.unit)} from the buckets", source=str(item.place),
                    name=f"{item.name}.p{known}", value=value, unit=item.unit,
                )
            )  # fmt: skip
        return self.finding(
            statement=f"{name} p{p} is > {shown(top, item.unit)}, the histogram's top edge: the buckets hold no "
            "number for "
            f"it.{below}",
            evidence=evidence,
            explains_ms=None,
            relation=f"{above:.0f}/{item.n:.0f} = {above / item.n:.1%} above the top edge, more than {100 - p} %",
            n=int(item.n),
            advice="Say `> top edge`, never a number. Measure at the client or a gateway, or widen the buckets "
            "(older vLLM "
            "ends at 60 s, newer at 7680 s).",
            price="More buckets are more series.",
            verify="tailrace bench http://localhost:8000 --rate 5 --duration 60",
            missing=[] if not item.lifetime else ["a second scrape: these are all values since the start"],
        )
