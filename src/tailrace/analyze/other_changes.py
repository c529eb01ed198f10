"""What else changed between the arms: every condition of the runs, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tailrace.analyze.arms import ArmData
from tailrace.analyze.labels import codes_of
from tailrace.store.run_arrival import arrival_words
from tailrace.store.run_file import RunHeader

__all__ = ["conditions_of", "other_changes", "unknown_conditions", "work_of"]

_WORDS: Final = {
    "engine": "engine",
    "engine_version": "engine version",
    "server": "server",
    "model": "model",
    "model_revision": "model revision",
    "dtype": "dtype",
    "quantization": "quantisation",
    "gpu": "GPU",
    "gpu_memory_bytes": "GPU memory",
    "prompts": "prompts",
    "warmup": "warm-up",
    "tool": "load generator",
    "source": "source of the measurement",
    "granularity": "granularity of the streams",
    "version": "version of the file's writer",
    "loop": "load",
    "mix": "mix",
    "target": "target",
}
_MATTER: Final = ("model", "engine_version", "dtype", "quantization", "gpu", "warmup")
"""Conditions whose absence a reader must know of."""
_OF_TABLES: Final = ("model", "engine", "engine_version", "dtype", "quantization")
_MOST: Final = 160


def conditions_of(arm: ArmData) -> list[dict[str, Any]]:
    """One flat map a run of the arm: what is known, by name; flags as `engine_flags.NAME`, the client's machine as
    `host.NAME`. Of a table of records: what its records say of the engine.
    """
    if arm.headers:
        return [_of_header(header) for header in arm.headers]
    found: dict[str, Any] = {}
    for name in _OF_TABLES:
        values = [value for value in codes_of(arm.every.column(name))[1] if value]
        if values:
            found[name] = values[0] if len(values) == 1 else values
    return [found]


def _of_header(header: RunHeader) -> dict[str, Any]:
    out = {
        name: value
        for name, value in msgspec.structs.asdict(header.conditions).items()
        if value is not None and name not in ("command", "engine_flags", "host")
    }
    if header.model:
        out.setdefault("model", header.model)
    if header.mix:
        out["mix"] = header.mix
    out |= {"source": header.source, "granularity": header.granularity, "version": header.version or None}
    out["target"] = header.target or None
    out["loop"] = _loop(header)
    out |= work_of(header)
    for prefix, values in (
        ("engine_flags", header.conditions.engine_flags),
        ("knobs", header.knobs),
        ("host", header.conditions.host),
    ):
        out |= {f"{prefix}.{name}": value for name, value in _flat(values)}
    return {name: value for name, value in out.items() if value is not None}


def work_of(header: RunHeader) -> dict[str, str]:
    """`work.CLASS` -> what its requests do beside their lengths: `prefixes: pool 5, hit 0.6`; `plain` where nothing."""
    return {
        f"work.{name}": "; ".join(f"{what}: {_trait(value)}" for what, value in facts.get("traits", {}).items())
        or "plain"
        for name, facts in header.classes.items()
    }


def _trait(value: Any) -> str:
    if isinstance(value, Mapping):
        # The scale of a hit rate follows from the plan, and so from the seed: it is no other work.
        told = [(key, one) for key, one in value.items() if one is not None and key not in ("scale", "type")]
        return ", ".join(f"{key} {_trait(one)}" for key, one in told)
    return "; ".join(map(_trait, value)) if isinstance(value, list) else str(value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _loop(header: RunHeader) -> str | None:
    arrival = header.arrival
    return None if arrival.kind == "closed" and not arrival.concurrency else arrival_words(arrival)


def other_changes(a: ArmData, b: ArmData) -> list[str]:
    """One sentence for each condition that is known of both arms and differs, and for runs of one arm that differ.

    A flag that one side does not tell is named as such where the other side tells its flags: a default is a value, too.
    """
    out = []
    for arm in (a, b):
        runs = conditions_of(arm)
        for name in runs[0]:
            if name.startswith(("host.", "version")) or name == "target":
                continue
            if any(one.get(name) != runs[0][name] for one in runs[1:]):
                out.append(f"the runs of {arm.name} are not alike: {_name(name)} is {_listed(runs, name)}")
    one, two = conditions_of(a)[0], conditions_of(b)[0]
    for name in dict.fromkeys((*one, *two)):
        before, after = one.get(name), two.get(name)
        if before == after:
            continue
        family = name.partition(".")[0] if "." in name else ""
        if (before is None or after is None) and not (family and _tells(one, family) and _tells(two, family)):
            continue  # unknown is no difference; `unknown_conditions` names it
        out.append(f"{_name(name)}: {_value(name, before)} in A, {_value(name, after)} in B")
    return out


def unknown_conditions(a: ArmData, b: ArmData) -> list[str]:
    """Names of the conditions that matter and that an arm does not tell: nobody can say whether they changed."""
    one, two = conditions_of(a)[0], conditions_of(b)[0]
    out = [_WORDS[name] for name in _MATTER if name not in one or name not in two]
    if not (_tells(one, "engine_flags") or _tells(one, "knobs")) or not (
        _tells(two, "engine_flags") or _tells(two, "knobs")
    ):
        out.append("engine flags")
    return out


def _tells(conditions: Mapping[str, Any], family: str) -> bool:
    return any(name.startswith(f"{family}.") for name in conditions)


def _name(name: str) -> str:
    family, dot, rest = name.partition(".")
    if dot and family == "host":
        return f"client's machine, {rest}"
    if dot and family == "work":
        return f"work of {rest}"
    if dot:
        return f"{'engine flag' if family == 'engine_flags' else 'setting'} {rest}"
    return _WORDS.get(name, name)


def _value(name: str, value: Any) -> str:
    if value is None:
        return "not told"
    if name.endswith("_bytes") and isinstance(value, int | float):
        return f"{value / 2**30:.1f} GiB"
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or "none"
    text = str(value)
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"


def _listed(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(_value(name, one.get(name)) for one in runs))
