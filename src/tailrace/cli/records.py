"""`tailrace records`: query, export and prune the records that gateways have kept. Works while they write."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tailrace.cli.command_app import CommandApp
from tailrace.cli.durations import parse_span
from tailrace.cli.records_view import view

if TYPE_CHECKING:
    from tailrace.store.query import Answer, RecordStore
    from tailrace.store.table import RecordTable

app = CommandApp(
    no_args_is_help=True,
    help="Query, export and prune the records that a gateway has kept (also while it writes).",
    epilog="Example: tailrace records query --slowest 10 --since 1h",
)


app.command(epilog="Example: tailrace records view vllm.json --as guidellm")(view)

DataDir = Annotated[str, typer.Option("--data-dir", help="The directory that `tailrace serve --data-dir` writes.")]
Since = Annotated[str, typer.Option(help="From: an age (30m, 2h, 7d) or a time (2026-11-29T12:00, UTC).")]
Until = Annotated[str, typer.Option(help="Up to, exclusive: an age or a time, as --since.")]
Lane = Annotated[str, typer.Option(help="Only this lane.")]
OutcomeOption = Annotated[
    str, typer.Option(help="Only this outcome: completed, cancelled, timed_out, rejected, failed.")
]
Model = Annotated[str, typer.Option(help="Only this model.")]
Vantage = Annotated[
    str, typer.Option(help="Whose records: gateway, or application (what services before it have reported).")
]
AsWritten = Annotated[
    bool,
    typer.Option("--as-written", help="Leave out what became known after a record was written: spans, freed slots."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(epilog="Example: tailrace records query --ask quantiles_by_length --metric ttft --since 1h")
def query(
    data_dir: DataDir = "tailrace-data",
    since: Since = "",
    until: Until = "",
    slowest: Annotated[int, typer.Option(help="The N slowest by --metric, instead of the newest.", min=0)] = 0,
    metric: Annotated[str, typer.Option(help="What --slowest and --ask go by: ttft, tpot, e2e, queue, ...")] = "",
    lane: Lane = "",
    outcome: OutcomeOption = "",
    model: Model = "",
    request: Annotated[str, typer.Option("--id", help="The one record with this id, whole.")] = "",
    vantage: Vantage = "gateway",
    ask: Annotated[str, typer.Option(help="A named question; `--ask list` shows them.")] = "",
    number: Annotated[list[str] | None, typer.Option(help="A parameter of --ask: bound_ms=800. Repeatable.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many records.", min=1)] = 20,
    as_written: AsWritten = False,
    as_json: Json = False,
) -> None:
    """Show records, newest last; or the slowest; or the answer to a named question."""
    if ask == "list":
        _print_questions(as_json)
        return
    store = _open(data_dir)
    window = _window(since, until)
    _check_vantage(vantage)
    if request:
        _print_one(store, request, as_json, amended=not as_written)
    elif ask:
        _refuse_with_ask({"--lane": lane, "--outcome": outcome, "--model": model, "--slowest": slowest})
        answer = store.ask(
            ask,
            metric=metric or None,
            since_unix_ns=window[0],
            until_unix_ns=window[1],
            amended=not as_written,
            vantage=vantage,
            numbers=_numbers(number or []),
        )
        _print_answer(answer, ask, as_json)
    else:
        table = store.table(
            *window,
            slowest or limit,
            equal=_equal(lane, outcome, model),
            slowest_by=_metric_column(metric or _first_metric(vantage)) if slowest else "",
            vantage=vantage,
            amended=not as_written,
        )
        _print_records(table, as_json)


@app.command(epilog="Example: tailrace records export --format parquet --since 24h --out day.parquet")
def export(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run file, or another load generator's result, instead of --data-dir.", show_default=False
        ),
    ] = None,
    data_dir: DataDir = "tailrace-data",
    file_format: Annotated[
        str,
        typer.Option(
            "--format", help="jsonl, csv or parquet; of a RUN also vllm, sglang, guidellm, aiperf or genai-perf."
        ),
    ] = "jsonl",
    out: Annotated[str, typer.Option(help="File to write; without it, standard output (jsonl and csv).")] = "",
    since: Since = "",
    until: Until = "",
    lane: Lane = "",
    outcome: OutcomeOption = "",
    model: Model = "",
    vantage: Vantage = "gateway",
    limit: Annotated[int | None, typer.Option(help="At most so many records: the newest.", min=1)] = None,
    timelines: Annotated[bool, typer.Option(help="With event timelines (jsonl and parquet).")] = True,
    as_written: AsWritten = False,
    partial: Annotated[bool, typer.Option("--partial", help="Of a RUN that was cut, what it still holds.")] = False,
    events: Annotated[str, typer.Option(help="A second file, Parquet: a row for each event of a timeline.")] = "",
) -> None:
    """Write records for other tools; durations are in milliseconds (Parquet: in ns, as the store keeps them).

    A RUN in the form of another load generator: what that form cannot hold is said on stderr.
    """
    from tailrace.cli.records_export import check_events, check_format, run_to_export, write_as_tool

    as_tool = check_format(file_format, run, out)
    keep = (timelines and file_format != "csv") or bool(events)
    check_events(events, out, as_tool=as_tool)
    if run is not None:
        load_test = run_to_export(run, out, partial=partial)
        if as_tool:
            write_as_tool(load_test, file_format, out, _write_out)
            return
        _refuse_with_run({"--since": since, "--until": until, "--lane": lane, "--outcome": outcome, "--model": model})
        table = load_test.table()
        if limit is not None and limit < len(table):
            table = table.where(range(len(table) - limit, len(table)))
    else:
        store = _open(data_dir)
        wanted = _equal(lane, outcome, model)
        _check_vantage(vantage)
        window = _window(since, until)
        table = store.table(*window, limit, with_timelines=keep, equal=wanted, vantage=vantage, amended=not as_written)
    if file_format == "parquet":
        from tailrace.export.parquet import write_parquet

        write_parquet(table, out)
    elif file_format == "csv":
        from tailrace.export.csv import csv_lines

        _write_out(out, (text.encode() for text in csv_lines(table)))
    else:
        from tailrace.export.jsonl import encode_lines

        _write_out(out, encode_lines(table.records(), timeline=timelines))
    if events:
        from tailrace.export.parquet import write_events

        sys.stderr.write(f"{write_events(table, events)} events written to {events}\n")
    if out:
        sys.stderr.write(f"{len(table)} records written to {out}\n")


@app.command(epilog="Example: tailrace records prune --older-than 30d")
def prune(
    older_than: Annotated[str, typer.Option(help="Delete what is older than this: 30d, 12h.")],
    data_dir: DataDir = "tailrace-data",
    as_json: Json = False,
) -> None:
    """Delete old records, while gateways go on.

    Whole segments go, so a record may outlive the limit by up to a day; unsealed records stay. What became known of
    records later goes with them.
    """
    import msgspec

    from tailrace.store.upkeep import prune as prune_segments

    store = _open(data_dir)
    limit_ns = parse_span(older_than, place="--older-than", bare_seconds=False)
    gone = prune_segments(store.directory, older_than_s=limit_ns / 1e9)
    if as_json:
        _print_json({"schema": 1, **msgspec.structs.asdict(gone)})
    else:
        sys.stdout.write(f"{gone.records} records in {gone.segments} segments deleted ({gone.bytes / 1e6:.1f} MB)\n")


# -- reading the options


def _refuse_with_run(filters: dict[str, str]) -> None:
    from tailrace.model.errors import InputError

    given = [name for name, value in filters.items() if value]
    if given:
        raise InputError(
            "chooses from a data directory, not from a run", place=", ".join(given), remedy="Leave it out."
        )


def _open(data_dir: str) -> RecordStore:
    from tailrace.store.query import RecordStore

    return RecordStore(data_dir)


def _moment(text: str, place: str) -> int | None:
    import datetime as dt
    import time

    from tailrace.model.errors import InputError

    if not text:
        return None
    if re.fullmatch(r"[\d.]+\s*[a-z]+", text.strip()):
        return time.time_ns() - parse_span(text, place=place, bare_seconds=False)
    if text.isdigit():
        # Unix time, by its magnitude in s, ms, us or ns: 1e9 s is 2001, 1e11 s is the year 5138.
        value = int(text)
        return value * next(factor for bound, factor in _EPOCHS if value < bound)
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{text!r} is neither an age nor a time", place=place, remedy="Write it as 2h or as 2026-11-29T12:00."
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=dt.UTC)
    return int(when.timestamp()) * 1_000_000_000 + when.microsecond * 1000


_EPOCHS: Final = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3), (10**30, 1))


def _window(since: str, until: str) -> tuple[int | None, int | None]:
    from tailrace.model.errors import InputError

    low, high = _moment(since, "--since"), _moment(until, "--until")
    if low is not None and high is not None and low >= high:
        raise InputError("the window is empty: --since is not before --until", place="--until")
    return low, high


def _equal(lane: str, outcome: str, model: str) -> dict[str, str]:
    from tailrace.model.errors import InputError
    from tailrace.model.outcome import OutcomeKind

    known = [kind.value for kind in OutcomeKind]
    if outcome and outcome not in known:
        raise InputError(
            f"there is no outcome {outcome!r}", place="--outcome", remedy=f"Use one of: {', '.join(known)}."
        )
    return {name: text for name, text in (("lane", lane), ("outcome", outcome), ("model", model)) if text}


def _check_vantage(vantage: str) -> None:
    from tailrace.model.errors import InputError

    if vantage not in ("gateway", "application"):
        raise InputError(
            f"there is no vantage {vantage!r}", place="--vantage", remedy="Use one of: gateway, application."
        )


def _first_metric(vantage: str) -> str:
    """An application's request may have no first token: by its whole length."""
    return "ttft" if vantage == "gateway" else "e2e"


