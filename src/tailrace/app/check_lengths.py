"""How long requests are, from a run file, records, a data directory or a gateway."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.app.diagnose import read_any
from tailrace.diagnose.readers.json_lines import parse_lines
from tailrace.engines.advice.lengths import Lengths, lengths_of
from tailrace.export.jsonl import from_public_json
from tailrace.model.errors import InputError
from tailrace.model.record import RequestRecord
from tailrace.store.table import RecordTable

_MOST: Final = 50_000
"""Requests that are looked at; of more, every so many-th."""


def read_lengths(source: str, *, allow_partial: bool = False, token: str = "") -> Lengths:
    """From any source that `tailrace diagnose` reads. InputError where it holds no requests."""
    read = read_any(source, allow_partial=allow_partial, token=token)
    table = next((one.table for one in read if one.table is not None), None)
    if table is None or not len(table):
        raise InputError(
            "it holds no records of requests",
            place=source,
            remedy="Give a run file, records as JSON lines, a gateway's data directory or its admin URL.",
        )
    return _of_table(table, source)


def lengths_of_records(lines: bytes, source: str) -> Lengths:
    """From records as JSON lines, in the public form."""
    return _of_table(parse_lines(lines.splitlines(), _decode, source), source)


def _decode(line: bytes, place: str) -> RequestRecord:
    return from_public_json(line, place=place)


def _of_table(table: RecordTable, source: str) -> Lengths:
    prompt = np.asarray(table.column("prompt_tokens"), dtype=np.float64)
    output = np.asarray(table.column("output_tokens"), dtype=np.float64)
    step = max(len(prompt) // _MOST, 1)
    return lengths_of(zip(prompt[::step].tolist(), output[::step].tolist(), strict=True), source=source)
