"""`tailrace history`: when did it get slower?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.command_app import CommandApp
from tailrace.cli.printable import printable

if TYPE_CHECKING:
    from tailrace.analyze.history import History, MetricHistory

app = CommandApp()

_EXIT_ANSWER = 1
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


@app.command()
def history(
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="Run files, a folder of them, or history files.", show_default=False),
    ] = None,
    file: Annotated[
        str, typer.Option(help="History file: runs that it does not hold are added, and it is read as a whole.")
    ] = "",
    label: Annotated[str, typer.Option(help="What the given runs measured: a commit, a version.")] = "",
    metric: Annotated[
        list[str] | None,
        typer.Option(help="ttft_ms.p99, tokens_per_s, error_rate and so on. Repeatable.", show_default=False),
    ] = None,
    within: Annotated[int, typer.Option(help="A change within so many of the last runs is news.", min=1)] = 5,
    fail_on: Annotated[
        str | None, typer.Option(help="regressed: exit 1 when a level got worse within --within runs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """When did it get slower? The levels of many runs of the same work, and the runs at which they changed.

    Runs of other work (model, load, mix) are histories of their own. A change is looked for from 20 runs on.

    Example: tailrace history nightly.run --file history.jsonl --label 4f2a9c1
    """
    from pathlib import Path

    from tailrace.analyze.history import DEFAULT_METRICS
    from tailrace.analyze.history import as_json as to_json
    from tailrace.analyze.history import history as histories_of
    from tailrace.app.history import collect
    from tailrace.model.errors import InputError

    if fail_on not in (None, "regressed"):
        raise InputError(f"there is no answer {fail_on!r}", place="--fail-on", remedy="Use --fail-on regressed.")
    if not sources and not (file and Path(file).exists()):
        raise InputError("nothing to read", place="history", remedy="Give run files, or --file with a history.")
    points, added = collect(
        sources or (),
        file=Path(file) if file else None,
        label=label,
        on_skipped=lambda why: print(f"left out: {printable(why)}", file=sys.stderr),
    )
    found = histories_of(points, tuple(metric) if metric else DEFAULT_METRICS)
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode({**to_json(found), "added": added}).decode() + "\n")
    else:
        if file:
            print(f"{_runs(added)} new in {file}" if added else f"no new run in {file}")
        for one in found:
            _print(one, within)
    if fail_on and any(one.regressions(within) for one in found):
        raise typer.Exit(_EXIT_ANSWER)


def _print(one: History, within: int) -> None:
    first, last = one.runs[0], one.runs[-1]
    print(f"\n{printable(one.work)}")
    limited = sum(point.limited for point in one.runs)
    aside = f", {limited} client limited and left out of the levels" if limited else ""
    print(f"{_runs(len(one.runs))}, {_day(first.started_unix_ns)} to {_day(last.started_unix_ns)}{aside}")
    names = max(len(metric.metric) for metric in one.metrics)
    news = {name for name, _ in one.regressions(within)}
    for metric in one.metrics:
        known = [value for value in metric.values if value is not None]
        if not known:
            continue
        noise = "" if metric.noise_pct is None else f"  ±{metric.noise_pct:.0f} % a run"
        print(f"  {metric.metric:{names}}  {_spark(metric)}  last {known[-1]:,.4g}{noise}")
        for change in metric.changes:
            mark = "WORSE" if change.worse else "better"
            if metric.metric not in news and change.worse:
                mark = "worse"
            of = f" ({printable(change.label)})" if change.label else ""
            print(
                f"  {'':{names}}  {mark}: {change.before:,.4g} to {change.after:,.4g} ({change.change_pct:+.0f} %) "
                f"since {_day(change.started_unix_ns)}, {printable(change.run)}{of}, {_runs(change.runs_since)}"
            )
    missing = {metric.missing for metric in one.metrics if metric.missing}
    for why in sorted(missing):
        print(f"  no change looked for: {why}")


def _spark(metric: MetricHistory) -> str:
    """The last values as a line of bars; a run that cannot tell is a dot."""
    shown = metric.values[-_WIDTH:]
    known = [value for value in shown if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join("·" if value is None else _BARS[round((value - low) * scale)] for value in shown)


def _runs(n: int) -> str:
    return "1 run" if n == 1 else f"{n} runs"


def _day(unix_ns: int) -> str:
    import time

    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(unix_ns / 1e9))
