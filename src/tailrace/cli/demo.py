"""`tailrace demo`: the whole story in a minute and a half, without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.command_app import CommandApp

if TYPE_CHECKING:
    from tailrace.app.demo import DemoResult

app = CommandApp()

_EXIT_LIMITED = 3
_EXIT_INTERRUPTED = 130


@app.command()
def demo(
    engine: Annotated[
        str, typer.Option(help="simulated, or llamacpp: a real SmolLM2-135M (extra `llamacpp`).")
    ] = "simulated",
    preset: Annotated[
        str, typer.Option(help="Accelerator and model: a100-llama3-8b, h100-llama3-8b.")
    ] = "a100-llama3-8b",
    seed: Annotated[int, typer.Option(help="Of arrivals and lengths; both arms have the same.", min=0)] = 0,
    mix: Annotated[str | None, typer.Option(help="Classes and weights, as `tailrace bench --mix` reads them.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    duration: Annotated[
        str | None, typer.Option(help="Length of each of the two arms; 42s on the simulated engine.")
    ] = None,
    fault: Annotated[
        bool, typer.Option(help="--no-fault starts the engine as the fix would leave it: nothing to find.")
    ] = True,
    leave: Annotated[bool, typer.Option("--exit", help="End when the story is told; close the page.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; implies --exit.")] = False,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print the JSON Schema of that object, and end.")
    ] = False,
) -> None:
    """Show a bad tail, find its cause, fix it, prove the fix; the dashboard stays open.

    An engine with a realistic fault runs under mixed load behind a Tailrace gateway. The fix that the diagnosis advises
    is applied, and the same arrivals are sent again.

    Example: tailrace demo --seed 7 --preset h100-llama3-8b
    """
    from tailrace.app.contracts import schema_of
    from tailrace.app.demo import DemoInterrupted, DemoOptions, DemoResult, run_demo
    from tailrace.app.interrupt import run_until_interrupted
    from tailrace.cli.durations import parse_span

    if json_schema:
        import json

        typer.echo(json.dumps(schema_of(DemoResult), indent=2))
        return
    options = DemoOptions(
        engine=engine,
        preset=preset,
        seed=seed,
        mix=mix,
        rate=rate,
        duration_ns=None if duration is None else parse_span(duration, place="--duration"),
        fault=fault,
    )
    from tailrace.cli.story import Storyteller

    teller = Storyteller(to_stderr=as_json)
    stay = not (leave or as_json)

    async def story(stop: Any) -> DemoResult:
        async def keep_open(_result: DemoResult) -> None:
            teller.page_stays_open()
            await stop.wait()

        return await run_demo(
            options,
            tell=teller.tell,
            stop=stop,
            on_progress=teller.progress,
            until=keep_open if stay else None,
        )

    try:
        result, interrupted = run_until_interrupted(story)
    except DemoInterrupted as error:
        import sys

        sys.stderr.write(f"tailrace demo: {error}\n")
        raise typer.Exit(_EXIT_INTERRUPTED) from None
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(result).decode())
    arms = [arm for arm in (result.baseline, result.candidate) if arm is not None]
    if any(arm.client.limited for arm in arms):
        raise typer.Exit(_EXIT_LIMITED)
    if interrupted and not stay:
        raise typer.Exit(_EXIT_INTERRUPTED)
