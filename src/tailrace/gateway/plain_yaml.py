"""YAML as the configuration needs it: plain values, and no key twice, since the first would be lost in silence."""

from __future__ import annotations

from typing import Any, Final

_MOST_LINES: Final = 100_000
"""Keys whose lines are kept: aliases repeat what they name, and a document of a few hundred bytes can hold millions."""

_LONGEST_PATH: Final = 500
"""Of a key whose line is kept: an alias that leads back to what holds it makes paths without end."""


def read_yaml(text: str) -> Any:
    """Plain values of a document.

    `yaml.YAMLError` for bad syntax, for a key that stands twice in a mapping, and for what is nested too deep.
    """
    import yaml  # noqa: PLC0415  (only when a file is used)

    class Loader(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key `{key.value}` stands here twice", key.start_mark
                )
            seen.add(name)
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(text, Loader)  # noqa: S506  (a SafeLoader)
    except RecursionError:
        raise yaml.error.MarkedYAMLError(problem="it is nested too deep") from None


class YamlLines:
    """Where the keys of a document stand: `lanes[0].running` -> its line, counted from 1."""

    def __init__(self, lines: dict[str, int]) -> None:
        self._lines = lines

    def at(self, path: str) -> int | None:
        """The line of a key, or of the nearest one around it that the file has; `None` where it has none of them."""
        while path:
            line = self._lines.get(path)
            if line is not None:
                return line
            cut = max(path.rfind("."), path.rfind("["))
            path = path[: max(cut, 0)]
        return None


def lines_of(text: str) -> YamlLines:
    """Read where every key stands. `yaml.YAMLError` for bad syntax."""
    import yaml  # noqa: PLC0415  (only when a file is used)

    lines: dict[str, int] = {}
    root = yaml.compose(text, yaml.SafeLoader)
    left = [] if root is None else [("", root)]
    while left:  # a loop, not recursion: an alias may lead back to what holds it
        path, node = left.pop()
        if isinstance(node, yaml.MappingNode):
            inner = [(f"{path}.{key.value}".lstrip("."), key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            inner = [(f"{path}[{at}]", value, value) for at, value in enumerate(node.value)]
        else:
            continue
        for name, mark, value in inner:
            if len(lines) < _MOST_LINES and len(name) < _LONGEST_PATH and name not in lines:
                lines[name] = mark.start_mark.line + 1
                left.append((name, value))
    return YamlLines(lines)


def size_of(value: Any, known: dict[int, int]) -> int:
    """How many values `value` holds, those behind an alias as often as they are repeated.

    `known` holds what was counted. RecursionError for what holds itself: it has no size.
    """
    if not isinstance(value, dict | list):
        return 1
    size = known.get(id(value))
    if size is None:
        known[id(value)] = -1
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        size = known[id(value)] = 1 + sum(size_of(part, known) for part in parts)
    if size < 0:
        raise RecursionError
    return size
