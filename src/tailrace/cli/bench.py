"""`tailrace bench`: load a server and record every event's time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.command_app import CommandApp
from tailrace.cli.durations import parse_span
from tailrace.cli.objectives import parse_objectives
from tailrace.model.thresholds import Objectives

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.probe.spec import BenchSpec
    from tailrace.workload.plan import Workload

app = CommandApp()

_LOAD, _WORK, _SERVER, _RESULT = "How much", "Which requests", "Whom to ask", "Results"
_DEFAULT_CONCURRENCY = 8
_DEFAULT_DURATION = "30s"
_DEFAULT_MIX = "short"
_EXIT_LIMITED = 3
_EXIT_INTERRUPTED = 130


@app.command()
def bench(
    url: Annotated[str, typer.Argument(help="Base URL (with or without /v1), or the whole URL of an endpoint.")],
    rate: Annotated[
        float | None,
        typer.Option(help="Open loop: requests a second, at absolute times.", rich_help_panel=_LOAD),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            help=f"Closed loop: so many at once (default {_DEFAULT_CONCURRENCY} without --rate). "
            "With --rate: the most that may be in flight.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    requests: Annotated[int | None, typer.Option(help="End after so many.", rich_help_panel=_LOAD)] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            help=f"Stop sending after this (60, 90s, 5m); default {_DEFAULT_DURATION} without --requests.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    arrival: Annotated[
        str | None,
        typer.Option(help="poisson (default with --rate), constant or gamma.", rich_help_panel=_LOAD),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(help="Shape of gamma arrivals: 1 is Poisson, below 1 burstier.", rich_help_panel=_LOAD),
    ] = None,
    warmup: Annotated[
        str,
        typer.Option(help="Requests (10) or time (5s) before the measured part.", rich_help_panel=_LOAD),
    ] = "0",
    seed: Annotated[int, typer.Option(help="Same seed, same arrivals and lengths.", rich_help_panel=_LOAD, min=0)] = 0,
    mix: Annotated[
        str | None,
        typer.Option(
            help="Classes and weights: 'short:0.9,long:0.1' (short, chat, code, long, document), or prompt/output "
            "tokens: 'chat=300/40:0.95,document=12000/60:0.05'. "
            "Lengths: 300, 200-400 (uniform), 300~0.5 (log-normal).",
            rich_help_panel=_WORK,
        ),
    ] = None,
    prompt_tokens: Annotated[
        str | None, typer.Option(help="Length of every prompt, instead of --mix.", rich_help_panel=_WORK)
    ] = None,
    output_tokens: Annotated[
        str | None, typer.Option(help="Length of every answer, instead of --mix.", rich_help_panel=_WORK)
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="A recorded trace (Azure CSV, Mooncake JSON lines, CSV): its times, or its lengths under --rate or "
            "--concurrency.",
            rich_help_panel=_WORK,
        ),
    ] = None,
    trace_speed: Annotated[
        float, typer.Option(help="Play the trace's times so many times faster.", rich_help_panel=_WORK)
    ] = 1.0,
    shared_prefix: Annotated[
        int,
        typer.Option(
            help="Tokens that all prompts begin with. 0: unique, so that no prefix cache answers.",
            rich_help_panel=_WORK,
        ),
    ] = 0,
    stream: Annotated[bool, typer.Option(help="Ask for streamed answers.", rich_help_panel=_WORK)] = True,
    ignore_eos: Annotated[
        bool,
        typer.Option(help="Ask engines that can to answer with exactly the length.", rich_help_panel=_WORK),
    ] = True,
    extra_body: Annotated[
        str | None, typer.Option(help="JSON object merged into every request.", rich_help_panel=_WORK)
    ] = None,
    chars_per_token: Annotated[
        float | None,
        typer.Option(help="Instead of calibrating by what the server counts.", rich_help_panel=_WORK),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Default: the first that /v1/models lists.", rich_help_panel=_SERVER)
    ] = None,
    api_key: Annotated[
        str, typer.Option(help="Bearer token.", envvar="OPENAI_API_KEY", show_envvar=True, rich_help_panel=_SERVER)
    ] = "",
    header: Annotated[
        list[str] | None, typer.Option(help="'name: value', as often as needed.", rich_help_panel=_SERVER)
    ] = None,
    timeout: Annotated[str, typer.Option(help="Longest a request may take.", rich_help_panel=_SERVER)] = "300s",
    first_token_timeout: Annotated[
        str | None, typer.Option(help="Longest wait for the first token.", rich_help_panel=_SERVER)
    ] = None,
    idle_timeout: Annotated[
        str | None, typer.Option(help="Longest wait between tokens.", rich_help_panel=_SERVER)
    ] = None,
    connect_timeout: Annotated[
        str, typer.Option(help="Longest wait for a connection.", rich_help_panel=_SERVER)
    ] = "10s",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept any TLS certificate.", rich_help_panel=_SERVER)
    ] = False,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            help="What goodput means: ttft_p99=500ms, tpot_p99=80ms, e2e_p95=10s (these two first are the default).",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Run file (default bench-DATE-TIME.run here).", rich_help_panel=_RESULT),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(help="errors: exit 1 when any request did not complete.", rich_help_panel=_RESULT),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object.", rich_help_panel=_RESULT)
    ] = False,
) -> None:
    """Load a server and record every event's time.

    Sends real load to URL: use it on servers that you may load. Two tiny requests go ahead of the run to check the
    target and to calibrate the length of prompts. Ctrl-C ends the run and keeps what was measured.

    Exit: 0 done, 1 what --fail-on named, 2 bad input or target, 3 the client was the limit, 130 interrupted.

    Example: tailrace bench http://localhost:8000 --rate 5 --duration 60 --out before.run
    """
    with _interruptible():
        from pathlib import Path

        from tailrace.model.errors import InputError
        from tailrace.probe.spec import BenchSpec, Limits

        if fail_on not in (None, "errors"):
            raise InputError(f"{fail_on!r} is nothing to fail on", place="--fail-on", remedy="Write --fail-on errors")
        if requests is None and duration is None and not (trace and rate is None and concurrency is None):
            duration = _DEFAULT_DURATION
        by_count = warmup.isdecimal()
        warmup_requests = int(warmup) if by_count else 0
        warmup_ns = 0 if by_count else parse_span(warmup, place="--warmup")
        spec = BenchSpec(
            url=url,
            workload=_workload(
                rate=rate,
                concurrency=concurrency,
                arrival=arrival,
                burstiness=burstiness,
                mix=mix,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                trace=trace,
                trace_speed=trace_speed,
                seed=seed,
            ),
            model=model,
            seed=seed,
            requests=requests,
            duration_ns=None if duration is None else parse_span(duration, place="--duration"),
            warmup_requests=warmup_requests,
            warmup_ns=warmup_ns,
            stream=stream,
            api_key=api_key,
            headers=[_header(one) for one in header or []],
            extra_body=_extra_body(extra_body),
            ignore_eos=ignore_eos,
            limits=Limits(
                connect_ns=parse_span(connect_timeout, place="--connect-timeout"),
                first_token_ns=_optional_ns(first_token_timeout, "--first-token-timeout"),
                idle_ns=_optional_ns(idle_timeout, "--idle-timeout"),
                total_ns=parse_span(timeout, place="--timeout"),
            ),
            verify_tls=not insecure,
            shared_prefix=shared_prefix,
            chars_per_token=chars_per_token,
            mix_text=mix or "",
            objectives=parse_objectives(objective or []) or Objectives(),
        )
        path = Path(out) if out else Path(_default_name())
        if path.is_dir():
            raise InputError("is a directory", place=str(path), remedy="Give --out the name of a file")
        _run(spec, path, as_json=as_json, fail_on_errors=fail_on == "errors")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C before or after the run itself, which has its own way to end: no traceback, the same exit code."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_EXIT_INTERRUPTED) from None


def _run(spec: BenchSpec, path: Path, *, as_json: bool, fail_on_errors: bool) -> None:
    import sys

    from tailrace.app.bench import bench as run
    from tailrace.cli.bench_print import LiveProgress, announcement, print_summary
    from tailrace.probe.run import Interrupted

    with LiveProgress(spec.url, announcement="" if as_json else announcement(spec)) as progress:
        try:
            result = run(spec, out=path, on_progress=progress.show)
        except Interrupted as error:
            sys.stderr.write(f"tailrace bench: {error}\n")
            raise typer.Exit(_EXIT_INTERRUPTED) from None
    summary = result.summary
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    else:
        print_summary(summary, spec, path, interrupted=result.interrupted)
    if result.interrupted:
        raise typer.Exit(_EXIT_INTERRUPTED)
    if summary.client.limited:
        raise typer.Exit(_EXIT_LIMITED)
    if fail_on_errors and summary.errors:
        raise typer.Exit(1)


def _workload(
    *,
    rate: float | None,
    concurrency: int | None,
    arrival: str | None,
    burstiness: float | None,
    mix: str | None,
    prompt_tokens: str | None,
    output_tokens: str | None,
    trace: str | None,
    trace_speed: float,
    seed: int,
) -> Workload:
    from tailrace.cli.traffic import classes_from, trace_file
    from tailrace.model.errors import InputError
    from tailrace.workload.arrivals import ArrivalKind, Arrivals
    from tailrace.workload.plan import Workload

    rows = trace_file(trace, speed=trace_speed, seed=seed) if trace else []
    if rate is not None:
        names = [one.value for one in (ArrivalKind.POISSON, ArrivalKind.CONSTANT, ArrivalKind.GAMMA)]
        name = arrival or ("gamma" if burstiness is not None else "poisson")
        if name not in names:
            raise InputError(f"there are no {name!r} arrivals", place="--arrival", remedy=f"Choose {', '.join(names)}")
        kind = ArrivalKind(name)
    elif arrival is not None or burstiness is not None:
        raise InputError("arrivals need a rate", place="--arrival", remedy="Add --rate, for example --rate 5")
    else:
        kind = ArrivalKind.TRACE if rows and concurrency is None else ArrivalKind.CLOSED
        if kind is ArrivalKind.CLOSED and concurrency is None:
            concurrency = _DEFAULT_CONCURRENCY
    if burstiness is not None and kind is not ArrivalKind.GAMMA:
        raise InputError(f"means nothing for {kind} arrivals", place="--burstiness", remedy="Use --arrival gamma")
    arrivals = Arrivals(kind=kind, rate=rate, burstiness=burstiness or 1.0, concurrency=concurrency)
    classes = classes_from(
        mix=mix, prompt_tokens=prompt_tokens, output_tokens=output_tokens, trace=bool(rows), default=_DEFAULT_MIX
    )
    return Workload(arrivals=arrivals, mix=classes, trace=rows)


def _optional_ns(text: str | None, place: str) -> int | None:

    return None if text is None else parse_span(text, place=place)


def _header(text: str) -> tuple[str, str]:
    from tailrace.model.errors import InputError

    name, colon, value = text.partition(":")
    if not colon:
        raise InputError(f"cannot read {text!r}", place="--header", remedy="Write 'name: value'")
    return name.strip(), value.strip()


def _extra_body(text: str | None) -> dict[str, object]:
    import msgspec

    from tailrace.measure.dialect import UNREADABLE
    from tailrace.model.errors import InputError

    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except UNREADABLE as error:
        raise InputError(
            str(error), place="--extra-body", remedy="""Write a JSON object: '{"temperature": 0}'"""
        ) from None


def _default_name() -> str:
    import time

    return time.strftime("bench-%Y%m%d-%H%M%S.run")
