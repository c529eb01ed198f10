"""`tailrace explain`: why was this one request slow?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.command_app import CommandApp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.analyze.explanation import Explanation
    from tailrace.cli.console import Console

app = CommandApp()

_WIDTH = 72


@app.command()
def explain(
    request_id: Annotated[
        str, typer.Argument(help="Its id, ours or the client's; `worst`: the longest wait that there was.")
    ],
    source: Annotated[
        str, typer.Argument(help="A gateway's data directory or admin URL, a run file, records as JSON lines.")
    ] = "tailrace-data",
    partial: Annotated[bool, typer.Option("--partial", help="Use what a cut run file still holds.")] = False,
    token: Annotated[str, typer.Option(help="Bearer token of the admin port.", envvar="TAILRACE_ADMIN_TOKEN")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """One request: its stages, when it waited and for whom, the engine then, and a normal request like it.

    Example: tailrace explain worst before.run
    """
    from tailrace.app.explain import explain_request

    told = explain_request(request_id, source, token=token, partial=partial)
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    else:
        _print(told)


def _print(told: Explanation) -> None:
    from tailrace.cli.console import Console

    console = Console(soft_wrap=True, highlight=False)

    def line(text: str, style: str | None = None) -> None:
        console.put(text, style=style)

    known = f" ({', '.join(told.slow)} slow)" if told.slow else ""
    how = told.outcome + (f", {told.reason}" if told.reason and told.reason != "none" else "")
    line(f"{told.request_id}: {how} in {told.e2e_ms:,.0f} ms{known}", "bold")
    line("  " + _work(told))
    for sentence in told.sentences:
        line(f"  {sentence}")
    _timeline(console, told)
    for head, rows in _tables(told):
        line("")
        line(f"  {head}", "dim")
        for row in rows:
            line(f"  {row}")
    line("")
    for fact in _facts(told):
        line(f"  {fact}")


def _tables(told: Explanation) -> Iterator[tuple[str, list[str]]]:
    """(head, rows) of what is laid out in columns."""
    if told.stages:
        head = f"{'stage':<14}{'ms':>12}{'alike':>12}  known from"
        yield (
            head,
            [f"{one.stage:<14}{one.ms:>12,.1f}{_or_blank(one.alike_ms):>12}  {one.source}" for one in told.stages],
        )
    for wait in told.waits:
        if wait.neighbours:
            yield (
                f"during the {wait.kind} of {wait.length_ms:,.0f} ms at {wait.begin_ms:,.0f} ms, prompts of:",
                [
                    f"{one.request_id}  lane {one.lane}, {_tokens(one.prompt_tokens)} tokens, {one.begin_ms:,.0f} to "
                    f"{one.end_ms:,.0f} ms ({one.inside_ms:,.0f} ms inside)  [{one.source}]"
                    for one in wait.neighbours
                ],
            )


def _facts(told: Explanation) -> Iterator[str]:
    if told.engine_state:
        yield "the engine: " + ", ".join(_state(told.engine_state))
    yield f"under way when it began: {told.others_under_way} others"
    if told.alike is not None:
        alike = told.alike
        ttft = "" if alike.ttft_ms is None else f", TTFT {alike.ttft_ms:,.0f} ms"
        yield (
            f"alike: {alike.request_id}, {_tokens(alike.prompt_tokens)} -> {_tokens(alike.output_tokens)} tokens"
            f"{ttft}, E2E {alike.e2e_ms:,.0f} ms, began {abs(alike.seconds_away):,.1f} s "
            f"{'later' if alike.seconds_away > 0 else 'earlier'}"
        )
    for lack in told.missing:
        yield f"missing: {lack}"


def _work(told: Explanation) -> str:
    parts = [f"lane {told.lane}", f"{_tokens(told.prompt_tokens)} -> {_tokens(told.output_tokens)} tokens"]
    if told.cached_tokens:
        parts.append(f"{told.cached_tokens:,} cached")
    if told.ttft_ms is not None:
        parts.append(f"TTFT {told.ttft_ms:,.0f} ms")
    if told.tpot_ms is not None:
        parts.append(f"TPOT {told.tpot_ms:,.1f} ms")
    parts += [f"{name} {value}" for name, value in (("backend", told.backend), ("tenant", told.tenant)) if value]
    return ", ".join(parts)


def _or_blank(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _tokens(count: float | None) -> str:
    return "?" if count is None else f"{count:,.0f}"


def _state(seen: dict[str, float]) -> list[str]:
    out = []
    for name, value in seen.items():
        words = name.replace("_at_", " at ").replace("_", " ")
        out.append(f"{words} {value:.0%}" if name.startswith("kv") else f"{words} {value:,.0f}")
    return out


def _timeline(console: Console, told: Explanation) -> None:
    """Its life in one line: `.` before the first token, `|` where tokens came, blank where none did, `#` in a wait."""
    if not told.marks or told.e2e_ms <= 0:
        return
    scale = _WIDTH / told.e2e_ms
    cells = [" "] * _WIDTH
    stamps = [at for at, kind in told.marks if kind == "token"]
    for cell in range(min(_WIDTH, round(stamps[0] * scale)) if stamps else _WIDTH):
        cells[cell] = "."
    for wait in told.waits:
        if wait.kind == "gap":
            for cell in range(round(wait.begin_ms * scale), round((wait.begin_ms + wait.length_ms) * scale)):
                cells[min(cell, _WIDTH - 1)] = "#"
    for at in stamps:
        cells[min(int(at * scale), _WIDTH - 1)] = "|"
    console.print("")
    console.print(f"  0 {''.join(cells)} {told.e2e_ms:,.0f} ms", markup=False)
    console.print("    . before the first token   | tokens   # stood still", style="dim", markup=False)
