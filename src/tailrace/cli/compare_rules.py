"""`--rules FILE`: read the thresholds of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.model.errors import InputError

if TYPE_CHECKING:
    from tailrace.model.rules import Rule

__all__ = ["read_rules"]


def read_rules(path: str) -> list[Rule]:
    """The rules in a YAML (or JSON) file. InputError names the file, the key and the remedy."""
    import yaml

    from tailrace.gateway.plain_yaml import read_yaml
    from tailrace.model.rules import rules_from
    from tailrace.store.text_file import read_text

    try:
        text = read_text(path)
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror or error}", place=path, remedy="Check the path.") from None
    except UnicodeDecodeError:
        raise InputError("it is no text", place=path, remedy="Rules are a YAML file.") from None
    try:
        data = read_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else path
        problem = getattr(error, "problem", None) or "it is no YAML"
        raise InputError(str(problem), place=where, remedy="Check the indentation and the colons there.") from None
    return rules_from(data, path)
