"""The report of one run, as sections of the page: the answer first, then who and what, then how it came about."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.absent import without_absent
from tailrace.analyze.attainment import ALL
from tailrace.analyze.bench_summary import summarise
from tailrace.analyze.buckets import LengthCell, tail_by_length
from tailrace.analyze.counted import completed, failed, measured_rows
from tailrace.analyze.failures import failures_by_stage
from tailrace.analyze.gaps import longest_wait_ms, pooled_gaps
from tailrace.analyze.stage_groups import stage_groups
from tailrace.analyze.steady import Trim, window_of
from tailrace.app.report_conditions import client_banner, conditions_card, problem_banner
from tailrace.app.report_markup import ABSENT, Cell, Section, card, facts, figure, ms, text
from tailrace.app.report_slowest import slowest_section
from tailrace.app.report_tables import attainment_table, bucket_table, class_table, metric_table, rate_table
from tailrace.app.report_time import time_section
from tailrace.figures.decomposition import decomposition_picture
from tailrace.figures.failures import failures_picture
from tailrace.figures.log_tail import Curve, log_tail_picture
from tailrace.figures.picture import Picture
from tailrace.figures.tail_by_length import tail_picture
from tailrace.figures.wording import count, percent
from tailrace.model.measurement import BenchSummary, MetricSummary
from tailrace.model.stage import Stage
from tailrace.store.run_file import Run

__all__ = ["run_sections"]

Floats = NDArray[np.float64]

_WAITS = ("ttft_ms", "e2e_ms")
"""Of these the failures are counted in a second row, once: of the origin that is the headline."""
MOST_CLASSES = 6
"""Drawn apart; smaller ones are one group."""
_SPLIT = frozenset({Stage.QUEUE, Stage.PREPROCESS, Stage.ENCODE, Stage.PREFILL, Stage.MODEL})
"""Stages that nobody can know from the client's side alone."""


class Looked:
    """A run with what all sections need of it, worked out once."""

    def __init__(self, run: Run, trim: Trim | None) -> None:
        self.run = run
        whole = run.table()
        trailer = run.trailer
        summary = summarise(
            whole,
            name=run.path,
            objectives=run.header.objectives,
            client=trailer.client if trailer else None,
            duration_s=trailer.duration_s if trailer else None,
            trim=trim,
        )
        self.summary = without_absent(summary, run.header)
        self.absent = frozenset(run.header.absent)
        rows = np.flatnonzero(measured_rows(whole))
        if trim is not None and rows.size:
            rows = rows[window_of(whole.where(rows), trim).rows]
        self.table = whole.where(rows)
        self.records = [run.records[place] for place in rows.tolist()]
        late = self.table.column("intended_to_sent_ns") / 1e6
        self.scheduled = not bool(np.isnan(late).all())
        self.late: Floats = np.nan_to_num(late)
        self.done_rows = completed(self.table)
        self.done = self.table.where(self.done_rows)
        self.lost = failed(self.table)
        self.classes = self._classes()

    def _classes(self) -> dict[str, NDArray[np.bool_]]:
        """Class -> rows of the table, the largest first; what is over is one class of its own."""
        lanes = self.table.column("lane").astype(str)
        names, sizes = np.unique(lanes, return_counts=True)
        ranked = [str(names[place]) for place in np.argsort(-sizes, kind="stable")]
        out = {name: (lanes == name).astype(bool) for name in ranked[:MOST_CLASSES]}
        if len(ranked) > MOST_CLASSES:
            out["other classes"] = np.isin(lanes, ranked[MOST_CLASSES:])
        return out

    @property
    def origin(self) -> str:
        """What latencies of the headline count from."""
        return "from the intended time" if self.scheduled else "from the send"

    def waited(self, metric: str) -> Floats:
        """A metric of every row, from the headline's origin (ms); NaN where it did not complete or nobody told it."""
        if f"{metric}_ms" in self.absent:
            return np.full(len(self.table), np.nan)
        values = self.table.ms(metric) + (self.late if metric != "tpot" else 0.0)
        return np.where(self.done_rows, values, np.nan)


def run_sections(run: Run, trim: Trim | None = None, *, joined: bool = False) -> tuple[list[Section], BenchSummary]:
    """Everything on the page of a run, and the summary that it shows. `joined`: with a gateway's records beside it."""
    seen = Looked(run, trim)
    sections = [
        Section(markup=f"{problem_banner(run)}{client_banner(run, seen.summary.client)}"),
        _answer(seen),
        _headline(seen),
        _classes(seen),
        Section(markup=conditions_card(run)),
        _lengths(seen),
        _distributions(seen),
        time_section(seen.run, seen.table, seen.classes, seen.waited, seen.late, scheduled=seen.scheduled),
        _gaps(seen),
        _stages(seen, joined=joined),
        _failures(seen),
        _slowest(seen),
    ]
    return [section for section in sections if section.markup], seen.summary


