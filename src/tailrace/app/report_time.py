"""The report's plots over time: requests, throughput, what was in flight, errors, the client, the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.counted import failed
from tailrace.analyze.run_series import RunSeries, due_s, run_series, thinned
from tailrace.app.report_markup import Section, figure
from tailrace.figures.over_time import Crosses, Dots, over_time_picture
from tailrace.figures.picture import Picture
from tailrace.figures.run_lines import Line, errors_picture, lines_picture
from tailrace.store.run_file import Run
from tailrace.store.table import RecordTable

__all__ = ["DOTS", "time_section"]

Floats = NDArray[np.float64]

DOTS = 2400
"""Requests drawn in one cloud, all classes together; SVG of more is slow to open on a phone."""
_CROSSES = 400


def time_section(
    run: Run,
    table: RecordTable,
    classes: Mapping[str, NDArray[np.bool_]],
    waited: Callable[[str], Floats],
    late: Floats,
    *,
    scheduled: bool,
) -> Section:
    """`classes`: rows of each; `waited`: a metric of every row (ms), NaN where it did not complete."""
    series = run_series(table)
    if series is None:
        return Section(markup="")
    clouds = [_cloud(table, classes, waited(name), late, name, words) for name, words in _CLOUDS]
    lines = [_throughput(series), _tokens(series), _in_flight(series)]
    if any(values.any() for values in series.failed.values()):
        lines.append(errors_picture(series.middle, series.failed, len(table)))
    lines += [one for one in (_client(run, series, scheduled=scheduled), *_engine(run)) if one is not None]
    markup = "".join(figure("Over time", picture) for picture in clouds)
    markup += f'<div class="pair">{"".join(figure("Over time", picture) for picture in lines)}</div>'
    return Section(markup=markup, pictures=[*clouds, *lines])


_CLOUDS = (("ttft", "time to first token"), ("e2e", "end-to-end time"))


def _cloud(
    table: RecordTable, classes: Mapping[str, NDArray[np.bool_]], values: Floats, late: Floats, name: str, words: str
) -> Picture:
    at = due_s(table)
    total = max(1, int((~np.isnan(values)).sum()))
    dots = []
    for lane, rows in classes.items():
        mine = np.where(rows, values, np.nan)
        n = int((~np.isnan(mine)).sum())
        kept = thinned(mine, max(50, DOTS * n // total))
        dots.append(Dots(lane, at[kept], values[kept], n))
    bad = np.flatnonzero(failed(table))
    drawn = bad if bad.size <= _CROSSES else bad[np.linspace(0, bad.size - 1, _CROSSES).astype(np.int64)]
    ages = table.ms("e2e")[drawn] + late[drawn]
    lost = Crosses(at[drawn], ages, table.column("reason")[drawn].astype(str).tolist(), int(bad.size))
    return over_time_picture(dots, lost, f"time-{name}", words)


def _throughput(series: RunSeries) -> Picture:
    middle = series.middle
    lines = [Line("completed", middle, series.done, fill=True)]
    if series.due is not None:
        lines.append(Line("due", middle, series.due))
    if series.due is None or (series.waiting is not None and series.waiting.max() > 1):
        lines.append(Line("sent", middle, series.sent))
    title = f"At most {series.done.max():,.1f} requests/s completed"
    return lines_picture(
        lines,
        "throughput",
        title,
        "requests/s",
        note=f"Counted in stretches of {series.width_s:g} s, completed ones by their end.",
    )


def _tokens(series: RunSeries) -> Picture:
    title = f"At most {series.tokens.max():,.0f} output tokens/s"
    note = f"A request's tokens are counted in the {series.width_s:g} s in which it ended."
    return lines_picture(
        [Line("tokens/s", series.middle, series.tokens, fill=True)], "tokens", title, "tokens/s", note=note
    )


def _in_flight(series: RunSeries) -> Picture:
    lines = [Line("in flight", series.middle, series.in_flight, fill=True)]
    title = f"At most {series.in_flight.max():,.0f} requests in flight"
    if series.waiting is not None:
        lines.append(Line("due, not sent yet", series.middle, series.waiting))
        if series.waiting.max() > 1:
            title += f", and {series.waiting.max():,.0f} that the client had not sent yet"
    return lines_picture(lines, "in-flight", title, "requests")


def _client(run: Run, series: RunSeries, *, scheduled: bool) -> Picture | None:
    lines = []
    if scheduled and series.late_ms is not None:
        known = ~np.isnan(series.late_ms)
        lines.append(Line("latest send", series.middle[known], series.late_ms[known]))
    for process in sorted({sample.process for sample in run.health}):
        samples = [sample for sample in run.health if sample.process == process]
        name = f" (process {process})" if process else ""
        at = np.array([sample.at_ns / 1e9 for sample in samples])
        lags = np.array([np.nan if one.loop_lag_max_ns is None else one.loop_lag_max_ns / 1e6 for one in samples])
        lines.append(Line(f"event loop late{name}", at, lags))
        cpu = np.array([np.nan if one.cpu_share is None else one.cpu_share for one in samples])
        lines.append(Line(f"cores used{name}", at, cpu, right=True))
    if not lines:
        return None
    return lines_picture(
        lines[:6],
        "client",
        "The load generator's own delays",
        "ms",
        note="Stamps are late by as much as the event loop is. Small against the latencies above, or the numbers are "
        "not the server's.",
        right="cores",
        right_format=".2f",  # a client at ease uses hundredths of a core
    )


def _engine(run: Run) -> list[Picture]:
    if not run.states:
        return []
    at = np.array([state.at_ns / 1e9 for state in run.states])

    def values(name: str) -> Floats:
        return np.array([np.nan if getattr(one, name) is None else float(getattr(one, name)) for one in run.states])

    running, waiting, kv = values("running"), values("waiting"), values("kv_usage")
    title = "What the engine said of itself"
    if not np.isnan(waiting).all():
        title = f"The engine had at most {np.nanmax(waiting):,.0f} requests waiting"
        if not np.isnan(kv).all():
            title += f"; its KV cache was {np.nanmax(kv):.0%} full at most"
    lines = [
        Line("running", at, running),
        Line("waiting", at, waiting),
        Line("KV cache in use", at, kv, right=True),
    ]
    note = "From its own metrics, scraped during the run."
    picture = lines_picture(
        lines, "engine", title, "requests", note=note, right="KV", right_format=".0%", right_top=1.0
    )
    return [] if picture.empty else [picture]
