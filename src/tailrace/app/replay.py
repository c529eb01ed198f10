"""One recorded request played again, alone or among those that were under way with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.analyze.timebase import starts_ns
from tailrace.app.bench import bench
from tailrace.app.explain import find_request
from tailrace.app.outputs import refuse_to_replace
from tailrace.model.errors import InputError
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import Objectives, S
from tailrace.probe.spec import BenchSpec, Limits
from tailrace.store.run_file import read_run
from tailrace.store.table import RecordTable
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.plan import Workload
from tailrace.workload.trace_row import TraceRow

__all__ = ["NEIGHBOUR", "REPLAYED", "Replay", "ReplayOptions", "Seen", "replay"]

REPLAYED: Final = "replayed"
NEIGHBOUR: Final = "neighbour"
"""Classes of the run."""
_BYTES_A_TOKEN: Final = 4
"""Of a prompt whose tokens nobody counted; English text has about as many."""
_MOST_ROUNDS: Final = 1000
_SAME_LENGTH: Final = 0.05
"""An answer within so much of the recorded length is as long."""


class ReplayOptions(msgspec.Struct, kw_only=True):
    """What is asked for."""

    request_id: str
    source: str
    url: str
    out: str
    with_neighbours: bool = False
    times: int = 1
    pause_ns: int = 2 * S
    """Between the rounds, so that one does not queue behind the one before it."""
    model: str | None = None
    api_key: str = ""
    token: str = ""
    partial: bool = False
    total_ns: int = 300 * S
    """The longest that one request may take."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity as it was recorded, and in the rounds."""

    metric: str
    recorded_ms: float | None
    replayed_ms: list[float]
    """In order of the rounds; those that did not complete are left out."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace replay --json` prints."""

    schema: int = 1
    request_id: str
    run: str
    rounds: int
    neighbours: int
    failed: int
    """Rounds in which the request did not complete."""
    seen: list[Seen]
    notes: list[str]
    """What could not be played as it was."""


