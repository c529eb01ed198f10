"""A saved scrape of an engine's /metrics. Two of them give the counters' deltas."""

from __future__ import annotations

from tailrace.engines.prometheus_text import Scrape, parse_scrape
from tailrace.engines.registry import adapter, detect
from tailrace.model.engine_state import EngineState

__all__ = ["read_scrape", "state_of"]


def read_scrape(text: str, at_ns: int) -> tuple[EngineState, list[str]]:
    """(the engine's state, what was not understood). The engine is told by the metrics' names."""
    return state_of(parse_scrape(text), at_ns)


def state_of(scrape: Scrape, at_ns: int) -> tuple[EngineState, list[str]]:
    """The same of a scrape that was parsed already."""
    found = detect({}, scrape.names)
    state = adapter(found.name).read_metrics(scrape, at_ns)
    if state.names:
        return state, []
    return state, [f"no signal of a known engine in these metrics ({found.evidence})"]