def _numbers(options: list[str]) -> dict[str, float]:
    from tailrace.model.errors import InputError

    numbers: dict[str, float] = {}
    for text in options:
        key, _, value = text.partition("=")
        try:
            numbers[key] = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError:
            raise InputError(f"{text!r} is not name=number", place="--number") from None
    return numbers


def _metric_column(metric: str) -> str:
    from tailrace.model.errors import InputError
    from tailrace.store.queries import METRICS

    if metric not in METRICS:
        raise InputError(f"there is no metric {metric!r}", place="--metric", remedy=f"Known: {', '.join(METRICS)}.")
    return METRICS[metric]


def _refuse_with_ask(options: dict[str, Any]) -> None:
    from tailrace.model.errors import InputError

    for option, value in options.items():
        if value:
            raise InputError(
                f"{option} does not go with --ask", place=option, remedy="A question takes --since, --until, --metric."
            )


# -- printing


def _print_json(value: Any) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def _print_questions(as_json: bool) -> None:
    from tailrace.store.queries import QUERIES

    if as_json:
        _print_json(
            {
                name: {"answers": one.answers, "metric": one.metric, "numbers": one.numbers}
                for name, one in QUERIES.items()
            }
        )
        return
    for name, one in QUERIES.items():
        numbers = "".join(f"  --number {key}={value:g}" for key, value in one.numbers.items())
        metric = f"  --metric {one.metric}" if one.metric else ""
        sys.stdout.write(f"{name:20}  {one.answers}{metric}{numbers}\n")


