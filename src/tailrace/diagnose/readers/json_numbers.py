"""Numbers in JSON: the summary that a load tool wrote, or an object of one's own. Each run, or each named part, an arm.

Values are kept as they stand, impossible ones too: whoever judges them must see them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace.diagnose.observed import Arm, Observed, Place, Quoted, Understood
from tailrace.diagnose.observed.vocabulary import QUANTITIES
from tailrace.diagnose.readers.cells import Cell
from tailrace.diagnose.readers.foreign_json import opened
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.heading import heading, stat_of, statistic
from tailrace.diagnose.readers.json_groups import group_in
from tailrace.diagnose.readers.lenient_json import decode_json
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.table_arms import CONDITIONS, placed, quoted
from tailrace.diagnose.readers.units import unit_of
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError

__all__ = ["ALL_REQUESTS", "JSON_NUMBERS", "observed_numbers", "read_numbers"]

_MOST_BYTES: Final = 64 << 20
_MOST_DEPTH: Final = 8
_FEWEST_LINES: Final = 2
_MOST_OWN: Final = 200
_MOST_ARMS: Final = 500
_RUNS: Final = ("benchmarks", "results", "runs", "experiments", "arms")
_THROUGH: Final = frozenset(
    {"metrics", "successful", "percentiles", "summary", "statistics", "stats", "aggregated_metrics", "latency", "total"}
)
"""Levels that say nothing of their own."""
_OTHERS: Final = frozenset({"errored", "incomplete", "failed", "failures"})
ALL_REQUESTS: Final = "all requests"
_KEY: Final = re.compile(r'"([\w./ -]{2,60})"\s*:\s*(?:-?\d|\{)')
_IN_SECONDS: Final = frozenset({"duration", "request latency", "request_latency"})


def read_numbers(path: Path, source: str) -> Observed:
    """The numbers of a file. InputError where it is no JSON, or too large for one summary."""
    data = bytes(opened(path)[: _MOST_BYTES + 1])
    if len(data) > _MOST_BYTES:
        raise InputError(f"a summary of more than {_MOST_BYTES >> 20} MiB", place=source)
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        decoded = decode_json(data)
    except UNREADABLE as error:
        # Tools that append write a summary a line.
        decoded = _lines(data)
        if len(decoded) < _FEWEST_LINES:
            raise InputError(f"this is no JSON: {error}", place=source) from None
    return observed_numbers(decoded, source)


def _lines(data: bytes) -> list[Any]:
    """The objects of lines that are JSON each; empty where one is not."""
    try:
        return [decode_json(line) for line in data.splitlines() if line.strip()]
    except UNREADABLE:
        return []


def observed_numbers(data: Any, source: str, *, named: str = "") -> Observed:
    """The numbers of decoded JSON that name a quantity; others are counted as not understood. Nothing raises.

    `named` is what arms without a name of their own are called, the file's name otherwise.
    """
    stem = named or source.rsplit("/", maxsplit=1)[-1].removesuffix(".json")
    arms: list[Arm] = []
    total = understood = 0
    lost: list[str] = []
    for name, part in _parts(data, stem)[:_MOST_ARMS]:
        keys: dict[str, float | str] = {}
        values: dict[str, Quoted] = {}
        counts: list[float] = []
        for path, unit, value in _leaves(part, (), "", 0):
            total += 1
            item = _read(path, unit, value, Place(source))
            if item is None:
                item = _of_no_name(path, value, Place(source))
                if item is None or len(values) > _MOST_OWN:
                    lost.append(f"{'.'.join(path)} = {value!r}"[:80])
                    continue
            understood += 1
            if item.quantity == "n" and len(path) > 1:
                counts.append(item.value)
            else:
                placed(values, item)
            if item.quantity in CONDITIONS and not item.stat:
                keys[item.quantity] = item.value
        if counts and "n" not in values:
            values["n"] = Quoted(quantity="n", value=min(counts), unit="count", label="count", place=Place(source))
        if values:
            arms.append(Arm(name=name, label=name, keys=keys, values=values, place=Place(source)))
    return Observed(
        arms=with_roles(arms),
        understood=[
            Understood(
                source=source, format="numbers in JSON", understood=understood, total=total, what="numbers",
                examples=lost[:3],
            )
        ],
    )  # fmt: skip


def _parts(data: Any, stem: str) -> list[tuple[str, Any]]:
    """(name, part) of each run."""
    if isinstance(data, list):
        return _named(data, stem)
    if not isinstance(data, dict):
        return []
    for key in _RUNS:
        runs = data.get(key)
        if isinstance(runs, list) and any(isinstance(one, dict) for one in runs):
            return _named(runs, stem)
    return group_in(data) or [(stem, data)]


def _of_no_name(path: tuple[str, ...], value: float, place: Place) -> Quoted | None:
    """A number whose key names no quantity, under its own name; `None` of an index."""
    name = path[-1]
    if not name.strip() or name.isdigit():
        return None
    return quoted(heading(name), Cell(text=str(value), value=value), place)


def _named(runs: list[Any], stem: str) -> list[tuple[str, Any]]:
    out = []
    for number, one in enumerate(runs, start=1):
        if isinstance(one, dict):
            label = next((one[key] for key in ("name", "label", "arm", "id") if isinstance(one.get(key), str)), "")
            out.append((label or (stem if len(runs) == 1 else f"{stem} #{number}"), one))
    return out


def _leaves(data: Any, path: tuple[str, ...], unit: str, depth: int) -> Iterator[tuple[tuple[str, ...], str, float]]:
    """(keys, unit, number) of all numbers in objects; lists are values of single requests."""
    if not isinstance(data, dict) or depth > _MOST_DEPTH:
        return
    said = data.get("unit") or data.get("units")
    unit = unit_of(said) if isinstance(said, str) else unit
    whole = "successful" in data
    for key, value in data.items():
        if whole and key in _OTHERS:
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if math.isfinite(value):
                yield (*path, str(key)), unit, float(value)
        else:
            yield from _leaves(value, (*path, str(key)), unit, depth + 1)


def _read(path: tuple[str, ...], unit: str, value: float, place: Place) -> Quoted | None:
    """What a number under these keys is: the innermost key that names a quantity, and the statistic below it."""
    stat = ""
    for depth, key in enumerate(reversed(path)):
        as_stat = statistic(key) if not stat else ""
        if as_stat:
            stat = as_stat
            continue
        if key in _THROUGH and depth:
            continue
        head = heading(key)
        if head.quantity:
            known = QUANTITIES[head.quantity]
            default = "s" if known.unit in {"ms", "s"} and key.lower() in _IN_SECONDS else known.unit
            stat = head.stat or stat_of(head.quantity, stat)
            # Beside `successful`, `total` counts the failed ones as well.
            among = ALL_REQUESTS if "total" in path[len(path) - depth :] else head.qualifier
            head = msgspec.structs.replace(head, unit=head.unit or unit or default, stat=stat, qualifier=among)
            return quoted(head, Cell(text=str(value), value=value), place, percent=value > 1.5)
        if head.stat and not stat:
            stat, unit = head.stat, head.unit or unit  # `"ttft": {"mean_s": 4.1}`
            continue
        if depth:
            return None
    return None


def _matches(head: str, name: str) -> bool:
    del name
    start = head.lstrip()
    if not start.startswith(("{", "[")) or re.search(r"\}\s*\n\s*\{", start):
        return False
    known = {key for key in _KEY.findall(start) if heading(key).quantity}
    return len(known) >= 2


JSON_NUMBERS: Final = Format(name="numbers in JSON", matches=_matches, read=read_numbers)
