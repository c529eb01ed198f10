"""The kinds of observation: quoted number, arm, gauge series, counter, histogram, event, setting, table of rows.

Values are in the unit of their quantity (`vocabulary.QUANTITIES`): durations in ms, shares 0..1, tokens, 1/s …
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Arm",
    "Clock",
    "Counter",
    "Event",
    "Histogram",
    "Place",
    "Quoted",
    "Role",
    "Rows",
    "Series",
    "Setting",
    "Understood",
    "together",
]

Floats = NDArray[np.float64]


class Clock(StrEnum):
    """What the times of an observation count from. Times of two clocks are never subtracted before `align` made one."""

    NONE = "none"
    RELATIVE = "relative"
    """Seconds from a start of the source's own (monotonic)."""
    LOCAL = "local"
    """A wall clock without a zone: seconds since 1970 as if it were UTC; without a year, as if it were 1970."""
    UTC = "utc"
    """A wall clock with its zone: seconds since 1970."""


class Role(StrEnum):
    """Which side of a comparison an arm is, where its label or its place says so."""

    NONE = ""
    BEFORE = "before"
    AFTER = "after"


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where something stands: a source and, if it has lines, the line (1-based; 0 where there is none)."""

    source: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


class Quoted(msgspec.Struct, frozen=True, kw_only=True):
    """One number that somebody wrote down."""

    quantity: str
    """A name of `vocabulary.QUANTITIES`, or the label itself in snake case where the vocabulary has none."""
    stat: str = ""
    """`mean`, `p50` … `p999`, `min`, `max`, `std`; empty for a scalar."""
    value: float
    high: float | None = None
    """The upper end where a range was written (`5 to 10`): `value` is the lower one."""
    unit: str = ""
    """As the vocabulary has it; empty where the label names none and the quantity has none: a question, not a value."""
    relative: bool = False
    """A change against the baseline, in percent, and no level."""
    qualifier: str = ""
    """Words of the label that are neither quantity, statistic nor unit: `1 s after client disconnect`."""
    label: str = ""
    """As it was written."""
    place: Place = Place()

    @property
    def key(self) -> str:
        """`ttft.p99`, or the quantity alone."""
        return f"{self.quantity}.{self.stat}" if self.stat else self.quantity


class Arm(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One row of a table, one arm of a form, one printed benchmark: what was measured under one condition."""

    name: str
    """Unique among the arms of its source: `serve layer, concurrency 8`."""
    label: str = ""
    """The text that names it: the first column of its row, the key of its form."""
    keys: dict[str, float | str] = {}
    """The conditions under which it was measured, by quantity or heading: `concurrency`, `max_num_seqs`, `weights`."""
    values: dict[str, Quoted] = {}
    """`Quoted.key` -> the number. Of two numbers with one key but other qualifiers, the second has the qualifier in its
    key: `gpu_util@1 s after client disconnect`."""
    role: Role = Role.NONE
    place: Place = Place()

    def get(self, quantity: str, *stats: str) -> float | None:
        """The value of `quantity` in the first of `stats` that it has (without `stats`: the scalar); not a change."""
        found = self.quoted(quantity, *stats)
        return None if found is None or found.relative else found.value

    def quoted(self, quantity: str, *stats: str) -> Quoted | None:
        """The number itself, whether level or change."""
        for stat in stats or ("",):
            found = self.values.get(f"{quantity}.{stat}" if stat else quantity)
            if found is not None:
                return found
        return None


