"""What benchmarks print: `label: value` rows of one run under another. vLLM and SGLang, perf_analyzer, a script of
one's own (`p99 TTFT: 1.2 s`). Each run becomes an arm.

Rows are never told by their place: a label is read as a heading is, and what it does not name is kept under its own
words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from tailrace.diagnose.observed import Arm, Place, Quoted, Setting
from tailrace.diagnose.readers.cells import Cell, read_cell
from tailrace.diagnose.readers.grids import Line
from tailrace.diagnose.readers.heading import Heading, heading, plain
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.table_arms import CONDITIONS, placed, quoted
from tailrace.diagnose.readers.units import unit_of

__all__ = ["is_printed_row", "is_titled", "runs_in"]

_ROW: Final = re.compile(
    r"^\s*(?:[-*\u2022]\s+)?(?P<label>[^\W\d_][^:=|]{0,80}?|[pP]\d[^:=|]{0,60}?)\s*[:=]\s*(?P<value>\S.{0,80}?)\s*$"
)
_TITLE: Final = re.compile(r"Serving Benchmark Result|Measurement Settings", re.IGNORECASE)
_SECTION: Final = re.compile(
    r"^\s*[-=*\u2500\u2550 ]{2,}\s*(?P<title>[A-Za-z][^=*]{0,80}?)\s*[-=*\u2500\u2550 ]{2,}\s*$"
)
_RULE: Final = re.compile(r"^\s*[-=*\u2500\u2550]{3,}\s*$")
_REQUESTS: Final = re.compile(r"^\s*Request concurrency:\s*\d+", re.IGNORECASE)
_SPREAD: Final = re.compile(r"\(\s*standard deviation\s+([\d.,]+)\s*(\w+)\s*\)")
_SAMPLING: Final = re.compile(r"^(?P<label>[^:]+?)\s*:\s*(?P<parts>(?:\s*\w+\s*=\s*[\d.]+\s*\w*,?){2,})$")
_PLAIN: Final = re.compile(r"^[\w ./%()+#,\-]+$")
_INF: Final = frozenset({"inf", "infinity", "∞"})
_SETTINGS: Final = {
    "concurrency": "max_concurrency", "offered_rps": "request_rate", "n": "n", "backend": "backend",
    "max_concurrency": "max_concurrency",
}  # fmt: skip
_TOTALS: Final = (("total_prompt_tokens", "prompt_tokens"), ("total_output_tokens", "output_tokens"))


class _Run(msgspec.Struct):
    """The rows of one run: (line, label's heading, cell)."""

    line: int
    title: str
    rows: list[tuple[int, Heading, Cell, str]]


def is_printed_row(text: str) -> bool:
    """Whether a line is a row that names a quantity with a number behind it."""
    found = _ROW.match(text) if len(text) < 200 else None
    if found is None:
        return False
    head = heading(_label(found["label"]))
    return bool(head.quantity) and _cell(found["value"]).value is not None


def runs_in(lines: Sequence[Line], source: str) -> tuple[list[Arm], list[Setting], list[Line]]:
    """(the printed runs as arms, what was set for them or stands alone, the lines that are no rows)."""
    runs, lost = _runs(lines)
    stem = re.sub(r"\.(txt|log|out|md|json)$", "", source.rsplit("/", maxsplit=1)[-1])
    told = [run for run in runs if any(head.quantity and cell.value is not None for _, head, cell, _ in run.rows)]
    arms: list[Arm] = []
    for number, run in enumerate(told, start=1):
        name = run.title or (stem if len(told) == 1 else f"{stem} #{number}")
        arms.append(_arm(name, run, source))
    arms = with_roles(_named_apart(arms))
    settings = [setting for arm in arms for setting in _settings(arm, alone=len(arms) == 1)]
    settings += [
        Setting(
            name=head.key, value=text if cell.value is None else cell.value, unit=cell.unit, place=Place(source, line)
        )
        for run in runs
        for line, head, cell, text in run.rows
        if head.key and (not head.quantity or run not in told)
    ]
    return arms, settings, lost


def _runs(lines: Sequence[Line]) -> tuple[list[_Run], list[Line]]:
    """(runs, the lines that are neither rows nor their titles)."""
    runs: list[_Run] = []
    lost: list[Line] = []
    caption: Line | None = None
    for number, raw in lines:
        text = plain(raw) if len(raw) < 400 else raw[:400]
        if not text.strip():
            continue
        title = _TITLE.search(text)
        if title or (_REQUESTS.match(text) and runs and any(row[1].key == "concurrency" for row in runs[-1].rows)):
            if not runs or runs[-1].rows or title:
                runs.append(_Run(number, _usable(caption, number), []))
            caption = None
            if title:
                continue
        if _RULE.match(text) or _SECTION.match(raw):
            continue
        rows = _rows(number, text)
        if rows:
            if not runs:
                runs.append(_Run(number, _usable(caption, number), []))
            runs[-1].rows += rows
            if caption is not None:
                # A line before rows is their caption.
                lost = [item for item in lost if item[0] != caption[0]]
                caption = None
        else:
            caption = (number, text)
            lost.append((number, text))
    return [run for run in runs if run.rows], lost


def _usable(caption: Line | None, line: int) -> str:
    """A short line just before a run names it."""
    if caption is None or line - caption[0] > 3 or len(caption[1]) > 60:
        return ""
    return re.sub(r"^[\s#>*\-=_]+|[\s*:_=]+$", "", caption[1])


def _rows(number: int, text: str) -> list[tuple[int, Heading, Cell, str]]:
    several = _SAMPLING.match(text)
    if several is not None:
        # `TTFT: mean=1.2 ms, p99=3 ms`
        base = heading(_label(several["label"]))
        pairs = re.findall(r"(\w+)\s*=\s*([\d.]+\s*\w*)", several["parts"])
        return (
            [(number, heading(f"{base.label} {key}"), _cell(value), value) for key, value in pairs]
            if base.quantity
            else []
        )
    found = _ROW.match(text)
    if found is None:
        return []
    label, value = _label(found["label"]), found["value"]
    head, cell = heading(label), _cell(value)
    if not head.quantity and (len(value.split()) > 6 or not _PLAIN.match(label) or value.startswith(":")):
        return []
    out = [(number, head, cell, value)]
    spread = _SPREAD.search(text)
    if spread is not None and head.quantity:
        out.append((number, msgspec.structs.replace(head, stat="std"), _cell(f"{spread[1]} {spread[2]}"), spread[0]))
    return out


def _label(text: str) -> str:
    return re.sub(r"^\s*[-*]\s*", "", text).strip()


def _cell(value: str) -> Cell:
    cell = read_cell(_SPREAD.sub("", value).strip())
    if cell.value is None:
        # `493.1 infer/sec`, `5 requests`: a unit of several words.
        found = re.match(r"^([+-]?[\d.,]+(?:e[+-]?\d+)?)\s+([A-Za-z][\w/ ]{0,24})$", value.strip())
        number = read_cell(found[1]) if found else None
        if found and number is not None and number.value is not None:
            return msgspec.structs.replace(
                number, text=value, unit=unit_of(found[2]), note=found[2] if not unit_of(found[2]) else ""
            )
    return cell


def _arm(name: str, run: _Run, source: str) -> Arm:
    keys: dict[str, float | str] = {}
    values: dict[str, Quoted] = {}
    for line, head, said, text in run.rows:
        cell = msgspec.structs.replace(said, note="") if head.quantity == "n" else said
        item = quoted(head, cell, Place(source, line), percent=cell.value is not None and cell.value > 1.5)
        if item is None:
            keys.setdefault(head.key, "inf" if text.lower() in _INF else text)
            continue
        placed(values, item)
        if item.quantity in CONDITIONS and not item.stat:
            keys.setdefault(item.quantity, item.value)
    n = values.get("n")
    for total, each in _TOTALS:
        found = values.get(total)
        if found is not None and n is not None and n.value and each not in values:
            values[each] = msgspec.structs.replace(
                found, quantity=each, value=found.value / n.value, unit="tokens", label=f"{found.label} / {n.label}"
            )
    return Arm(name=name, label=name, keys=keys, values=values, place=Place(source, run.line))


def _named_apart(arms: list[Arm]) -> list[Arm]:
    """Runs of one name are told apart by their conditions, else by their number."""
    names = [arm.name for arm in arms]
    out, seen = [], set()
    for number, arm in enumerate(arms, start=1):
        name = arm.name
        if names.count(name) > 1:
            shown = [
                f"{key.replace('_', ' ')} {value:g}" for key, value in arm.keys.items() if isinstance(value, float)
            ]
            name = ", ".join([name, *shown])
        if name in seen:
            name = f"{arm.name} #{number}"
        seen.add(name)
        out.append(msgspec.structs.replace(arm, name=name, label=name))
    return out


def _settings(arm: Arm, *, alone: bool) -> list[Setting]:
    out = []
    for key, name in _SETTINGS.items():
        value: float | str | None = arm.keys.get(key)
        quoted_value = arm.values.get(key)
        if value is None and quoted_value is not None:
            value = quoted_value.value
        if value is not None:
            place = quoted_value.place if quoted_value is not None else arm.place
            out.append(Setting(name=name, value=value, scope="" if alone else arm.name, place=place))
    return out


def is_titled(head: str) -> bool:
    """Whether a text holds the title of a benchmark's table."""
    return bool(_TITLE.search(head))
