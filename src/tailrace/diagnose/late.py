"""Whether a cause is what makes requests later than was promised: of those over an objective, what it explains."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.symptoms import more_often_than

__all__ = ["makes_late"]

MATERIAL: Final = 0.3
"""Of what those requests take beyond the usual one."""


def makes_late(evidence: EvidenceSet, metric: str, values: NDArray[np.float64]) -> bool:
    """Whether an objective of `metric` is broken beyond chance, and `values` (ms by row of `done`) are a material part
    of what those over it take beyond the median. Objectives bind interactive requests.
    """
    window = evidence.now
    seen = window.done.ms(metric)
    rows = window.interactive & ~np.isnan(seen)
    if not rows.any():
        return False
    usual = float(np.median(seen[rows]))
    for p, bound_ns in evidence.objectives.bounds.get(metric, {}).items():
        late = rows & (seen > bound_ns / 1e6)
        if more_often_than(int(late.sum()), int(rows.sum()), 1.0 - p):
            share = values[late] / np.maximum(seen[late] - usual, 1e-9)
            if float(np.median(share)) >= MATERIAL:
                return True
    return False
