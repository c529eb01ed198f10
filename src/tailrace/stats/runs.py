"""Statistics of many groups at once, where each group's values stand together in one array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["medians_of_runs", "quantiles_of_runs"]


def medians_of_runs(
    values: NDArray[np.float64], owner: NDArray[np.int64], begins: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The median of each group. `owner` says whose each value is and is ascending; `begins` is where each group's
    values begin in it, ascending, without the end.
    """
    # The rank of each value among all, behind whose it is, in one number: sorting numbers is several times quicker than
    # sorting by two keys.
    order = np.argsort(values)
    key = np.empty(values.size, dtype=np.int64)
    key[order] = np.arange(values.size)
    bits = values.size.bit_length()
    key |= owner << bits
    key.sort()
    key &= (1 << bits) - 1
    ordered = values[order[key]]
    sizes = np.diff(np.append(begins, owner.size))
    middle: NDArray[np.float64] = (ordered[begins + (sizes - 1) // 2] + ordered[begins + sizes // 2]) / 2.0
    return middle


def quantiles_of_runs(
    values: NDArray[np.float64], begins: NDArray[np.int64], ends: NDArray[np.int64], p: float
) -> NDArray[np.float64]:
    """`np.quantile(values[begin:end], p)` of each run, none of which is empty; `values` are put in another order within
    the runs.
    """
    place = (ends - begins - 1) * p
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, ends - begins - 1)
    for begin, end, a, b in zip(begins.tolist(), ends.tolist(), low.tolist(), high.tolist(), strict=True):
        values[begin:end].partition((a, b))
    left, right, share = values[begins + low], values[begins + high], place - low
    # As numpy interpolates, to the last bit.
    middle: NDArray[np.float64] = np.where(
        share >= 0.5, right - (right - left) * (1.0 - share), left + (right - left) * share
    )
    return middle