def _answer(seen: Looked) -> Section:
    summary = seen.summary
    origin = summary.from_schedule or summary.metrics
    tiles = [
        _tile("Requests", f"{count(summary.n)}", _ended(summary)),
        _latency_tile("Time to first token", origin.get("ttft_ms"), seen.origin),
        _latency_tile("End to end", origin.get("e2e_ms"), seen.origin),
        _tile("Throughput", f"{summary.requests_per_s:,.2f} /s", f"{summary.tokens_per_s:,.0f} tokens/s in all"),
    ]
    reached = summary.attainment.get(ALL)
    if reached is not None and reached.share is not None and reached.ci is not None:
        ends = f"{percent(reached.ci[0])} to {percent(reached.ci[1])}"
        tiles.append(_tile("Met their objectives", percent(reached.share), f"95 %: {ends}"))
    factor = summary.metrics.get("rtf")
    if factor is not None and factor.p50 is not None:
        tiles.append(_tile("Real-time factor", f"{factor.p50:.3f}", f"median of {count(factor.n)}"))
    return Section(markup=f'<section class="tiles" aria-label="The answer">{"".join(tiles)}</section>')


def _ended(summary: BenchSummary) -> str:
    parts = [f"{count(summary.completed)} completed"]
    parts.append(
        f"{count(summary.failed)} failed ({percent(summary.failed / summary.n)})" if summary.failed else "none failed"
    )
    if summary.left:
        parts.append(f"{count(summary.left)} left on purpose")
    return ", ".join(parts)


def _tile(title: str, value: str, aside: str, kind: str = "") -> str:
    return (
        f'<div class="tile{kind}"><h2>{text(title)}</h2><p class="value">{text(value)}</p>'
        f'<p class="aside">{text(aside)}</p></div>'
    )


def _latency_tile(title: str, metric: MetricSummary | None, origin: str) -> str:
    if metric is None or not metric.n:
        return _tile(title, ABSENT, "not known" if metric is None else metric.reason or "", " wide")
    tail = next((name for name in ("p99", "p95", "p90") if getattr(metric, name) is not None), None)
    middle = [] if metric.p50 is None else [("p50", metric.p50)]
    parts = [*middle, ("longest", metric.max) if tail is None else (tail, getattr(metric, tail))]
    inside = " ".join(
        f'<span class="pair-of"><small>{name}</small> {text(ms(value))} ms</span>' for name, value in parts
    )
    aside = f"n {count(metric.n)}, {origin}"
    if tail is not None and tail in metric.ci:
        low, high = ("?" if end is None else ms(end) for end in metric.ci[tail])
        aside = f"{tail} 95 %: {low} to {high} ms; {aside}"
    return (
        f'<div class="tile wide"><h2>{text(title)}</h2><p class="value">{inside}</p>'
        f'<p class="aside">{text(aside)}</p></div>'
    )


def _headline(seen: Looked) -> Section:
    summary = seen.summary
    how = (
        "Below each percentile its 95 % interval (order statistics; of gaps, which depend on each other, for as many "
        "independent values as they are worth; ? is unbounded). A percentile that n cannot support is not shown."
    )
    if summary.window:
        how = f"Steady part only: {summary.window}. {how}"
    parts = []
    if summary.from_schedule:
        parts.append(
            card(
                "Latency from the intended time",
                "What a user waits, a late send included",
                metric_table(summary.from_schedule, "Latency from the intended time, ms", worst=_WAITS),
                note=how,
            )
        )
        how = (
            "What the server took once a request was sent. Where the client or its limit held requests back, this is "
            "flattering."
        )
    parts.append(
        card(
            "Latency from the send",
            "What the server took",
            metric_table(summary.metrics, "Latency from the send, ms", worst=() if summary.from_schedule else _WAITS),
            note=how,
        )
    )
    if summary.user_tokens_per_s is not None and summary.user_tokens_per_s.n:
        parts.append(card("Speed", _speed(summary), rate_table(summary.user_tokens_per_s)))
    factor = summary.metrics.get("rtf")
    if factor is not None:
        audio = None if summary.work is None else summary.work.audio
        speed = None if audio is None else audio.audio_seconds_per_s
        aside = "Audio" if speed is None else f"{speed:,.1f} s of audio worked off a second"
        parts.append(card("Audio", aside, metric_table({"rtf": factor}, "Real-time factor", unit="")))
    return Section(markup="".join(parts))


def _speed(summary: BenchSummary) -> str:
    rates = summary.user_tokens_per_s
    assert rates is not None
    one = f"; a reader saw {rates.p50:,.1f} tokens/s (median)" if rates.p50 is not None else ""
    return f"{summary.tokens_per_s:,.0f} tokens/s in all{one}"


