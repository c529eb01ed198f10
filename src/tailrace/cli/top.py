"""`tailrace top`: a gateway in the terminal, live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.command_app import CommandApp

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from tailrace.app.top import Frame, GatewayWatch

app = CommandApp()

_LETTERS = {
    "ingress": "i",
    "queue.gateway": "g",
    "queue.engine": "q",
    "queue": "w",
    "preprocess": "r",
    "encode": "n",
    "prefill": "p",
    "decode": "d",
    "model": "m",
    "postprocess": "o",
    "response": "s",
    "unattributed": "u",
}
"""A stage's sign in a bar without colour."""


@app.command()
def top(
    url: Annotated[str, typer.Argument(help="The gateway's admin address.")] = "http://127.0.0.1:9480",
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one frame as JSON and end.")] = False,
    window: Annotated[int, typer.Option(min=5, max=3600, help="Seconds that the numbers are over.")] = 60,
    every: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 2.0,
    token: Annotated[str, typer.Option(envvar="TAILRACE_ADMIN_TOKEN", help="The admin port's bearer token.")] = "",
) -> None:
    """Watch a gateway: rates, percentiles with their n, stages, lanes, requests in flight, slow and failed ones.

    Example: tailrace top http://127.0.0.1:9480
    """
    import asyncio

    from rich.console import Console

    from tailrace.app.top import GatewayWatch

    watch = GatewayWatch(url, window_s=float(window), token=token)
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(asyncio.run(_once(watch))).decode())
        return
    # Foreign text is no markup.
    console = Console(highlight=False, markup=False, emoji=False)
    if once or not console.is_terminal:
        console.print(render(asyncio.run(_once(watch)), console, rows=8))
        return
    try:
        asyncio.run(_follow(watch, console, every))
    except KeyboardInterrupt:
        # How a person leaves a viewer: nothing was interrupted. The live display has put the terminal back.
        raise typer.Exit(0) from None


async def _once(watch: GatewayWatch) -> Frame:
    async with watch:
        return await watch.look()