def replay(options: ReplayOptions) -> Replay:
    """Play it. InputError where the record does not tell its lengths; else as `app.bench.bench` raises."""
    if not 1 <= options.times <= _MOST_ROUNDS:
        raise InputError(f"must be between 1 and {_MOST_ROUNDS}, got {options.times}", place="--times")
    refuse_to_replace(options.out, [options.source], option="--out")
    table, row = find_request(options.request_id, options.source, token=options.token, partial=options.partial)
    record = next(iter(table.where([row]).records()))
    rows, notes = _rows(table, row, with_neighbours=options.with_neighbours)
    rows = _rounds(rows, options.times, options.pause_ns, record)
    spec = BenchSpec(
        url=options.url,
        workload=Workload(arrivals=Arrivals(kind=ArrivalKind.TRACE), trace=rows, trace_notes=notes),
        model=options.model,
        stream=record.stream,
        api_key=options.api_key,
        extra_body=_options_of(record, notes),
        endpoint=record.endpoint if record.endpoint.startswith("/v1/") else "",
        limits=Limits(total_ns=options.total_ns),
        objectives=Objectives(),
        mix_text=f"replay of {record.request_id}",
        notes=notes,
    )
    bench(spec, out=options.out)
    return _compared(options, record, read_run(Path(options.out)).table(), len(rows) // options.times - 1, notes)


def _rows(table: RecordTable, row: int, *, with_neighbours: bool) -> tuple[list[TraceRow], list[str]]:
    """The request, and those that were under way in its time, at their own times from the first of them."""
    start = starts_ns(table)
    end = start + table.column("e2e_ns").astype(np.int64)
    chosen = np.array([row])
    if with_neighbours:
        chosen = np.flatnonzero((start < end[row]) & (end > start[row]))
    prompt, output = (table.column(name).astype(np.float64) for name in ("prompt_tokens", "output_tokens"))
    estimated = np.isnan(prompt) & ~np.isnan(table.column("prompt_bytes").astype(np.float64))
    prompt = np.where(estimated, table.column("prompt_bytes").astype(np.float64) / _BYTES_A_TOKEN, prompt)
    if np.isnan(prompt[row]) or np.isnan(output[row]):
        raise InputError(
            "its record does not tell how long its prompt and its answer were",
            place=str(table.column("request_id")[row]),
            remedy="Choose a completed request whose engine tells its usage.",
        )
    known = chosen[~np.isnan(prompt[chosen]) & ~np.isnan(output[chosen])]
    notes = ["prompts are drawn anew in their recorded lengths: records hold no text"]
    if known.size < chosen.size:
        notes.append(f"{chosen.size - known.size} neighbours of unknown length are left out")
    if estimated[known].any():
        notes.append(f"{int(estimated[known].sum())} prompts were counted in bytes: 4 are taken for a token")
    cached = np.nan_to_num(table.column("cached_tokens").astype(np.float64), nan=0.0)[known]
    if (cached > 0).any():
        notes.append(f"{int((cached > 0).sum())} had cached tokens, which fresh prompts do not have")
    for name in ("endpoint", "stream", "model"):
        others = int((table.column(name)[known] != table.column(name)[row]).sum())
        if others:
            notes.append(f"{others} neighbours had another {name}; they are asked as the request is")
    earliest = int(start[known].min())
    rows = [
        TraceRow(
            at_ns=int(start[one]) - earliest,
            prompt_tokens=max(1, round(float(prompt[one]))),
            output_tokens=max(1, int(output[one])),
            name=REPLAYED if one == row else NEIGHBOUR,
        )
        for one in known[np.argsort(start[known], kind="stable")]
    ]
    return rows, notes


def _rounds(rows: list[TraceRow], times: int, pause_ns: int, record: RequestRecord) -> list[TraceRow]:
    span = rows[-1].at_ns + record.e2e_ns + pause_ns
    return [one._replace(at_ns=one.at_ns + number * span) for number in range(times) for one in rows]


def _options_of(record: RequestRecord, notes: list[str]) -> dict[str, Any]:
    """Sampling knobs that change the cost, as far as the record has them."""
    out: dict[str, Any] = {}
    if record.n > 1:
        out["n"] = record.n
    if record.best_of > 1:
        out["best_of"] = record.best_of
    if record.sampled is False:
        out["temperature"] = 0
    if record.grammar:
        notes.append("its grammar is not recorded: it is played without one")
    return out


def _compared(
    options: ReplayOptions, record: RequestRecord, table: RecordTable, neighbours: int, notes: list[str]
) -> Replay:
    mine = table.where((table.column("lane") == REPLAYED).astype(bool))
    done = mine.where((mine.column("outcome") == "completed").astype(bool))
    notes = [*notes, *_other_lengths(record, done)]
    seen = []
    for metric, recorded in (
        ("ttft", record.ttft_ns),
        ("chunk_gap_max", record.chunk_gap_max_ns),
        ("tpot", record.tpot_ns),
        ("e2e", record.e2e_ns),
    ):
        values = done.ms(metric)
        seen.append(
            Seen(
                metric=metric,
                recorded_ms=None if recorded is None else recorded / 1e6,
                replayed_ms=[round(float(value), 3) for value in values if not np.isnan(value)],
            )
        )
    return Replay(
        request_id=record.request_id,
        run=options.out,
        rounds=options.times,
        neighbours=neighbours,
        failed=len(mine) - len(done),
        seen=seen,
        notes=notes,
    )


def _other_lengths(record: RequestRecord, done: RecordTable) -> list[str]:
    """What is to be said where the server gave answers of another length: their times are those of other work."""
    given = done.column("output_tokens").astype(np.float64)
    given = given[~np.isnan(given)]
    asked = record.output_tokens
    if not given.size or not asked or bool((np.abs(given - asked) <= _SAME_LENGTH * asked).all()):
        return []
    low, high = int(given.min()), int(given.max())
    said = f"{low}" if low == high else f"{low} to {high}"
    return [f"its answers had {said} tokens, the recorded one {asked}: their end-to-end times are of other work"]
