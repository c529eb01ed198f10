"""Statistics of many groups at once, where each group's values stand together in one array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["medians_of_runs"]


def medians_of_runs(
    values: NDArray[np.float64], owner: NDArray[np.int64], begins: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The median of each group. `owner` says whose each value is and is ascending; `begins` is where each group's
    values begin in it, ascending, without the end.
    """
    ordered = values[np.lexsort((values, owner))]
    sizes = np.diff(np.append(begins, owner.size))
    middle: NDArray[np.float64] = (ordered[begins + (sizes - 1) // 2] + ordered[begins + sizes // 2]) / 2.0
    return middle
