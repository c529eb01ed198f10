"""What a Prometheus metric of ours is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tailrace.model.record import RequestRecord

__all__ = ["Metric"]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric. `objective` names the objective whose bounds are added to the buckets."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`; a counter's series end in `_total`, which `name` includes."""
    labels: tuple[str, ...] = ()
    unit: str = ""
    """`seconds`, `tokens`, `requests`, `ratio`, ..."""
    definition: str
    buckets: tuple[float, ...] = ()
    objective: str = ""
    merge: str = "sum"
    """How the numbers of several worker processes become one: `sum`, `max` or `min`."""
    of: Callable[[RequestRecord], int | None] | None = None
    """What one ended request adds (counter) or shows (histogram): nanoseconds where the unit is seconds, `None` for
    nothing. Its labels are then among `REQUEST_LABELS`. Without it somebody sets the metric: a live gauge, or one of
    which a request has several series."""
