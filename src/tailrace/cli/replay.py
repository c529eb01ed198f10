"""`tailrace replay`: one recorded request again, to see whether it is slow again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.command_app import CommandApp

if TYPE_CHECKING:
    from tailrace.app.replay import Replay

app = CommandApp()

_NAMES = {"ttft": "TTFT", "chunk_gap_max": "longest gap", "tpot": "TPOT", "e2e": "E2E"}


@app.command()
def replay(
    request_id: Annotated[
        str, typer.Argument(help="Its id, ours or the client's; `worst`: the longest wait that there was.")
    ],
    url: Annotated[str, typer.Argument(help="The server that it is sent to.")],
    records: Annotated[
        str, typer.Option(help="Where its record is: a data directory, an admin URL, a run file.")
    ] = "tailrace-data",
    with_neighbours: Annotated[
        bool, typer.Option("--with-neighbours", help="Also those that were under way with it, at their own times.")
    ] = False,
    times: Annotated[int, typer.Option(min=1, help="So often, one after the other.")] = 1,
    pause: Annotated[str, typer.Option(help="Rest between the rounds.")] = "2s",
    model: Annotated[str | None, typer.Option(help="Model name (default: the first that the server lists).")] = None,
    api_key: Annotated[str, typer.Option(help="Bearer token of the server.", envvar="TAILRACE_API_KEY")] = "",
    timeout: Annotated[str, typer.Option(help="The longest that one request may take.")] = "300s",
    out: Annotated[str | None, typer.Option(help="The run file (default: replay-ID.run, replay-ID-among.run).")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Use what a cut run file still holds.")] = False,
    token: Annotated[str, typer.Option(help="Bearer token of the admin port.", envvar="TAILRACE_ADMIN_TOKEN")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Send one recorded request again: same lengths, same options, fresh text; alone, or among its neighbours.

    Slow alone, it is the request; slow only among its neighbours, it is the company.

    Example: tailrace replay worst http://localhost:8000 --records before.run
    """
    import re

    from tailrace.app.replay import ReplayOptions
    from tailrace.app.replay import replay as play
    from tailrace.cli.durations import parse_span

    # Alone and in company are two runs to compare: one must not replace the other.
    among = "-among" if with_neighbours else ""
    played = play(
        ReplayOptions(
            request_id=request_id,
            source=records,
            url=url,
            out=out or f"replay-{re.sub(r'[^A-Za-z0-9._-]', '_', request_id)[:80]}{among}.run",
            with_neighbours=with_neighbours,
            times=times,
            pause_ns=parse_span(pause, place="--pause"),
            model=model,
            api_key=api_key,
            token=token,
            partial=partial,
            total_ns=parse_span(timeout, place="--timeout"),
        )
    )
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(played).decode() + "\n")
    else:
        _print(played)


def _print(played: Replay) -> None:
    import statistics

    from tailrace.cli.console import Console

    console = Console(soft_wrap=True, highlight=False)
    among = f" among {played.neighbours} neighbours" if played.neighbours else " alone"
    console.print(f"{played.request_id}, played {played.rounds} x{among}", style="bold", markup=False)
    console.print(f"  {'':<14}{'recorded':>12}{'replayed':>12}   range, n", style="dim", markup=False)
    for one in played.seen:
        recorded = "" if one.recorded_ms is None else f"{one.recorded_ms:,.1f}"
        again, spread = "", ""
        if one.replayed_ms:
            again = f"{statistics.median(one.replayed_ms):,.1f}"
            spread = f"   {min(one.replayed_ms):,.1f} to {max(one.replayed_ms):,.1f} ms, n = {len(one.replayed_ms)}"
        console.print(f"  {_NAMES[one.metric]:<14}{recorded:>12}{again:>12}{spread}", markup=False)
    if played.failed:
        console.print(f"  {played.failed} of {played.rounds} rounds did not complete", markup=False)
    for note in played.notes:
        console.print(f"  note: {note}", markup=False)
    console.print(f"  the run: {played.run}", markup=False)
