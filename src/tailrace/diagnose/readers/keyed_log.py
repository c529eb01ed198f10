"""A log of no known engine whose lines print the same numbers under names, each with its stamp: a time series.

`[09:00:10] active=7 pending=0 gen_tok/s=0.4 kv=0.06`, `12:00:01 feed took 5.2ms buffered=0.1s`.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from tailrace.diagnose.observed import Observed, Understood
from tailrace.diagnose.readers.format import Format
from tailrace.diagnose.readers.table_text import TableText
from tailrace.diagnose.readers.timeseries import series_of_table

__all__ = ["KEYED_LOG"]

_FORM: Final = "log of named numbers"
_STAMP: Final = re.compile(
    r"^\W{0,3}(\d{4}-\d\d-\d\d[T ])?(?:\d\d/\d\d(?:/\d{2,4})? )?(\d{1,2}:\d\d:\d\d(?:[.,]\d{1,6})?)(Z|[+-]\d\d:?\d\d)?"
)
_PAIR: Final = re.compile(
    r"(?<![\w.])([A-Za-z_][\w/%-]{0,40}(?:[ .][a-z_]{2,16})?)\s?(?:=|: ?| took )\s?(-?\d+(?:\.\d+)?)\s?"
    r"(ms|us|µs|ns|s|%|tok/s|t/s|tokens/s|req/s|MHz|W|C)?(?![\w.:])"
)
_NO_SERIES: Final = re.compile(r'"(?:GET|POST|PUT|HEAD) |Traceback|^\s*File "')
_FEWEST: Final = 3
_MOST_LINES: Final = 100_000
_SHARE: Final = 0.5
_LONGEST: Final = 2_000


def _pairs(line: str) -> list[tuple[str, str]]:
    found = []
    for name, value, unit in _PAIR.findall(line[:_LONGEST]):
        plain = name.strip().removesuffix(" is")
        found.append((f"{plain} ({unit})" if unit else plain, value))
    return found


def _row(line: str) -> tuple[str, list[tuple[str, str]]] | None:
    """(stamp, pairs) of a line that has both."""
    stamp = _STAMP.match(line)
    if stamp is None or _NO_SERIES.search(line):
        return None
    pairs = _pairs(line[stamp.end() :])
    at = f"{stamp[1] or ''}{stamp[2]}{stamp[3] or '' if stamp[1] else ''}"
    return (at, pairs) if len(pairs) > 1 else None


def _matches(head: str, name: str) -> bool:
    del name
    lines = [line for line in head.splitlines()[:60] if line.strip()]
    if len(lines) < _FEWEST or ("=" not in lines[0] + lines[1] and ":" not in lines[0]):
        return False
    rows = [row for line in lines if (row := _row(line)) is not None]
    if len(rows) < _FEWEST or len(rows) < _SHARE * len(lines):
        return False
    told = Counter(name for _, pairs in rows for name, _ in dict(pairs).items())
    return sum(n >= _FEWEST for n in told.values()) > 1


def _read(path: Path, source: str) -> Observed:
    rows: list[tuple[int, str, list[tuple[str, str]]]] = []
    total = 0
    lost: list[str] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            total += 1
            found = _row(line) if len(rows) < _MOST_LINES else None
            if found is not None:
                rows.append((number, *found))
            elif len(lost) < _FEWEST:
                lost.append(f"{number}: {line.strip()[:80]}")
    told = Counter(name for _, _, pairs in rows for name in dict(pairs))
    kept = {name for name, n in told.items() if n >= _SHARE * len(rows)}
    dated = sum(1 for _, stamp, _ in rows if stamp[:4].isdigit()) > len(rows) / 2
    table = TableText()
    for number, stamp, pairs in rows:
        if stamp[:4].isdigit() == dated:
            table.add(number, [("time", stamp), *((name, value) for name, value in pairs if name in kept)])
    out = series_of_table(table.filled(), source)
    out.understood = [
        Understood(source=source, format=_FORM, understood=len(table), total=total, examples=lost)
    ]  # fmt: skip
    return out


KEYED_LOG: Final = Format(name=_FORM, matches=_matches, read=_read)
