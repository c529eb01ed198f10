"""What benchmarks print: `label: value` rows of one run under another. vLLM and SGLang, perf_analyzer, a script of
one's own (`p99 TTFT: 1.2 s`). Each run becomes an arm.

Rows are never told by their place: a label is read as a heading is, and what it does not name is kept under its own
words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from tailrace.diagnose.observed import Arm, Place, Quoted, Setting
from tailrace.diagnose.readers.cells import Cell, read_cell
from tailrace.diagnose.readers.grids import Line
from tailrace.diagnose.readers.heading import Heading, heading, plain
from tailrace.diagnose.readers.prose import is_sentence
from tailrace.diagnose.readers.roles import with_roles
from tailrace.diagnose.readers.table_arms import CONDITIONS, placed, quoted
from tailrace.diagnose.readers.units import unit_of

__all__ = ["is_printed_row", "is_titled", "runs_in"]

_ROW: Final = re.compile(
    r"^\s*(?:[-*\u2022]\s+)?(?P<label>[^\W\d_][^:=|]{0,80}?|[pP]\d[^:=|]{0,60}?)\s*[:=]\s*(?P<value>\S.{0,80}?)\s*$"
)
_TITLES: Final = ("serving benchmark result", "measurement settings")
_SECTION: Final = re.compile(
    r"^\s*[-=*\u2500\u2550 ]{2,}\s*(?P<title>[A-Za-z][^=*]{0,80}?)\s*[-=*\u2500\u2550 ]{2,}\s*$"
)
_STAMP: Final = re.compile(
    r"^\s*\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s*"
    r"(?:\|?\s*(?:INFO|DEBUG)\s*\|?:?\s*)?"
)
"""What a logger writes before each row."""
_RULE: Final = re.compile(r"^\s*[-=*\u2500\u2550]{3,}\s*$")
_REQUESTS: Final = re.compile(r"^\s*Request concurrency:\s*\d+", re.IGNORECASE)
_SPREAD: Final = re.compile(r"\(\s*standard deviation\s+([\d.,]+)\s*(\w+)\s*\)")
_SAMPLING: Final = re.compile(r"^(?P<label>[^:]+?)\s*:\s*(?P<parts>(?:\s*\w+\s*=\s*[\d.]+\s*\w*,?){2,})$")
_SERVER_PARTS: Final = re.compile(
    r"^\s*Avg request latency:\s*(?P<whole>[\d.]+)\s*(?P<unit>\w+)\s*\((?P<parts>[^()]*\bqueue [^()]*)\)"
)
_PARTS: Final = {"queue": "queue time", "compute infer": "compute infer", "compute": "compute infer"}
_PLAIN: Final = re.compile(r"^[\w ./%()+#,\-]+$")
_BAR: Final = re.compile(r"\d%\|")
_INFERENCES: Final = re.compile(r"\binfer(?:ences?)?/s", re.IGNORECASE)
_BATCHED: Final = 1.2
"""Little's law: so many times more than the limit are no requests."""
_NEAR: Final = 4
_INF: Final = frozenset({"inf", "infinity", "∞"})
_SETTINGS: Final = {
    "concurrency": "max_concurrency", "offered_rps": "request_rate", "n": "n", "backend": "backend",
    "max_concurrency": "max_concurrency",
}  # fmt: skip
_TOTALS: Final = (("total_prompt_tokens", "prompt_tokens"), ("total_output_tokens", "output_tokens"))


_Row = tuple[int, Heading, Cell, str]
"""Line, label, cell, the value as it stands."""


class _Run(msgspec.Struct):
    """The rows of one run: (line, label's heading, cell)."""

    line: int
    title: str
    rows: list[_Row]


def is_printed_row(text: str) -> bool:
    """Whether a line is a row that names a quantity with a number behind it."""
    found = _ROW.match(_STAMP.sub("", text)) if len(text) < 200 else None
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
    reading = _Reading()
    for number, raw in lines:
        text = _STAMP.sub("", plain(raw) if len(raw) < 400 else raw[:400])
        if text.strip():
            reading.line(number, raw, text)
    return [run for run in reading.runs if run.rows], [line for line in reading.lost if line[0] not in reading.captions]


