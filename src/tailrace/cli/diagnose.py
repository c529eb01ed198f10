"""`tailrace diagnose`: why is the tail slow?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.command_app import CommandApp
from tailrace.cli.rarely_collected import rarely_collected

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.analyze.joined import Joined
    from tailrace.model.finding import Diagnosis

app = CommandApp()

_EXIT_ANSWER = 1


@app.command()
def diagnose(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run file, a load generator's result or what it printed, records as JSON lines, a gateway's data "
            "directory, saved scrapes of /metrics (two give deltas), the admin URL of a live gateway, an engine's or "
            "proxy's log, a table in Markdown or CSV, a configuration, a log of nvidia-smi; - reads a paste."
        ),
    ] = None,
    before: Annotated[str | None, typer.Option(help="The same from before: a run file, records, a URL.")] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(help="ttft_p99=500ms, tpot_p99=80ms, e2e_p95=10s; of a lane: short/ttft_p99=1s. Repeatable."),
    ] = None,
    facts: Annotated[
        list[str] | None,
        typer.Option(help="A number you know: ttft_p99_ms=850; of an arm: before.itl_mean_ms=12. Repeatable."),
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask for the numbers that would decide.")] = False,
    facts_out: Annotated[
        str | None, typer.Option(help="Write the facts that were given to this file, as JSON.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Use what a cut run file still holds.")] = False,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="Heading of a column in a table of requests: send=MY_HEADING; so first, last, prompt_tokens, status. "
            "Repeatable; the usual headings need none."
        ),
    ] = None,
    token: Annotated[str, typer.Option(help="Bearer token of the admin port.", envvar="TAILRACE_ADMIN_TOKEN")] = "",
    records: Annotated[
        str | None,
        typer.Option(
            help="Join a run file with its gateway's records: a data directory, an admin URL, an export. Says what the "
            "network and the client took."
        ),
    ] = None,
    fail_on: Annotated[str | None, typer.Option(help="found: exit 1 when a cause is found.")] = None,
    html: Annotated[str | None, typer.Option("--html", help="Also write one self-contained page to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Why is the tail slow? The layer, the stage, the cause, its evidence, and what to do.

    Example: tailrace diagnose after.run --before before.run --objective ttft_p99=500ms
    """
    with rarely_collected():
        from tailrace.app.diagnose import Given
        from tailrace.app.outputs import refuse_to_replace
        from tailrace.cli.objectives import parse_objectives
        from tailrace.model.errors import InputError
        from tailrace.model.finding import Level

        if fail_on not in (None, "found"):
            raise InputError(f"there is no answer {fail_on!r}", place="--fail-on", remedy="Use --fail-on found.")
        sources = sources or []
        read = [*sources, *filter(None, (before, records))]
        for option, out in (("--html", html), ("--facts-out", facts_out)):
            if out is not None:
                refuse_to_replace(out, read, option=option)

        given = Given(
            sources,
            before=before,
            objectives=parse_objectives(objective or []),
            allow_partial=partial,
            token=token,
            columns=_columns(column or []),
        )
        known = _known(list(facts or []), sources, given.diagnosis, ask=ask)
        if facts_out is not None:
            _write_facts(known, facts_out)  # first: whatever follows from them, they are not typed again
        result = given.diagnosis(known)
        both = None
        if records is not None and sources:
            from tailrace.app.joined import join_run

            both = join_run(sources[0], records, allow_partial=partial, token=token)
        if html is not None:
            from tailrace.app.diagnosis_page import write_diagnosis

            write_diagnosis(result, html, sources)
        _put(result, both, as_json=as_json)
        if fail_on == "found" and any(finding.level is not Level.INSUFFICIENT for finding in result.findings):
            raise typer.Exit(_EXIT_ANSWER)


def _known(facts: list[str], sources: list[str], answer: Callable[[list[str]], Diagnosis], *, ask: bool) -> list[str]:
    """The facts that were given, and those that were asked for. InputError where there is nothing at all."""
    from tailrace.model.errors import InputError

    if not (sources or facts or ask):
        raise InputError("nothing was given", remedy="Name a file, `-` for a paste, --facts key=value, or --ask.")
    if ask:
        from tailrace.cli.diagnose_ask import ask_facts

        facts = ask_facts(facts, lambda said: answer(said) if said or sources else None)
    if not (sources or facts):
        raise InputError("no question was answered", place="--ask", remedy="Give a number, or a file.")
    return facts


def _put(result: Diagnosis, both: Joined | None, *, as_json: bool) -> None:
    if not as_json:
        from tailrace.cli.diagnose_print import print_diagnosis, print_joined

        print_diagnosis(result)
        if both is not None:
            print_joined(both)
        return
    import msgspec

    said = msgspec.to_builtins(result)
    if both is not None:
        said["joined"] = msgspec.to_builtins(both)
    sys.stdout.write(msgspec.json.encode(said).decode() + "\n")


def _write_facts(known: list[str], path: str) -> None:
    from pathlib import Path

    import msgspec

    from tailrace.diagnose.readers.given_facts import facts_from
    from tailrace.model.errors import InputError

    try:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(facts_from(known))) + b"\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=path) from None


def _columns(given: list[str]) -> dict[str, str]:
    """`send=ts_send` -> our name and the file's heading."""
    from tailrace.model.errors import InputError

    out = {}
    for item in given:
        ours, equals, theirs = item.partition("=")
        if not equals or not ours.strip() or not theirs.strip():
            raise InputError(
                f"{item!r} is no column", place="--column", remedy="Write NAME=HEADING, such as send=ts_send."
            )
        out[ours.strip()] = theirs.strip()
    return out
