"""`tailrace report`: one page with every figure of a run, that opens anywhere and needs nothing."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tailrace.cli.command_app import CommandApp
from tailrace.cli.trim import HELP as TRIM_HELP

app = CommandApp()


@app.command()
def report(
    source: Annotated[
        str,
        typer.Argument(
            help="Run file, directory of a sweep, another load tool's result, records as JSON lines, a gateway's data "
            "directory or its admin URL."
        ),
    ],
    records: Annotated[
        str | None,
        typer.Option(
            help="The gateway's records of the same requests (data directory, admin URL, JSON lines): what of the time "
            "was the network's and the client's, what the gateway's and the engine's."
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Where the page goes (default: the source's name, .html).")] = None,
    trim: Annotated[str | None, typer.Option(help=TRIM_HELP)] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Use what a cut run file still holds.")] = False,
    token: Annotated[str, typer.Option(help="Bearer token of the admin port.", envvar="TAILRACE_ADMIN_TOKEN")] = "",
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """One self-contained page: percentiles with n and intervals, failures, classes, lengths, time, gaps, stages.

    Example: tailrace report before.run --open
    """
    from pathlib import Path

    from tailrace.app.report import default_out
    from tailrace.app.report import report as write_report
    from tailrace.cli.trim import parse_trim

    made = write_report(
        source,
        out=out or default_out(source),
        trim=parse_trim(trim),
        allow_partial=partial,
        token=token,
        records=records,
    )
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(made).decode() + "\n")
    else:
        size = f"{made.bytes / 1e6:.1f} MB" if made.bytes >= 1e6 else f"{made.bytes / 1e3:.0f} kB"
        sys.stdout.write(f"{made.out} ({size}; opens offline)\n")
    if open_it:
        import webbrowser

        webbrowser.open(Path(made.out).resolve().as_uri())
