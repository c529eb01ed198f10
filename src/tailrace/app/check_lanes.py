"""Lanes against one another: those that nothing reaches, limits that exclude each other, names that nobody has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, Final

from tailrace.app.config_finding import config_finding
from tailrace.gateway.config import Config
from tailrace.gateway.config_sections import LaneConfig
from tailrace.govern.lane import LaneMatch, Order
from tailrace.model.check import CheckFinding, Weight

_LOW, _HIGH = "min_", "max_"
_MOST_POINTS: Final = 20_000
"""Kinds of requests that are tried on the lanes before one; a file that has more is not judged."""
_OTHER: Final = "\0any other"
"""A value that no lane names: a request for which a lane does not ask has it."""

_PATTERNS: Final = frozenset({"model", "path"})
"""Conditions whose value may end with `*`."""
_MAYBE_ABSENT: Final = "audio"
_IN_FRACTIONS: Final = "audio"
"""Between two of its whole values there are others."""

Point = dict[str, Any]


def judge_lanes(config: Config, name: str) -> Iterator[CheckFinding]:
    """What of the lanes can never come to pass."""
    asked_for = {lane for key in config.keys.values() for lane in key.lanes}
    for index, lane in enumerate(config.lanes):
        yield from _unreachable(config.lanes, index, name, asked_for)
        yield from _limits(config, lane, f"lanes[{index}]", name)
    yield from _total(config, name)
    yield from _backends(config, name)


def _unreachable(lanes: Sequence[LaneConfig], index: int, name: str, asked_for: set[str]) -> Iterator[CheckFinding]:
    lane = lanes[index]
    empty = next(iter(_empty(lane.match)), "")
    if empty:
        low, high = getattr(lane.match, _LOW + empty), getattr(lane.match, _HIGH + empty)
        yield config_finding(
            "CONFIG_LANE_EMPTY",
            Weight.ERROR,
            name,
            f"lanes[{index}].match.{_LOW}{empty}",
            f"Lane {lane.name!r} takes requests of at least {low:g} and of at most {high:g} {empty.replace('_', ' ')}: "
            "there are none.",
            advice=f"match: {{{_LOW}{empty}: {high:g}, {_HIGH}{empty}: {low:g}}}",
            effect="Requests reach the lane.",
            price="None.",
        )
        return
    before = shadows([one.match for one in lanes[:index]], lane.match)
    if not before or lane.name in asked_for:
        return
    names = ", ".join(repr(lanes[at].name) for at in before)
    same = len(before) == 1 and lanes[before[0]].match == lane.match
    why = "asks for the same" if same else "take all of its requests before it" if before[1:] else "takes them before"
    yield config_finding(
        "CONFIG_LANE_SHADOWED",
        Weight.ERROR,
        name,
        f"lanes[{index}]",
        f"No request ever reaches lane {lane.name!r}: the first lane that matches takes a request, and {names} {why}.",
        advice=f"Write {lane.name!r} above {names}, or leave it out.",
        effect="Its limits and budgets come into force.",
        price="None.",
    )


def _empty(match: LaneMatch) -> Iterator[str]:
    for field in match.__struct_fields__:
        if field.startswith(_LOW):
            low, high = getattr(match, field), getattr(match, _HIGH + field.removeprefix(_LOW), None)
            if low is not None and high is not None and low > high:
                yield field.removeprefix(_LOW)


def shadows(before: Sequence[LaneMatch], match: LaneMatch) -> list[int]:
    """Indices of the matches in `before` that together accept whatever `match` accepts; none where something is left.

    A match is a conjunction of ranges and equalities. So it is enough to try one request of every kind: at the ends of
    every range, with each value that a lane names, and with one that none names.
    """
    points = _points(before, match)
    takers: dict[int, None] = {}
    for point in points:
        taker = next((at for at, earlier in enumerate(before) if _accepts(earlier, point)), None)
        if taker is None:
            return []
        takers[taker] = None
    return list(takers)


def _points(before: Sequence[LaneMatch], match: LaneMatch) -> list[Point]:
    axes: dict[str, list[Any]] = {}
    for field in match.__struct_fields__:
        value = getattr(match, field)
        if field.startswith((_LOW, _HIGH)):
            axis = field[len(_LOW) :]
            axes[axis] = _range_points([*before, match], axis, match)
        elif isinstance(value, Mapping):
            named = {key for one in [*before, match] for key in getattr(one, field)}
            for key in named:
                axes[f"{field}:{key}"] = [value.get(key, _OTHER)]
        elif isinstance(value, bool) or any(isinstance(getattr(one, field), bool) for one in before):
            axes[field] = [True, False] if value is None else [value]
        elif isinstance(value, list | tuple | frozenset | set):
            axes[field] = list(value) or [_OTHER]
        elif isinstance(value, str) and value.endswith("*") and field in _PATTERNS:
            # Whatever accepts a name that goes on as no other does accepts all that begin so.
            axes[field] = [value[:-1] + _OTHER]
        else:
            axes[field] = [_OTHER if value is None else value]
    size = 1
    for values in axes.values():
        size *= len(values)
    if size > _MOST_POINTS:
        return [dict.fromkeys(axes, _OTHER)]  # nothing accepts it: not judged
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _range_points(matches: Sequence[LaneMatch], axis: str, match: LaneMatch) -> list[float]:
    """Every value at which a lane begins or ends, and the ones beside it, within the range of `match`."""
    low = getattr(match, _LOW + axis, None) or 0
    high = getattr(match, _HIGH + axis, None)
    edges: set[float] = {low}
    for one in matches:
        for prefix in (_LOW, _HIGH):
            edge = getattr(one, prefix + axis, None)
            if edge is not None:
                edges |= {edge - 1, edge, edge + 1}
    if axis.startswith(_IN_FRACTIONS):
        edges |= {(one + other) / 2 for one, other in pairwise(sorted(edges))}
    out = sorted(edge for edge in edges if edge >= low and (high is None or edge <= high))
    if high is None:
        out.append(math.inf)  # also one that names no bound at all
        if not low and axis.startswith(_MAYBE_ABSENT):
            out.append(math.nan)  # one without any: it meets no bound, upper or lower
    return out


def _accepts(match: LaneMatch, point: Point) -> bool:
    return all(
        _holds(field, wanted, point)
        for field in match.__struct_fields__
        if (wanted := getattr(match, field)) is not None and wanted not in ([], (), {}, "")
    )


def _holds(field: str, wanted: Any, point: Point) -> bool:
    if field.startswith(_LOW):
        return bool(point[field[len(_LOW) :]] >= wanted)
    if field.startswith(_HIGH):
        return bool(point[field[len(_HIGH) :]] <= wanted)
    if isinstance(wanted, Mapping):
        return all(point.get(f"{field}:{key}", _OTHER) == value for key, value in wanted.items())
    if isinstance(wanted, list | tuple | frozenset | set):
        return point[field] in wanted
    value = point[field]
    if field in _PATTERNS and isinstance(wanted, str) and wanted.endswith("*"):
        return str(value).startswith(wanted[:-1])
    return bool(value == wanted)


def _limits(config: Config, lane: LaneConfig, place: str, name: str) -> Iterator[CheckFinding]:
    if lane.queued == 0 and lane.order is not Order.FIRST_COME:
        yield config_finding(
            "CONFIG_ORDER_WITHOUT_QUEUE",
            Weight.WARNING,
            name,
            f"{place}.order",
            f"Lane {lane.name!r} orders its line by {lane.order}, and nobody may stand in it: queued is 0.",
            advice="queued: 128",
            effect="Requests wait for their turn within the queue budget before they are refused.",
            price="Up to the queue budget of waiting.",
        )
    budgets = lane.budgets or config.budgets
    if lane.queued > 0 and int(budgets.queue) == 0:
        yield config_finding(
            "CONFIG_QUEUE_WITHOUT_TIME",
            Weight.WARNING,
            name,
            f"{place}.budgets.queue" if lane.budgets else "budgets.queue",
            f"{lane.queued} requests may wait in lane {lane.name!r}, and none for any time: the queue budget is 0.",
            advice="queue: 2s, or queued: 0",
            effect="A request that waits can be served.",
            price="Up to that time of waiting.",
        )
    total = config.total_running
    if total is not None and lane.running > total:
        yield config_finding(
            "CONFIG_LANE_ABOVE_TOTAL",
            Weight.WARNING,
            name,
            f"{place}.running",
            f"Lane {lane.name!r} may have {lane.running} requests at work, and all lanes together {total} "
            "(total_running): its own limit never holds, and it can keep every place from the others.",
            advice=f"running: {max(1, total * 3 // 4)}",
            effect="Other lanes find a place while this one is full.",
            price="This lane waits earlier.",
        )


def _total(config: Config, name: str) -> Iterator[CheckFinding]:
    lanes = config.lane_policies()
    together = sum(lane.running for lane in lanes)
    total = config.total_running
    if total is not None and total > together:
        yield config_finding(
            "CONFIG_TOTAL_ABOVE_LANES",
            Weight.ADVICE,
            name,
            "total_running",
            f"total_running is {total}, and the lanes together allow {together}: it never holds.",
            advice=f"total_running: {together}, or larger limits of the lanes",
            effect="The file says what happens.",
            price="None.",
        )
    places = config.limits.upstream_connections * len(config.backends or [None])
    if places < min(together, total or together):
        yield config_finding(
            "CONFIG_CONNECTIONS_BELOW_RUNNING",
            Weight.WARNING,
            name,
            "limits.upstream_connections",
            f"The lanes let {min(together, total or together)} requests through at once, and there are {places} "
            "connections to the engine: the rest waits for one, first come first served, whatever the lanes say.",
            advice="upstream_connections: 8192",
            effect="The lanes alone decide who is next.",
            price="A few kilobytes a connection.",
        )


def _backends(config: Config, name: str) -> Iterator[CheckFinding]:
    seen: dict[str, int] = {}
    for index, backend in enumerate(config.backends):
        first = seen.setdefault(backend.url.rstrip("/"), index)
        if first != index:
            yield config_finding(
                "CONFIG_BACKEND_TWICE",
                Weight.WARNING,
                name,
                f"backends[{index}].url",
                f"Backends {config.backends[first].name!r} and {backend.name!r} are one server, {backend.url}: it gets "
                "two shares of the work, and its failures count twice.",
                advice="Leave one of them out.",
                effect="Work is spread by what there is.",
                price="None.",
            )
    for alias, model in config.aliases.items():
        if model in config.aliases and model != alias:
            yield config_finding(
                "CONFIG_ALIAS_OF_ALIAS",
                Weight.WARNING,
                name,
                f"aliases.{alias}",
                f"{alias!r} stands for {model!r}, which is an alias itself: one is replaced once, and the engine is "
                f"asked for {model!r}.",
                advice=f"{alias}: {config.aliases[model]}",
                effect="The engine is asked for a model that it has.",
                price="None.",
            )
