"""The page's view of a table of records: the answer first, three pictures, the slowest requests.

Pure and synchronous: `page` calls it in a worker thread.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.analyze.bench_summary import completed
from tailrace.analyze.buckets import tail_by_length
from tailrace.analyze.decompose import stage_columns
from tailrace.analyze.failures import failures_by_stage
from tailrace.analyze.stage_groups import split_queue, stage_groups
from tailrace.analyze.vantage import without_cached
from tailrace.analyze.window import WindowSummary, default_metric, ended_since, summarise_window
from tailrace.figures.decomposition import decomposition_picture
from tailrace.figures.failures import failures_picture
from tailrace.figures.palette import Theme
from tailrace.figures.picture import Picture
from tailrace.figures.tail_by_length import tail_picture
from tailrace.figures.timeline import timeline_picture
from tailrace.figures.wording import ABSENT
from tailrace.model.record import RequestRecord
from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY
from tailrace.model.thresholds import MS
from tailrace.store.table import RecordTable
from tailrace.web.selection import WINDOWS_S, Selection

SLOWEST: Final = 15
TEXT_LIMIT: Final = 120
"""Characters of any foreign text (model, error) that a table row carries."""
SCHEMA: Final = 1


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page that comes from records."""

    schema: int = SCHEMA
    window: str
    lane: str
    metric: str
    limited_to: int | None
    """The page reads at most so many records; set where older ones of the window were left out."""
    summary: WindowSummary
    lanes: list[str]
    models: list[str]
    pictures: list[Picture]
    slowest: list[dict[str, Any]]


def build_view(
    table: RecordTable, chosen: Selection, *, now_unix_ns: int, limit: int, uptime_s: float | None = None
) -> View:
    """Answer one selection from the newest `limit` records."""
    limited = len(table) >= limit
    table = without_cached(ended_since(table, chosen.since_unix_ns(now_unix_ns)))
    lanes = sorted(set(table.column("lane").tolist()))
    if chosen.lane:
        table = table.where(table.column("lane") == chosen.lane)
    done = table.where(completed(table))
    metric = chosen.metric or default_metric(done)
    cells = tail_by_length(table, metric)
    return View(
        window=chosen.window,
        lane=chosen.lane,
        metric=metric,
        limited_to=limit if limited else None,
        summary=summarise_window(
            table,
            now_unix_ns=now_unix_ns,
            window_s=WINDOWS_S[chosen.window],
            uptime_s=uptime_s,
            limited=limited,
        ),
        lanes=lanes,
        models=sorted({_short(model) for model in set(table.column("model").tolist())} - {""})[:8],
        pictures=[
            decomposition_picture(stage_groups(done, "ttft" if metric == "ttft" else "e2e"), chosen.theme),
            tail_picture(cells, metric, chosen.theme, unknown=len(done) - sum(cell.n for cell in cells)),
            failures_picture(failures_by_stage(table), len(table), chosen.theme),
        ],
        slowest=_slowest(table, metric),
    )


def request_detail(record: RequestRecord, theme: Theme) -> dict[str, Any]:
    """One record for the detail view: what it was, where its time went and how that is known, its gaps."""
    stages = record.stages()
    parts = {name: record.stage_ns(name) for name in (QUEUE_GATEWAY, QUEUE_ENGINE)}
    row = _row(
        record.request_id,
        {name: getattr(record, name) for name in _ROW_FIELDS},
        _split_queue({name: value / MS for name, value in stages.items()}, {
            name: value / MS for name, value in parts.items() if value
        }),
    )  # fmt: skip
    rows = []
    for name, value in stages.items():
        rows.append(_stage_row(name, value, record))
        if name == "queue":
            rows.extend(_stage_row(part, ns, record) for part, ns in parts.items() if ns is not None)
        named = {part: ns for part, ns in record.parts_ns.items() if part.partition(".")[0] == name}
        rows.extend(_stage_row(_short(part), ns, record) for part, ns in named.items())
    facts = {
        "client's request id": record.client_request_id,
        "trace": record.trace_id,
        "service": record.service,
        "model": record.model,
        "backend": record.backend,
        "engine": f"{record.engine} {record.engine_version}".strip(),
        "endpoint": record.endpoint,
        "lane": record.lane,
        "prompt tokens": _counted(record.prompt_tokens, record.prompt_tokens_source),
        "of them cached": _counted(record.cached_tokens, ""),
        "output tokens": _counted(record.output_tokens, record.output_tokens_source),
        "finish reason": record.finish_reason,
        "HTTP status": "" if record.http_status is None else str(record.http_status),
        "retries": str(record.retries) if record.retries else "",
        "budget that was over": record.budget,
        "slow by": ", ".join(record.slow),
        "running / waiting at admission": _pair(record.running_at_admission, record.waiting_at_admission),
        "error": record.error,
    }
    return {
        "schema": SCHEMA,
        "request": row,
        "stages": rows,
        "facts": [[name, str(value)[:300]] for name, value in facts.items() if value],
        "stalls": record.stall_count,
        "stall_longest_ms": None if record.stall_longest_ns is None else record.stall_longest_ns / MS,
        "picture": timeline_picture(record, theme),
    }


