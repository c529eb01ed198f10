"""Under what a load test ran: everything that a reader needs to judge whether another run is comparable."""

from __future__ import annotations

from typing import Any

import msgspec


class Conditions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of the two sides of a run. `None` and an empty map mean unknown, and are shown as "unknown"."""

    command: str | None = None
    """The command line, without secrets."""
    # -- the side that is measured
    server: str | None = None
    """What the server calls itself (its `Server` header)."""
    engine: str | None = None
    engine_version: str | None = None
    engine_flags: dict[str, Any] = {}
    """Settings as the engine itself tells them, by its own names."""
    model: str | None = None
    model_revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    gpu: list[str] | None = None
    """Names of the GPUs; an empty list says that there is none."""
    gpu_memory_bytes: int | None = None
    """Of all of them together."""
    # -- the load
    prompts: str | None = None
    """What the prompts are: drawn from a mix, a trace's file, a template."""
    warmup: str | None = None
    """`10 requests`, `5 s`; `none` where there was none."""
    # -- the side that measures
    tool: str | None = None
    """The load generator with its version."""
    host: dict[str, Any] = {}
    """The load generator's machine: os, cpu, cores, memory_bytes, python."""
