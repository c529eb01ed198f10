"""Signals: what we want to know of an engine, and under which names its versions say it.

Names change between versions and dashboards die of it. A signal is therefore an ordered list of names; the first one
*present in this scrape* wins, the state says which it was, and a signal without any is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tailrace.engines.prometheus_text import Scrape
from tailrace.measure.dialect import MAX_COUNT
from tailrace.model.engine_state import EngineState


class Alias(msgspec.Struct, frozen=True):
    """One name of a signal."""

    name: str
    scale: float = 1.0
    """Multiplies the value into our unit: 1e-6 for microseconds into seconds."""


SignalTable = Mapping[str, Sequence[Alias]]
"""A noun of ours -> its names, the newest first. The nouns are the fields of `EngineState`, `COUNTERS`, `HISTOGRAMS`."""

COUNTERS: Final[Mapping[str, str]] = {
    "finished_total": "requests that ended, as the engine counts: aborted and refused ones may be among them, or not",
    "failed_total": "requests that the engine calls failed",
    "rejected_total": "requests that it refused",
    "aborted_total": "requests that it aborted",
    "steps_total": "steps computed: what moves while the engine is alive",
}
"""Nouns of what engines count beside their state."""

HISTOGRAMS: Final[Mapping[str, str]] = {
    "ttft": "arrival at the engine -> first token, its queue included",
    "itl": "gap between two tokens",
    "tpot": "mean gap of one request",
    "e2e": "arrival at the engine -> last token",
    "queue": "wait in the engine's queue",
    "preprocess": "tokenising and checking",
    "prefill": "first scheduled -> first token",
    "decode": "first -> last token",
    "inference": "first scheduled -> last token",
}
"""Nouns of the engines' histograms; all in seconds once an alias's scale is applied."""


def first_present(scrape: Scrape, aliases: Sequence[Alias]) -> Alias | None:
    """The alias under which this scrape has a signal: samples of that name, or the buckets of that histogram."""
    return next((each for each in aliases if each.name in scrape or f"{each.name}_bucket" in scrape), None)


_INTEGER: Final = frozenset({"running", "waiting"})
_LARGEST: Final = frozenset({"kv_usage"})
"""Shares are not added over engines behind one endpoint: the fullest one decides."""


def names(*aliases: str, scale: float = 1.0) -> tuple[Alias, ...]:
    """Aliases of equal scale, in order."""
    return tuple(Alias(name, scale) for name in aliases)


def read_state(scrape: Scrape, table: SignalTable, now: int) -> EngineState:
    """The state that a scrape shows under the names of `table`."""
    values: dict[str, float | int] = {}
    used: dict[str, str] = {}
    for signal, aliases in table.items():
        for alias in aliases:
            value = scrape.largest(alias.name) if signal in _LARGEST else scrape.total(alias.name)
            if value is not None and 0 <= value <= MAX_COUNT:
                # NaN, infinities and negative values are no signal; they would end up in every record.
                value *= alias.scale
                values[signal] = round(value) if signal in _INTEGER else value
                used[signal] = alias.name
                break
    return EngineState(at_ns=now, names=used, **values)  # type: ignore[arg-type]