class Series(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A gauge over time, or over another axis that grows."""

    name: str
    labels: dict[str, str] = {}
    """`engine`, `gpu`, `stream`, `replica` …"""
    axis: str = "time"
    """`time` (s), `session_age` (s), `uptime` (s), `iteration`, `output_position` (tokens), `turn`, or `scrape`:
    readings without a stamp, counted from 0."""
    at: Floats
    """Place on the axis, ascending, shape (n,)."""
    values: Floats
    """Shape (n,); NaN where the source has a hole."""
    unit: str = ""
    clock: Clock = Clock.NONE
    lines: NDArray[np.int64] | None = None
    """Line of each value in `place.source`."""
    place: Place = Place()

    def __len__(self) -> int:
        return int(self.values.size)

    def line_of(self, index: int) -> Place:
        """Where one of its values stands."""
        return self.place if self.lines is None else Place(self.place.source, int(self.lines[index]))


class Counter(msgspec.Struct, frozen=True, kw_only=True):
    """A counter at two times. A counter that fell was restarted: it has no delta."""

    name: str
    labels: dict[str, str] = {}
    first: float
    last: float
    window_s: float | None = None
    """Seconds between the two readings, where the source says so."""
    order: int = 0
    """Which window, of several scrapes in a row: 0 lies between the first and the second."""
    lifetime: bool = False
    """Counted since the engine's start (`first` is 0), because there is no second scrape: it has no delta."""
    unit: str = ""
    raw: str = ""
    """The name in the source: `vllm:num_preemptions_total`."""
    place: Place = Place()

    @property
    def restarted(self) -> bool:
        """Whether it fell."""
        return self.last < self.first

    @property
    def delta(self) -> float | None:
        """What was counted between the two readings; `None` after a restart, or where there is one reading only."""
        counted = self.last - self.first
        return None if self.restarted or self.lifetime or not math.isfinite(counted) else counted


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """What a cumulative histogram counted between two scrapes (or since its start where there is one scrape only)."""

    name: str
    labels: dict[str, str] = {}
    bounds: list[float]
    """Upper edges without the infinite one, ascending, in `unit`."""
    counts: list[float]
    """Count of each bucket, not cumulative; one more than `bounds`: the last is what lies above the top edge."""
    sum: float | None = None
    window_s: float | None = None
    order: int = 0
    """As of a counter."""
    lifetime: bool = False
    """Counted since the engine's start, because there is no second scrape."""
    unit: str = ""
    raw: str = ""
    place: Place = Place()

    @property
    def n(self) -> float:
        """How many values were counted."""
        return float(sum(self.counts))

    @property
    def mean(self) -> float | None:
        """Sum / count."""
        return self.sum / self.n if self.sum is not None and self.n else None

    def quantile(self, p: float) -> float | None:
        """Linear inside the bucket, lower edge 0; `inf` where it lies above the top edge (never a number to print);
        `None` without values, or where only their sum and count are known.
        """
        rank, seen, low = p * self.n, 0.0, 0.0
        if not self.n or not self.bounds:
            return None
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and seen + count >= rank:
                return low + (bound - low) * max(rank - seen, 0.0) / count
            seen, low = seen + count, bound
        return float("inf")


def together(items: Sequence[Histogram]) -> Histogram:
    """Histograms of one window as one. Bounds that not all of those that saw anything have are dropped: what one of
    them counted below a bound that it does not have, nobody knows.
    """
    seen = [item for item in items if item.n] or list(items)
    first = seen[0]
    if len(seen) == 1:
        return first
    common = set(first.bounds).intersection(*(item.bounds for item in seen[1:]))
    bounds = [bound for bound in first.bounds if bound in common]
    counts = [0.0] * (len(bounds) + 1)
    for item in seen:
        if item.bounds == bounds:
            counts = [count + more for count, more in zip(counts, item.counts, strict=True)]
            continue
        for bound, count in zip([*item.bounds, float("inf")], item.counts, strict=True):
            counts[bisect_left(bounds, bound)] += count
    sums = [item.sum for item in seen]
    return msgspec.structs.replace(
        first,
        labels={},
        bounds=bounds,
        counts=counts,
        sum=None if None in sums else sum(value for value in sums if value is not None),
        lifetime=any(item.lifetime for item in seen),
    )


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened once."""

    kind: str
    """`jit`, `preempted`, `retracted`, `aborted`, `finished`, `stack`, `clock_event`, `error`, `restart` …"""
    at: float | None = None
    clock: Clock = Clock.NONE
    text: str = ""
    """What the source says, shortened."""
    attributes: dict[str, float | str] = {}
    place: Place = Place()


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration value or a stated condition, whoever states it."""

    name: str
    """`max_num_batched_tokens`, `nginx.proxy_buffering`, `changed`, `note`."""
    value: Any
    """Number (in `unit`), text, bool, or a list of them; a pair of numbers is a range."""
    unit: str = ""
    scope: str = ""
    """What it holds for: `location /v1/`, an arm's name; empty for all."""
    place: Place = Place()

    @property
    def number(self) -> float | None:
        """The value as a number; the lower end of a range."""
        value = self.value[0] if isinstance(self.value, list) and self.value else self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            number = float(value)
        except OverflowError:  # an integer of hundreds of digits
            return None
        return number if math.isfinite(number) else None


class Rows(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A table with one row a request, a chunk, a line of an access log, a span, a speech event.

    Columns are arrays of one length: float64 with NaN for what is missing, or object (text, "" for what is missing).
    """

    kind: str
    """`requests`, `chunks`, `access`, `spans`, `speech`, `turns`, `moments` (a time series with text in it)."""
    columns: dict[str, NDArray[Any]]
    clock: Clock = Clock.NONE
    lines: NDArray[np.int64] | None = None
    place: Place = Place()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def line_of(self, row: int) -> Place:
        """Where one of its rows stands."""
        return self.place if self.lines is None else Place(self.place.source, int(self.lines[row]))

    def numbers(self, name: str) -> Floats:
        """A numeric column; all NaN where there is none."""
        found = self.columns.get(name)
        if found is None or found.dtype == object:
            return np.full(len(self), np.nan)
        return found.astype(np.float64)

    def counts(self) -> Floats:
        """How many of its kind each row stands for: its `count`, 1 where none is given."""
        return np.nan_to_num(self.numbers("count"), nan=1.0)

    def texts(self, name: str) -> list[str]:
        """A text column; all empty where there is none."""
        found = self.columns.get(name)
        return [""] * len(self) if found is None else [str(value) for value in found]

    def members(self, name: str) -> dict[str, NDArray[np.int64]]:
        """Text of a column -> the rows that have it, in their order; texts in the order in which they come first."""
        texts = self.texts(name)
        place: dict[str, int] = {}
        codes = np.array([place.setdefault(text, len(place)) for text in texts], dtype=np.int64)
        order = np.argsort(codes, kind="stable").astype(np.int64)
        cuts = np.searchsorted(codes[order], np.arange(len(place) + 1))
        return {text: order[cuts[code] : cuts[code + 1]] for text, code in place.items()}

    def has(self, name: str) -> bool:
        """Whether the column is there and holds anything."""
        found = self.columns.get(name)
        if found is None:
            return False
        return any(found) if found.dtype == object else not bool(np.isnan(found.astype(np.float64)).all())


class Understood(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a source was understood: `parsed 41 of 44 lines`."""

    source: str
    format: str
    understood: int
    total: int
    what: str = "lines"
    examples: list[str] = []
    """The first few that were not, with their line: `12: Traceback (most recent call last):`."""
    said: list[str] = []
    """What the reader has to say of it: what was thinned, what was dropped, what it lacks."""
    wants: list[str] = []
    """What to give instead, where it lacks something: `request times of the proxy: …`."""
