"""Saved scrapes of /metrics as readings: one file may hold one, or several in a row; Prometheus' own answers too.

Read are the text format, OpenMetrics, what `/federate` gives (a stamp behind each value), and the JSON of
`/api/v1/query` and `/api/v1/query_range`; and Triton's statistics. Several scrapes in one file are told apart by
`# EOF`, by the first series coming again, or by a line between them that names a time.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tailrace.diagnose.observed import Clock
from tailrace.diagnose.readers.triton_stats import is_triton_stats, scrapes_of_stats
from tailrace.engines.prometheus_text import Sample, Scrape, SeriesMemo, is_plain, parse_scrape
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError

__all__ = ["Reading", "is_query_answer", "is_scrape", "read_readings"]

_SERIES: Final = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?<!:)(\{.*\})?\s+(?:[-+]?[\d.]\S*|[-+]?[NnIi]\w+)"
    r"(?:\s+(\d{9,13}(?:\.\d+)?))?\s*$"
)
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_AFTER: Final = re.compile(r"\b(?:t|time|at|after)\s*[=:+]?\s*(\d+(?:\.\d+)?)\s*(ms|s|sec|min|h)?\b", re.IGNORECASE)
_BETWEEN: Final = re.compile(
    r"^(?:==+>|---|===|\*\*\*|\$ |#+ (?:scrape|sample|reading|snapshot|t\s*[=:]|time|at )|<==)", re.IGNORECASE
)
_BEGINS_BETWEEN: Final = "=-*$#<"
_TO_S: Final = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "": 1.0}
_PREFIXES: Final = ("tgi_", "nv_", "trtllm_", "dynamo_", "process_", "python_", "DCGM_", "tailrace_")
_LOOKED_AT: Final = 1 << 14
_LINES_LOOKED_AT: Final = 60
_MOST_READINGS: Final = 20_000
_QUERY_HEAD: Final = (b'"resultType"', b'"metric":{', b'"metric": {')
_decode: Final = msgspec.json.Decoder().decode


class Reading(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One scrape."""

    source: str
    scrape: Scrape
    text: str
    """As text, for an engine's adapter."""
    at: float | None = None
    """Seconds on `clock`, where the file says when it was taken."""
    clock: Clock = Clock.NONE
    lines: dict[str, int] = {}
    """Metric's name -> line of its first sample."""

    def line(self, name: str) -> int:
        """Where the metric stands in the file; 0 where it is not in it."""
        return self.lines.get(name, 0)


def is_query_answer(head: bytes) -> bool:
    """Whether a file begins like an answer of Prometheus' query API, or like the list of results in one; or like
    Triton's statistics, which are counters too.
    """
    start = head.lstrip()
    if is_triton_stats(start):
        return True
    return start[:1] in (b"{", b"[") and any(mark in start[:2048] for mark in _QUERY_HEAD) and b'"value' in start


def is_scrape(head: bytes) -> bool:
    """Whether a file begins like a scrape: a type or a help line, or samples with labels or an engine's names (`mean
    12.3` alone is none).
    """
    lines = head[:_LOOKED_AT].decode("utf-8", "replace").split("\n")[:_LINES_LOOKED_AT]
    if any(line.startswith(("# TYPE ", "# HELP ")) for line in lines):
        return True
    plain = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if len(lines) > 1 and plain and len(lines) < _LINES_LOOKED_AT and len(head) >= _LOOKED_AT:
        plain = plain[:-1]  # the last line may be cut
    found = [_SERIES.match(line.partition(" # {")[0]) for line in plain]
    samples = [one for one in found if one is not None]
    telling = any(one[2] or ":" in one[1] or one[1].startswith(_PREFIXES) for one in samples)
    return telling and len(samples) >= 0.6 * len(plain)


def read_readings(text: str, name: str) -> list[Reading]:
    """All scrapes of a file, in its order. InputError where an answer of the query API holds none."""
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith(("{", "[")):
        return _of_stats(start, name) if is_triton_stats(start[:4096].encode()) else _of_query(start, name)
    blocks = _blocks(text)
    types: dict[str, str] = {}
    out = []
    memo = SeriesMemo()  # an engine's scrapes repeat each other's series
    for block in blocks:
        scrape = parse_scrape("\n".join(block.lines), memo=memo)
        types |= scrape.types
        out.append((block, scrape))
    return [
        Reading(
            source=name,
            scrape=Scrape(scrape.samples, types, scrape.duplicates),
            text="\n".join(block.lines),
            at=block.at,
            clock=block.clock,
            lines=block.first,
        )
        for block, scrape in out
        if scrape.samples
    ]


