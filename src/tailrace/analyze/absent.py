"""What a run's source does not tell stays absent in its summary, whatever could be computed from its records.

A record has an end even where the tool that told it knew only the last token; the run then names `e2e_ms` as absent.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tailrace.model.measurement import BenchSummary, MetricSummary
from tailrace.store.run_file import RunHeader

__all__ = ["without_absent"]


def without_absent(summary: BenchSummary, header: RunHeader) -> BenchSummary:
    """The summary without the metrics that the run's header names as absent; their `reason` says whose lack it is."""
    lacking = {name for name in header.absent if name.endswith("_ms")}
    if not lacking:
        return summary
    # What comes after the last token is a difference to that end: it is not known either, and no 0.
    without = {"postprocess_ms", "response_ms"} if "e2e_ms" in lacking else set()
    gone = MetricSummary(n=0, reason=f"the results of {header.source} do not tell it")

    def kept(metrics: Mapping[str, MetricSummary]) -> dict[str, MetricSummary]:
        return {name: gone if name in lacking else one for name, one in metrics.items() if name not in without}

    return msgspec.structs.replace(
        summary,
        metrics=kept(summary.metrics),
        from_schedule=kept(summary.from_schedule),
        classes={name: kept(one) for name, one in summary.classes.items()},
        classes_from_schedule={name: kept(one) for name, one in summary.classes_from_schedule.items()},
        buckets=[msgspec.structs.replace(one, metrics=kept(one.metrics)) for one in summary.buckets],
        user_tokens_per_s=None if "tpot_ms" in lacking else summary.user_tokens_per_s,
    )
