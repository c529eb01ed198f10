"""Traces: recorded arrivals with their lengths, to be played again.

The caller opens the file and passes its lines; `trace_formats` tells the format by the first one. A row that cannot be
read is left out and counted; more than one in a hundred, and the trace is refused with the first one's line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

import msgspec
import numpy as np

from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS, S
from tailrace.workload.trace_formats import Columns, format_of
from tailrace.workload.trace_row import BadRow, TraceRow

__all__ = ["Trace", "TraceRow", "arrange", "looped", "read_trace", "read_whole_trace", "tick_ns"]

_BAD_SHARE: Final = 0.01
"""Of a trace's rows that may be unreadable."""
_JITTER: Final = 0.01
_WHOLE: Final = 0.95


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace as it will be played, and what is to be known of it."""

    rows: list[TraceRow]
    format: str
    notes: list[str] = []
    """What was left out, estimated or spread."""

    @property
    def span_ns(self) -> int:
        """From the first request to one mean gap after the last: the length of one round of it."""
        last = self.rows[-1].at_ns
        return last + (last // (len(self.rows) - 1) if len(self.rows) > 1 else S)


def read_trace(
    lines: Iterable[str], *, rng: np.random.Generator | None = None, place: str = "trace", speed: float = 1.0
) -> list[TraceRow]:
    """The rows of `read_whole_trace`."""
    return read_whole_trace(lines, rng=rng, place=place, speed=speed).rows


def read_whole_trace(
    lines: Iterable[str],
    *,
    rng: np.random.Generator | None = None,
    place: str = "trace",
    speed: float = 1.0,
    window_ns: tuple[int, int | None] = (0, None),
    columns: Columns | None = None,
) -> Trace:
    """A trace in whichever format its first line shows, in order of arrival, the first at 0.

    Timestamps that were recorded in ticks (many rows share one of few, evenly spaced values) are spread evenly at
    random inside their tick when `rng` is given: bursts made by the recorder's clock would be artefacts in the
    tail. Of the window (`[from, to)`, ns of the trace's own time) only is played; `speed` above 1 plays faster. Rows
    without output tokens (failed in the recording) are left out.
    """
    source = iter(lines)
    skipped, first = 0, ""
    for line in source:
        if line.strip():
            first = line.removeprefix("\ufeff")
            break
        skipped += 1
    if not first:
        raise InputError("the trace is empty", place=place, remedy="Give a CSV with a header row, or JSON lines")
    form = format_of(first, place=place, columns=columns)
    rows: list[TraceRow] = []
    bad: list[BadRow] = []
    for row in form.rows(chain([first], source)):
        if isinstance(row, BadRow):
            bad.append(row)
        else:
            rows.append(row)
    if len(bad) > _BAD_SHARE * (len(rows) + len(bad)):
        raise InputError(
            f"cannot read this row ({bad[0].why}), nor {len(bad) - 1} more of {len(rows) + len(bad)}",
            place=f"{place}:{bad[0].line + skipped}",
            remedy=f"It was taken for {form.name}; correct the rows, or leave them out",
        )
    notes = [form.note] if form.note else []
    if bad:
        where = ", ".join(str(one.line + skipped) for one in bad[:5])
        notes.append(f"{len(bad)} rows cannot be read and are left out (line {where}{' ...' if len(bad) > 5 else ''})")
    return arrange(
        rows, form=form.name, rng=rng, place=place, speed=speed, window_ns=window_ns, tick=form.tick_ns, notes=notes
    )


def arrange(
    rows: Sequence[TraceRow],
    *,
    form: str,
    rng: np.random.Generator | None,
    place: str,
    speed: float = 1.0,
    window_ns: tuple[int, int | None] = (0, None),
    tick: int = 0,
    notes: Sequence[str] = (),
) -> Trace:
    """Rows in any order as a trace to play; see `read_whole_trace`. `tick` is that of a clock that is known (ns)."""
    if not 0 < speed < math.inf:
        raise InputError(f"speed must be above 0, got {speed:g}", place=place)
    notes = list(notes)
    whole = len(rows)
    rows = [row for row in rows if row.prompt_tokens > 0 and row.output_tokens > 0]
    if not rows:
        raise InputError("the trace has no row with input and output tokens", place=place)
    if len(rows) < whole:
        notes.append(f"{whole - len(rows)} rows without input or output tokens are left out")
    stamps = np.array([row.at_ns for row in rows], dtype=np.int64)
    stamps -= stamps.min()
    tick = tick or tick_ns(stamps)
    if tick and rng is not None:
        stamps = stamps + rng.integers(0, tick, len(stamps))
        notes.append(f"times were recorded in ticks of {tick / S:g} s, and are spread evenly inside them")
    low, high = window_ns
    order = np.argsort(stamps, kind="stable")
    inside = order[(stamps[order] >= low) & (stamps[order] < (np.iinfo(np.int64).max if high is None else high))]
    if not inside.size:
        raise InputError(
            f"nothing of the trace lies in the window: it is {int(stamps.max()) / S:.0f} s long", place=place,
            remedy="Choose --trace-from and --trace-to inside it",
        )  # fmt: skip
    if inside.size < len(rows):
        notes.append(f"{inside.size} of {len(rows)} requests lie in the window")
    at = (stamps[inside] - low) / speed if speed != 1.0 else stamps[inside] - low
    played = [rows[i]._replace(at_ns=int(t)) for i, t in zip(inside.tolist(), at.tolist(), strict=True)]
    return Trace(rows=played, format=form, notes=notes)


def looped(rows: Sequence[TraceRow], round_: int, span_ns: int) -> list[TraceRow]:
    """The rows as they come in a later round (from 0): so much later, and with prefix blocks of their own.

    The blocks of a first round are in the server's cache by then; a second one that found them there would be answered
    as no traffic of the recording was.
    """
    if round_ == 0:
        return list(rows)
    most = 1 + max((max(row.blocks) for row in rows if row.blocks), default=0)
    return [
        row._replace(at_ns=row.at_ns + round_ * span_ns, blocks=tuple(block + round_ * most for block in row.blocks))
        for row in rows
    ]


def tick_ns(stamps: np.ndarray) -> int:
    """The tick in which timestamps (ns) were recorded, or 0 where they look continuous.

    Several rows must share each stamp on average. The tick is then the median distance of neighbouring stamps, when it
    is at least 100 ms and nearly all distances are whole ticks, up to 1 % of one: the clock that made the ticks may
    itself have been read a little late (Mooncake's of 3 s by up to 3 ms).
    """
    distinct = np.unique(stamps)
    if len(distinct) < 2 or len(stamps) < 2 * len(distinct):
        return 0
    gaps = np.diff(distinct)
    tick = int(np.median(gaps))
    if tick < 100 * MS:
        return 0
    off = np.abs(gaps - np.rint(gaps / tick) * tick)
    whole = (off <= _JITTER * tick) & (gaps >= tick * (1 - _JITTER))
    return tick if whole.mean() >= _WHOLE else 0