class _Block:
    """The lines of one scrape."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.first: dict[str, int] = {}
        self.key = ""
        self.at: float | None = None
        self.clock = Clock.NONE


class _Blocks:
    """Cuts a text into its scrapes, line by line."""

    def __init__(self) -> None:
        self.done = [_Block()]
        self.hint: tuple[float, Clock] | None = None
        """When the next scrape was taken, as a line before it says."""
        self.names: set[str] = set()
        """Metrics that were met."""

    def take(self, number: int, line: str) -> None:
        """One line that is not blank."""
        if line[0] in _BEGINS_BETWEEN and (line == "# EOF" or _BETWEEN.match(line)):
            self.hint = _hint(line) or self.hint
            if self.done[-1].key:
                self._next()
        elif line[0] == "#":
            if not line.startswith(("# TYPE", "# HELP", "# UNIT")):
                self.hint = _hint(line) or self.hint
            self.done[-1].lines.append(line)
        else:
            spelled, _, value = line.rpartition(" ")
            name = spelled.partition("{")[0]
            # Most lines are a known name, its labels, a number: what the expression finds in them is known before.
            if spelled[-1:] == "}" and name in self.names and is_plain(value) and " # {" not in spelled:
                self._sample(number, line, name, spelled, "")
                return
            found = _SERIES.match(line.partition(" # {")[0] if " # {" in line else line)
            if found is None:
                self.hint = _hint(line) or self.hint  # `Mon 2026-03-02 10:00:05` between two of them
            else:
                self.names.add(found[1])
                self._sample(number, line, found[1], found[1] + (found[2] or ""), found[3] or "")

    def _sample(self, number: int, line: str, name: str, key: str, stamp: str) -> None:
        if key == self.done[-1].key:
            self._next()
        block = self.done[-1]
        if not block.key:
            block.key = key
            if self.hint is not None:
                block.at, block.clock = self.hint
                self.hint = None
        if stamp and block.at is None:
            block.at, block.clock = _stamp(stamp), Clock.UTC
        block.first.setdefault(name, number)
        block.lines.append(line)

    def _next(self) -> None:
        if len(self.done) < _MOST_READINGS:
            self.done.append(_Block())


def _blocks(text: str) -> list[_Block]:
    out = _Blocks()
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip().lstrip("\ufeff")
        if line:
            out.take(number, line)
    return [block for block in out.done if block.key]


def _stamp(text: str) -> float:
    value = float(text)
    return value / 1e3 if value > 1e11 else value


def _hint(line: str) -> tuple[float, Clock] | None:
    found = _ISO.search(line)
    if found is not None:
        try:
            moment = datetime.fromisoformat(found[0])
        except ValueError:
            return None
        if moment.tzinfo is not None:
            return moment.timestamp(), Clock.UTC
        return moment.replace(tzinfo=UTC).timestamp(), Clock.LOCAL
    after = _AFTER.search(line)
    if after is None:
        return None
    return float(after[1]) * _TO_S[(after[2] or "").lower()], Clock.RELATIVE


def _of_stats(text: str, name: str) -> list[Reading]:
    return [
        Reading(source=name, scrape=scrape, text=_as_text(scrape.samples)) for scrape in scrapes_of_stats(text, name)
    ]


def _of_query(text: str, name: str) -> list[Reading]:
    try:
        answer = _decode(text.encode())
    except UNREADABLE as error:
        raise InputError(f"this is no answer of Prometheus: {error}", place=name, remedy="Save it whole.") from None
    results = _results(answer)
    points: dict[float, dict[str, list[Sample]]] = {}
    for result in results:
        metric = result.get("metric")
        if not isinstance(metric, dict):
            continue
        labels = {str(key): str(value) for key, value in metric.items() if key != "__name__"}
        metric_name = str(metric.get("__name__", "")) or name.rsplit(".", 1)[0]
        for at, value in _points(result):
            points.setdefault(at, {}).setdefault(metric_name, []).append(Sample(labels, value))
    if not points:
        raise InputError(
            "Prometheus answered with no series", place=name, remedy="Ask for a time at which the engine was scraped."
        )
    return [
        Reading(source=name, scrape=Scrape(samples, {}), text=_as_text(samples), at=at, clock=Clock.UTC)
        for at, samples in sorted(points.items())[:_MOST_READINGS]
    ]


def _results(answer: Any) -> list[dict[str, Any]]:
    found = answer
    for key in ("data", "result"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _points(result: dict[str, Any]) -> list[tuple[float, float]]:
    pairs = result.get("values")
    if not isinstance(pairs, list):
        pairs = [result.get("value")]
    out = []
    for pair in pairs:
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int | float):
            try:
                value = float(pair[1])
            except (TypeError, ValueError):
                continue
            if not math.isnan(value):
                out.append((float(pair[0]), value))
    return out


def _as_text(samples: dict[str, list[Sample]]) -> str:
    lines = []
    for name, items in samples.items():
        for item in items:
            inner = ",".join(f'{key}="{_escaped(value)}"' for key, value in item.labels.items())
            lines.append(f"{name}{{{inner}}} {item.value!r}" if inner else f"{name} {item.value!r}")
    return "\n".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
