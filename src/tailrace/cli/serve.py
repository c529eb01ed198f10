"""`tailrace serve`: the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.command_app import CommandApp

if TYPE_CHECKING:
    from tailrace.gateway.config import Config

app = CommandApp()


@app.command(
    help="Put the gateway in front of an engine: one record a request, dashboards, lanes, budgets.\n\n"
    "Example: tailrace serve --upstream http://localhost:8000"
)
def serve(
    upstream: Annotated[str | None, typer.Option(metavar="URL", help="the engine's base address")] = None,
    config: Annotated[str | None, typer.Option("--config", "-c", metavar="FILE", help="YAML configuration")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="data port [127.0.0.1:8080]")] = None,
    admin: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="admin port [127.0.0.1:9480]")] = None,
    data_dir: Annotated[str | None, typer.Option(metavar="DIR", help="where records are kept [tailrace-data]")] = None,
    engine: Annotated[
        str | None, typer.Option(help="auto, vllm, llamacpp, sglang, triton, tgi, tensorrt_llm, dynamo or openai")
    ] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="processes that share the data port [1]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON line when ready")] = False,
) -> None:
    """Check the input, then serve until SIGINT or SIGTERM."""
    from tailrace.app.serve_settings import settings_from

    def read() -> Config:
        return settings_from(
            upstream=upstream,
            file=config,
            listen=listen,
            admin=admin,
            data_dir=data_dir,
            engine=engine,
            workers=workers,
        )

    settings = read()

    from tailrace.app.serve import ServeOptions
    from tailrace.app.serve import serve as run

    run(ServeOptions(config=settings, reload=read if config is not None else None, json=as_json))
