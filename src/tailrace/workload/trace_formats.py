"""The rows of recorded traces, from the text of each format, which the first line tells.

| format | first line |
|---|---|
| Azure LLM inference 2023 and 2024 | `TIMESTAMP,ContextTokens,GeneratedTokens` (2024 with a time zone) |
| BurstGPT 1 to 3 | `Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,Total tokens,Log Type` |
| ServeGen's output | `request_id,timestamp,` and the fields of its requests: `input_tokens,output_tokens`, for multimodal ones `text_tokens,image_tokens,...` with lists |
| any CSV | a header row with a time and two token columns under usual names, or named by the caller |
| Mooncake | JSON lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of 512 tokens |
| Qwen-Bailian | JSON lines with `timestamp` (s), `chat_id`, ..., `hash_ids` of 16 tokens |
| nginx | an access log: see `access_log` |
"""  # noqa: E501  (a table's row is one line)

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS, S
from tailrace.workload.access_log import is_access_log, read_access_log
from tailrace.workload.trace_row import BadRow, TraceRow

__all__ = ["Columns", "Format", "format_of", "parse_columns"]

_TIME: Final = ("t_s", "time_s", "timestamp", "time", "arrival_time", "arrival_s", "timestamp(s)", "t_ms", "time_ms",
                "timestamp_ms", "arrival_ms", "arrived_at")  # fmt: skip
_PROMPT: Final = ("contexttokens", "request tokens", "prompt_tokens", "input_tokens", "input_length", "text_tokens",
                  "num_prefill_tokens", "prompt", "input")  # fmt: skip
_OUTPUT: Final = ("generatedtokens", "response tokens", "output_tokens", "output_length", "completion_tokens",
                  "num_decode_tokens", "output")  # fmt: skip
_EXTRA_INPUT: Final = ("image_tokens", "audio_tokens", "video_tokens")
"""Tokens of other modalities in the input of a multimodal trace; added to the prompt."""
_MOST_TOKENS: Final = 10_000_000


class Columns(NamedTuple):
    """Which columns of a CSV hold what, where their names do not say so."""

    time: str = ""
    prompt: str = ""
    output: str = ""


