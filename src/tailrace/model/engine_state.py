"""What an engine's metrics said at one moment."""

from __future__ import annotations

import msgspec


class EngineState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One scrape, reduced to the signals that decisions and diagnoses use. Absent signals are `None`, never 0."""

    at_ns: int
    """Our monotonic clock when the answer arrived."""
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of KV blocks in use, 0..1."""
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    prefix_hit_tokens_total: float | None = None
    prefix_query_tokens_total: float | None = None
    queue_seconds_total: float | None = None
    names: dict[str, str] = {}
    """Signal -> the metric's name in this scrape, so that a reader can check us."""
