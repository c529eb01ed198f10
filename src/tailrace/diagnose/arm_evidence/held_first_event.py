"""GW_HOLDS_FIRST_EVENT: a hop holds the first event back, for some requests and by a fixed time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arm_evidence.paths import is_direct, is_via
from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import condition, figure, number_stated, said
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Arm, Observed, Place
from tailrace.diagnose.observed.vocabulary import in_unit, unit_in_name
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["held_first_event", "modes"]

EMPTY: Final = 3.0
"""The empty space between the modes is so many times as wide as the wider of them …"""
APART: Final = 2.0
"""… and the upper mode so many times the lower one."""
EACH: Final = 2
SHARE: Final = 0.1
LOW_LOAD: Final = 4.0
_STATS: Final = ("", "p50", "mean")


class _Path(NamedTuple):
    name: str
    ttft: np.ndarray
    place: Place


class Modes(NamedTuple):
    """Two groups of values with nothing between."""

    low: np.ndarray
    high: np.ndarray

    @property
    def apart(self) -> float:
        """Median of the upper one minus median of the lower one."""
        return float(np.median(self.high) - np.median(self.low))


def modes(values: np.ndarray) -> Modes | None:
    """The two modes of `values` (any unit); `None` where they make one, or one of them is a stray value."""
    ordered = np.sort(values[np.isfinite(values)])
    if ordered.size < 2 * EACH:
        return None
    cut = int(np.argmax(np.diff(ordered))) + 1
    low, high = ordered[:cut], ordered[cut:]
    least = max(EACH, SHARE * ordered.size)
    gap = high[0] - low[-1]
    if min(low.size, high.size) < least or gap < EMPTY * max(float(np.ptp(low)), float(np.ptp(high)), 1e-9):
        return None
    return Modes(low, high) if np.median(high) >= APART * max(float(np.median(low)), 1e-9) else None


def held_first_event(cause: Cause, observed: Observed) -> Finding | None:
    """Bimodal through the hop, one mode without it."""
    paths = _paths(observed)
    if not any(is_direct(path.name) or is_via(path.name) for path in paths):
        return None  # classes of requests have modes of their own: only paths can accuse a hop
    via = [(path, found) for path in paths if (found := modes(path.ttft)) is not None]
    if len(via) != 1:
        return None
    path, found = via[0]
    direct = next((item for item in paths if item is not path and item.ttft.size >= EACH), None)
    if direct is not None and float(np.max(direct.ttft)) > float(found.low[-1]) + 0.5 * found.apart:
        return None
    load = _load(observed)
    if load is not None and load > LOW_LOAD:
        return None
    missing = []
    if direct is None:
        missing.append("TTFT request by request on the direct path: it must have one mode")
    if load is None:
        missing.append("the concurrency, which must be low (at high load a queue makes two modes as well)")
    share = found.high.size / path.ttft.size
    source = str(path.place) or "form"
    low, high = float(np.median(found.low)), float(np.median(found.high))
    return cause.finding(
        action=Action.FIX,
        statement=f"Through {path.name}, the first event comes after {number(low, 'ms')} or after "
        f"{number(high, 'ms')}, and never between: the hop holds it back in {share:.0%} of {path.ttft.size} requests.",
        evidence=[
            Evidence(f"{path.name}: {found.low.size} first events at {_range(found.low)}", source, "low_ms", low, "ms"),
            Evidence(
                f"{path.name}: {found.high.size} first events at {_range(found.high)}",
                source,
                "high_ms",
                high,
                "ms",
            ),
            Evidence(f"{share:.0%} of {path.ttft.size} are late", source, "late_share", round(share, 4)),
            Evidence(f"the modes: {number(low, 'ms')} and {number(high, 'ms')} (medians)", source),
            *(
                [
                    Evidence(
                        f"{direct.name}: {direct.ttft.size} first events at {_range(direct.ttft)}",
                        str(direct.place) or "form",
                    )
                ]
                if direct is not None
                else []
            ),
        ],
        explains_ms=found.apart,
        relation=f"{number(high, 'ms')} - {number(low, 'ms')} = {number(found.apart, 'ms')} held; nothing between "
        f"{number(float(found.low[-1]), 'ms')} and {number(float(found.high[0]), 'ms')}",
        n=int(path.ttft.size),
        advice="Flush the first event at once; look for what holds it: reasoning that is collected before it is shown, "
        "a moderation check of the beginning, a buffer that a short first chunk does not fill.",
        price="What the hold was for (a moderated beginning, hidden reasoning) must be done without it.",
        verify=again(more="--concurrency 1"),
        missing=missing,
        disproof_checked=[
            f"one mode on the direct path: {_range(direct.ttft)}" if direct is not None else "no direct path given",
            f"concurrency {load:g}" if load is not None else "concurrency unknown",
        ],
    )


def _range(values: np.ndarray) -> str:
    low, high = float(values.min()), float(values.max())
    return number(low, "ms") if low == high else f"{number(low, 'ms')} to {number(high, 'ms')}"


def _load(observed: Observed) -> float | None:
    stated = number_stated(observed, r"^(?:max )?concurrency$|in flight|users")
    if stated is not None:
        return stated.number
    found = [value for arm in observed.arms if (value := condition(arm, r"\bconcurrency\b|in flight")) is not None]
    for rows in observed.table("requests"):
        told = rows.numbers("in_flight")
        if np.isfinite(told).any():
            found.append(float(np.nanmax(told)))
    return max(found) if found else None


def _paths(observed: Observed) -> list[_Path]:
    """TTFT by path: rows of requests with an arm, tables with a row a request, or a form's lists."""
    out = []
    for rows in observed.table("requests"):
        named = next((name for name in ("arm", "path", "group", "replica") if rows.has(name)), "")
        if not named:
            continue
        ttft = next((rows.numbers(name) for name in ("ttft_ms", "ttft") if rows.has(name)), None)
        ttft = rows.numbers("t_first_ms") - rows.numbers("t_send_ms") if ttft is None else ttft
        labels = np.array(rows.texts(named))
        for label in dict.fromkeys(labels):
            mine = ttft[(labels == label) & np.isfinite(ttft)]
            if mine.size:
                out.append(_Path(str(label), mine, rows.place))
    by_label: dict[str, list[tuple[Arm, float]]] = {}
    for arm in observed.arms:
        found = figure(arm, "ttft", stats=_STATS)
        if found is not None and (is_direct(said(arm)) or is_via(said(arm))):
            by_label.setdefault(arm.label or arm.name, []).append((arm, found.value))
    for label, mine_ in by_label.items():
        out.append(_Path(label, np.array([value for _, value in mine_]), mine_[0][0].place))
    out += [*_columns(observed), *_listed_arms(observed), *_lists(observed)]
    # A form's list is a fact and a number of its arm.
    return list({one.ttft.tobytes(): one for one in reversed(out)}.values())[::-1]


