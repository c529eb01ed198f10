"""`tailrace check`: an engine's options, known traps, and what to write instead."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.command_app import CommandApp

if TYPE_CHECKING:
    from tailrace.cli.console import Console
    from tailrace.model.check import CheckedEngine, CheckFinding, CheckReport

app = CommandApp()

_EXIT_ANSWER = 1
_STYLES = {"error": "bold red", "warning": "bold yellow", "advice": "bold", "info": "dim"}
_INPUTS = "What to look at"
_KNOWN = "What else is known"


@app.command()
def check(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Address of an engine or of a gateway's admin port; an engine's log (- for standard input); its "
            "command line in quotes, or a file with it; a Kubernetes or compose file; Triton's config.pbtxt or model "
            "repository; tailrace.yaml.",
            show_default=False,
        ),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Option(
            help="The engine's command line, quoted. Repeatable.", rich_help_panel=_INPUTS, show_default=False
        ),
    ] = None,
    help_text: Annotated[
        str,
        typer.Option(
            help="File with the engine's own --help: options are checked against it.", rich_help_panel=_INPUTS
        ),
    ] = "",
    help_of: Annotated[
        str, typer.Option(help="Installed engine to ask for its --help: vllm, or a command.", rich_help_panel=_INPUTS)
    ] = "",
    lengths: Annotated[
        str,
        typer.Option(
            help="Run file, records, data directory or admin URL: how long requests are.", rich_help_panel=_INPUTS
        ),
    ] = "",
    objective: Annotated[
        list[str] | None,
        typer.Option(help="ttft_p99=500ms, tpot_p99=80ms. Repeatable.", rich_help_panel=_INPUTS, show_default=False),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="vllm, sglang, llamacpp, triton, tgi, where nothing says it.", rich_help_panel=_KNOWN),
    ] = "",
    engine_version: Annotated[str, typer.Option(help="Its version, for example 0.11.0.", rich_help_panel=_KNOWN)] = "",
    model_size: Annotated[str, typer.Option(help="8b, 70b, or llama-3-8b.", rich_help_panel=_KNOWN)] = "",
    model_config: Annotated[str, typer.Option(help="The model's config.json.", rich_help_panel=_KNOWN)] = "",
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp8, int8, awq.", rich_help_panel=_KNOWN)] = "",
    gpu: Annotated[str, typer.Option(help="a100-80g, h100, l4, rtx-4090 and so on.", rich_help_panel=_KNOWN)] = "",
    client_timeout: Annotated[
        str,
        typer.Option(
            help="How long your clients wait, for example 20s; without it, the OpenAI SDK's 600 s.",
            rich_help_panel=_KNOWN,
        ),
    ] = "",
    partial: Annotated[bool, typer.Option("--partial", help="Use what a cut run file still holds.")] = False,
    token: Annotated[str, typer.Option(help="Bearer token of the address.", envvar="TAILRACE_ADMIN_TOKEN")] = "",
    all_: Annotated[bool, typer.Option("--all", help="Also print what needs nothing done.")] = False,
    fail_on: Annotated[str | None, typer.Option(help="error or warning: exit 1 when there is one (or worse).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Is the engine set up for the tail? Its version, options in force, traps, and advice with effect and price.

    Example: tailrace check http://localhost:8000 --lengths before.run

    Example: tailrace check --command "vllm serve m --max-num-seqs 256"
    """
    from tailrace.app.check import CheckRequest
    from tailrace.app.check import check as run_check
    from tailrace.cli.durations import parse_span
    from tailrace.cli.objectives import parse_objectives
    from tailrace.model.errors import InputError

    if fail_on not in (None, "error", "warning"):
        raise InputError(
            f"there is no answer {fail_on!r}", place="--fail-on", remedy="Use --fail-on error or --fail-on warning."
        )
    if not (sources or command or (model_size and gpu) or (model_config and gpu)):
        raise InputError(
            "nothing to look at",
            place="check",
            remedy="Give an address, a log, --command 'vllm serve …', or --model-size 8b --gpu a100-80g.",
        )
    if help_of:
        sys.stderr.write(f"asking {help_of} for its options\n")
    report = run_check(
        CheckRequest(
            sources=sources or (),
            commands=command or (),
            helped=help_text,
            help_of=help_of,
            lengths=lengths,
            objectives=parse_objectives(objective or []),
            engine=engine,
            version=engine_version,
            model_size=model_size,
            model_config=model_config,
            dtype=dtype,
            gpu=gpu,
            token=token,
            partial=partial,
            client_timeout_ns=parse_span(client_timeout, place="--client-timeout") if client_timeout else None,
        )
    )
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        _print(report, everything=all_)
    if report.counts.get("error") and fail_on is not None:
        raise typer.Exit(_EXIT_ANSWER)
    if report.counts.get("warning") and fail_on == "warning":
        raise typer.Exit(_EXIT_ANSWER)


def _print(report: CheckReport, *, everything: bool) -> None:
    from tailrace.cli.console import Console

    console = Console(soft_wrap=True, highlight=False)
    console.print(report.summary, style="bold", markup=False)
    for engine in report.engines:
        _settings(console, engine)
    shown = [one for one in report.findings if everything or one.weight != "info"]
    for finding in shown:
        _finding(console, finding)
    hidden = [one for one in report.findings if one.weight == "info"]
    if hidden and not everything:
        console.print("\nWorth knowing (--all for their evidence):")
        for finding in hidden:
            console.print(f"  {finding.code}: {finding.statement}", markup=False)
    if report.needs:
        console.print("\nNot judged, for want of:")
        for need in report.needs:
            console.print(f"  {need}", markup=False)
    for note in report.not_understood:
        console.print(f"not understood: {note}", markup=False)


def _settings(console: Console, engine: CheckedEngine) -> None:
    if not engine.settings and not engine.version:
        return
    rows: list[tuple[str, str, str, bool]] = []
    if engine.version:
        rows.append(("version", engine.version, engine.version_source, False))
    for one in engine.settings:
        value = str(one.value).lower() if isinstance(one.value, bool) else str(one.value)
        also = f"; but {one.contradicts}" if one.contradicts else ""
        rows.append((one.key, value, f"{one.source}{also}", one.default))
    wide = min(max(len(row[0]) for row in rows), 40), min(max(len(row[1]) for row in rows), 40)
    console.print(f"\n{engine.name} ({engine.engine})", style="bold", markup=False)
    # Not a table of rich's: where nobody looks it folds at 80 columns, in the middle of names.
    for key, value, source, default in rows:
        console.print(f"  {key:{wide[0]}}  {value:{wide[1]}}  {source}", style="dim" if default else None, markup=False)


def _finding(console: Console, finding: CheckFinding) -> None:
    line = "" if finding.line is None else f":{finding.line}"
    about = f" [{finding.about}{line}]" if finding.about else ""
    subject = f" {finding.subject}" if finding.subject else ""
    console.print(f"\n{finding.weight}: {finding.code}{subject}{about}", style=_STYLES[finding.weight], markup=False)
    console.print(f"   {finding.statement}", markup=False)
    for item in finding.evidence:
        console.print(f"   - {item.text}  [{item.source}]", markup=False)
    for name, text in (
        ("write", finding.advice),
        ("effect", finding.effect),
        ("price", finding.price),
        ("verify", finding.verify),
    ):
        if text:
            console.print(f"   {name}: {text}", markup=False)
