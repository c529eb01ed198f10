"""nginx's access logs as a trace: when requests came, and how long they may have been.

The `combined` format has the time in whole seconds and the bytes of the answer. The request's own bytes are only there
where the log format has `$request_length`: as `request_length=1234` anywhere in the line, or as a key of a JSON log
(`escape=json`). A request is logged when it has ended; with `$request_time` (`request_time=0.250`, `rt=0.250`, or the
JSON key) its begin is known as well.

Tokens are estimated: four characters of English text a token, less what a request and an answer weigh without any (600
and 400 bytes of headers and JSON); a streamed answer weighs 220 bytes a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from tailrace.model.thresholds import S
from tailrace.workload.trace_row import BadRow, TraceRow

__all__ = ["CHARS_PER_TOKEN", "STREAM_BYTES_PER_TOKEN", "is_access_log", "read_access_log"]

CHARS_PER_TOKEN: Final = 4
STREAM_BYTES_PER_TOKEN: Final = 220
"""Of a chunk with one token: its `data:` line with ids, model and delta."""
_REQUEST_BYTES: Final = 600
_ANSWER_BYTES: Final = 400
_UNKNOWN_PROMPT: Final = 256
"""Tokens of a prompt whose request's size was not logged."""
_GENERATES: Final = re.compile(r"/(chat/completions|completions|responses|messages|generate|generate_stream)\b")

_STAMPS: Final = ("msec", "time_iso8601", "time_local", "time", "@timestamp")
_COMBINED = re.compile(r'\S+ \S+ .*?\[([^\]]+)\] "(\S+) (\S+)[^"]*" (\d{3}) (\d+|-)(.*)')
_LENGTH = re.compile(r"(?:request_length|rl)[=:]\s*\"?(\d+)")
_DURATION = re.compile(r"(?:request_time|rt)[=:]\s*\"?([\d.]+)")


def is_access_log(line: str) -> bool:
    """Whether a line is one of nginx's, in the `combined` format or one that begins like it."""
    return _COMBINED.match(line) is not None


def read_access_log(lines: Iterator[str]) -> Iterator[TraceRow | BadRow]:
    """The requests of an access log that asked for generated text and were answered (2xx); others are passed over."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _json_row(line) if line.lstrip().startswith("{") else _row(line)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, msgspec.DecodeError) as error:
            yield BadRow(number, str(error) or "cannot be read")
            continue
        if row is not None:
            yield row


def _row(line: str) -> TraceRow | None:
    found = _COMBINED.match(line)
    if found is None:
        raise ValueError("this is no line of an access log")
    if found[2] != "POST" or not _GENERATES.search(found[3]) or not found[4].startswith("2"):
        return None
    at = _stamp(found[1])
    length, took = _LENGTH.search(found[6]), _DURATION.search(found[6])
    return _estimated(
        at,
        None if length is None else int(length[1]),
        0 if found[5] == "-" else int(found[5]),
        0.0 if took is None else float(took[1]),
    )


def _json_row(line: str) -> TraceRow | None:
    row: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    method = str(row.get("request_method") or str(row.get("request", "")).partition(" ")[0])
    path = str(row.get("uri") or row.get("request_uri") or row.get("request", ""))
    if method != "POST" or not _GENERATES.search(path) or not str(row.get("status", "")).startswith("2"):
        return None
    stamp = next((row[name] for name in _STAMPS if row.get(name)), None)
    if stamp is None:
        raise ValueError("there is no time in it")
    sent = row.get("body_bytes_sent", row.get("bytes_sent", 0))
    length = row.get("request_length")
    return _estimated(
        _stamp(str(stamp)),
        None if length in (None, "") else int(length),
        int(sent or 0),
        float(row.get("request_time") or 0),
    )


def _stamp(text: str) -> int:
    """`10/Oct/2026:13:55:36 +0000`, ISO 8601, or seconds with a fraction (`$msec`) -> ns."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        whole, _, fraction = text.partition(".")
        return int(whole) * S + int(fraction.ljust(9, "0")[:9] or 0)
    if "/" in text:
        return round(datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z").timestamp()) * S
    moment = datetime.fromisoformat(text)
    return int(moment.timestamp()) * S + moment.microsecond * 1000


def _estimated(ended: int, request_bytes: int | None, answer_bytes: int, took_s: float) -> TraceRow:
    prompt = _UNKNOWN_PROMPT
    if request_bytes is not None:
        prompt = max(1, (request_bytes - _REQUEST_BYTES) // CHARS_PER_TOKEN)
    body = max(0, answer_bytes - _ANSWER_BYTES)
    # A streamed answer of any length is mostly framing. Below a kilobyte it was hardly one.
    output = body // STREAM_BYTES_PER_TOKEN if answer_bytes > 1500 else body // CHARS_PER_TOKEN
    return TraceRow(ended - round(took_s * S), prompt, max(1, output))
