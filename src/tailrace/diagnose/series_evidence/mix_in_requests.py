"""MIX_SHIFT from a table of requests of two windows: each class is as fast as before, and their shares are others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.of_requests import tpot_of
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Arm, Observed, Role
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["mix_in_requests"]

Floats = NDArray[np.float64]
LEAST: Final = 8
"""Requests of each window."""
GAP: Final = 2.0
"""Between the classes, as a ratio of lengths."""
NAMED: Final = 0.10
WITHIN: Final = 0.15
MOVED: Final = 0.10
"""Of all requests, that the share of a class went up or down by."""


def mix_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """By prompt tokens first, else by output tokens with E2E."""
    windows = _windows(observed)
    if windows is None:
        return None
    for column, time, words in (("prompt_tokens", "ttft_ms", "prompt"), ("output_tokens", "e2e_ms", "output")):
        found = _by(cause, windows, column, time, words)
        if found is not None:
            return found
    return None


def _windows(observed: Observed) -> tuple[dict[str, Floats], dict[str, Floats], str] | None:
    """(columns before, columns after, where) of two arms whose names tell which is which."""
    parts: dict[str, list[dict[str, Floats]]] = {}
    place = ""
    for rows in observed.table("requests"):
        ok = np.array([status in ("ok", "") for status in rows.texts("status")], dtype=bool)
        columns = {name: rows.numbers(name) for name in ("prompt_tokens", "output_tokens", "ttft_ms", "e2e_ms")}
        columns["tpot"] = tpot_of(rows)
        place = place or str(rows.place)
        for arm, members in rows.members("arm").items():
            mine = members[ok[members]]
            parts.setdefault(arm or Path(rows.place.source).stem, []).append(
                {name: values[mine] for name, values in columns.items()}
            )
    if len(parts) != 2:
        return None
    roles = {arm.role: arm.name for arm in with_roles([Arm(name=name, label=name) for name in parts])}
    if set(roles) != {Role.BEFORE, Role.AFTER}:
        return None
    before, after = (
        {name: np.concatenate([part[name] for part in parts[roles[role]]]) for name in parts[roles[role]][0]}
        for role in (Role.BEFORE, Role.AFTER)
    )
    return before, after, place


def _by(
    cause: Cause,
    windows: tuple[dict[str, Floats], dict[str, Floats], str],
    column: str,
    time: str,
    words: str,
) -> Finding | None:
    before, after, place = windows
    lengths = [one[column][np.isfinite(one[column]) & np.isfinite(one[time])] for one in (before, after)]
    times = [one[time][np.isfinite(one[column]) & np.isfinite(one[time])] for one in (before, after)]
    if min(side.size for side in lengths) < LEAST:
        return None
    edge = _edge(np.concatenate(lengths))
    if edge is None:
        return None
    long = [side > edge for side in lengths]
    counts = [int(side.sum()) for side in long]
    sizes = [side.size for side in lengths]
    if min(counts[0], sizes[0] - counts[0]) < 1 or min(counts[1], sizes[1] - counts[1]) < 1:
        return None
    shares = [counts[n] / sizes[n] for n in (0, 1)]
    means = [(float(times[n][~long[n]].mean()), float(times[n][long[n]].mean())) for n in (0, 1)]
    whole = [float(times[n].mean()) for n in (0, 1)]
    mix = (shares[1] - shares[0]) * (means[0][1] - means[0][0])
    stage = (1 - shares[1]) * (means[1][0] - means[0][0]) + shares[1] * (means[1][1] - means[0][1])
    if abs(shares[1] - shares[0]) < MOVED or mix < NAMED * whole[0] or mix <= 2 * abs(stage):
        return None
    if any(abs(means[1][n] / means[0][n] - 1.0) > WITHIN for n in (0, 1) if means[0][n] > 0):
        return None
    name = "TTFT" if time == "ttft_ms" else "E2E"
    typical = float(np.median(np.concatenate(lengths)[np.concatenate(long)]))
    paces = [
        float(np.nanmedian(one["tpot"])) if np.isfinite(one["tpot"]).any() else float("nan") for one in (before, after)
    ]
    checked = [
        f"within the classes {stage:+.0f} ms",
    ]
    if np.isfinite(paces).all():
        checked.append(f"TPOT p50 {paces[0]:.1f} -> {paces[1]:.1f} ms")
    few = min(*counts, *(sizes[n] - counts[n] for n in (0, 1))) < 30
    return cause.finding(
        statement=f"The mix moved, the system did not: long {words}s (about {typical:.0f} tokens) went from "
        f"{counts[0]} of {sizes[0]} requests to {counts[1]} of {sizes[1]} ({shares[0]:.0%} -> {shares[1]:.0%}), and "
        f"the mean {name} from {whole[0]:.0f} to {whole[1]:.0f} ms; within the classes nothing became slower.",
        evidence=[
            Evidence(
                f"share of long {words}s: {counts[0]}/{sizes[0]} = {shares[0]:.1%} -> {counts[1]}/{sizes[1]} = "
                f"{shares[1]:.1%} (longer than {edge:.0f} tokens, about {typical:.0f} tokens)",
                place, "share", round(shares[1], 4),
            ),
            Evidence(
                f"mean {name} of short ones {means[0][0]:.0f} -> {means[1][0]:.0f} ms, of long ones "
                f"{means[0][1]:.0f} -> {means[1][1]:.0f} ms",
                place, "within_ms", round(stage, 1), "ms",
            ),
            Evidence(
                f"mean {name} {whole[0]:.0f} -> {whole[1]:.0f} ms (x {whole[1] / whole[0]:.2f}): mix {mix:+.0f} ms, "
                f"within the classes {stage:+.0f} ms; {shares[0]:.0%} -> {shares[1]:.0%}",
                place, "mix_ms", round(mix, 1), "ms",
            ),
        ],
        explains_ms=mix,
        relation=f"({shares[1]:.3g} - {shares[0]:.3g}) x ({means[0][1]:.0f} - {means[0][0]:.0f}) = {mix:+.0f} ms mix, "
        f"{stage:+.0f} ms within the classes",
        n=sum(sizes),
        advice="Do not roll back and do not tune for it: give the heavy class a lane and limits of its own, or plan "
        "capacity for the new mix. " + shorter_prompts(tokens=typical if words == "prompt" else None),
        price="A lane of its own makes the heavy class wait for itself.",
        verify="tailrace diagnose after.run --before before.run",
        missing=["more requests of both windows: the mix's part of the p99 itself, with its interval"] if few else [],
        disproof_checked=checked,
        action=Action.TUNE,
        level=Level.SUSPECTED if few else Level.CONSISTENT,
    )  # fmt: skip


def _edge(lengths: Floats) -> float | None:
    """The middle of the widest hole between lengths (as a ratio); `None` where none is wide."""
    known = np.unique(lengths[lengths > 0])
    if known.size < 2:
        return None
    ratios = known[1:] / known[:-1]
    place = int(np.argmax(ratios))
    return float(np.sqrt(known[place] * known[place + 1])) if ratios[place] >= GAP else None
