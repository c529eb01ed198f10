"""A sweep of the engine's cap: throughput, time per token and first token along max_num_seqs."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tailrace.diagnose.arms.asked import USUAL_FIRST, figure
from tailrace.diagnose.arms.limits import CAP
from tailrace.diagnose.arms.pairs import Point, sweep
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Arm, Observed, Quoted

__all__ = ["CapSweep", "cap_sweep"]

NEAR_LINEAR: Final = 0.7
"""Exponent of throughput ~ cap^e from which it rises with the cap: 1 is linear, 0 is flat."""
STILL: Final = 0.35
"""Exponent of the last step from which the next one is worth a try."""
FLAT: Final = 0.3
"""Exponent of TPOT ~ cap^e up to which TPOT is flat: a batch that is bound by computing has 1."""


class CapSweep(NamedTuple):
    """The arms along the cap, ascending."""

    points: list[Point]
    rates: list[Quoted]
    """Throughput of each; empty where it is not known of all."""
    paces: list[Quoted]
    """TPOT (or ITL) of each; empty likewise."""

    @property
    def growth(self) -> float:
        """Last cap / first."""
        return self.points[-1].x / self.points[0].x

    @property
    def gain(self) -> float | None:
        """Exponent e of throughput ~ cap^e over the whole sweep."""
        return _exponent(self.points, self.rates, 0)

    @property
    def last_gain(self) -> float | None:
        """The same of the last step."""
        return _exponent(self.points, self.rates, len(self.points) - 2)

    @property
    def slowing(self) -> float | None:
        """Exponent e of TPOT ~ cap^e."""
        return _exponent(self.points, self.paces, 0)

    @property
    def underbatched(self) -> bool:
        """Throughput rises with the cap to the end of the sweep, and TPOT is flat (or not known)."""
        gain, last, slowing = self.gain, self.last_gain, self.slowing
        rises = gain is not None and gain >= NEAR_LINEAR and last is not None and last >= STILL
        return rises and (slowing is None or slowing <= FLAT)

    @property
    def relation(self) -> str:
        """`cap 4 -> 32 (x 8): throughput 40.8 -> 235.5 tok/s (x 5.77), TPOT 92 -> 116 ms (x 1.26)`."""
        first, last = self.points[0].x, self.points[-1].x
        words = f"cap {first:g} -> {last:g} (x {self.growth:.3g})"
        for name, values in (
            ("throughput", self.rates),
            ("TPOT" if self.paces and self.paces[0].quantity == "tpot" else "ITL", self.paces),
        ):
            if values:
                one, two = values[0], values[-1]
                words += (
                    f"{':' if name == 'throughput' or not self.rates else ','} {name} {number(one.value)} -> "
                    f"{number(two.value, two.unit)} (x {two.value / one.value:.3g})"
                )
        return words


def _exponent(points: list[Point], values: list[Quoted], start: int) -> float | None:
    if not values or values[start].value <= 0 or values[-1].value <= 0 or points[start].x <= 0:
        return None
    return math.log(values[-1].value / values[start].value) / math.log(points[-1].x / points[start].x)


def cap_sweep(observed: Observed) -> CapSweep | None:
    """The arms along the cap that have a throughput or a time per token; `None` where there are none."""
    points = sweep(observed, CAP, _tells)
    if len(points) < 2 or points[0].x <= 0:
        return None
    return CapSweep(
        points,
        _shared(points, ("output_tok_s", "decode_tok_s", "req_s", "completed_rps")),
        _shared(points, ("tpot", "itl")),
    )


def _tells(arm: Arm) -> bool:
    return any(
        figure(arm, name, stats=USUAL_FIRST) for name in ("output_tok_s", "decode_tok_s", "req_s", "tpot", "itl")
    )


def _shared(points: list[Point], names: tuple[str, ...]) -> list[Quoted]:
    """The first of these quantities that all arms have in one statistic."""
    for name in names:
        for stat in USUAL_FIRST:
            found = [figure(point.arm, name, stats=(stat,)) for point in points]
            if all(found):
                return [item for item in found if item is not None]
    return []