def _classes(seen: Looked) -> Section:
    summary = seen.summary
    parts = [
        card(
            "Goodput",
            f"{summary.goodput_per_s:,.2f} requests/s met every objective",
            attainment_table(summary.attainment),
            note="What did not complete missed its objectives; what the load itself gave up is left out. The interval "
            "is Wilson's.",
        )
    ]
    by_class = class_table(summary)
    if by_class is not None:
        parts.append(card("By class", f"{len(summary.classes)} classes, {seen.origin}", by_class))
    return Section(markup="".join(parts))


def _lengths(seen: Looked) -> Section:
    pictures = []
    for metric in ("ttft", "e2e"):
        cells = tail_by_length(seen.table, metric, values=seen.waited(metric))
        n = sum(one.n for one in cells)
        if not n:
            continue
        made = tail_picture(_used(cells), metric, unknown=int(seen.done_rows.sum()) - n)
        pictures.append(_named(made, f"lengths-{metric}"))
    if not pictures:
        return Section(markup="")
    drawn = "".join(figure("Tail by length", picture) for picture in pictures)
    numbers = card(
        "By length", "The same as a table", f"<details><summary>Show</summary>{bucket_table(seen.summary)}</details>"
    )
    return Section(markup=f'<div class="pair">{drawn}</div>{numbers}', pictures=pictures)


def _used(cells: list[LengthCell]) -> list[LengthCell]:
    """Without the rows and columns in which there is no request at all."""
    prompts = {one.prompt for one in cells if one.n}
    outputs = {one.output for one in cells if one.n}
    return [one for one in cells if one.prompt in prompts and one.output in outputs]


def _named(picture: Picture, name: str) -> Picture:
    return Picture(
        name=name,
        title=picture.title,
        note=picture.note,
        alt=picture.alt,
        empty=picture.empty,
        data=picture.data,
        layout=picture.layout,
    )


def _distributions(seen: Looked) -> Section:
    pictures = []
    for metric, words in (("ttft", "time to first token"), ("e2e", "end-to-end time")):
        values = seen.waited(metric)
        curves = [Curve(name, values[rows & ~np.isnan(values)]) for name, rows in seen.classes.items()]
        pictures.append(log_tail_picture(curves, f"tail-{metric}", words))
    drawn = "".join(figure("Distribution", picture) for picture in pictures)
    return Section(markup=f'<div class="pair">{drawn}</div>', pictures=pictures)


def _gaps(seen: Looked) -> Section:
    gaps = pooled_gaps(seen.done, np.arange(len(seen.done)))
    waits = longest_wait_ms(seen.done)
    classes = {name: rows[seen.done_rows] for name, rows in seen.classes.items()}
    pictures = [
        log_tail_picture(
            [Curve(name, gaps.ms[rows[gaps.row]]) for name, rows in classes.items()],
            "tail-gap",
            "chunk gap",
            what="gaps",
            empty="No event's time is known, so there are no gaps to show.",
        ),
        log_tail_picture(
            [Curve(name, waits[rows & ~np.isnan(waits)]) for name, rows in classes.items()],
            "tail-wait",
            "longest wait of a request",
        ),
    ]
    drawn = "".join(figure("Gaps between tokens", picture) for picture in pictures)
    return Section(markup=f'<div class="pair">{drawn}</div>', pictures=pictures)


def _stages(seen: Looked, *, joined: bool) -> Section:
    known = [stage for stage in _SPLIT if len(seen.done) and not np.isnan(seen.done.ms(str(stage))).all()]
    if not known and (joined or not len(seen.done)):
        return Section(markup="")
    if not known:
        return Section(
            markup=card(
                "Where the time went",
                "Nobody has told the stages of these requests",
                "",
                note="The engine's answers carry no timings. Run the load through `tailrace serve` and give its "
                "records with --records, or use an engine that reports them.",
            )
        )
    pictures = [
        _named(decomposition_picture(stage_groups(seen.done, metric)), f"stages-{metric}")
        for metric in ("ttft", "e2e")
        if not np.isnan(seen.done.ms(metric)).all()
    ]
    return Section(markup="".join(figure("Where the time went", one) for one in pictures), pictures=pictures)


def _failures(seen: Looked) -> Section:
    rows = failures_by_stage(seen.table)
    if not rows:
        return Section(markup="")
    picture = failures_picture(rows, len(seen.table))
    said: dict[str, str] = {}
    for record in seen.records:
        if record.error and record.reason.value not in said:
            said[record.reason.value] = record.error
    lines = facts((reason.replace("_", " "), error) for reason, error in said.items())
    words = card("What was said", "The first error of each kind", lines) if said else Cell("")
    return Section(markup=f"{figure('Failures', picture)}{words}", pictures=[picture])


def _slowest(seen: Looked) -> Section:
    return slowest_section(seen.table, seen.records, seen.late)
