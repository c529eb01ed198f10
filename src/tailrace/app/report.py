"""The report of a run, a sweep, or another tool's result: read it, look at it, write one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tailrace import __version__
from tailrace.analyze.aggregate import Aggregate
from tailrace.analyze.counted import measured
from tailrace.analyze.steady import Trim
from tailrace.app.diagnose import is_url, read_any
from tailrace.app.outputs import refuse_to_replace
from tailrace.app.report_aggregate import aggregate_sections
from tailrace.app.report_conditions import load_words
from tailrace.app.report_joined import joined_section
from tailrace.app.report_markup import Section
from tailrace.app.report_page import document
from tailrace.app.report_run import run_sections
from tailrace.app.report_sweep import sweep_sections
from tailrace.diagnose.readers.source import Source
from tailrace.figures.wording import count
from tailrace.model.errors import InputError
from tailrace.model.measurement import BenchSummary
from tailrace.store.run_file import Run, RunHeader
from tailrace.store.sweep import is_sweep, read_sweep
from tailrace.store.table import RecordTable

__all__ = ["Report", "default_out", "report", "write_page"]

_REMEDY: Final = "Give a run file (`tailrace bench … --out RUN`), a sweep's directory, or another load tool's result."
_JOIN_PLACE: Final = 3
"""Behind the banner, the tiles and the headline: who has the tail is the next question."""
_METHOD: Final = (
    "Percentiles are exact and come from every request, by linear interpolation, p99.9 included where n allows it; "
    "clouds of many requests are thinned for drawing only. Made by Tailrace {version}; this file fetches nothing."
)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace report --json` prints."""

    schema: int = 1
    out: str
    bytes: int
    summary: BenchSummary | None = None
    """Of a run; `None` for a sweep."""
    points: int | None = None
    """Of a sweep: how many loads were measured."""


def report(
    source: str,
    *,
    out: str | Path,
    trim: Trim | None = None,
    allow_partial: bool = False,
    token: str = "",
    records: str | None = None,
) -> Report:
    """Write the report of `source` to `out`. InputError for a source without requests, or a place not to be written.

    `records` is whatever holds the records of the gateway that the load went through: a data directory, an admin
    URL, records as JSON lines.
    """
    if not is_url(source) and is_sweep(source):
        return _of_sweep(source, out)
    read = read_any(source, allow_partial=allow_partial, token=token)
    run = _run_of(read, source)
    if isinstance(run, Aggregate):
        return _of_aggregate(run, source, out)
    sections, summary = run_sections(run, trim, joined=records is not None)
    if records is not None:
        sections.insert(_JOIN_PLACE, _join(run, records, token))
    header = run.header
    subtitle = " · ".join(part for part in (header.model, load_words(run), f"{count(summary.n)} requests") if part)
    page = document(
        title=header.target or Path(run.path).name,
        subtitle=subtitle,
        sections=sections,
        footer=_METHOD.format(version=__version__),
    )
    return Report(out=str(out), bytes=write_page(out, page, source), summary=summary)


def _of_sweep(source: str, out: str | Path) -> Report:
    sweep = read_sweep(source)
    what = "Search" if sweep.kind == "search" else "Sweep"
    subtitle = " · ".join(part for part in (sweep.model, f"{what.lower()} over {sweep.axis}") if part)
    page = document(
        title=sweep.target or what,
        subtitle=subtitle,
        sections=[section for section in sweep_sections(sweep) if section.markup],
        footer=_METHOD.format(version=__version__),
    )
    return Report(out=str(out), bytes=write_page(out, page, source), points=len(sweep.runs))


def _join(run: Run, source: str, token: str) -> Section:
    for one in read_any(source, token=token):
        table = one.table if one.table is not None else one.run.table() if one.run is not None else None
        if table is not None and len(table):
            return joined_section(measured(run.table()), table, dropped=one.dropped, source=source)
    raise InputError(
        "it holds no records of requests", place=source, remedy="Give a gateway's data directory or its admin URL."
    )


def write_page(out: str | Path, page: str, source: str, *, option: str = "--out") -> int:
    """Write the page; how many bytes it has. InputError when it would replace its own source or cannot be written."""
    path = Path(out)
    refuse_to_replace(path, [source], option=option)
    try:
        return path.write_bytes(page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(
            f"cannot write the page: {error.strerror or error}",
            place=str(path),
            remedy=f"Give {option} a path in an existing directory that you may write to.",
        ) from None


def default_out(source: str) -> str:
    """`runs/before.run` -> `before.html`, here."""
    return "report.html" if is_url(source) else f"{Path(source.rstrip('/')).stem or 'report'}.html"


def _of_aggregate(found: Aggregate, source: str, out: str | Path) -> Report:
    page = document(
        title=found.header.target or Path(source).name,
        subtitle=" · ".join(part for part in (found.header.model, f"a summary by {found.header.source}") if part),
        sections=aggregate_sections(found),
        footer=_METHOD.format(version=__version__),
    )
    return Report(out=str(out), bytes=write_page(out, page, source), summary=found.summary)


def _run_of(read: Sequence[Source], source: str) -> Run | Aggregate:
    for one in read:
        if one.run is not None:
            return one.run
        if one.aggregate is not None:
            return one.aggregate
        if one.table is not None and len(one.table):
            return _of_table(one.table, source)
    raise InputError("it holds no records of requests", place=source, remedy=_REMEDY)


def _of_table(table: RecordTable, source: str) -> Run:
    """Records of a gateway, as a run that nobody planned."""
    records = sorted(table.records(), key=lambda record: record.start_unix_ns)
    models = {record.model for record in records if record.model}
    header = RunHeader(
        kind="gateway",
        target=source,
        model=next(iter(models)) if len(models) == 1 else f"{len(models)} models" if models else "",
        started_unix_ns=records[0].start_unix_ns,
    )
    return Run(path=source, header=header, records=records)