def parse_columns(text: str, *, place: str = "--trace-columns") -> Columns:
    """Read `time=arrived_ms,prompt=in_tok,output=out_tok`. Raises `InputError` with a right example."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, column = part.partition("=")
        if name.strip() not in Columns._fields or not equals or not column.strip():
            raise InputError(
                f"cannot read {part.strip()!r}",
                place=place,
                remedy="Write time=arrived_ms,prompt=in_tok,output=out_tok",
            )
        found[name.strip()] = column.strip().lower()
    return Columns(**found)


class Format(NamedTuple):
    """A format with the rows that it reads. `tick_ns` is that of its clock where that is known; 0: look for one."""

    name: str
    rows: Callable[[Iterator[str]], Iterator[TraceRow | BadRow]]
    tick_ns: int = 0
    note: str = ""


def format_of(first: str, *, place: str, columns: Columns | None = None) -> Format:
    """The format of a trace by its first line. Raises `InputError` for one that no format begins with."""
    head = first.strip()
    if head.startswith("{"):
        return _json_format(head, place)
    if is_access_log(head):
        return Format(
            "nginx access log", read_access_log, S,
            "lengths are estimated from bytes; times are the ends of requests, less their duration where it is logged",
        )  # fmt: skip
    return _csv_format(first, place, columns or Columns())


# -- JSON lines


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    type: str = ""


def _json_format(head: str, place: str) -> Format:
    if '"body_bytes_sent"' in head or '"bytes_sent"' in head:
        return Format("nginx access log as JSON", read_access_log, 0, "lengths are estimated from bytes")
    if '"chat_id"' in head:
        return Format("Qwen-Bailian", lambda lines: _json_rows(lines, S, 16))
    if '"timestamp"' in head:
        return Format("Mooncake", lambda lines: _json_rows(lines, MS, 512))
    raise InputError(
        "JSON lines of no known trace", place=f"{place}:1", remedy="Expected timestamp, input_length, output_length"
    )


def _json_rows(lines: Iterator[str], unit: int, block_tokens: int) -> Iterator[TraceRow | BadRow]:
    decoder = msgspec.json.Decoder(_Mooncake)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
            _check(row.timestamp, row.input_length, row.output_length)
        except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
            yield BadRow(number, str(error))
            continue
        yield TraceRow(
            round(row.timestamp * unit),
            row.input_length,
            row.output_length,
            tuple(row.hash_ids),
            row.type,
            block_tokens,
        )


def _check(stamp: float, prompt: int, output: int) -> None:
    if not math.isfinite(stamp) or abs(stamp) > 1e15:
        raise ValueError(f"the time {stamp} is none")
    if not (0 <= prompt <= _MOST_TOKENS and 0 <= output <= _MOST_TOKENS):
        raise ValueError(f"{prompt} and {output} are no numbers of tokens")


# -- CSV


def _csv_format(first: str, place: str, columns: Columns) -> Format:
    try:
        header = [name.strip().lower() for name in next(csv.reader([first]))]
    except (csv.Error, StopIteration):
        header = []
    time_at = _column(header, (columns.time,) if columns.time else _TIME, place)
    prompt_at = _column(header, (columns.prompt,) if columns.prompt else _PROMPT, place)
    output_at = _column(header, (columns.output,) if columns.output else _OUTPUT, place)
    extra = [i for i, name in enumerate(header) if name in _EXTRA_INPUT]
    names = next((i for i, name in enumerate(header) if name in ("model", "class", "type")), None)
    seconds = MS if header[time_at].endswith("_ms") else S
    name = "CSV"
    if "contexttokens" in header:
        name = "Azure LLM inference"
    elif "log type" in header:
        name = "BurstGPT"
    elif header[:2] == ["request_id", "timestamp"]:
        name = "ServeGen"

    def read_row(row: list[str]) -> TraceRow:
        stamp = row[time_at].strip()
        at = _date_ns(stamp) if "-" in stamp[1:] and "e-" not in stamp else _number_ns(stamp, seconds)
        prompt = _tokens(row[prompt_at]) + sum(_tokens(row[i]) for i in extra)
        output = _tokens(row[output_at])
        _check(0.0, prompt, output)
        return TraceRow(at, prompt, output, (), row[names].strip() if names is not None else "")

    return Format(name, lambda lines: _csv_rows(lines, read_row))


def _csv_rows(lines: Iterator[str], read_row: Callable[[list[str]], TraceRow]) -> Iterator[TraceRow | BadRow]:
    reader = csv.reader(lines)
    next(reader)
    while True:
        try:
            row = next(reader)
            if row:
                yield read_row(row)
        except StopIteration:
            return
        except (csv.Error, ValueError, IndexError, OverflowError) as error:
            yield BadRow(reader.line_num, str(error))


def _column(header: list[str], names: tuple[str, ...], place: str) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    raise InputError(
        f"no column named {', '.join(names[:4])}{' ...' if len(names) > 4 else ''} in "
        f"{', '.join(header)[:200] or 'the header'}",
        place=f"{place}:1",
        remedy="Give a header row with a time in seconds, input tokens and output tokens, or name them: "
        "--trace-columns time=arrived,prompt=in_tok,output=out_tok",
    )


def _tokens(text: str) -> int:
    """A number, or a list of them (`[12, 7]`: the images of one request), or nothing."""
    text = text.strip()
    if text.startswith("["):
        return sum(int(float(one)) for one in text.strip("[]").replace(",", " ").split())
    return int(float(text or 0))


def _number_ns(text: str, unit: int) -> int:
    value = float(text)
    if not math.isfinite(value) or abs(value) > 1e15:
        raise ValueError(f"the time {text!r} is none")
    return round(value * unit)


def _date_ns(text: str) -> int:
    """`2023-11-16 18:15:46.6805900` or `2024-05-12 00:00:00.01+00:00`: seven digits, more than the library reads."""
    day, _, clock = text.replace("T", " ").partition(" ")
    sign = max(clock.rfind("+"), clock.rfind("-"))
    zone = clock[sign:] if sign > 0 else ""
    clock = (clock[:sign] if sign > 0 else clock).rstrip("Zz")
    whole, _, fraction = clock.partition(".")
    moment = datetime.fromisoformat(f"{day} {whole or '00:00:00'}{zone}")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * S + int(fraction.ljust(9, "0")[:9] or 0)
