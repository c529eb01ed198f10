"""`tailrace engine`: the simulated engine as a real OpenAI server."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

from tailrace.cli.command_app import CommandApp

app = CommandApp()


@app.command(
    epilog="The engine computes nothing: step times come from a model of the GPU, words from a list. A prompt counts "
    'one token for every four characters, unless the body says "tailrace_prompt_tokens". Knobs change at run time '
    "with GET and POST /knobs."
)
def engine(
    preset: Annotated[str, typer.Option(help="Accelerator and model: a100-llama3-8b, h100-llama3-8b.")] = (
        "a100-llama3-8b"
    ),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.", min=0, max=65535)] = 8000,
    model: Annotated[str, typer.Option(help="Name of the served model; it always says simulated.")] = "",
    seed: Annotated[int, typer.Option(help="Of drawn output lengths and words.", min=0)] = 0,
    time_scale: Annotated[float, typer.Option(help="2 runs twice as fast as the preset, 0.5 half as fast.")] = 1.0,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most requests that run at once.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Token budget of a step.")] = None,
    chunked_prefill: Annotated[
        bool | None, typer.Option("--chunked-prefill/--no-chunked-prefill", help="Split long prompts over steps.")
    ] = None,
    long_prefill_token_threshold: Annotated[
        int | None, typer.Option(help="Largest chunk of one prompt in a step; 0 is no limit.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="fcfs or priority (lower number first).")] = None,
    prefix_caching: Annotated[
        bool | None, typer.Option("--prefix-caching/--no-prefix-caching", help="Share equal prompt prefixes.")
    ] = None,
    num_gpu_blocks: Annotated[int | None, typer.Option(help="KV blocks in memory.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens in a KV block.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Most tokens of one request, prompt and output.")] = None,
    stream_interval: Annotated[int, typer.Option(help="Tokens in a stream event.", min=1)] = 1,
    max_num_queued_reqs: Annotated[
        int, typer.Option(help="Refuse (503) beyond this many waiting and running requests; 0: never.", min=0)
    ] = 0,
    reject_in_stream: Annotated[
        bool, typer.Option(help="Refuse streams inside a 200, as vLLM does in a burst.")
    ] = False,
    request_metrics: Annotated[
        bool,
        typer.Option(
            "--request-metrics/--no-request-metrics",
            help="Say each request's queue and prefill in its answer; vLLM does not unless it is told to.",
        ),
    ] = True,
    step_overhead_ms: Annotated[float | None, typer.Option(help="The engine's overhead a step.", min=0.0)] = None,
    sse_keep_alive_interval: Annotated[
        float, typer.Option(help="Seconds between `: keep-alive` comments before the first token; 0: none.", min=0.0)
    ] = 0.0,
    output_median: Annotated[int, typer.Option(help="Median of drawn output lengths (log-normal).", min=2)] = 129,
    output_sigma: Annotated[float, typer.Option(help="Sigma of drawn output lengths.", min=0.0)] = 0.93,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object when ready.")] = False,
) -> None:
    """Serve a simulated inference engine on the OpenAI API, with vLLM's metrics and scheduling knobs.

    Example: tailrace engine --preset a100-llama3-8b --port 8000
    """
    import uvloop

    from tailrace.simserve.options import ServerOptions
    from tailrace.simserve.server import SimulatedServer, serve
    from tailrace.simulate.knobs import EngineKnobs, knobs_from
    from tailrace.simulate.presets import preset as find_preset

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
    knobs: EngineKnobs = knobs_from(find_preset(preset).knobs, given)
    options = ServerOptions(
        preset=preset,
        knobs=knobs,
        host=host,
        port=port,
        seed=seed,
        model=model,
        time_scale=time_scale,
        step_overhead_ms=step_overhead_ms,
        stream_interval=stream_interval,
        max_num_queued_reqs=max_num_queued_reqs,
        reject_in_stream=reject_in_stream,
        per_request_metrics=request_metrics,
        keep_alive_interval_s=sse_keep_alive_interval,
        output_median=output_median,
        output_sigma=output_sigma,
    )

    def ready(server: SimulatedServer) -> None:
        if json_:
            line = json.dumps(
                {"ready": True, "url": server.url, "model": server.model, "simulated": True, "pid": os.getpid()}
            )
        else:
            line = (
                f"Simulated engine ({preset}): no model is loaded, step times are computed.\n"
                f"  OpenAI API  {server.url}/v1   model {server.model}\n"
                f"  metrics     {server.url}/metrics\n"
                f"  knobs       {server.url}/knobs\n"
                "Ctrl-C ends it."
            )
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    uvloop.run(serve(options, on_ready=ready))
