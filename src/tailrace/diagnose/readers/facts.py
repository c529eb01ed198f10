"""Facts: what a form, an interview or `--facts key=value` wrote down, as JSON with arms and a context."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from tailrace.diagnose.observed import Arm, Observed, Place, Quoted, Setting, Understood
from tailrace.diagnose.readers.cells import read_cell
from tailrace.diagnose.readers.fact_arms import arms_in_facts, fact_into, flat_facts
from tailrace.diagnose.readers.fact_groups import arms_in_groups
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.heading import snake
from tailrace.diagnose.readers.json_forms import tables_in, without_tables
from tailrace.diagnose.readers.json_numbers import observed_numbers, read_numbers
from tailrace.diagnose.readers.lenient_json import decode_json
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.units import unit_of
from tailrace.diagnose.readers.unnamed_latencies import with_latencies
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError

__all__ = ["FACTS", "OWN_JSON", "observed_facts", "settings_of", "with_unit"]

_MOST_BYTES: Final = 32 << 20
_SPEECH: Final = frozenset({"note", "notes", "claim", "suspected_before", "comment", "symptom", "description"})
"""What a person thinks: kept and shown, never evidence."""
_UNITS: Final = {
    "ms": "ms", "s": "s", "seconds": "s", "sec": "s", "secs": "s", "msec": "ms", "millis": "ms", "milliseconds": "ms",
    "minutes": "min", "watts": "W", "us": "us", "ns": "ns", "pct": "%", "percent": "%", "tok_s": "tok/s", "rps": "1/s",
    "req_s": "1/s", "tokens": "tokens", "gib": "GiB", "mhz": "MHz", "w": "W", "min": "min", "h": "h",
}  # fmt: skip
_INSIDE: Final = re.compile(
    r"_(ms|us|s)_(?:per|p\d+|mean|avg|median|max|min|at|after|before|in|for|of|with|without)(?:_|$)"
)
"""A unit that other words stand behind: `wait_ms_per_step`, `lag_s_at_5min`."""
_SAID: Final = frozenset({"ms", "s", "us", "%", "tok/s", "1/s", "tokens", "GiB", "MHz", "W", "min"})
_MOST_OWN_BYTES: Final = 1 << 20
"""A larger document was written by a program: only the numbers in it that have a known name are taken."""
_MORE: Final = re.compile(r"\}\s*\n\s*\{")
_NUMBERS: Final = re.compile(r'"[^"\n]{1,60}"\s*:\s*\[?\s*(?:-?\d|[\[{])')
_FEWEST_NUMBERS: Final = 2
_TWIN: Final = re.compile(r"_(?:old|before|previous|prev|was)$")


def observed_facts(data: Any, source: str) -> Observed:
    """Facts as they were decoded: `{"arms": {name: {key: value}}, "context": {key: value}}`. Unknown keys are kept."""
    place = Place(source)
    out = Observed()
    read = 0
    arms = data.get("arms", {})
    pairs: list[tuple[Any, Any]] = (
        list(arms.items())
        if isinstance(arms, dict)
        else [(_name_of(one, n), one) for n, one in enumerate(arms)]
        if isinstance(arms, list)
        else []
    )
    made = []
    for name, metrics in pairs:
        if isinstance(metrics, dict):
            made.append(_arm(str(name), metrics, place))
            read += len(metrics)
    out.arms = with_roles(with_latencies(made, ""))
    context = data.get("context", {})
    others = {key: value for key, value in data.items() if key not in {"facts", "arms", "context"}}
    told = [*(context.items() if isinstance(context, dict) else [("context", context)]), *others.items()]
    tables = tables_in(dict(told), source)
    nested = without_tables(dict(told))
    out.settings, out.notes = settings_of(nested, place)
    read += len(out.settings)
    if not out.arms:
        out.arms = with_latencies(arms_in_groups(nested, place), "")
    if not out.arms:
        out.arms = _old_and_new(out.settings, place) or arms_in_facts(out.settings, place)
    if not out.arms and "context" not in data and not (tables.arms or tables.rows or tables.series):
        out.arms = observed_numbers(without_tables(data), source).arms
    out = Observed.joined([out, tables])
    out.understood = [Understood(source=source, format="facts", understood=read, total=read, what="facts")]
    return out


def settings_of(nested: dict[str, Any], place: Place) -> tuple[list[Setting], list[str]]:
    """(every fact by the path of its names, what a person thinks of it)."""
    settings, notes = [], []
    for key, value in nested.items():
        for name, one in flat_facts(snake(str(key)) or str(key), value):
            number, unit = with_unit(name, one)
            settings.append(Setting(name=name, value=number, unit=unit, place=place))
            if name.rpartition(".")[2] in _SPEECH and isinstance(one, str):
                notes.append(one)
    return settings, notes


def _old_and_new(settings: list[Setting], place: Place) -> list[Arm]:
    """`prefill_tok_s` beside `prefill_tok_s_old` are two arms of one number; none where no fact has such a twin."""
    named = {item.name: item for item in settings}
    old: dict[str, Quoted] = {}
    new: dict[str, Quoted] = {}
    for name, item in named.items():
        base = _TWIN.sub("", name)
        now = named.get(base) or named.get(f"{base}_new") or named.get(f"{base}_after")
        if base == name or now is None or item.number is None or now.number is None:
            continue
        fact_into({}, old, base, item.number, place)
        fact_into({}, new, base, now.number, place)
    if not old:
        return []
    return with_roles([Arm(name=name, label=name, values=values, place=place) for name, values in (("old", old), ("new", new))])  # fmt: skip  # noqa: E501


def _name_of(one: Any, place: int) -> str:
    if isinstance(one, dict):
        for key in ("name", "arm", "label"):
            if key in one:
                return str(one.pop(key))
    return f"arm {place + 1}"


def with_unit(name: str, value: Any) -> tuple[Any, str]:
    """A number that says its unit itself (`8,192 tokens`, `2.7 s`), where its name says none."""
    unit = _unit(name)
    if isinstance(value, str) and not unit:
        cell = read_cell(value)
        said = unit_of(cell.unit)
        if cell.value is not None and cell.high is None and cell.change is None and not cell.note and said in _SAID:
            return cell.value, said
    return value, unit


def _unit(name: str) -> str:
    for ending, unit in sorted(_UNITS.items(), key=lambda pair: -len(pair[0])):
        if name.endswith(f"_{ending}") or name == ending:
            return unit
    inside = _INSIDE.search(name)
    return "" if inside is None else _UNITS.get(inside[1], "")


def _arm(name: str, metrics: dict[str, Any], place: Place) -> Arm:
    keys: dict[str, float | str] = {}
    values: dict[str, Quoted] = {}
    for key, value in metrics.items():
        for flat, one in flat_facts(str(key), value):
            fact_into(keys, values, flat, one, place)
    return Arm(name=name, label=name, keys=keys, values=values, place=place)


def _matches(head: str, name: str) -> bool:
    del name
    start = head.lstrip()
    return start.startswith("{") and bool(
        re.search(r'"facts"\s*:\s*\d|"arms"\s*:\s*[{\[]|"context"\s*:\s*\{', start[:4096])
    )


def _read(path: Path, source: str) -> Observed:
    with path.open("rb") as file:
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise InputError(f"facts of more than {_MOST_BYTES >> 20} MiB", place=source, remedy="Give the data as a file.")
    try:
        data = decode_json(raw.removeprefix(b"\xef\xbb\xbf"))
    except UNREADABLE as error:
        raise InputError(f"these facts are no JSON: {error}", place=source) from None
    if not isinstance(data, dict):
        raise InputError("facts are one JSON object", place=source)
    return observed_facts(data, source)


def _is_json(head: str, name: str) -> bool:
    """Whether a file is a document with numbers under names, whatever their form."""
    del name
    start = head.lstrip()
    return start.startswith("{") and not _MORE.search(start) and len(_NUMBERS.findall(start)) >= _FEWEST_NUMBERS


def _read_own(path: Path, source: str) -> Observed:
    if path.stat().st_size > _MOST_OWN_BYTES:
        return read_numbers(path, source)
    return _read(path, source)


FACTS: Final = Format(name="facts", matches=_matches, read=_read)
OWN_JSON: Final = Format(name="JSON of its own form", matches=_is_json, read=_read_own)
"""After everything that knows a form."""
