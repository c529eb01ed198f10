"""Where a trace comes from: a file of a public format, or what Tailrace itself recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from tailrace.model.errors import InputError
from tailrace.model.record import RequestRecord
from tailrace.store.text_file import bounded_lines
from tailrace.workload.recorded import rows_of_records
from tailrace.workload.trace import Trace, arrange, read_whole_trace
from tailrace.workload.trace_formats import Columns

__all__ = ["read_trace_source"]

_HEAD: Final = 4096


def read_trace_source(
    path: str,
    *,
    speed: float = 1.0,
    seed: int = 0,
    window_ns: tuple[int, int | None] = (0, None),
    columns: Columns | None = None,
) -> Trace:
    """Read a trace: a public format, a run file, records as JSON lines, or a gateway's data directory.

    Raises `InputError` for what cannot be read or understood, with the line.
    """
    rng = np.random.default_rng(seed)
    place = Path(path)
    try:
        own = _own_records(place)
        if own is not None:
            rows, notes = rows_of_records(own)
            return arrange(
                rows, form="Tailrace's records", rng=None, place=path, speed=speed, window_ns=window_ns, notes=notes
            )
        with place.open(encoding="utf-8", errors="replace") as lines:
            return read_whole_trace(
                bounded_lines(lines), rng=rng, place=path, speed=speed, window_ns=window_ns, columns=columns
            )
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror or error})", place=path,
            remedy="Give --trace a CSV or JSON lines file, a run file or a data directory",
        ) from None  # fmt: skip


def _own_records(path: Path) -> list[RequestRecord] | None:
    """The records in `path`, or `None` where it holds none of Tailrace's."""
    if path.is_dir():
        from tailrace.store.query import RecordStore  # noqa: PLC0415  (duckdb is loaded only where it is used)

        return list(RecordStore(path).table().records())
    from tailrace.diagnose.readers.source import Kind, kind_of  # noqa: PLC0415

    try:
        kind = kind_of(path)
    except InputError:
        return None
    if kind is Kind.RUN:
        from tailrace.store.run_file import read_run  # noqa: PLC0415

        return read_run(path, allow_partial=True).records
    if kind is Kind.LINES:
        with path.open("rb") as file:
            head = file.read(_HEAD)
        # An access log in JSON may carry a request id as well; only a record says how the request ended.
        if b'"outcome"' in head:
            return _lines(path)
    return None


def _lines(path: Path) -> list[RequestRecord]:
    from tailrace.diagnose.readers.json_lines import read_lines  # noqa: PLC0415
    from tailrace.export.jsonl import from_public_json  # noqa: PLC0415

    return list(read_lines(path, lambda line, place: from_public_json(line, place=place)).records())