async def _follow(watch: GatewayWatch, console: Console, every: float) -> None:
    import asyncio

    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from tailrace.model.errors import TargetError

    async with watch:
        # The first look may fail for good: a wrong address is told before the screen is taken.
        frame = await watch.look()
        lost: float | None = None
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                body = render(frame, console, rows=max(3, (console.height - 24) // 2))
                if lost is not None:
                    since = time.strftime("%H:%M:%S", time.localtime(lost))
                    notice = f"{watch.url} does not answer since {since}; what is shown is from then. Asking again."
                    body = Group(Text(notice, style="bold white on red"), body)
                live.update(body, refresh=True)
                await asyncio.sleep(every)
                try:
                    frame, lost = await watch.look(), None
                except TargetError:
                    lost = lost or time.time()  # noqa: TID251  (shown to a person)


def render(frame: Frame, console: Console, *, rows: int) -> RenderableType:
    """One frame; `rows` bounds the two lists of requests."""
    from rich.console import Group
    from rich.text import Text

    width = console.width
    parts: list[Any] = [*_flow(_header(frame), width), *_flow(_answer(frame), width), Text(), _metrics(frame), Text()]
    parts += [
        *_stages(frame, console),
        Text(),
        _lanes(frame),
        *_flow(_beside(frame), width),
        Text(),
        *_streams(frame, rows),
        Text(),
    ]
    parts += _recent(frame, rows)
    return Group(*parts)


def _flow(items: list[Text], width: int, *, indent: int = 0, gap: int = 3) -> list[Text]:
    """The items in as many lines as they need: a line is broken between items, never inside one."""
    from rich.text import Text

    lines = [Text(" " * indent)]
    for item in items:
        if lines[-1].cell_len > indent and lines[-1].cell_len + gap + item.cell_len > width:
            lines.append(Text(" " * indent))
        if lines[-1].cell_len > indent:
            lines[-1].append(" " * gap)
        lines[-1].append_text(item)
    return lines


def _header(frame: Frame) -> list[Text]:
    from rich.text import Text

    items = [Text.assemble(("Tailrace", "bold"), f"  {frame.url}"), Text(f"→ {_safe(frame.upstream)}", "dim")]
    engine = " ".join(part for part in (frame.engine, frame.engine_version) if part and part != "unknown")
    if engine:
        items.append(Text(_safe(engine)))
    if frame.simulated:
        items.append(Text(" simulated engine ", "black on yellow"))
    if frame.engine_reachable is False:
        items.append(Text(" engine does not answer ", "bold white on red"))
    if frame.uptime_s is not None:
        items.append(Text(f"up {_span(frame.uptime_s)}", "dim"))
    return items


def _answer(frame: Frame) -> list[Text]:
    from rich.text import Text

    from tailrace.figures.wording import ABSENT, count, percent

    summary = frame.summary
    rate = ABSENT if summary.requests_per_s is None else f"{summary.requests_per_s:.2f}"
    tokens = ABSENT if summary.tokens_per_s is None else f"{summary.tokens_per_s:,.0f}"
    share = f" ({percent(summary.failed / summary.n)})" if summary.n else ""
    items = [
        Text(f"{rate} requests/s", "bold"),
        Text(f"{tokens} tokens/s"),
        Text(f"{count(summary.n)} ended in {frame.window_s:.0f} s"),
        Text(f"errors {count(summary.failed)}{share}", "bold red" if summary.failed else ""),
        Text(f"cancelled {count(summary.cancelled)}"),
        Text(f"in flight {ABSENT if frame.in_flight is None else count(frame.in_flight)}", "bold"),
    ]
    dropped = sum(frame.dropped.values())
    if dropped:
        by_class = ", ".join(f"{name} {count(number)}" for name, number in frame.dropped.items() if number)
        items.append(Text(f"{count(dropped)} RECORDS DROPPED ({by_class})", "bold white on red"))
    if frame.limited:
        items.append(Text("more ended than were read: the newest are shown", "bold red"))
    return items


def _table(*columns: str, title: str) -> Table:
    """A plain table; columns that end in `>` are numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(
            name.rstrip(">"), justify="right" if name.endswith(">") else "left", no_wrap=True, header_style="dim"
        )
    return table


def _metrics(frame: Frame) -> Table:
    from tailrace.figures.wording import count, duration

    table = _table("", "n>", "p50>", "p95>", "p99>", "longest>", "", title="Latency of completed requests")
    for name in ("ttft", "tpot", "e2e"):
        metric = frame.summary.metrics[f"{name}_ms"]
        note = f"a p99 needs n ≥ {metric.p99_needs}" if metric.n and metric.p99_needs else ""
        numbers = (duration(value) for value in (metric.p50, metric.p95, metric.p99, metric.max))
        table.add_row(name.upper(), count(metric.n), *numbers, note)
    return table


def _stages(frame: Frame, console: Console) -> list[RenderableType]:
    from rich.text import Text

    from tailrace.figures.palette import stage_color, stage_pattern
    from tailrace.figures.wording import METRIC_NAMES, duration, percent

    groups = frame.stages.groups
    title = Text(f"Where the {METRIC_NAMES[frame.stages.total]} went", style="bold")
    if not groups:
        return [title, Text("No request has completed in this window.", style="dim")]
    colored = console.color_system is not None
    width = max(20, min(console.width, 140) - 36)
    longest = max(group.total_ms for group in groups) or 1.0
    out: list[RenderableType] = [title]
    for group in groups:
        label = {"mean": "mean", "p50": "around p50", "p99": "around p99", "slowest": "slowest"}[group.name]
        line = Text(f"{label:<11} n {group.rows:<6,} ")
        place = 0.0
        for stage, ms in group.stages_ms.items():
            # Ends are rounded, not lengths, so that the bar as a whole is as long as its total.
            start, place = round(place), place + width * ms / longest
            sign = ("▒" if stage_pattern(stage) else "█") if colored else _LETTERS.get(stage, "?")
            line.append(sign * (round(place) - start), stage_color(stage, "dark"))
        line.append(f" {duration(group.total_ms)}")
        out.append(line)
    tail = groups[-1]
    legend: list[Text] = []
    for stage, ms in tail.stages_ms.items():
        sign = ("▒" if stage_pattern(stage) else "█") if colored else _LETTERS.get(stage, "?")
        share = percent(ms / tail.total_ms if tail.total_ms else 0)
        legend.append(Text.assemble((f"{sign} ", stage_color(stage, "dark")), f"{stage} {share}"))
    return [*out, *_flow(legend, console.width, indent=20, gap=2)]


def _lanes(frame: Frame) -> Table:
    from tailrace.figures.wording import ABSENT, count, duration

    def of(number: int | None, limit: int | None) -> str:
        if number is None:
            return ABSENT
        return count(number) if limit is None else f"{count(number)} of {count(limit)}"

    table = _table("lane", "running>", "queued>", "longest wait>", "next would wait>", "order", title="Lanes")
    for name, lane in frame.lanes.items():
        queued = lane.get("queued")
        table.add_row(
            _safe(name),
            of(lane.get("running"), lane.get("running_limit")),
            of(queued, lane.get("queued_limit")),
            duration(lane.get("oldest_wait_ms")) if queued else ABSENT,
            duration(lane.get("predicted_wait_ms")) if queued else ABSENT,
            str(lane.get("order", ABSENT)).replace("_", " "),
            style="yellow" if queued else "",
        )
    if not frame.lanes:
        table.add_row("no lane has been used yet", style="dim")
    return table


def _beside(frame: Frame) -> list[Text]:
    """What is given up, where the canary stands, what is with each engine, what the cache saved: where there is any."""
    from rich.text import Text

    from tailrace.figures.wording import count

    out: list[Text] = []
    if frame.given_up:
        out.append(
            Text(f"degraded: {', '.join(map(_safe, frame.given_up))}; why: GET /degradation", style="bold yellow")
        )
    if frame.canary:
        out.append(Text(f"canary: {_safe(frame.canary)}"))
    if len(frame.backends) > 1:
        for name, load in frame.backends.items():
            requests, tokens = load.get("outstanding_requests", 0), load.get("outstanding_tokens", 0)
            out.append(Text(f"{_safe(name)}: {count(requests)} requests, {count(tokens)} tokens"))
    if frame.cache:
        served = sum(frame.cache.get(key, 0) for key in ("hits", "semantic", "shared"))
        asked = served + frame.cache.get("misses", 0)
        held = frame.cache.get("bytes", 0) / 2**20
        kept = f"{count(frame.cache.get('entries', 0))} answers kept, {held:.1f} MiB"
        out.append(Text(f"cache: {count(served)} of {count(asked)} requests, {kept}"))
    return out


def _streams(frame: Frame, rows: int) -> list[RenderableType]:
    from rich.text import Text

    from tailrace.figures.palette import stage_color
    from tailrace.figures.wording import count, duration

    table = _table("age>", "stage", "tokens>", "lane", "model", "request", title="In flight, oldest first")
    for stream in frame.streams[:rows]:
        stage = str(stream.get("stage", ""))
        table.add_row(
            duration(stream.get("age_ms")),
            Text(_safe(stage), style=stage_color(stage, "dark")),
            count(stream.get("tokens", 0)),
            _safe(stream.get("lane", "")),
            _safe(stream.get("model", "")),
            _safe(stream.get("request_id", "")),
        )
    if not frame.streams:
        table.add_row("", "none", style="dim")
    more = len(frame.streams) - rows
    return [table, Text(f"and {count(more)} more", style="dim")] if more > 0 else [table]


def _recent(frame: Frame, rows: int) -> list[RenderableType]:
    from rich.text import Text

    from tailrace.figures.wording import count, duration

    table = _table("ended", "what", "TTFT>", "end to end>", "lane", "request", title="Slow and failed, newest first")
    for one in frame.recent[:rows]:
        if one.outcome == "completed":
            what = Text(f"slow: {', '.join(one.slow)}", style="yellow")
        else:
            where = f" in {one.died_in}" if one.died_in else ""
            what = Text(_safe(f"{one.outcome.replace('_', ' ')}: {one.reason}{where}"), style="red")
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(one.ended_unix_ms / 1000)),
            what,
            duration(one.ttft_ms),
            duration(one.e2e_ms),
            _safe(one.lane),
            _safe(one.request_id),
        )
    if not frame.recent:
        table.add_row("", "none in this window", style="dim")
    more = len(frame.recent) - rows
    return [table, Text(f"and {count(more)} more", style="dim")] if more > 0 else [table]


def _safe(text: object) -> str:
    """Foreign text, shortened, without control characters: those would steer the terminal."""
    return "".join(char if char.isprintable() else "?" for char in str(text)[:80])


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
