"""`tailrace simulate`: run a workload on the simulated engine in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.command_app import CommandApp

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.app.governed_simulation import Governance
    from tailrace.app.simulate import Simulation, SimulationSpec
    from tailrace.workload.plan import Workload
    from tailrace.workload.trace import TraceRow

app = CommandApp()

_WORK, _ENGINE, _GATEWAY, _RESULT = "Which requests", "The engine", "A gateway before it", "Results"
_DEFAULT_REQUESTS = 2000


@app.command()
def simulate(
    rate: Annotated[
        str | None,
        typer.Option(
            help="Requests a second: 5, '2..20 over 60s', '5 for 30s, 20 for 10s, 5', '5, spike 50 for 2s every 30s', "
            "or @FILE with rows of seconds,rate.",
            rich_help_panel=_WORK,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help=f"End after so many (default {_DEFAULT_REQUESTS} with --rate).", rich_help_panel=_WORK),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Simulated seconds of arrivals.", rich_help_panel=_WORK)
    ] = None,
    arrival: Annotated[
        str | None,
        typer.Option(
            help="With --rate: poisson (default), constant, 'gamma 0.3' (burstiness), or the sum of many clients: "
            "'50 clients zipf 1.1, gamma 0.3'.",
            rich_help_panel=_WORK,
        ),
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(
            help="Classes and weights: 'short:0.9,long:0.1', or prompt/output tokens: 'chat=300/40:0.95,doc=6000/60'. "
            "Lengths: 300, 200-400 (uniform), 300~0.5 (log-normal). Default chat.",
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
            "--trace",
            "--workload",
            help="A recorded trace (Azure CSV, Mooncake JSON lines, CSV): its times, or its lengths with --rate.",
            rich_help_panel=_WORK,
        ),
    ] = None,
    trace_speed: Annotated[
        float, typer.Option(help="Play the trace's times so many times faster.", rich_help_panel=_WORK)
    ] = 1.0,
    trace_from: Annotated[
        str | None, typer.Option(help="Leave out what came before this time of the trace (5m).", rich_help_panel=_WORK)
    ] = None,
    trace_to: Annotated[
        str | None, typer.Option(help="And what came from this time on.", rich_help_panel=_WORK)
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same result.", rich_help_panel=_WORK, min=0)] = 0,
    preset: Annotated[
        str, typer.Option(help="a100-llama3-8b or h100-llama3-8b.", rich_help_panel=_ENGINE)
    ] = "a100-llama3-8b",
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Most requests that run at once.", rich_help_panel=_ENGINE)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Token budget of a step.", rich_help_panel=_ENGINE)
    ] = None,
    chunked_prefill: Annotated[
        bool | None,
        typer.Option(
            "--chunked-prefill/--no-chunked-prefill", help="Split long prompts over steps.", rich_help_panel=_ENGINE
        ),
    ] = None,
    long_prefill_token_threshold: Annotated[
        int | None,
        typer.Option(help="Largest chunk of one prompt in a step; 0 is no limit.", rich_help_panel=_ENGINE),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="fcfs or priority.", rich_help_panel=_ENGINE)] = None,
    prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--prefix-caching/--no-prefix-caching", help="Share equal prompt prefixes.", rich_help_panel=_ENGINE
        ),
    ] = None,
    num_gpu_blocks: Annotated[
        int | None,
        typer.Option(help="KV blocks; take the number from your engine's log.", rich_help_panel=_ENGINE),
    ] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens in a KV block.", rich_help_panel=_ENGINE)] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Most tokens of one request; longer drawn answers are cut to it. Default 32768, with --trace as long "
            "as the longest request.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    time_scale: Annotated[
        float, typer.Option(help="2 is an engine twice as fast as the preset.", rich_help_panel=_ENGINE)
    ] = 1.0,
    step_overhead_ms: Annotated[
        float | None, typer.Option(help="The engine's overhead a step.", min=0.0, rich_help_panel=_ENGINE)
    ] = None,
    prefill_overhead_ms: Annotated[
        float, typer.Option(help="Further overhead of a step with prefill.", min=0.0, rich_help_panel=_ENGINE)
    ] = 0.0,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            help="A gateway's configuration: its lanes, limits, budgets and objectives govern, with its own code; one "
            "engine for each backend.",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    ungoverned: Annotated[
        bool,
        typer.Option(help="The same load without the gateway; lanes only sort the results.", rich_help_panel=_GATEWAY),
    ] = False,
    engines: Annotated[
        int | None, typer.Option(help="So many engines, whatever the file lists.", min=1, rich_help_panel=_GATEWAY)
    ] = None,
    retries: Annotated[
        int, typer.Option(help="Further tries of a refused client.", min=0, rich_help_panel=_GATEWAY)
    ] = 0,
    ignore_retry_after: Annotated[
        bool, typer.Option(help="Clients back off at their own pace.", rich_help_panel=_GATEWAY)
    ] = False,
    client_timeout: Annotated[
        float | None, typer.Option(help="Seconds after which a client leaves.", rich_help_panel=_GATEWAY)
    ] = None,
    client_first_token: Annotated[
        float | None,
        typer.Option(help="Seconds after which a client without a token leaves.", rich_help_panel=_GATEWAY),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(help="Seconds that clients tell the gateway (x-deadline-ms).", rich_help_panel=_GATEWAY),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="What every request allows. Default: clients say nothing, and the gateway must guess.",
            min=1,
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    decisions: Annotated[
        str | None, typer.Option(help="Write every decision with its time, as JSON lines.", rich_help_panel=_GATEWAY)
    ] = None,
    out: Annotated[str | None, typer.Option(help="Run file to write.", rich_help_panel=_RESULT)] = None,
    timelines: Annotated[
        str,
        typer.Option(
            help="Whose events are kept: all, sampled (slow and failed ones, 1 % of the rest) or none. Chunk gaps "
            "are only summarised over all.",
            rich_help_panel=_RESULT,
        ),
    ] = "all",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object.", rich_help_panel=_RESULT)
    ] = False,
) -> None:
    """Run a workload on the simulated engine in virtual time: hours of traffic in seconds, without a GPU.

    The result opens wherever a run does: compare, diagnose. It is a model's answer: state of the art is an
    error of a few percent in time per token and up to a third in TTFT near saturation. Calibrate before you promise.

    With --config the gateway's own admission stands before the engine: what lanes do for a load is seen before a GPU
    sees it.

    Example: tailrace simulate --rate 7 --requests 2000 --out sim.run
    """
    from pathlib import Path

    import msgspec

    from tailrace.app.outputs import refuse_to_replace
    from tailrace.app.simulate import SimulationSpec
    from tailrace.cli.traffic import trace_file
    from tailrace.simulate.knobs import knobs_from
    from tailrace.simulate.presets import preset as find_preset
    from tailrace.workload.process import ArrivalKind

    _check_numbers(
        timelines=timelines,
        time_scale=time_scale,
        counts={"--requests": requests, "--duration": duration},
        overheads={"--step-overhead-ms": step_overhead_ms, "--prefill-overhead-ms": prefill_overhead_ms},
    )
    for option, written in (("--out", out), ("--decisions", decisions)):
        if written is not None:
            refuse_to_replace(written, [trace, config], option=option)
    workload = _workload(
        rate=rate,
        arrival=arrival,
        mix=mix,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        rows=trace_file(trace, speed=trace_speed, seed=seed, begin=trace_from, end=trace_to).rows if trace else [],
    )
    chosen = find_preset(preset)
    if max_model_len is None and workload.trace:
        longest = max(row.prompt_tokens + row.output_tokens for row in workload.trace)
        max_model_len = max(longest, chosen.knobs.max_model_len)
    given: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "enable_chunked_prefill": chunked_prefill,
        "long_prefill_token_threshold": long_prefill_token_threshold,
        "policy": policy,
        "enable_prefix_caching": prefix_caching,
        "num_gpu_blocks": num_gpu_blocks,
        "block_size": block_size,
        "max_model_len": max_model_len,
    }
    client = {
        "total": client_timeout,
        "first_token": client_first_token,
        "deadline": deadline,
        "retries": retries,
        "obeys": not ignore_retry_after,
    }
    span = workload.arrivals.shape.span_ns if workload.arrivals.shape is not None else None
    duration_ns = None if duration is None else round(duration * 1e9)
    if requests is None and duration is None and workload.arrivals.kind is not ArrivalKind.TRACE:
        requests, duration_ns = (_DEFAULT_REQUESTS, None) if span is None else (None, span)
    spec = SimulationSpec(
        preset=chosen,
        knobs=knobs_from(chosen.knobs, given),
        workload=workload,
        seed=seed,
        requests=requests,
        duration_ns=duration_ns,
        time_scale=time_scale,
        step_overhead_ms=step_overhead_ms,
        prefill_overhead_ms=prefill_overhead_ms,
        keep_timelines=timelines,  # type: ignore[arg-type]  # checked above
        mix_text=mix or "",
        governance=_governance(
            config,
            governed=not ungoverned,
            engines=engines,
            client=client,
            max_tokens=max_tokens,
        ),
        keep_decisions=decisions is not None,
    )
    path = Path(out) if out else None
    result = _run(spec, path)
    if decisions is not None:
        _write_decisions(decisions, result)
    if as_json:
        import sys

        told: Any = result.summary
        if result.refusals is not None:
            told = {
                **msgspec.to_builtins(result.summary),
                "lanes": result.lanes,
                "refusals": result.refusals,
                "calls": result.calls,
                "served_calls": result.served_calls,
            }
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    else:
        _print(result, spec)


def _check_numbers(
    *, timelines: str, time_scale: float, counts: dict[str, float | None], overheads: dict[str, float | None]
) -> None:
    from tailrace.model.errors import InputError

    if timelines not in ("all", "sampled", "none"):
        raise InputError(f"there is no choice {timelines!r}", place="--timelines", remedy="Use all, sampled or none.")
    if not 0 < time_scale < float("inf"):
        raise InputError(f"{time_scale:g} is not above 0", place="--time-scale", remedy="1 is the preset's speed.")
    for place, value in counts.items():
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"must be above 0, got {value:g}", place=place)
    for place, overhead in overheads.items():
        if overhead is not None and not 0 <= overhead < float("inf"):
            raise InputError(f"{overhead:g} is no time", place=place, remedy="Give a number of milliseconds.")


def _workload(
    *,
    rate: str | None,
    arrival: str | None,
    mix: str | None,
    prompt_tokens: str | None,
    output_tokens: str | None,
    rows: list[TraceRow],
) -> Workload:
    from tailrace.cli.arrivals_from import arrivals_from
    from tailrace.cli.traffic import classes_from
    from tailrace.model.errors import InputError
    from tailrace.workload.plan import Workload

    if rate is None and not rows and "every" not in (arrival or ""):
        raise InputError("a simulation needs arrivals", place="--rate", remedy="Give --rate 5, or --trace FILE.")
    classes = classes_from(
        mix=mix, prompt_tokens=prompt_tokens, output_tokens=output_tokens, trace=bool(rows), default="chat"
    )
    arrivals = arrivals_from(rate=rate, arrival=arrival, burstiness=None, trace=bool(rows))
    return Workload(arrivals=arrivals, mix=classes, trace=rows)


def _governance(
    config: str | None, *, governed: bool, engines: int | None, client: dict[str, Any], max_tokens: int | None
) -> Governance | None:
    import msgspec

    from tailrace.app.governed_simulation import governance_from, with_engines
    from tailrace.model.errors import InputError
    from tailrace.simulate.clients import ClientPolicy

    obeys = client.pop("obeys")
    given = [name for name, value in client.items() if value] + ["engines"] * bool(engines)
    if config is None:
        if given or not governed or not obeys or max_tokens:
            raise InputError(
                "there is no gateway to simulate", place="--config", remedy="Give -c tailrace.yaml with its lanes."
            )
        return None
    for name in ("total", "first_token", "deadline"):
        value = client[name]
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{value:g} seconds is no time", place=f"the client's {name}")
    policy = ClientPolicy(
        total_ns=_ns(client["total"]),
        first_token_ns=_ns(client["first_token"]),
        deadline_ns=_ns(client["deadline"]),
        retries=client["retries"],
        obeys_retry_after=obeys,
    )
    found, _ = governance_from(config)
    if engines is not None:
        found = with_engines(found, engines)
    return msgspec.structs.replace(found, governed=governed, client=policy, max_tokens=max_tokens)


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _write_decisions(path: str, result: Simulation) -> None:
    from pathlib import Path

    import msgspec

    from tailrace.model.errors import InputError

    encoder = msgspec.json.Encoder()
    lines = [
        encoder.encode(
            {
                "at_ms": note.at_ns / 1e6,
                "request_id": note.request_id,
                "lane": note.lane,
                "step": note.step,
                "reason": note.reason,
                "position": note.position,
                "predicted_wait_ms": None if note.predicted_wait_ns is None else note.predicted_wait_ns / 1e6,
                "retry_after_s": note.retry_after_s,
            }
        )
        for note in result.decisions
    ]
    try:
        Path(path).write_bytes(b"".join(line + b"\n" for line in lines))
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", place=path, remedy="Choose another file.") from None


def _run(spec: SimulationSpec, path: Path | None) -> Simulation:
    import sys
    import time

    from tailrace.app.simulate import simulate as run

    began = shown = time.monotonic()

    def progress(ended: int, simulated_s: float) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - began > 2 and now - shown > 1:
            shown = now
            sys.stderr.write(f"  {ended:,} requests, {simulated_s:,.0f} simulated seconds\n")

    return run(spec, out=path, on_progress=progress)


def _print(result: Simulation, spec: SimulationSpec) -> None:
    from rich.console import Console

    from tailrace.cli.metric_rows import metric_rows

    summary = result.summary
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"Simulated [bold]{spec.preset.name}[/bold]: {summary.n:,} requests, {result.simulated_s:,.1f} simulated "
        f"seconds, {result.cpu_s:.1f} s of CPU; times in ms"
    )
    for row in metric_rows(summary.metrics, console.width):
        console.print(row, markup=False)
    counters = result.counters
    console.print(
        f"{summary.requests_per_s:.2f} requests/s, {summary.tokens_per_s:,.0f} tokens/s, goodput "
        f"{summary.goodput_per_s:.2f}/s; {counters['preemptions']:,.0f} preemptions, engine busy "
        f"{100 * counters['busy_s'] / max(result.simulated_s, 1e-9):.0f} %"
    )
    if summary.errors:
        console.print("did not complete: " + ", ".join(f"{name} {count:,}" for name, count in summary.errors.items()))
    if result.refusals is not None:
        from tailrace.cli.lane_table import print_lanes

        print_lanes(console, result)
    if summary.run:
        console.print(f"run file: {summary.run}")
