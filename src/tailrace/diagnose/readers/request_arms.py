"""A table of requests that names its arms (`arm: 0.4.2`), as those arms: medians, means and tails of each.

The rules that compare tables of arms see them so; the table itself stays for those that look at single requests.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.of_requests import tpot_of
from tailrace.diagnose.observed import Arm, Observed, Quoted, Rows
from tailrace.diagnose.readers.roles import with_roles
from tailrace.stats.quantiles import supported

__all__ = ["arms_of_requests"]

Floats = NDArray[np.float64]
LEAST: Final = 3
MOST: Final = 6
ALIKE: Final = 0.02
APART: Final = 2.0
"""Neighbours in order that differ by this factor, with a fifth of the requests on either side, are two modes."""
SIDE: Final = 0.2
FEWEST: Final = 4
_TIMES: Final = ("ttft", "e2e", "tpot", "queue", "prefill", "decode", "preprocess", "encode")
_WORK: Final = ("prompt_tokens", "output_tokens")
_CONDITIONS: Final = {"in_flight": "concurrency", "concurrency": "concurrency", "offered_rps": "offered_rps"}


def arms_of_requests(observed: Observed) -> list[Arm]:
    """The arms of the first table that names at least two, each with three requests or more; none without."""
    for rows in observed.table("requests"):
        members = {name: rows_of for name, rows_of in rows.members("arm").items() if name}
        if 2 <= len(members) <= MOST and all(len(those) >= LEAST for those in members.values()):
            arms = [_arm(rows, name, those) for name, those in members.items()]
            # Half of an arm in one mode and half in another has no usual value: such a column is for single requests.
            split = {
                quantity
                for quantity in _TIMES
                for those in members.values()
                if _two_modes(_times(rows, quantity)[those])
            }
            return with_roles(
                [
                    msgspec.structs.replace(
                        arm, values={key: item for key, item in arm.values.items() if item.quantity not in split}
                    )
                    for arm in arms
                ]
            )
    return []


def _times(rows: Rows, quantity: str) -> Floats:
    column = rows.numbers(f"{quantity}_ms")
    return tpot_of(rows) if quantity == "tpot" and not np.isfinite(column).any() else column


def _two_modes(values: Floats) -> bool:
    known = np.sort(values[np.isfinite(values) & (values > 0)])
    if known.size < FEWEST:
        return False
    ratios = known[1:] / known[:-1]
    place = int(np.argmax(ratios)) + 1
    return bool(ratios[place - 1] >= APART and min(place, known.size - place) >= max(2.0, SIDE * known.size))


def _arm(rows: Rows, name: str, those: np.ndarray) -> Arm:
    ok = np.array([status in ("ok", "") for status in rows.texts("status")], dtype=bool)[those]
    place = rows.line_of(int(those[0]))
    values: dict[str, Quoted] = {}

    def keep(quantity: str, stat: str, value: float, unit: str) -> None:
        item = Quoted(quantity=quantity, stat=stat, value=round(value, 3), unit=unit, label=quantity, place=place)
        values[item.key] = item

    keep("n", "", float(ok.sum()), "count")
    keep("failed", "", float((~ok).sum()), "count")
    for quantity in _TIMES:
        known = _times(rows, quantity)[those][ok]
        known = known[np.isfinite(known)]
        if known.size < LEAST:
            continue
        keep(quantity, "p50", float(np.median(known)), "ms")
        keep(quantity, "mean", float(known.mean()), "ms")
        for stat, p in (("p95", 0.95), ("p99", 0.99)):
            if supported(p, int(known.size)):
                keep(quantity, stat, float(np.quantile(known, p)), "ms")
    for quantity in _WORK:
        known = rows.numbers(quantity)[those][ok]
        known = known[np.isfinite(known)]
        if known.size >= LEAST:
            keep(quantity, "", float(known.mean()), "tokens")
    return Arm(name=name, label=name, keys={"arm": name, **_conditions(rows, those)}, values=values, place=place)


def _conditions(rows: Rows, those: np.ndarray) -> dict[str, float | str]:
    """What was the same for all of an arm's requests."""
    out: dict[str, float | str] = {}
    for column, name in _CONDITIONS.items():
        known = rows.numbers(column)[those]
        if known.size and np.isfinite(known).all() and float(np.ptp(known)) <= ALIKE * abs(float(known.mean())):
            out.setdefault(name, float(known.mean()))
    return out