def _columns(observed: Observed) -> list[_Path]:
    """A row a request, and a column a path."""
    found: dict[str, list[tuple[Arm, float]]] = {}
    for arm in observed.arms:
        for value in arm.values.values():
            words = value.label.replace("_", " ")
            if value.quantity == "ttft" and value.stat in _STATS and (is_direct(words) or is_via(words)):
                found.setdefault(value.label, []).append((arm, value.value))
    return [
        _Path(label, np.array([value for _, value in mine]), mine[0][0].place)
        for label, mine in found.items()
        if len(mine) >= 2 * EACH
    ]


def _listed_arms(observed: Observed) -> list[_Path]:
    """Arms of a form that list their first tokens: the form's reader keeps such a list as text."""
    out = []
    for arm in observed.arms:
        for name, value in arm.keys.items():
            if "ttft" in name and isinstance(value, str) and value.startswith("["):
                scale = in_unit(1.0, unit_in_name(name)[1] or "ms", "ms") or 1.0
                found = [scale * float(text) for text in re.findall(r"\d+(?:\.\d+)?", value)]
                if len(found) >= EACH:
                    out.append(_Path(arm.label or arm.name, np.array(found), arm.place))
    return out


def _lists(observed: Observed) -> list[_Path]:
    out = []
    for item in observed.settings:
        if "ttft" not in item.name or not isinstance(item.value, list) or len(item.value) < EACH:
            continue
        if not all(isinstance(value, (int, float)) for value in item.value):
            continue
        plain, unit = unit_in_name(item.name)
        scale = in_unit(1.0, item.unit or unit or "ms", "ms") or 1.0
        name = item.scope or plain.replace("ttft", "").strip("_. ")
        out.append(
            _Path(name.replace("_", " ") or "all requests", scale * np.array(item.value, dtype=np.float64), item.place)
        )
    return out
