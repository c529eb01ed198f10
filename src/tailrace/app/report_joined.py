"""The report's join: each request seen by the load generator and by the gateway, and who has the tail."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tailrace.analyze.counted import completed
from tailrace.analyze.joined import OUTSIDE, Joined, joined
from tailrace.analyze.stage_groups import stage_groups
from tailrace.app.report_markup import ABSENT, Cell, Section, card, cell, figure, ms, row, table, text
from tailrace.figures.decomposition import decomposition_picture
from tailrace.figures.picture import Picture
from tailrace.figures.wording import count
from tailrace.stats.quantiles import needed
from tailrace.store.table import RecordTable

__all__ = ["joined_section"]

_ROWS: Final = (
    ("client_ttft", "TTFT", "as the load generator saw it"),
    ("gateway_ttft", "TTFT at the gateway", "from the first byte of the request that it read"),
    ("outside_ttft", f"TTFT: {OUTSIDE}", "the difference of the two durations"),
    ("client_e2e", "E2E", "as the load generator saw it"),
    ("gateway_e2e", "E2E at the gateway", "to the last byte that its client took"),
    ("outside_e2e", f"E2E: {OUTSIDE}", "the difference of the two durations"),
    ("connect", "connecting", "where a connection had to be opened"),
)


def joined_section(run: RecordTable, records: RecordTable, *, dropped: float, source: str) -> Section:
    """The measured requests of a run, joined with a gateway's records."""
    found = joined(run, records, dropped=dropped)
    lines = "".join(f"<li>{text(line, 600)}</li>" for line in found.lines())
    parts = [
        card(
            "Joined with the gateway's records",
            _title(found),
            f"{_table(found)}<ul class=notes>{lines}</ul>",
            note=f"Records of {source}. Durations are subtracted, never stamps of two clocks.",
        )
    ]
    pictures = _stages(run, records)
    parts += [figure("Where the time went, by the gateway's records", picture) for picture in pictures]
    return Section(markup="".join(parts), pictures=pictures)


def _title(found: Joined) -> str:
    if not found.matched:
        return "None of the requests is among the records"
    head = f"{count(found.matched)} of {count(found.in_run)} requests found"
    if not found.owners:
        return head
    owner = found.owners[-1]
    return f"{head}; the tail of {owner.metric.upper()} is owned by {owner.owner} ({owner.share:.0%})"


def _table(found: Joined) -> Cell:
    rows = []
    stages = [(name, name.removeprefix("stage."), "stage, at the gateway") for name in found.spreads if "." in name]
    for key, name, words in (*_ROWS, *stages):
        spread = found.spreads.get(key)
        if spread is None:
            continue
        tail = Cell(f'<span class="unknown">n ≥ {count(needed(0.99))}</span>') if spread.p99 is None else ms(spread.p99)
        cells = [cell(count(spread.n), "number"), cell(ABSENT if spread.p50 is None else ms(spread.p50), "number"),
                 cell(tail, "number"), cell(ms(spread.max), "number")]  # fmt: skip
        rows.append(row(Cell(f"{text(name)}<small>{text(words)}</small>"), cells))
    return (
        table(("ms", "n", "p50", "p99", "longest"), rows, caption="Both views of the same requests")
        if rows
        else Cell("")
    )


def _stages(run: RecordTable, records: RecordTable) -> list[Picture]:
    """The gateway's own split of the requests of this run."""
    mine = set(run.column("request_id").tolist())
    pairs = zip(records.column("client_request_id").tolist(), records.column("request_id").tolist(), strict=True)
    rows = np.array([theirs in mine or own in mine for theirs, own in pairs], dtype=bool)
    done = records.where(rows & completed(records)) if rows.any() else None
    if done is None or not len(done):
        return []
    return [
        msgspec.structs.replace(decomposition_picture(stage_groups(done, metric)), name=f"gateway-stages-{metric}")
        for metric in ("ttft", "e2e")
        if not np.isnan(done.ms(metric)).all()
    ]
