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
"""Field of `EngineState` -> its names, the newest first."""

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
