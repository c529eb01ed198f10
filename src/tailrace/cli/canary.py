"""`tailrace canary`: where a gateway's canary stands, and an operator's commands to it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tailrace.cli.command_app import CommandApp

app = CommandApp()

_ACTIONS = ("status", "pin", "pause", "resume", "promote", "abort")


@app.command()
def canary(
    action: Annotated[str, typer.Argument(help="status, pin, pause, resume, promote or abort.")] = "status",
    url: Annotated[str, typer.Argument(help="The gateway's admin address.")] = "http://127.0.0.1:9480",
    share: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="For pin: the share of the sessions, 0.25 for a quarter.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also while the load is above 80 % of its recent peak.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the gateway answers, as JSON.")] = False,
    token: Annotated[str, typer.Option(envvar="TAILRACE_ADMIN_TOKEN", help="The admin port's bearer token.")] = "",
) -> None:
    """Show a gateway's canary, or steer it.

    `pin` sets the share and keeps it, whatever the comparison says; `pause` keeps the share and widens no further, but
    still rolls back; `resume` goes on with the step (or begins anew after a rollback); `promote` gives it everything;
    `abort` gives it nothing. Requests in flight stay where they are.

    Example: tailrace canary pin http://127.0.0.1:9480 --share 0.25
    """
    import asyncio

    from tailrace.app.canary import ask_canary
    from tailrace.model.errors import InputError

    if action.startswith(("http://", "https://")):
        action, url = "status", action
    if action not in _ACTIONS:
        raise InputError(f"{action!r} is no action", place="ACTION", remedy=f"Use one of {', '.join(_ACTIONS)}.")
    if share is not None and action != "pin":
        raise InputError(f"a share means nothing to `{action}`", place="--share", remedy="Use it with `pin`.")
    asked = "" if action == "status" else action
    answer = asyncio.run(ask_canary(url, token=token, action=asked, share=share, force=force))
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(answer).decode())
        return
    _print(answer)


def _print(answer: dict[str, Any]) -> None:
    view = answer.get("canary")
    if view is None:
        typer.echo(f"No canary: {answer.get('why', 'none is configured')}.")
    else:
        _print_canary(view)
    shadow = answer.get("shadow")
    if shadow is not None:
        typer.echo(f"Shadow: {shadow['share']:.2%} of the requests are copied to {', '.join(shadow['backends'])}")
        if "sent" in shadow:
            ends = ", ".join(f"{count} {name}" for name, count in sorted(shadow["outcomes"].items()))
            ends = f" ({ends})" if ends else ""
            typer.echo(
                f"  {shadow['sent']} copies{ends}, {shadow['skipped']} not made, {shadow['in_flight']} on their way"
            )


def _print_canary(view: dict[str, Any]) -> None:
    typer.echo(f"Canary {view['name']}: {view['state'].replace('_', ' ')}, share {view['share']:.0%}")
    typer.echo(f"  {view['decision']}")
    steps = " > ".join(f"{step:.0%}" for step in view["steps"])
    typer.echo(f"  steps {steps}; {view['step_age_s']:.0f} s of at least {view['hold_s']:.0f} s on this one")
    compared = view["compared"]
    typer.echo(
        f"  compared: {compared['canary']} canary requests (at least {view['min_requests']} to widen), "
        f"{compared['stable']} stable ones"
    )
    if view.get("held_back_by"):
        typer.echo(f"  not widened because {view['held_back_by']}")
    readings = [
        f"{name} {view[key]:.0%}"
        for name, key in (("KV cache", "kv_usage"), ("GPU", "gpu_utilization"))
        if view.get(key) is not None
    ]
    if readings:
        typer.echo(f"  the canary's {', '.join(readings)}")
    typer.echo(f"  can be found: {view['foresight']['text']}")
    for test in view["tests"]:
        typer.echo(f"  {test['test']:10} {test['text']}")
    for event in view["events"][-5:]:
        typer.echo(f"  {event['age_s']:.0f} s ago: {event['kind'].replace('_', ' ')}: {event['text']}")
