"""`tailrace bench`: load a server and record every event's time."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli import bench_work_options as work_options
from tailrace.cli.bench_load import DEFAULT_CONCURRENCY, DEFAULT_DURATION, MOST_SEED, Load
from tailrace.cli.bench_result import Results, interruptible, run
from tailrace.cli.bench_server import Server
from tailrace.cli.bench_sweep import Sweeping, run_many
from tailrace.cli.bench_traits import TraitOptions
from tailrace.cli.bench_work import Work
from tailrace.cli.command_app import CommandApp
from tailrace.cli.trace_workload import TraceOptions
from tailrace.cli.trim import HELP as TRIM_HELP

app = CommandApp()

_LOAD, _WORK, _SERVER, _RESULT = "How much", "Which requests", "Whom to ask", "Results"
_MANY = "Many loads"


@app.command()
def bench(
    url: Annotated[str, typer.Argument(help="Base URL (with or without /v1), or the whole URL of an endpoint.")],
    rate: Annotated[
        str | None,
        typer.Option(
            help="Open loop: requests a second, at absolute times: 5, '2..20 over 60s', '5 for 30s, 20 for 10s, 5', "
            "'5, spike 50 for 2s every 30s', or @FILE with rows of seconds,rate.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            help=f"Closed loop: so many at once (default {DEFAULT_CONCURRENCY} without --rate); '1..32 over 60s': they "
            "come in over time. With --rate: the most that may be in flight.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", "--total", help="End after so many; every turn counts.", rich_help_panel=_LOAD),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            help=f"Stop sending after this (60, 90s, 5m); default {DEFAULT_DURATION} without --requests.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    arrival: Annotated[
        str | None,
        typer.Option(
            help="poisson (default with --rate), constant, 'gamma 0.3' (burstiness), or the sum of many clients: "
            "'50 clients zipf 1.1, gamma 0.3'.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(help="Shape of gamma arrivals: 1 is Poisson, below 1 burstier.", rich_help_panel=_LOAD),
    ] = None,
    warmup: Annotated[
        str,
        typer.Option(help="Requests (10) or time (5s) before the measured part.", rich_help_panel=_LOAD),
    ] = "0",
    processes: Annotated[
        str,
        typer.Option(
            help="Processes that generate it: a number, or auto (as many as it asks for).", rich_help_panel=_LOAD
        ),
    ] = "auto",
    seed: Annotated[
        int, typer.Option(help="Same seed, same arrivals and lengths.", rich_help_panel=_LOAD, min=0, max=MOST_SEED)
    ] = 0,
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
            help="A recorded trace (Azure, BurstGPT, ServeGen or any CSV, Mooncake JSON lines, nginx access log, run "
            "file, records, data directory): its times, or its lengths under --rate or --concurrency.",
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
    trace_columns: Annotated[
        str | None,
        typer.Option(
            help="Which columns of a CSV: time=arrived_ms,prompt=in_tok,output=out_tok.", rich_help_panel=_WORK
        ),
    ] = None,
    shared_prefix: Annotated[
        int,
        typer.Option(
            help="Tokens that all prompts begin with. 0: unique, so that no prefix cache answers.",
            rich_help_panel=_WORK,
            min=0,
            max=1_000_000,
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
    endpoint: work_options.Endpoint = "",
    template: work_options.TemplateFile = None,
    dialect: work_options.DialectName = "",
    prompt: work_options.Prompt = None,
    max_tokens: work_options.MaxTokens = None,
    natural: work_options.Natural = False,
    tokenizer: work_options.TokenizerPath = "",
    turns: work_options.TurnCount = None,
    think: work_options.ThinkTime = None,
    conversations: work_options.Conversations = None,
    prefix_pool: work_options.PrefixPool = None,
    prefix_hit: work_options.PrefixHit = None,
    prefix_zipf: work_options.PrefixZipf = 0.0,
    cancel: work_options.Cancel = None,
    audio: work_options.AudioLength = None,
    audio_file: work_options.AudioFile = None,
    batch: work_options.Batch = 1,
    workload: work_options.WorkloadFile = None,
    repeat: work_options.Repeat = False,
    records: work_options.Records = None,
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
    connections: Annotated[
        str,
        typer.Option(help="reuse (kept alive), or new: one for each request.", rich_help_panel=_SERVER),
    ] = "reuse",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept any TLS certificate.", rich_help_panel=_SERVER)
    ] = False,
    scrape_every: Annotated[
        str,
        typer.Option(help="How often the engine's metrics are read during the run; 0: never.", rich_help_panel=_SERVER),
    ] = "1s",
    metrics_url: Annotated[
        str, typer.Option(help="Where they are, when not at the server's /metrics.", rich_help_panel=_SERVER)
    ] = "",
    sweep: Annotated[
        str | None,
        typer.Option(
            help="One run after the other: 'rate=1,2,4,8', 'concurrency=1..32' (doubling), 'rate=1..32 in 8'. --out is "
            "a new directory.",
            rich_help_panel=_MANY,
        ),
    ] = None,
    find_rate: Annotated[
        bool,
        typer.Option(
            "--find-rate",
            help="Search the highest rate that meets every --objective, with its interval.",
            rich_help_panel=_MANY,
        ),
    ] = False,
    find_concurrency: Annotated[
        bool, typer.Option("--find-concurrency", help="The same for requests at once.", rich_help_panel=_MANY)
    ] = False,
    search_time: Annotated[
        str, typer.Option(help="How long the search may take in all.", rich_help_panel=_MANY)
    ] = "10m",
    search_from: Annotated[
        float | None, typer.Option(help="The first load of a search (default 1).", rich_help_panel=_MANY)
    ] = None,
    search_most: Annotated[
        float | None, typer.Option(help="The highest load that a search may try.", rich_help_panel=_MANY)
    ] = None,
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
    trim: Annotated[str | None, typer.Option(help=TRIM_HELP, rich_help_panel=_RESULT)] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="errors: exit 1 when any request did not complete; objectives: when one is missed, and 3 when the "
            "requests are too few to say.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    junit: Annotated[
        str | None, typer.Option(help="Also write JUnit test cases to this file.", rich_help_panel=_RESULT)
    ] = None,
    as_tool: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="Beside ours, the numbers as another tool defines them: vllm, sglang, guidellm, aiperf, ....",
            rich_help_panel=_RESULT,
        ),
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
    with interruptible():
        from tailrace.app.outputs import refuse_to_replace
        from tailrace.cli.bench_spec import spec_of

        if out is not None:
            refuse_to_replace(out, [trace, workload, records], option="--out")
        if records is not None and rate is None and concurrency is None and trace is None:
            from tailrace.cli.bench_records import suggested_concurrency

            concurrency = str(suggested_concurrency(records))
        load = Load(
            rate=rate,
            concurrency=concurrency,
            requests=requests,
            duration=duration,
            arrival=arrival,
            burstiness=burstiness,
            warmup=warmup,
            processes=processes,
            seed=seed,
        )
        work = Work(
            mix=mix,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens or max_tokens,
            trace=None if trace is None else TraceOptions(trace, trace_speed, trace_from, trace_to, trace_columns),
            shared_prefix=shared_prefix,
            stream=stream,
            ignore_eos=ignore_eos and not natural,
            extra_body=extra_body,
            chars_per_token=chars_per_token,
            traits=TraitOptions(
                turns=turns,
                think=think,
                conversations=conversations is not None,
                shared_prefix=shared_prefix,
                prefix_pool=prefix_pool,
                prefix_hit=prefix_hit,
                prefix_zipf=prefix_zipf,
                cancel=tuple(cancel or ()),
                audio=audio,
                batch=batch,
            ),
            endpoint=endpoint,
            template=template,
            dialect=dialect,
            prompt=prompt,
            conversations=conversations,
            tokenizer=tokenizer,
            audio_files=tuple(audio_file or ()),
            file=workload,
        )
        server = Server(
            url=url,
            model=model,
            api_key=api_key,
            header=header or [],
            timeout=timeout,
            first_token_timeout=first_token_timeout,
            idle_timeout=idle_timeout,
            connect_timeout=connect_timeout,
            connections=connections,
            insecure=insecure,
            metrics_url=metrics_url,
            scrape_every=scrape_every,
        )
        results = Results(
            objective=objective or [],
            out=out,
            fail_on=fail_on,
            as_json=as_json,
            as_tool=as_tool,
            trim=trim,
            junit=junit,
        )
        results.check()
        spec = spec_of(load, work, server, results)
        sweeping = Sweeping(sweep, find_rate, find_concurrency, search_time, search_from, search_most)
        if sweeping.asked():
            _refuse_beside("--sweep", "--repeat" if repeat else results.of_one_run())
            run_many(spec, sweeping, results, processes=load.process_count())
        elif repeat:
            _refuse_beside("--repeat", results.of_one_run())
            from tailrace.cli.bench_repeat import run_repeat

            run_repeat(spec, results)
        else:
            run(spec, results, processes=load.process_count())


def _refuse_beside(what: str, option: str) -> None:
    """Raise `InputError` for an option that `what` would leave without effect."""
    from tailrace.model.errors import InputError

    if option:
        raise InputError(
            f"{option} is for a single run, not for --sweep, --find-rate, --find-concurrency or --repeat",
            place=what,
            remedy=f"Leave out {option}",
        )
