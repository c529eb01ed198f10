"""COMPUTE_RANK_SKEW from a series with a column a rank: one of them is late in (nearly) every step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Observed, Series
from tailrace.diagnose.observed.vocabulary import TO_MS, in_unit
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["ranks_in_series"]

Floats = NDArray[np.float64]
SHARE: Final = 0.2
"""Of a step, that it waits for the late rank."""
MOSTLY: Final = 0.8
"""Of the steps in which the same rank is the late one: noise would pick another."""
LEAST: Final = 3
"""Steps."""
_WAIT: Final = re.compile(r"wait|barrier|allreduce|all_reduce|collective|nccl|sync", re.IGNORECASE)
_STEP: Final = frozenset({"wall", "step", "step_time", "iteration_time", "step_wall", "duration", "e2e"})


def ranks_in_series(cause: Cause, observed: Observed) -> Finding | None:
    """The late rank's own time above the others' (or their wait above its), against the step."""
    groups: dict[tuple[str, str], list[Series]] = {}
    for one in observed.series:
        rank = one.labels.get("rank") or one.labels.get("gpu")
        if rank is not None and len(one) >= LEAST and one.unit in TO_MS:
            groups.setdefault((one.place.source, one.name), []).append(one)
    for (source, name), ranks in groups.items():
        if len(ranks) < 2 or len({len(one) for one in ranks}) > 1:
            continue
        steps = [one for one in observed.series if one.place.source == source and one.name in _STEP and not one.labels]
        step = next((one for one in steps if len(one) == len(ranks[0])), None)
        found = _judged(cause, name, ranks, step) if step is not None else None
        if found is not None:
            return found
    return None


def _ms(series: Series) -> Floats:
    """Its values in ms; those of a step without a unit are."""
    return series.values * (in_unit(1.0, series.unit or "ms", "ms") or np.nan)


def _judged(cause: Cause, name: str, ranks: list[Series], step: Series) -> Finding | None:
    times = np.array([_ms(one) for one in ranks])
    known = np.isfinite(times).all(axis=0) & np.isfinite(_ms(step))
    if known.sum() < LEAST:
        return None
    times = times[:, known]
    odd = times.argmin(axis=0) if _WAIT.search(name) else times.argmax(axis=0)
    late = int(np.bincount(odd).argmax())
    if float((odd == late).mean()) < MOSTLY:
        return None
    others = np.delete(times, late, axis=0)
    skew = float(np.median(np.abs(np.median(others, axis=0) - times[late])))
    whole = float(np.median(_ms(step)[known]))
    share = skew / whole if whole > 0 else 0.0
    if not SHARE < share < 1.0:
        return None
    rank = ranks[late].labels.get("rank") or ranks[late].labels.get("gpu")
    what = name.replace("_", " ")
    own, rest = float(np.median(times[late])), float(np.median(others))
    return cause.finding(
        statement=f"Rank {rank} comes late in {float((odd == late).mean()):.0%} of the steps: {what} {own:.3g} ms "
        f"against {rest:.3g} ms of the others; {skew:.3g} ms of a step of {whole:.3g} ms ({share:.0%}) pass in waiting "
        "for it.",
        evidence=[
            Evidence(f"{what} of rank {rank}: {own:.3g} ms (median)", str(ranks[late].place), name, own, "ms"),
            Evidence(f"{what} of the others: {rest:.3g} ms", str(ranks[late].place), name, rest, "ms"),
            Evidence(f"it is the late one in {float((odd == late).mean()):.0%} of the steps", str(step.place), "late"),
            Evidence(f"a step takes {whole:.3g} ms", str(step.place), "step", whole, "ms"),
        ],
        explains_ms=skew,
        relation=f"{skew:.3g}/{whole:.3g} = {share:.0%} > {SHARE:.0%}",
        n=int(known.sum()),
        advice="Pin each rank's process to cores near its device, look at what delays the late rank (a busy core, "
        "garbage collection, logging, a slower link or clock of that device), and capture graphs so that launches are "
        "few.",
        price="Pinned cores are lost to others.",
        verify="tailrace diagnose steps.csv  # the same columns after the change: alike in all ranks",
        disproof_checked=[f"the same rank is late in {float((odd == late).mean()):.0%} of the steps"],
    )
