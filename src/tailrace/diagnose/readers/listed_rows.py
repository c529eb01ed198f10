"""Lists that are tables in other clothes: `- 4 clients: 2.49 s`, `direct: TTFT 0.27 s, ITL 24 ms`, `via: 0.4 6.1 s`.

Each line is a label and its numbers. They are written as the Markdown table that they mean, so that one reader has
all tables. A sentence is none of these: it stays context.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tailrace.diagnose.readers.cells import read_cell
from tailrace.diagnose.readers.grids import Line
from tailrace.diagnose.readers.heading import heading, plain, statistic
from tailrace.diagnose.readers.spread_columns import told_quantity
from tailrace.diagnose.readers.units import unit_of

__all__ = ["with_listed_rows"]

_ROW: Final = re.compile(
    r"^\s*(?:>\s?)?(?:[-*\u2022+]\s+|\d{1,2}[.)]\s+)?(?P<label>[A-Za-z]{1,16}\s?=\s?\d{1,7}|[^\s|:=][^|:=]{0,59}?(?::\d{2,5})?)"
    r"\s*(?::|=>|->|\u2192|=|\s[-\u2013\u2014])\s+(?P<rest>\S.{0,300})$"
)
_NUMBER: Final = r"[+\-]?\d+(?:[,.]\d+)*(?:[eE][+\-]?\d+)?"
_UNIT: Final = r"ms|msec|milliseconds|seconds|secs?|s|us|µs|%|tok(?:ens)?/s(?:ec)?|t/s|req/s|rps|qps|MHz|GHz|W|C|x"
_PIECE: Final = re.compile(
    rf"^(?P<name>[A-Za-z#][\w \-./#]*?(?:\([^)]*\))?)?\s*[=:~\u2248]?\s*(?<![A-Za-z])(?P<value>{_NUMBER})\s*"
    rf"(?P<unit>(?:{_UNIT})(?![A-Za-z]))?\s*(?P<tail>[A-Za-z][A-Za-z \-/%]{{0,30}})?\s*(?:\((?P<note>[^)]*)\))?\.?$"
)
_CUT: Final = re.compile(r"\s*[;|]\s*|,\s+|\s+/\s+|\s+(?:and|with)\s+(?=[A-Za-z]+[^,]*\d)")
_SAMPLES: Final = re.compile(
    rf"^[\[(]?(?P<values>\d+(?:\.\d+)?(?:\s*[,;/]\s*|\s+)(?:\d+(?:\.\d+)?(?:\s*[,;/]\s*|\s+))*\d+(?:\.\d+)?)[\])]?"
    rf"\s*(?P<unit>{_UNIT})?$"
)
_STAMPED: Final = re.compile(r"^\s*[\[(]?\d{1,4}[-:/]\d\d[-:/T ]|^\s*(?:INFO|WARN|ERROR|DEBUG)\b|^\s*\d+\.\d+\.\d+")
_LONE: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(?![\w.]*\d)")
_FEWEST_SAMPLES: Final = 3
_BARE: Final = {"tok/s": "tok/s", "1/s": "req/s"}
"""What stands for itself: `801 tok/s`."""
_NOUNS: Final = {
    "c": "concurrency", "conc": "concurrency", "bs": "concurrency", "parallel": "concurrency", "qps": "offered rps",
    "rps": "offered rps", "req/s": "offered rps", "replica": "replicas", "gpu": "gpus", "request": "concurrency",
    "requests": "concurrency", "concurrent": "concurrency", "concurrent requests": "concurrency",
    "user": "users", "client": "clients", "stream": "streams", "session": "sessions", "thread": "threads",
}  # fmt: skip
_LONGEST: Final = 400
_RUN: Final = re.compile(r"run \d")


class _Item(NamedTuple):
    """One line of a list."""

    number: int
    label: str
    cells: dict[str, str]
    """Heading -> cell; `""` heads what stands without a name."""


def with_listed_rows(lines: Sequence[Line]) -> list[Line]:
    """The same lines, where two or more lines of a list that hold one kind of numbers are rows of a table."""
    items = [_item(number, text) for number, text in lines]
    out: list[Line] = []
    at = 0
    while at < len(lines):
        run = _list_from(items, at)
        table = _table(run, _caption(out)) if len(run) > 1 else []
        if table:
            out += table
            at += len(run)
            continue
        end = at + (_passed(run, lines[at : at + len(run)]) if len(run) > 1 else 1)
        out += lines[at:end]
        at = end
    return out


def _passed(run: list[_Item], lines: Sequence[Line]) -> int:
    """How many lines of a list that is no table begin none either. A thousand lines of one kind are judged once: what
    is behind one of them is the same list, less its first lines.
    """
    heads = run[0].cells.keys()
    if any(item.cells.keys() != heads for item in run):
        return 1
    if all(len(item.cells) == 1 and heading(item.label).quantity for item in run):
        return len(run)
    if any(_RUN.match(head) for head in heads):
        unnamed = _behind_last(run, lambda item: not heading(item.label).quantity)
        return next((n for n in range(1, unnamed) if told_quantity(lines[n - 1][1])[0]), unnamed)
    return _behind_last(run, lambda item: not _timed(item))


def _behind_last(run: list[_Item], holds: Callable[[_Item], bool]) -> int:
    """The place behind the last item of which it holds; 1 where it holds of none."""
    return next((place for place in range(len(run), 1, -1) if holds(run[place - 1])), 1)


def _caption(out: list[Line]) -> str:
    return next((text for _, text in reversed(out) if text.strip()), "")


def _list_from(items: Sequence[_Item | None], at: int) -> list[_Item]:
    """The items from `at` on that go together; none where no item stands there."""
    run: list[_Item] = []
    for place in range(at, len(items)):
        item = items[place]
        if item is None or (run and not _alike(run[0], item)):
            break
        run.append(item)
    return run


def _alike(one: _Item, other: _Item) -> bool:
    return bool(one.cells.keys() & other.cells.keys()) and _sort(one.label) == _sort(other.label)


def _sort(label: str) -> str:
    """What a label counts: `4 clients` and `8 clients` are one list, `TTFT p50` and `GPU` none."""
    found = _counted(label)
    return found[0] if found else ""


def _counted(label: str) -> tuple[str, str] | None:
    """(`clients`, `4`) of `4 clients`, `concurrency 4`, `at 4 users`; `None` where it counts nothing."""
    numbers = _LONE.findall(label)
    words = [word for word in re.findall(r"[a-z/]+", label.lower()) if word not in {"at", "with", "for", "n", "only"}]
    if len(numbers) != 1 or not 1 <= len(words) <= 3 or _LONE.sub("", label).count(":"):
        return None
    noun = " ".join(words)
    return _NOUNS.get(noun, noun), numbers[0]


def _item(number: int, text: str) -> _Item | None:
    if len(text) > _LONGEST or "|" in text or _STAMPED.match(text):
        return None
    said = plain(text)
    found = _ROW.match(said)
    if found is None:
        return None
    label, rest = found["label"].strip(), found["rest"].strip()
    samples = _SAMPLES.match(rest)
    if samples is not None:
        values = [part for part in re.split(r"\s*[,;/]\s*|\s+", samples["values"]) if part]
        if len(values) >= _FEWEST_SAMPLES:
            unit = f" ({samples['unit']})" if samples["unit"] else ""
            return _Item(number, label, {f"run {n}{unit}": value for n, value in enumerate(values, start=1)})
    cells: dict[str, str] = {}
    lost = 0
    for piece in _CUT.split(rest):
        read = _piece(piece.strip())
        if read is None:
            lost += 1
            if not cells:
                return None  # what a line begins with is what it is about
            continue
        cells.setdefault(*read)
    return _Item(number, label, cells) if cells and lost <= len(cells) else None


def _piece(text: str) -> tuple[str, str] | None:
    """(heading, cell) of `mean ITL 24 ms`, `49 chunks`, `2.49 s`, `310 ms per chunk`."""
    found = _PIECE.match(text)
    if found is None or read_cell(found["value"]).value is None:
        return None
    name, unit, tail = (found["name"] or "").strip(), found["unit"] or "", (found["tail"] or "").strip()
    if name and tail and not heading(name).quantity and not unit:
        return None  # `since 4 weeks we see`: words on both sides are a sentence
    words = " ".join(filter(None, (name, "" if statistic(tail) and not name else tail if not name else "")))
    if statistic(tail) and not name:
        words = tail
    value = f"{found['value']} {unit}".strip()
    if not words and not unit:
        return None
    words = words or _BARE.get(unit_of(unit), "")
    return re.sub(r"^total$", "total time", words, flags=re.IGNORECASE) if unit in {"ms", "s"} else words, value


def _table(run: list[_Item], caption: str) -> list[Line]:
    """The lines of a Markdown table; empty where the numbers are of no known kind."""
    heads = list(dict.fromkeys(head for item in run for head in item.cells))
    if not _measured(run, heads, caption):
        return []
    counted = [_counted(item.label) for item in run]
    if all(counted):
        first = counted[0][0] if counted[0] else ""
        labels = [found[1] for found in counted if found]
    else:
        first, labels = "arm", [item.label for item in run]
    quantity, stat = told_quantity(caption)
    plain_head = f"{quantity.replace('_', ' ')} {stat}".strip() if quantity else "time"
    names = [_head(head, plain_head) for head in heads]
    start = run[0].number
    rows = [
        (item.number, f"| {label} | " + " | ".join(item.cells.get(head, "-") for head in heads) + " |")
        for item, label in zip(run, labels, strict=True)
    ]
    return [(start, f"| {first} | " + " | ".join(names) + " |"), (start, "|" + "---|" * (len(heads) + 1)), *rows]


def _head(head: str, unnamed: str) -> str:
    if not head:
        return unnamed
    if head.lower().startswith("per ") and not heading(head).quantity:
        return f"time {head}"
    return f"{unnamed} {head}" if statistic(head) and unnamed != "time" else head


def _measured(run: list[_Item], heads: list[str], caption: str) -> bool:
    """Whether the numbers are measurements of several things: by their headings, their units, or the line above."""
    if all(heading(item.label).quantity and len(item.cells) == 1 for item in run):
        return False  # `TTFT: 120 ms` under `ITL: 8 ms`: the rows of one printed result
    if any(_RUN.match(head) for head in heads):
        return bool(told_quantity(caption)[0]) or all(heading(item.label).quantity for item in run)
    known = any(heading(head).quantity for head in heads)
    timed = all(map(_timed, run))
    return (known or timed) and (timed or len(heads) > 1)


def _timed(item: _Item) -> bool:
    return any(_unit(cell) for cell in item.cells.values())


def _unit(cell: str) -> str:
    return unit_of(cell.rpartition(" ")[2]) if " " in cell else ""
