"""`tailrace selftest`: this installation against streams of known truth."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.command_app import CommandApp

if TYPE_CHECKING:
    from tailrace.app.selftest import SelftestReport, SelftestRow

app = CommandApp()


@app.command()
def selftest(
    scenario: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    requests: Annotated[int, typer.Option(help="Requests of each scenario from each vantage.")] = 6,
    seed: Annotated[int, typer.Option(help="Of the scenarios with random times.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check this installation against streams of known truth.

    A scripted server plays streams that measuring tools get wrong and stamps what it really sends. The load
    generator and the gateway measure them on real sockets; what they report is compared with the truth. Exit code 1
    when anything differs. Takes about 20 seconds.

    Example: tailrace selftest --scenario crlf
    """
    from tailrace.app.selftest import selftest as run

    if sys.stderr.isatty() and not as_json:
        sys.stderr.write("playing streams of known truth, straight and through the gateway ...\n")
    report = run(scenario or (), requests=requests, seed=seed)
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        _print(report)
    raise typer.Exit(0 if report.ok else 1)


def _print(report: SelftestReport) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("stream", no_wrap=True)
    for vantage in ("client", "gateway", "relay"):
        table.add_column(vantage, no_wrap=True)
    table.add_column("what must be reported")
    rows: dict[str, dict[str, SelftestRow]] = {}
    for row in report.rows:
        rows.setdefault(row.scenario, {})[row.vantage] = row
    for name, by_vantage in rows.items():
        cells = [_cell(by_vantage[vantage]) for vantage in by_vantage]
        table.add_row(name, *cells, next(iter(by_vantage.values())).must_report)
    console.print(table)
    for row in report.rows:
        for text in (*row.wrong, *row.late):
            console.print(f"FAIL {row.scenario} ({row.vantage}): {text}", style="red", markup=False)
    if not report.ok and not any(row.wrong for row in report.rows):
        console.print(
            "Every count and outcome is right; only times were late. A busy machine does that: run it again on a "
            "quiet one before you blame the meter.",
            markup=False,
            highlight=False,
        )
    console.print(
        "client: the load generator alone. gateway: the gateway's records. relay: the load generator behind it.\n"
        "Beside ok: the median error of TTFT in ms; x2 where the second try was in time.",
        markup=False,
        highlight=False,
    )
    word = "all pass" if report.ok else f"{report.failed} FAIL"
    console.print(f"{report.passed + report.failed} checks, {word}, {report.seconds:.0f} s", highlight=False)


def _cell(row: SelftestRow) -> str:
    error = row.median_error_ms.get("ttft")
    shown = "" if error is None else f" {error:.2f}"
    again = "" if row.tries == 1 else f" x{row.tries}"
    return f"[green]ok[/green]{shown}{again}" if row.ok else "[bold red]FAIL[/bold red]"
