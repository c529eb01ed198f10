"""YAML as the configuration needs it: plain values, and no key twice, since the first would be lost in silence."""

from __future__ import annotations

from typing import Any


def read_yaml(text: str) -> Any:
    """Plain values of a document. `yaml.YAMLError` for bad syntax, and for a key that stands twice in a mapping."""
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
    return yaml.load(text, Loader)  # noqa: S506  (a SafeLoader)


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
