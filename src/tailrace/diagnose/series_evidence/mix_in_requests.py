"""MIX_SHIFT from two arms of requests: each class as fast as before, and the heavy one a larger share.

The change of the mean is split exactly into what the shares did and what the classes did (facts page, section 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.pairs import changed
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Arm, Observed, Role, Rows
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["mix_in_requests"]

Floats = NDArray[np.float64]

LEAST: Final = 5
"""Requests an arm."""
FEWEST: Final = 2
"""Requests of a class in each arm: one alone has no usual time."""
APART: Final = 2.0
"""The longer class starts at so many times where the shorter one ends."""
MOVED: Final = 0.10
WITHIN: Final = 0.15
GREW: Final = 0.15
_WORK: Final = (("prompt_tokens", "prompt tokens"), ("output_tokens", "output tokens"), ("audio_s", "seconds of audio"))


class _Split(NamedTuple):
    what: str
    metric: str
    edge: tuple[float, float]
    """The largest of the short class, the smallest of the long one."""
    shares: tuple[float, float]
    """Of the long class, before and after."""
    times: tuple[tuple[float, float], tuple[float, float]]
    """(short, long) before, and after (ms, means)."""
    means: tuple[float, float]
    n: tuple[int, int]

    @property
    def mix(self) -> float:
        return (self.shares[1] - self.shares[0]) * (self.times[0][1] - self.times[0][0])

    @property
    def stage(self) -> float:
        (short, long), (short_after, long_after) = self.times
        return (1 - self.shares[1]) * (short_after - short) + self.shares[1] * (long_after - long)


def mix_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """Two arms with a row a request, whose roles are told by their names."""
    for rows in (*observed.table("requests"), *_joined(observed)):
        named = [name for name in dict.fromkeys(rows.texts("arm")) if name]
        arms = with_roles([Arm(name=name, label=name) for name in named])
        order = {arm.role: arm.name for arm in arms}
        if len(arms) != 2 or {Role.BEFORE, Role.AFTER} - order.keys():
            continue
        sides = (order[Role.BEFORE], order[Role.AFTER])
        found = [one for what in _WORK for metric in ("ttft", "e2e") if (one := _split(rows, sides, what, metric))]
        if found:
            return _finding(cause, observed, rows, sides, max(found, key=lambda one: one.mix))
    return None


def _joined(observed: Observed) -> list[Rows]:
    """Two files of requests, each an arm that its name tells: `before.csv`, `after.csv`."""
    tables = [rows for rows in observed.table("requests") if not any(rows.texts("arm"))]
    stems = [rows.place.source.rsplit("/", maxsplit=1)[-1].rsplit(".", maxsplit=1)[0] for rows in tables]
    if len(tables) != 2 or stems[0] == stems[1]:
        return []
    shared = [name for name in tables[0].columns if name in tables[1].columns and name != "arm"]
    columns = {
        name: np.concatenate([rows.columns[name] for rows in tables])
        for name in shared
        if tables[0].columns[name].dtype == tables[1].columns[name].dtype
    }
    arm = np.empty(sum(map(len, tables)), dtype=object)
    arm[:] = [stem for stem, rows in zip(stems, tables, strict=True) for _ in range(len(rows))]
    return [msgspec.structs.replace(tables[0], columns={**columns, "arm": arm}, lines=None)]


def _split(rows: Rows, sides: tuple[str, str], what: tuple[str, str], metric: str) -> _Split | None:
    work, times = rows.numbers(what[0]), _times(rows, metric)
    status = np.array([text.lower() in {"", "ok", "success", "200", "true"} for text in rows.texts("status")])
    arm = np.array(rows.texts("arm"), dtype=object)
    usable = np.isfinite(work) & np.isfinite(times) & status & (times > 0)
    masks = [usable & (arm == name) for name in sides]
    if min(int(mask.sum()) for mask in masks) < LEAST:
        return None
    edge = _edge(work[masks[0] | masks[1]])
    if edge is None:
        return None
    long = work >= edge[1]
    cells = [(mask & ~long, mask & long) for mask in masks]
    if any(int(cell.sum()) < FEWEST for pair in cells for cell in pair):
        return None
    before, after = ((float(times[short].mean()), float(times[longer].mean())) for short, longer in cells)
    shares = tuple(float(longer.sum() / mask.sum()) for mask, (_, longer) in zip(masks, cells, strict=True))
    means = tuple(float(times[mask].mean()) for mask in masks)
    found = _Split(
        what[1], metric, edge, (shares[0], shares[1]), (before, after), (means[0], means[1]),
        (int(masks[0].sum()), int(masks[1].sum())),
    )  # fmt: skip
    same = all(abs(two / one - 1.0) <= WITHIN for one, two in zip(before, after, strict=True))
    grew = means[1] - means[0] >= GREW * means[0] and found.mix > 2.0 * abs(found.stage)
    return found if same and grew and abs(shares[1] - shares[0]) >= MOVED else None


def _times(rows: Rows, metric: str) -> Floats:
    told = rows.numbers(f"{metric}_ms")
    end = rows.numbers("t_first_ms" if metric == "ttft" else "t_last_ms")
    return np.where(np.isfinite(told), told, end - rows.numbers("t_send_ms"))


def _edge(work: Floats) -> tuple[float, float] | None:
    """The two sizes between which nothing lies, the widest such place by ratio."""
    ordered = np.unique(work[work > 0])
    if ordered.size < 2:
        return None
    ratios = ordered[1:] / ordered[:-1]
    at = int(np.argmax(ratios))
    return (float(ordered[at]), float(ordered[at + 1])) if ratios[at] >= APART else None


def _finding(cause: Cause, observed: Observed, rows: Rows, sides: tuple[str, str], one: _Split) -> Finding:
    name = {"ttft": "TTFT", "e2e": "E2E"}[one.metric]
    (short, long), (short_after, long_after) = one.times
    source = str(rows.place) or "requests"
    what = changed(observed)
    innocent = f" The change ({what}) made nothing slower." if what else ""
    short_words = f"up to {number(one.edge[0])} {one.what}"
    long_words = f"from {number(one.edge[1])} {one.what} on"
    return cause.finding(
        statement=f"The mix moved, no stage did: requests {long_words} went from {one.shares[0]:.0%} to "
        f"{one.shares[1]:.0%}, and mean {name} from {one.means[0]:.0f} to {one.means[1]:.0f} ms; the mix explains "
        f"{one.mix:+.0f} ms of it, equal requests became {one.stage:+.0f} ms.{innocent}",
        evidence=[
            Evidence(
                f"mean {name} {one.means[0]:.0f} -> {one.means[1]:.0f} ms (n = {one.n[0]} and {one.n[1]})",
                source, "mean_ms", round(one.means[1], 1), "ms",
            ),
            Evidence(
                f"share of requests {long_words}: {one.shares[0]:.0%} ({sides[0]}) -> {one.shares[1]:.0%} "
                f"({sides[1]})", source, "share", round(one.shares[1], 4),
            ),
            *(
                Evidence(f"{words}: {name} {a:.0f} -> {b:.0f} ms (mean)", source, "class_ms", round(b, 1), "ms")
                for words, a, b in ((short_words, short, short_after), (long_words, long, long_after))
            ),
            Evidence(
                f"mix {one.mix:+.0f} ms, within equal requests {one.stage:+.0f} ms", source, "mix", round(one.mix, 1),
                "ms",
            ),
        ],
        explains_ms=one.mix,
        relation=f"({one.shares[1]:.2f} - {one.shares[0]:.2f}) x ({long:.0f} - {short:.0f}) = {one.mix:+.0f} ms mix; "
        f"{one.means[0]:.0f} -> {one.means[1]:.0f} ms, within {one.stage:+.0f} ms",
        n=min(one.n),
        advice="Nothing became slower, so do not roll back and do not tune the engine for it: give the long requests a "
        "lane and limits of their own, or plan capacity for the new mix. Where prompts grew: " + shorter_prompts(),
        price="A lane of its own makes the long requests wait for themselves.",
        verify="tailrace compare before.run after.run  # it weights B to the traffic of A",
        missing=["more requests of both windows: the mix's part of the p99, with its interval"],
        disproof_checked=[f"within equal requests {one.stage:+.0f} ms: each class is as fast as before"],
        level=Level.SUSPECTED if min(one.n) < 30 else None,
    )  # fmt: skip