class _Reading:
    """Lines as they come."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.lost: list[Line] = []
        self.caption: Line | None = None
        """The last line that may name the run below it."""
        self.captions: set[int] = set()
        """Lines that turned out to be captions."""
        self.named: Line | None = None
        """The caption of rows that turn out to stand above a table."""

    def line(self, number: int, raw: str, text: str) -> None:
        """One line that is not empty."""
        runs = self.runs
        title = is_titled(text)
        if title or (_REQUESTS.match(text) and runs and any(row[1].key == "concurrency" for row in runs[-1].rows)):
            self._begin(number, title=title)
            if title:
                return
        if _RULE.match(text) or _SECTION.match(raw):
            return
        rows = _rows(number, text)
        if rows:
            self._add(number, rows)
            return
        # A bar of progress and a hint of the tool name nothing.
        if not _BAR.search(text) and (self.caption is None or not is_sentence(text)):
            self.caption = (number, text)
        self.lost.append((number, text))

    def _begin(self, number: int, *, title: bool) -> None:
        if not self.runs or self.runs[-1].rows or title:
            announced = _announced(self.runs) if title else []
            begin = announced[0][0] if announced else number
            self.runs.append(_Run(number, _usable(self.caption or self.named, begin), announced))
        self.caption = self.named = None

    def _add(self, number: int, rows: list[_Row]) -> None:
        if not self.runs:
            self.runs.append(_Run(number, _usable(self.caption, number), []))
        self.runs[-1].rows += rows
        if self.caption is not None:
            # A line before rows is their caption.
            self.captions.add(self.caption[0])
            self.caption, self.named = None, self.caption


def _announced(runs: list[_Run]) -> list[_Row]:
    """Rows above a table that only say what is set for it (`Traffic request rate: 15.0`), taken from the run before."""
    if not runs:
        return []
    rows = runs[-1].rows
    last = max((place for place, row in enumerate(rows) if _measures(row)), default=-1)
    taken = rows[last + 1 :]
    del rows[last + 1 :]
    return taken


def _measures(row: _Row) -> bool:
    """Whether a row holds a measurement, and not only what was set."""
    _, head, cell, _ = row
    return bool(head.quantity) and head.quantity not in _SETTINGS and cell.value is not None


def _usable(caption: Line | None, line: int) -> str:
    """A short line just before a run names it."""
    if caption is None or line - caption[0] > _NEAR or len(caption[1]) > 60:
        return ""
    return re.sub(r"^[\s#>*\-=_]+|[\s*:_=]+$", "", caption[1])


def _rows(number: int, text: str) -> list[_Row]:
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
    parts = _SERVER_PARTS.search(text)
    if parts is not None:
        # perf_analyzer: `Avg request latency: 197 usec (overhead 26 usec + queue 106 usec + compute infer 64 usec)`
        named = re.findall(r"([a-z][a-z ]*?)\s+([\d.]+)\s*(usec|us|ms|msec)", parts["parts"])
        return [
            (
                number,
                heading(f"{_PARTS.get(name) or 'server ' + name.removeprefix('compute ')} mean"),
                _cell(f"{value} {unit}"),
                value,
            )
            for name, value, unit in [("request", parts["whole"], parts["unit"]), *named]
        ]
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
    _as_requests(values, inferences=any(_INFERENCES.search(text) for *_, text in run.rows))
    n = values.get("n")
    for total, each in _TOTALS:
        found = values.get(total)
        if found is not None and n is not None and n.value and each not in values:
            values[each] = msgspec.structs.replace(
                found, quantity=each, value=found.value / n.value, unit="tokens", label=f"{found.label} / {n.label}"
            )
    return Arm(name=name, label=name, keys=keys, values=values, place=Place(source, run.line))


def _as_requests(values: dict[str, Quoted], *, inferences: bool) -> None:
    """perf_analyzer's throughput counts inferences, and a request may hold a batch of them: by the counts where they
    are printed; where they are not, and more would be under way than was allowed, the rate is none of requests.
    """
    rate, made = values.get("req_s"), values.get("n@inference")
    served = values.get("n@successful") or values.get("n")
    if rate is None or not inferences:
        return
    if made is not None and served is not None and served.value:
        each = made.value / served.value
        values["req_s"] = msgspec.structs.replace(
            rate, value=rate.value / each, label=f"{rate.label} / {each:g} inferences a request"
        )
        return
    held, whole = values.get("concurrency"), values.get("e2e.mean")
    if held is not None and whole is not None and rate.value * whole.value / 1e3 > _BATCHED * held.value:
        del values["req_s"]
        values["inferences_s"] = msgspec.structs.replace(rate, quantity="inferences_s")


def _named_apart(arms: list[Arm]) -> list[Arm]:
    """Runs of one name are told apart by their conditions, else by their number."""
    names = Counter(arm.name for arm in arms)
    out, seen = [], set()
    for number, arm in enumerate(arms, start=1):
        name = arm.name
        if names[name] > 1:
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
    low = head.lower()
    return any(title in low for title in _TITLES)
