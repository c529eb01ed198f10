"""`--workload FILE`: classes described in YAML or JSON, and the objectives that go with them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from tailrace.cli.objectives import parse_objectives
from tailrace.model.errors import InputError
from tailrace.model.thresholds import Objectives
from tailrace.store.text_file import read_text
from tailrace.workload.described import DescribedWorkload, classes_of
from tailrace.workload.mix import TrafficClass

_REMEDY: Final = "Correct the line; docs/how-to/workloads.md has every key"


class Described(NamedTuple):
    """What the file says."""

    classes: list[TrafficClass]
    objectives: Objectives | None
    """`None`: it names none."""


def read_workload(path: str) -> Described:
    """Read the file. Raises `InputError` whose place is the file, its line and the key."""
    import yaml

    from tailrace.gateway.plain_yaml import lines_of, read_yaml

    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise InputError(f"cannot be read ({why})", place=path, remedy="Give --workload a YAML or JSON file") from None
    try:
        raw = read_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(
            f"is no valid YAML: {getattr(error, 'problem', error)}",
            place=f"{path}:{mark.line + 1}" if mark else path,
            remedy=_REMEDY,
        ) from None

    def place(key: str) -> str:
        line = lines_of(text).at(key)
        where = f"{path}:{line}" if line else path
        return f"{where}: {key}" if key else where

    try:
        described = msgspec.convert(raw, DescribedWorkload)
        classes = classes_of(described)
        objectives = _objectives(described)
    except msgspec.ValidationError as error:
        said, _, key = str(error).partition(" - at ")
        raise InputError(said, place=place(key.strip("`").removeprefix("$").lstrip(".")), remedy=_REMEDY) from None
    except RecursionError:
        raise InputError("is nested too deep", place=path, remedy=_REMEDY) from None
    except InputError as error:
        raise InputError(error.message, place=place(error.place or ""), remedy=error.remedy or _REMEDY) from None
    return Described(classes, objectives)


def _objectives(described: DescribedWorkload) -> Objectives | None:
    """Bounds of each class by its name; where a class has its own for a metric, the common one is not for it."""
    common = _bounds(described.objectives, "objectives")
    own = {one.name: _bounds(one.objectives, f"classes[{i}].objectives") for i, one in enumerate(described.classes)}
    if not any(own.values()):
        return Objectives(bounds=common) if common else None
    common = common or Objectives().bounds
    return Objectives(
        bounds={f"{name}/{metric}": bound for name, mine in own.items() for metric, bound in (common | mine).items()}
    )


def _bounds(texts: dict[str, str], place: str) -> dict[str, dict[float, int]]:
    out: dict[str, dict[float, int]] = {}
    for name, bound in texts.items():
        try:
            found = parse_objectives([f"{name}={bound}"])
        except InputError as error:
            raise InputError(error.message, place=f"{place}.{name}", remedy=error.remedy) from None
        assert found is not None
        for metric, bounds in found.bounds.items():
            out.setdefault(metric, {}).update(bounds)
    return out


def schema() -> dict[str, Any]:
    """The JSON Schema of the file."""
    return msgspec.json.schema(DescribedWorkload)
