"""`tailrace records export RUN`: one load test as another load generator's result, or as records."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tailrace.store.run_file import Run

TOOL_FORMATS: Final = ("vllm", "sglang", "guidellm", "aiperf", "genai-perf")
"""Spelled out, so that a wrong --format is told without importing the writers; a test holds it to them."""


def run_to_export(name: str, out: str, *, partial: bool) -> Run:
    """The run that `name` holds. InputError where it holds none, or would be written over itself."""
    from tailrace.analyze.aggregate import Aggregate
    from tailrace.cli.records_view import read_load_test
    from tailrace.model.errors import InputError

    if out and os.path.realpath(out) == os.path.realpath(name):
        raise InputError("the run would be written over itself", place="--out", remedy="Give it another name.")
    source, _ = read_load_test(name, partial=partial)
    if isinstance(source, Aggregate):
        raise InputError("it holds percentiles, no requests", place=name, remedy="Give a run with its requests.")
    return source


def check_format(file_format: str, run: str | None, out: str) -> bool:
    """Whether the format is another load generator's. InputError for one that is not known, or cannot be had so."""
    from tailrace.model.errors import InputError

    known = ("jsonl", "csv", "parquet", *TOOL_FORMATS)
    if file_format not in known:
        raise InputError(
            f"there is no format {file_format!r}", place="--format", remedy=f"Use one of: {', '.join(known)}."
        )
    if file_format in TOOL_FORMATS and run is None:
        raise InputError("it takes one load test", place=f"--format {file_format}", remedy="Name a run file.")
    if file_format == "parquet" and not out:
        raise InputError("Parquet cannot be written to the terminal", place="--out", remedy="Name a file with --out.")
    return file_format in TOOL_FORMATS


def check_events(events: str, out: str, *, as_tool: bool) -> None:
    """InputError for a file of events that cannot be written beside the other one."""
    from tailrace.model.errors import InputError

    if events and as_tool:
        raise InputError("the forms of other tools hold their own events", place="--events", remedy="Leave it out.")
    if events and os.path.realpath(events) == os.path.realpath(out or "-"):
        raise InputError("both files have the same name", place="--events", remedy="Give it another name than --out.")


def write_as_tool(run: Run, file_format: str, out: str, write: Callable[[str, Iterable[bytes]], None]) -> None:
    """The run in the form of another tool; what the form cannot hold is said on stderr."""
    from tailrace.export.load_tools import EXPORTERS

    exported = EXPORTERS[file_format](run)
    write(out, exported.chunks)
    for what in exported.lost:
        sys.stderr.write(f"not in the form of {file_format}: {what}\n")
    if out:
        sys.stderr.write(f"{len(run.records)} requests written to {out}\n")
