"""Traces: recorded arrivals with their lengths, read from the text of public trace formats.

The caller opens the file and passes its lines. Three schemas: the Azure LLM inference CSV
(`TIMESTAMP,ContextTokens,GeneratedTokens`), Mooncake JSON lines (`timestamp` in ms, `input_length`,
`output_length`, `hash_ids`), and a generic CSV with a header row (a time in seconds, input and output token
columns under any of their usual names, BurstGPT's included).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS, S


class TraceRow(NamedTuple):
    """One recorded request. `at_ns` counts from the first row; `blocks` are prefix block ids (512 tokens each)."""

    at_ns: int
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


_TIME = ("t_s", "time_s", "timestamp", "time", "arrival_time", "arrival_s", "timestamp(s)")
_PROMPT = ("contexttokens", "request tokens", "prompt_tokens", "input_tokens", "input_length", "prompt", "input")
_OUTPUT = ("generatedtokens", "response tokens", "output_tokens", "output_length", "completion_tokens", "output")
_EXTRA_INPUT = ("image_tokens", "audio_tokens", "video_tokens")
"""Tokens of other modalities in the input of a multimodal trace; added to the prompt."""


def read_trace(
    lines: Iterable[str], *, rng: np.random.Generator | None = None, place: str = "trace", speed: float = 1.0
) -> list[TraceRow]:
    """Rows of a trace in whichever schema its first line shows, in order of arrival, the first at 0.

    Timestamps that were recorded in ticks (many rows share one of few, evenly spaced values) are spread evenly at
    random inside their tick when `rng` is given: bursts made by the recorder's clock would be artefacts in the
    tail. `speed` above 1 plays faster. Rows without output tokens (failed in the recording) are left out.
    """
    if not 0 < speed < math.inf:
        raise InputError(f"speed must be above 0, got {speed:g}", place=place)
    source = iter(lines)
    first = next((line for line in source if line.strip()), "")
    if not first:
        raise InputError("the trace is empty", place=place, remedy="Give a CSV with a header row, or JSON lines")
    whole = chain([first.removeprefix("\ufeff")], source)
    rows = list(_mooncake(whole, place) if first.lstrip().startswith("{") else _csv(whole, place))
    rows = [row for row in rows if row.prompt_tokens > 0 and row.output_tokens > 0]
    if not rows:
        raise InputError("the trace has no row with input and output tokens", place=place)
    stamps = np.array([row.at_ns for row in rows], dtype=np.int64)
    stamps -= stamps.min()
    tick = tick_ns(stamps)
    if tick and rng is not None:
        stamps = stamps + rng.integers(0, tick, len(stamps))
    stamps = (stamps / speed).astype(np.int64) if speed != 1.0 else stamps
    order = np.argsort(stamps, kind="stable").tolist()
    return [rows[i]._replace(at_ns=int(stamps[i])) for i in order]


def tick_ns(stamps: np.ndarray) -> int:
    """The tick in which timestamps (ns) were recorded, or 0 where they look continuous.

    A tick is the greatest common divisor of the distinct stamps, when it is at least 100 ms and several rows share
    each stamp on average.
    """
    distinct = np.unique(stamps)
    if len(distinct) < 2 or len(stamps) < 2 * len(distinct):
        return 0
    tick = int(np.gcd.reduce(np.diff(distinct)))
    return tick if tick >= 100 * MS else 0


def _mooncake(lines: Iterator[str], place: str) -> Iterator[TraceRow]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(str(error), place=f"{place}:{number}", remedy="Expected Mooncake JSON lines") from None
        yield TraceRow(round(row.timestamp * MS), row.input_length, row.output_length, tuple(row.hash_ids))


def _csv(lines: Iterator[str], place: str) -> Iterator[TraceRow]:
    reader = csv.reader(lines)
    header = [name.strip().lower() for name in next(reader)]
    time_at = _column(header, _TIME, place)
    prompt_at = _column(header, _PROMPT, place)
    output_at = _column(header, _OUTPUT, place)
    extra = [i for i, name in enumerate(header) if name in _EXTRA_INPUT]
    read_time: Callable[[str], int] | None = None
    for row in reader:
        if not row:
            continue
        try:
            if read_time is None:
                read_time = _date_ns if "-" in row[time_at].strip()[1:] else _seconds_ns
            yield TraceRow(
                read_time(row[time_at]),
                int(float(row[prompt_at] or 0)) + sum(int(float(row[i] or 0)) for i in extra),
                int(float(row[output_at] or 0)),
            )
        except (ValueError, IndexError) as error:
            where = f"{place}:{reader.line_num}"
            raise InputError(f"cannot read this row ({error})", place=where) from None


def _column(header: list[str], names: tuple[str, ...], place: str) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise InputError(
        f"no column named {', '.join(names[:4])} ... in {', '.join(header) or 'the header'}",
        place=f"{place}:1",
        remedy="Give a header row with a time in seconds, input tokens and output tokens",
    )


def _seconds_ns(text: str) -> int:
    return round(float(text) * S)


def _date_ns(text: str) -> int:
    """`2023-11-16 18:15:46.6805900`: seven digits, more than the standard library reads."""
    whole, _, fraction = text.strip().partition(".")
    digits = fraction.rstrip("Z").partition("+")[0]
    moment = datetime.fromisoformat(whole.rstrip("Z")).replace(tzinfo=UTC)
    return int(moment.timestamp()) * S + int(digits.ljust(9, "0")[:9] or 0)
