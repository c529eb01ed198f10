"""Queue and prefill of a run whose engine reported neither, inferred from its own timelines.

The model is the gateway's (`measure.inference`), fed with a whole run at once. It needs every request's place on one
monotonic clock, which the records of a load generator have (`run_offset_ns`) and those of a gateway have not: a gateway
infers while it serves. And it needs the timelines of all: whose tokens are not there marks no step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.measure.inference.scene import Heard, Scene
from tailrace.measure.inference.waits import Quality, Split, Wait, WaitModel
from tailrace.model.outcome import OutcomeKind
from tailrace.model.stage import QUEUE_ENGINE
from tailrace.store.table import RecordTable

_DENSE = 0.8


def infer_waits(table: RecordTable, *, partial: bool = False) -> list[Split | None]:
    """The split of each row's wait for its first token, `None` where nothing can be said. Whether it is known well
    enough to be shown is for the caller: `Split.timings` judges it.

    Rows whose engine reported both stages are not inferred but learnt from: what is stated of the others is calibrated
    with them. `partial`: others used the engine too, whose requests are not in the table.
    """
    marked = table.timelines.kept
    placed = ~np.isnan(table.column("run_offset_ns"))
    # A million rows of a gateway have no place on one clock: that is seen without a look at each.
    if not (placed & marked & np.isnan(table.column("prefill_ns"))).any():
        return [None] * len(table)
    rows = [_row(table, index) for index in range(len(table))]
    heard = [one for one in rows if one is not None]
    if not marked.all():
        # Whoever got tokens and has no timeline is a stranger: it worked in steps that it does not mark.
        seen = ~np.isnan(table.column("ttft_ns").astype(np.float64))
        partial = partial or bool((seen & ~marked).any())
    scene = Scene([one.heard for one in heard])
    model = WaitModel()
    out: list[Split | None] = [None] * len(table)
    queue, prefill = table.column("queue_engine_ns"), table.column("prefill_ns")
    # In the order of their ends, as a gateway learns of them: no wait is judged by what came after it ended.
    order = sorted((index for index, one in enumerate(rows) if one is not None), key=lambda index: _end(rows, index))
    for index in order:
        wait = rows[index]
        if wait is None or wait.heard.first is None:
            continue
        split = model.split(wait, scene, partial=partial)
        if not np.isnan(prefill[index]):
            if split is not None and not np.isnan(queue[index]):
                model.check(split, int(queue[index]), int(prefill[index]))
            continue
        out[index] = split
    return out


def with_inferred(table: RecordTable, quality: Quality | None = None) -> RecordTable:
    """The table with queue and prefill filled in where they can be inferred well enough, out of `unattributed`.

    Stages still add up; each source says `inferred(…)` and its error. The same table where there is nothing to infer.
    """
    wanted = quality or Quality()
    splits = infer_waits(table)
    if not any(splits):
        return table
    columns = dict(table.columns)
    changed: dict[str, Any] = {
        name: columns[name].copy()
        for name in ("queue_ns", "queue_engine_ns", "prefill_ns", "unattributed_ns", "stage_sources")
    }
    for index, split in enumerate(splits):
        if split is None:
            continue
        timings = split.timings(wanted)
        left = changed["unattributed_ns"][index]
        taken = (timings.queue_ns or 0) + (timings.prefill_ns or 0)
        if not taken or np.isnan(left) or taken > left:
            continue
        sources = dict(changed["stage_sources"][index])
        if timings.queue_ns is not None:
            before = changed["queue_ns"][index]
            changed["queue_ns"][index] = timings.queue_ns + (0 if np.isnan(before) else before)
            changed["queue_engine_ns"][index] = timings.queue_ns
            sources["queue"] = sources[QUEUE_ENGINE] = split.source
        if timings.prefill_ns is not None:
            changed["prefill_ns"][index] = timings.prefill_ns
            sources["prefill"] = split.source
        changed["unattributed_ns"][index] = left - taken
        changed["stage_sources"][index] = sources
    return RecordTable({**columns, **changed}, table.timelines)


def _end(rows: list[Wait | None], index: int) -> int:
    one = rows[index]
    return 0 if one is None else one.heard.end


def _row(table: RecordTable, index: int) -> Wait | None:
    def at(name: str) -> int | None:
        value = table.column(name)[index]
        return None if np.isnan(value) else int(value)

    offset = at("run_offset_ns")
    if offset is None:
        return None
    start = offset + (at("intended_to_sent_ns") or 0)
    sent = start + (at("ingress_ns") or 0)
    end = start + int(table.column("e2e_ns")[index])
    prompt, cached = at("prompt_tokens"), at("cached_tokens")
    timeline = table.timelines[index]
    stamps = [] if timeline is None else [start + stamp for stamp in timeline.token_stamps()]
    if not stamps:
        return Wait(heard=Heard(sent, None, end), prompt_tokens=prompt, cached_tokens=cached)
    output = at("output_tokens")
    headers = at("headers_ns")
    whole = table.column("outcome")[index] == OutcomeKind.COMPLETED.value
    thinned = timeline is not None and timeline.thinned > 0
    return Wait(
        heard=Heard(
            sent,
            stamps[0],
            stamps[-1] if whole else end,
            stamps,
            tokens=None if prompt is None else max(prompt - (cached or 0), 1),
            dense=not thinned and (output is None or len(stamps) >= _DENSE * output),
        ),
        prompt_tokens=prompt,
        cached_tokens=cached,
        headers=None if headers is None else sent + headers,
    )
