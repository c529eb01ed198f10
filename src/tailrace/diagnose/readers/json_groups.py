"""Groups in JSON of somebody's own: objects side by side that hold the same numbers are arms, whatever they lie in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tailrace.diagnose.readers.heading import heading, statistic

__all__ = ["group_in"]

_MOST_DEPTH: Final = 6
_MOST: Final = 500
_FEWEST: Final = 2
_NAMES: Final = ("name", "label", "arm", "id", "replica", "host", "pod", "worker", "stage", "policy")


def group_in(data: Any) -> list[tuple[str, Any]]:
    """(name, object) of the first level at which two objects or more hold numbers under the same keys; empty where
    there is none. Statistics of one quantity (`p50`, `p99`) are no arms.
    """
    return next((found[:_MOST] for node in _nodes(data) if len(found := _arms(node)) >= _FEWEST), [])


def _nodes(data: Any) -> Iterator[Any]:
    """Every object and list, the outer ones first."""
    level = [data]
    for _ in range(_MOST_DEPTH):
        yield from level
        level = [one for node in level if isinstance(node, dict) for one in node.values()]
        level = [one for one in level if isinstance(one, (dict, list))]


def _arms(node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, list):
        rows = [one for one in node if isinstance(one, dict) and _numbers(one)]
        if len(rows) < _FEWEST or len(rows) < len(node) or not set.intersection(*(_numbers(one) for one in rows)):
            return []
        return [(_name(one, number), one) for number, one in enumerate(rows, start=1)]
    if not isinstance(node, dict):
        return []
    parts = [(str(key), one) for key, one in node.items() if isinstance(one, dict) and _numbers(one)]
    counts: dict[str, int] = {}
    for _, one in parts:
        for key in _numbers(one):
            counts[key] = counts.get(key, 0) + 1
    shared = {key for key, n in counts.items() if n > 1 and not statistic(key)}
    found = [(name, one) for name, one in parts if _numbers(one) & shared]
    if any((head := heading(name)).quantity and not head.qualifier for name, _ in found):
        return []
    return found


def _numbers(one: Any, depth: int = 0) -> set[str]:
    """The keys of its numbers, however deep."""
    out: set[str] = set()
    for key, value in one.items():
        if isinstance(value, dict) and depth < _MOST_DEPTH:
            out |= _numbers(value, depth + 1)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            out.add(str(key))
    return out


def _name(one: dict[str, Any], number: int) -> str:
    """What a row of a list is called: its name, else its first number with the key of it."""
    for key in _NAMES:
        if isinstance(one.get(key), str):
            return str(one[key])
    key, value = next((pair for pair in one.items() if isinstance(pair[1], (int, float, str))), ("row", number))
    return f"{str(key).replace('_', ' ')} {value:g}" if isinstance(value, (int, float)) else str(value)