def _stage_row(name: str, value: int, record: RequestRecord) -> dict[str, Any]:
    return {
        "stage": name,
        "ms": value / MS,
        "share": value / record.e2e_ns if record.e2e_ns else 0.0,
        "source": record.stage_sources.get(name, ""),
    }


def _counted(number: int | None, source: str) -> str:
    if number is None:
        return ""
    return f"{number:,} ({source})" if source else f"{number:,}"


def _pair(running: int | None, waiting: int | None) -> str:
    if running is None and waiting is None:
        return ""
    return " / ".join(ABSENT if number is None else str(number) for number in (running, waiting))


def _short(text: object) -> str:
    return str(text)[:TEXT_LIMIT]


_ROW_FIELDS: Final = (
    "start_unix_ns", "lane", "model", "prompt_tokens", "output_tokens", "outcome", "reason", "died_in", "error",
    "ttft_ns", "tpot_ns", "e2e_ns",
)  # fmt: skip


def _slowest(table: RecordTable, metric: str) -> list[dict[str, Any]]:
    """The rows with the largest value of the metric, whatever their outcome, each with its stages (ms)."""
    values = table.ms(metric)
    known = np.flatnonzero(~np.isnan(values))
    rows = known[np.argsort(-values[known], kind="stable")[:SLOWEST]]
    picked = table.where(rows)
    stages = split_queue(picked, stage_columns(picked)[0]) if len(picked) else {}
    fields = {name: picked.column(name).tolist() for name in _ROW_FIELDS}
    return [
        _row(
            request_id,
            {name: column[place] for name, column in fields.items()},
            [[name, round(float(ms[place]), 3)] for name, ms in stages.items() if ms[place] > 0],
        )
        for place, request_id in enumerate(picked.column("request_id").tolist())
    ]


def _split_queue(stages: dict[str, float], parts: dict[str, float]) -> list[list[Any]]:
    """Stages in life order with `queue` replaced by its known parts and what is left of it."""
    out: list[list[Any]] = []
    for name, value in stages.items():
        if name != "queue":
            out.append([name, value])
            continue
        out.extend([part, ms] for part, ms in parts.items())
        left = value - sum(parts.values())
        if left > 0:
            out.append([name, left])
    return [[name, round(value, 3)] for name, value in out if value > 0]


def _row(request_id: str, fields: dict[str, Any], stages: list[list[Any]]) -> dict[str, Any]:
    return {
        "id": request_id,
        "start_unix_ms": int(fields["start_unix_ns"]) // MS,
        "lane": _short(fields["lane"]),
        "model": _short(fields["model"]),
        "prompt_tokens": _whole(fields["prompt_tokens"]),
        "output_tokens": _whole(fields["output_tokens"]),
        "ttft_ms": _ms(fields["ttft_ns"]),
        "tpot_ms": _ms(fields["tpot_ns"]),
        "e2e_ms": _ms(fields["e2e_ns"]),
        "outcome": str(fields["outcome"]),
        "reason": str(fields["reason"]),
        "died_in": str(fields["died_in"]),
        "error": _short(fields["error"]),
        "stages": stages,
    }


def _whole(value: float | None) -> int | None:
    return None if value is None or math.isnan(value) else int(value)


def _ms(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value / MS, 3)
