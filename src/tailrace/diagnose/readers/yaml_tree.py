"""YAML with lines, bounded: several documents, anchors and merge keys, and no alias that unfolds into millions.

An alias is the same node again, not a copy; `walk` visits each node once. Text that is templated (`{{ … }}`) is no
YAML.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.model.errors import InputError

__all__ = ["Mapped", "Node", "documents_of", "read_yaml_text", "scalar", "texts_of", "walk"]

LARGEST: Final = 4 << 20
_MOST_NODES: Final = 200_000
_DEEPEST: Final = 100
_TEXT: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"


class Mapped(msgspec.Struct, eq=False):
    """A mapping that knows the lines of its keys."""

    values: dict[str, Node]
    lines: dict[str, int]
    line: int

    def get(self, *keys: str) -> Node:
        """The value of the first of these keys that is there; `None` without."""
        return next((self.values[key] for key in keys if key in self.values), None)

    def at(self, *keys: str) -> int:
        """The line of the first of these keys that is there, else of the mapping."""
        return next((self.lines[key] for key in keys if key in self.lines), self.line)

    def mapped(self, *path: str) -> Mapped | None:
        """The mapping at a path of keys."""
        found: Node = self
        for key in path:
            found = found.values.get(key) if isinstance(found, Mapped) else None
        return found if isinstance(found, Mapped) else None

    def listed(self, *path: str) -> list[Node]:
        """The list at a path of keys; empty without."""
        inner = self.mapped(*path[:-1])
        found = inner.values.get(path[-1]) if inner is not None else None
        return found if isinstance(found, list) else []


Node = Any
"""A `Mapped`, a list of nodes, or a scalar: text, number, bool or `None`."""


def scalar(node: Node) -> str:
    """A scalar as text; empty for what is none."""
    if isinstance(node, bool):
        return "true" if node else "false"
    return str(node) if isinstance(node, str | int | float) else ""


def texts_of(node: Node) -> list[str]:
    """The scalars of a list as text."""
    return [text for one in node if (text := scalar(one))] if isinstance(node, list) else []


def walk(root: Node) -> Iterator[tuple[tuple[str, ...], Mapped]]:
    """(path of keys and `[places]`, mapping) of every mapping, each once however often aliases repeat it, in the
    order of the text.
    """
    seen: set[int] = set()
    left: list[tuple[tuple[str, ...], Node]] = [((), root)]
    while left:
        path, node = left.pop()
        if not isinstance(node, Mapped | list) or id(node) in seen or len(path) > _DEEPEST:
            continue
        seen.add(id(node))
        if isinstance(node, Mapped):
            yield path, node
            left += [((*path, key), value) for key, value in reversed(node.values.items())]
        else:
            left += [((*path, f"[{at}]"), node[at]) for at in reversed(range(len(node)))]


def documents_of(path: Path) -> list[Node]:
    """The documents of a file. InputError where it is too large or no YAML."""
    place = str(path)
    if path.stat().st_size > LARGEST:
        raise InputError(f"is larger than {LARGEST >> 20} MiB", place=place, remedy="Give the part that matters.")
    return read_yaml_text(path.read_text(encoding="utf-8-sig", errors="replace"), place)


def read_yaml_text(text: str, place: str, *, offset: int = 0) -> list[Node]:
    """The documents of a text; `offset` lines stand before it in its file. InputError for what is no YAML."""
    import yaml  # noqa: PLC0415  (only when a file is used)

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        roots = [root for root in yaml.compose_all(text, loader) if root is not None]
        maker = _Maker(yaml, offset)
        return [maker.node(root, 0) for root in roots]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{place}:{mark.line + 1 + offset}" if mark is not None else place
        what = "a template, not YAML" if "{{" in text else f"no YAML: {getattr(error, 'problem', None) or error}"
        remedy = "Give what it becomes (`helm template …`)." if "{{" in text else "Give the file as it is applied."
        raise InputError(f"this is {what}", place=where, remedy=remedy) from None
    except RecursionError:
        raise InputError("is nested too deep", place=place, remedy="Give the part that matters.") from None


class _Maker:
    """Turns composed nodes into ours, each once."""

    def __init__(self, yaml: Any, offset: int) -> None:
        self._yaml = yaml
        self._resolve = yaml.SafeLoader("")
        self._offset = offset
        self._made: dict[int, Node] = {}
        self._count = 0

    def node(self, node: Any, depth: int) -> Node:
        if id(node) in self._made:
            return self._made[id(node)]
        self._count += 1
        if depth > _DEEPEST or self._count > _MOST_NODES:
            raise RecursionError
        if isinstance(node, self._yaml.MappingNode):
            out = Mapped({}, {}, node.start_mark.line + 1 + self._offset)
            self._made[id(node)] = out
            self._fill(out, node, depth)
            return out
        if isinstance(node, self._yaml.SequenceNode):
            items: list[Node] = []
            self._made[id(node)] = items
            items += [self.node(one, depth + 1) for one in node.value]
            return items
        return self._scalar(node)

    def _fill(self, out: Mapped, node: Any, depth: int) -> None:
        merged: list[Mapped] = []
        for key, value in node.value:
            made = self.node(value, depth + 1)
            if key.tag == _MERGE:
                merged += [one for one in (made if isinstance(made, list) else [made]) if isinstance(one, Mapped)]
            elif isinstance(key, self._yaml.ScalarNode):
                out.values[key.value] = made
                out.lines[key.value] = key.start_mark.line + 1 + self._offset
        for one in merged:
            self._count += len(one.values)
            if self._count > _MOST_NODES:
                raise RecursionError
            for name, inner in one.values.items():
                if name not in out.values:
                    out.values[name] = inner
                    out.lines[name] = one.lines.get(name, one.line)

    def _scalar(self, node: Any) -> Node:
        """As YAML 1.1 reads it; dates and the like stay text."""
        if node.tag == _TEXT and isinstance(node, self._yaml.ScalarNode):
            return node.value
        try:
            value = self._resolve.construct_object(node, deep=True)
        except (self._yaml.YAMLError, ValueError, OverflowError):
            return str(node.value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**15:
            return str(node.value)
        return value if isinstance(value, str | int | float | bool) or value is None else str(node.value)