def _print_one(store: RecordStore, request: str, as_json: bool, *, amended: bool) -> None:
    import msgspec

    from tailrace.export.jsonl import encode_public
    from tailrace.model.errors import InputError

    record = store.get(request, amended=amended)
    if record is None:
        raise InputError(
            f"there is no record with the id {request!r}",
            place=str(store.directory.root),
            remedy="Is it still running?",
        )
    line = encode_public(record)
    sys.stdout.write((line if as_json else msgspec.json.format(line, indent=2)).decode() + "\n")


def _print_answer(answer: Answer, ask: str, as_json: bool) -> None:
    if as_json:
        _print_json({"schema": 1, "ask": ask, "rows": answer.dicts()})
    else:
        _print_table(answer.columns, answer.rows)


def _print_records(table: RecordTable, as_json: bool) -> None:
    if as_json:
        from tailrace.export.jsonl import to_public

        _print_json({"schema": 1, "records": [to_public(record) for record in table.records()]})
        return
    from tailrace.export.jsonl import to_public

    columns = [
        "start",
        "id",
        "lane",
        "model",
        "outcome",
        "prompt",
        "output",
        "queue ms",
        "ttft ms",
        "tpot ms",
        "e2e ms",
    ]
    rows: list[tuple[Any, ...]] = []
    for record in table.records():
        public = to_public(record)
        outcome = record.outcome.value + (f" ({record.reason.value})" if record.reason.value else "")
        rows.append(
            (
                public["start"],
                record.request_id,
                record.lane,
                record.model,
                outcome,
                record.prompt_tokens,
                record.output_tokens,
                public["stages_ms"].get("queue"),
                public.get("ttft_ms"),
                public.get("tpot_ms"),
                public["e2e_ms"],
            )
        )
    if rows:
        _print_table(columns, rows)
    else:
        sys.stdout.write("No records match.\n")


def _print_table(columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    from rich import box
    from rich.table import Table

    from tailrace.cli.console import Console

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    cells = [[_cell(value) for value in row] for row in rows]
    for place, column in enumerate(columns):
        right = all(row[place][:1] in "-0123456789" for row in cells)
        shown.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in cells:
        shown.add_row(*row)
    # Into a pipe, a table is as wide as it needs to be: cut cells cannot be searched.
    width = None if sys.stdout.isatty() else max(80, 24 * len(columns))
    Console(width=width, markup=False, highlight=False).print(shown)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3f}"
    # A model's name is whatever a client wrote: a terminal must not obey it.
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value))


def _write_out(out: str, pieces: Iterable[bytes]) -> None:
    from pathlib import Path

    from tailrace.model.errors import InputError

    if not out:
        try:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # `| head` has seen enough: no error. What is still buffered goes nowhere, or the exit would stumble on it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    try:
        with Path(out).open("wb") as file:
            file.writelines(pieces)
    except OSError as error:
        raise InputError(
            f"cannot write: {error.strerror or error}", place=out, remedy="Give --out a path that you may write to."
        ) from None
