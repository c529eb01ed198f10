"""The report's slowest requests, each with its stream drawn on one scale: where it waited, and where it stood still."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from tailrace.analyze.run_series import due_s
from tailrace.app.report_markup import ABSENT, Cell, Section, card, cell, figure, ms, row, table, text
from tailrace.figures.palette import FAILED, GROUND, stage_color
from tailrace.figures.picture import Picture
from tailrace.figures.timeline import timeline_picture
from tailrace.figures.wording import count, duration
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.stage import Stage
from tailrace.store.table import RecordTable

__all__ = ["slowest_section"]

ROWS: Final = 15
DRAWN: Final = 3
"""Of the slowest ones, the gaps between tokens are drawn."""
_WIDTH, _HEIGHT = 240, 16
_TICKS: Final = 160
_MS: Final = 1e6


def slowest_section(table_: RecordTable, records: Sequence[RequestRecord], late: np.ndarray) -> Section:
    """`records` are the rows of `table_`; `late` (ms, 0 without a schedule) is added to what the reader waited."""
    if not records:
        return Section(markup="")
    whole = table_.ms("e2e") + late
    chosen = np.argsort(-whole, kind="stable")[:ROWS].tolist()
    due = due_s(table_)
    longest = max(float(whole[place]) for place in chosen)
    rows = [
        _row(records[place], float(due[place]), float(whole[place]), float(late[place]), longest) for place in chosen
    ]
    heads = ("request", "class", "due at", "prompt", "output", "TTFT", "longest gap", "E2E", "stream", "outcome")
    scale = (
        f"One scale, {duration(longest)} wide: pale, due and not sent yet; orange, sent and waiting for the first "
        "token; then a tick for each event that brought tokens, so that a hole is a stall."
    )
    parts = [
        card(
            "Slowest requests",
            f"The {len(rows)} that took longest, failed ones included",
            table(heads, rows, caption="The slowest requests", words=("class", "stream", "outcome")),
            note=scale,
        )
    ]
    pictures: list[Picture] = []
    for place in chosen:
        record = records[place]
        if len(pictures) < DRAWN and record.timeline is not None and record.timeline.token_stamps():
            picture = timeline_picture(record)
            pictures.append(
                msgspec.structs.replace(
                    picture,
                    name=f"timeline-{len(pictures)}",
                    title=f"{picture.title} ({_short(record.request_id)})",
                    alt=picture.title,
                )
            )
    parts += [figure("One of the slowest", picture) for picture in pictures]
    return Section(markup="".join(parts), pictures=pictures)


def _row(record: RequestRecord, due: float, whole: float, late: float, longest: float) -> Cell:
    done = record.outcome is OutcomeKind.COMPLETED
    end = "completed" if done else f"{record.outcome.value}: {record.reason.value}".replace("_", " ")
    died = f" in {record.died_in}" if record.died_in and not done else ""
    gap = record.chunk_gap_max_ns
    first = record.ttft_ns
    return row(
        Cell(f'<span title="{text(record.request_id)}">{text(_short(record.request_id))}</span>'),
        [
            cell(text(record.lane, 40)),
            cell(f"{due:,.1f} s", "number"),
            cell(_count(record.prompt_tokens), "number"),
            cell(_count(record.output_tokens), "number"),
            cell(ABSENT if first is None else ms(first / _MS + late), "number"),
            cell(ABSENT if gap is None else ms(gap / _MS), "number"),
            cell(ms(whole), "number"),
            cell(Cell(_strip(record, late, longest)), "strip"),
            cell(f"{end}{died}", "text" if done else "text failed", small=record.error[:160]),
        ],
    )


def _short(request_id: str) -> str:
    return request_id if len(request_id) <= 14 else f"{request_id[:13]}…"


def _count(number: int | None) -> str:
    return ABSENT if number is None else count(number)


def _strip(record: RequestRecord, late: float, longest: float) -> str:
    """A request's life as an inline drawing: no script is needed to see it, and it prints."""
    scale = _WIDTH / longest if longest > 0 else 0.0
    stamps = [] if record.timeline is None else [at / _MS for at in record.timeline.token_stamps()]
    end = record.e2e_ns / _MS
    first = record.ttft_ns / _MS if record.ttft_ns is not None else (stamps[0] if stamps else end)
    queue, decode = stage_color(Stage.QUEUE), stage_color(Stage.DECODE)
    failed = record.outcome is not OutcomeKind.COMPLETED
    shapes = [
        _bar(0.0, late * scale, 5, 6, GROUND["light"]["grid"]),
        _bar(late * scale, first * scale, 5, 6, FAILED["light"] if failed and not stamps else queue),
    ]
    if stamps:
        shapes.append(_bar((late + first) * scale, max(0.0, end - first) * scale, 7, 2, decode))
        kept = stamps if len(stamps) <= _TICKS else _spread(stamps)
        path = "".join(f"M{(late + at) * scale:.1f} 2v12" for at in kept)
        shapes.append(f'<path d="{path}" stroke="{decode}" stroke-width="1"/>')
    if failed:
        shapes.append(_bar((late + end) * scale - 2, 2.0, 0, _HEIGHT, FAILED["light"]))
    words = f"first token after {duration(first)}, end after {duration(end)}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{text(words)}">{"".join(shapes)}</svg>'
    )


def _spread(stamps: list[float]) -> list[float]:
    """As many ticks as there is room for, those around the longest gaps among them."""
    at = np.asarray(stamps)
    ends = np.argsort(-np.diff(at), kind="stable")[: _TICKS // 4]
    even = np.linspace(0, at.size - 1, _TICKS // 2).astype(np.int64)
    kept: list[float] = at[np.unique(np.concatenate((even, ends, ends + 1)))].tolist()
    return kept


def _bar(x: float, width: float, y: int, height: int, color: str) -> str:
    if width <= 0:
        return ""
    return f'<rect x="{max(0.0, x):.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{height}" fill="{color}"/>'
