"""What the page asks of whoever mounts it: records at rest, and the state of this moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypedDict

from tailrace.model.record import RequestRecord
from tailrace.store.table import RecordTable


class LaneNow(TypedDict, total=False):
    """One lane at this moment, as the admin port's `/lanes` spells it."""

    running: int
    running_limit: int | None
    queued: int
    queued_limit: int | None
    oldest_wait_ms: float
    predicted_wait_ms: float | None
    order: str


class StreamNow(TypedDict, total=False):
    """One request in flight, as the admin port's `/streams` spells it."""

    request_id: str
    lane: str
    model: str
    stage: str
    age_ms: float
    tokens: int


class LiveNow(TypedDict, total=False):
    """The state of this moment. Every key may be absent: what is not known is shown as not known, never as 0."""

    in_flight: int
    lanes: dict[str, LaneNow]
    streams: list[StreamNow]
    given_up: list[str]
    """Rungs of the degradation ladder that are in force, in any process."""
    dropped: dict[str, int]
    """Records dropped since the start by class (`normal`, `slow`); shown when any is above 0."""
    loop_lag_ms: float | None
    """The largest lag of the event loop in the last seconds."""
    uptime_s: float
    engine: str
    engine_version: str
    engine_trouble: str
    """Why the engine takes no requests or does nothing: gone, drained, another server, frozen; empty where it works."""
    simulated: bool
    """The engine is Tailrace's model of one: the page says so beside its name."""
    upstream: str
    upstream_ok: bool | None
    """Whether the engine answered lately; `None` where nobody has asked."""
    applications: int
    """Requests that services before the gateway have reported; the page offers their view where there are any."""
    engine_state: dict[str, Any]
    """`running`, `waiting`, `kv_usage` of the last scrape, where there was one."""
    host: str
    """One line about the machine: CPU time given and withheld, accelerators; empty where nothing is read."""


def dropped_by_class(counters: Mapping[str, int]) -> dict[str, int]:
    """The `dropped.CLASS` counters of a record writer, by class."""
    return {name.removeprefix("dropped."): n for name, n in counters.items() if name.startswith("dropped.")}


def rungs_in_force(ladders: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the ladders give up, in their order; a ladder as `GET /degradation` spells it."""
    rungs = [rung for ladder in ladders for rung in ladder.get("rungs") or []]
    return list(dict.fromkeys(str(rung["name"]) for rung in rungs if rung.get("on")))


class PageSource(Protocol):
    """Gives the page its data. Implementations must not hold the event loop: read tables in a thread."""

    @property
    def title(self) -> str:
        """What is being watched, in a few words: the gateway's name or its upstream."""
        ...

    async def table(self, since_unix_ns: int | None, limit: int, vantage: str = "gateway") -> RecordTable:
        """The newest `limit` records of one vantage that started at or after `since_unix_ns` (all when `None`).

        No timelines.
        """
        ...

    async def record(self, request_id: str, vantage: str | None = None) -> RequestRecord | None:
        """One record with its timeline, `None` where it is not known; the gateway's first, if no vantage is said."""
        ...

    async def live(self) -> Mapping[str, object]:
        """The state of this moment, as `LiveNow` describes it; cheap, called every other second for each viewer."""
        ...
