"""The admin port's and the page's views of a fleet: what all workers say, as if one process said it.

Counters are sums over the workers that live and those that are gone; a gauge is a sum or the worst, as its meaning is.
Records come from the store, which reads the files of every writer, after each worker has written what it holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from time import monotonic_ns
from typing import Any, Final, cast

import msgspec

from tailrace.app.engine_metrics import show_engines
from tailrace.app.fleet import Fleet
from tailrace.app.host_gauges import show_signals
from tailrace.app.worker_handle import NoAnswerError, WorkerHandle
from tailrace.app.worker_link import Counts
from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.applications import GATEWAY
from tailrace.gateway.config import Config, parse_objectives
from tailrace.gateway.engine_link import EngineLink
from tailrace.gateway.happenings import HappeningKind, ordered
from tailrace.gateway.history import Address, Follower, History
from tailrace.gateway.host.signals import HostSignals
from tailrace.gateway.routing import command, no_canary
from tailrace.gateway.served import cancel_views, check_backend, lane_view, objectives_of, upstream_of
from tailrace.govern.prediction_error import ErrorSummary, together
from tailrace.model.record import RequestRecord
from tailrace.store.query import RecordStore
from tailrace.store.table import RecordTable
from tailrace.store.writer import RecordWriter
from tailrace.web.source import LaneNow, LiveNow, StreamNow, dropped_by_class, rungs_in_force

_PATIENCE_S: Final = 1.0
"""How long a view waits for a worker; it then stands without its numbers of this moment."""
_WORST: Final = frozenset(
    {
        "loop_lag_ms",
        "loop_lag_max_ms",
        "cpu",
        "oldest_wait_ms",
        "predicted_wait_ms",
        "running_limit",
        "queued_limit",
        "running_tokens_limit",
        "running_kv_tokens_limit",
        "queued_tokens_limit",
        "prefill_requests_limit",
        "prefill_tokens_limit",
        "weight",
        "throughput_objective",
        "median",
        "5m",
        "1h",
        "coverage",
        "bias",
        "priority",
        "prefill_error_share",
        "skew_cv",
        "skew_max_over_mean",
        "code",
        "failures_in_a_row",
        "retry_after_ms",
        "weight_now",
        *("error_p50", "error_p95", "bias", "tokens_a_prompt", "tokens_a_message"),
        *("bytes_a_token", "bytes_a_token_wide", "output_factor", "output_cap", "prompt_to"),
    }
)
"""Numbers that do not add up over processes: the largest stands for all."""


class FleetViews:
    """`Served` for the admin port."""

    def __init__(
        self, fleet: Fleet, writer: RecordWriter, applications: History, host: HostSignals | None = None
    ) -> None:
        """`writer` is the supervisor's own: what comes in at the admin port is about requests of any worker.

        `applications`: what services before us have reported of their requests.
        `host` reads this machine, once for all workers.
        """
        self._fleet = fleet
        self._writer = writer
        self._host = host
        self._stores: dict[str, RecordStore] = {}
        self.pulls: list[Callable[[GatewayMetrics], None]] = []
        """What the supervisor's own numbers are set by at each scrape."""
        self.applications = applications

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._fleet.config

    @property
    def closing(self) -> bool:
        """Whether it shuts down."""
        return self._fleet.closing

    @property
    def upstream(self) -> str:
        """The engine's address."""
        return upstream_of(self._fleet.config)

    @property
    def engine(self) -> EngineLink:
        """The way to ask the engine something beside the requests."""
        return self._fleet.engines.first

    @property
    def store(self) -> RecordStore:
        """The records of all workers."""
        root = self._fleet.config.records.dir
        if root not in self._stores:
            self._stores = {root: RecordStore(root)}
        return self._stores[root]

    def ready(self) -> tuple[bool, str]:
        """Whether new requests would be served, and why not."""
        return self._fleet.ready()

    async def live(self) -> dict[str, Any]:
        """The gauges of this moment."""
        said = await self._ask("live", dict[str, Any])
        out = merged([live for _, live in said])
        out["engine"] = self._fleet.engines.first.view(monotonic_ns())
        out["counters"] = merged([out.get("counters", {}), self._fleet.past.counters])
        answering = {worker.name for worker, _ in said}
        out["workers"] = [
            {
                "pid": worker.pid,
                "state": worker.state.value,
                "answers": worker.name in answering,
                "in_flight": next((live["in_flight"] for one, live in said if one is worker), None),
                "leases": {
                    lane: {"running": running, "queued": queued}
                    for lane, (running, queued) in self._fleet.book.held_by(worker.name).items()
                },
                "uptime_s": round(time.monotonic() - worker.started_at, 3),
            }
            for worker in self._fleet.workers.values()
        ]
        out["restarts"] = self._fleet.restarts
        return out

    async def health(self) -> dict[str, Any]:
        """Addresses, gauges and counters."""
        live, _ = await asyncio.gather(self.live(), self._count())
        fleet = self._fleet
        return {
            "url": fleet.port.url,
            "upstream": self.upstream,
            "started_unix_ns": fleet.started_unix_ns,
            **live,
            "store": self.store_counters(),
        }

    async def streams(self) -> list[dict[str, Any]]:
        """Requests in flight, oldest first."""
        said = await self._ask("streams", list[dict[str, Any]])
        return sorted((stream for _, streams in said for stream in streams), key=lambda stream: -stream["age_ms"])

    async def cancel(self, request_id: str) -> str:
        """End a request in flight, in whichever worker it is; returns its stage, or nothing where nobody has it.

        InputError for one that cannot be ended without its neighbour, or where the worker that may have it is stuck.
        """
        workers = self._built()
        stages = await self._ask("cancel", str, request_id=request_id)
        stage = next((stage for _, stage in stages if stage), "")
        if not stage and len(stages) < len(workers):
            silent = {worker.pid for worker in workers} - {worker.pid for worker, _ in stages}
            raise NoAnswerError(
                f"may have the request {request_id!r}, and does not answer",
                place=f"worker {', '.join(map(str, sorted(silent)))}",
                remedy="Try again; `GET /healthz` shows how the workers are.",
            )
        return stage

    async def cancels(self) -> list[dict[str, Any]]:
        """The last cancels that had reached the engine, oldest first."""
        return cancel_views(engine.cancels.watch for engine in self._fleet.engines)

    async def holds(self, addresses: Sequence[Address]) -> list[bool]:
        """Whether any worker has the record that each address speaks of in memory."""
        said = await self._ask("holds", list[bool], addresses=addresses)
        return [any(answers[at] for _, answers in said) for at in range(len(addresses))]

    async def lanes(self) -> dict[str, dict[str, Any]]:
        """Lane -> limits and occupancy."""
        lanes: dict[str, dict[str, Any]] = (await self.live()).get("lanes", {})
        for policy in self.config.lane_policies():
            lanes.setdefault(policy.name, {}).update(lane_view(policy))
        return lanes

    async def degradation(self) -> list[dict[str, Any]]:
        """Where the ladder of each worker stands."""
        return [{"pid": worker.pid, **said} for worker, said in await self._ask("degradation", dict[str, Any])]

    async def cache(self) -> dict[str, Any] | None:
        """The workers' caches, added up; each holds its own answers."""
        found: dict[str, Any] | None = (await self.live()).get("cache")
        return found

    async def purge_cache(self) -> int:
        """Have every worker forget its kept answers."""
        return sum(count for _, count in await self._ask("purge", int))

    async def backends(self, window_ns: int) -> list[dict[str, Any]]:
        """The engines, as the one watch on each sees it, and what all workers have there."""
        live = await self.live()
        loads, now = live.get("backends", {}), monotonic_ns()
        return [
            {
                "name": engine.name,
                "url": engine.link.url,
                **engine.link.view(now),
                **engine.link.window_view(now, window_ns, objectives_of(self.config)),
                **loads.get(engine.name, {}),
            }
            for engine in self._fleet.engines
        ]

    async def balance(self) -> dict[str, Any]:
        """Skew, retries and affinity over all backends; the skew of the worker where it is worst."""
        balance: dict[str, Any] = (await self.live()).get("balance", {})
        return balance

    def signals(self, since_unix_ns: int | None) -> dict[str, Any] | None:
        """What is read of this machine."""
        return None if self._host is None else self._host.view(since_unix_ns)

    def host_words(self) -> str:
        """The same of this moment, in a line."""
        return "" if self._host is None else self._host.words()

    async def drain(self, name: str, *, on: bool) -> None:
        """Keep new requests away from the engine in all workers, or let them go to it again."""
        check_backend(self.config, name)
        engine = self._fleet.engines.named(name)
        if engine is not None:
            engine.link.drain(on=on)

    async def metrics(self, accept: str) -> tuple[bytes, str] | None:
        """Body and content type of `/metrics`: every request is counted once, whichever worker served it."""
        await self._count()
        fleet = self._fleet
        out = GatewayMetrics(parse_objectives(self.config.objectives))
        out.absorb(fleet.past_metrics.snapshot().ended())
        for worker in fleet.workers.values():
            out.absorb(worker.counts.metrics)
        out.absorb(self._own_metrics().snapshot())
        out.counter("tailrace_worker_restarts_total", fleet.restarts)
        for pull in self.pulls:
            pull(out)
        show_engines(out, fleet.engines.links())
        if self._host is not None:
            show_signals(self._host, out)
        return out.render(accept)

    async def recent(self, since_unix_ns: int | None, limit: int, vantage: str = GATEWAY) -> list[RequestRecord]:
        """The newest `limit` records of one vantage that began after `since_unix_ns`, oldest first."""
        await self.flush()
        since = None if since_unix_ns is None else since_unix_ns + 1
        return await asyncio.to_thread(self.store.records, since, limit, vantage=vantage)

    async def record(self, request_id: str, vantage: str | None = None) -> RequestRecord | None:
        """One record by our id or the client's; `None`: the gateway's, or else an application's."""
        await self.flush()
        return await asyncio.to_thread(self.store.get, request_id, vantage=vantage)

    def follow(self, vantage: str = GATEWAY) -> AbstractContextManager[Follower]:
        """Receive every record of one vantage from now on."""
        return self._fleet.follow() if vantage == GATEWAY else self.applications.follow()

    async def happenings(self) -> list[dict[str, Any]]:
        """What changed while it served, oldest first. What all workers did alike is told once, by the fleet."""
        said = await self._ask("happenings", list[dict[str, Any]])
        own = [
            [{**one, "worker": worker.pid} for one in listed if one["kind"] != HappeningKind.CONFIGURATION]
            for worker, listed in said
        ]
        self._fleet.look_at_engines()
        return ordered([self._fleet.happenings.view(), *own])

    async def canary(self) -> dict[str, Any]:
        """No canary: the configuration refuses one with several workers. The copies are each worker's own."""
        shadow = self._fleet.config.shadow
        out = no_canary()
        if shadow is not None:
            out["shadow"] = {
                "backends": shadow.backends,
                "share": shadow.share,
                "at_once": shadow.at_once,
                "why": "the copies of several workers are counted in their records (route=shadow)",
            }
        return out

    async def steer_canary(self, action: str, share: float | None) -> None:
        """There is none to steer."""
        command(None, action, share)

    async def reconfigure(self, config: Config, by: str = "") -> None:
        """Apply a configuration to all workers, or to none."""
        await self._fleet.reconfigure(config, by)

    def store_counters(self) -> dict[str, int]:
        """What all writers have counted, as of the last time they said so."""
        fleet = self._fleet
        own = self._writer.counters()
        return merged([fleet.past.store, *(worker.counts.store for worker in fleet.workers.values()), own])

    def _own_metrics(self) -> GatewayMetrics:
        out = GatewayMetrics(parse_objectives(self.config.objectives))
        out.records(self._writer.counters(), disk_ok=not self._writer.error)
        return out

    async def flush(self) -> None:
        """Have everybody write what it holds."""
        await asyncio.gather(self._ask("flush", bool), asyncio.to_thread(self._writer.flush, _PATIENCE_S))

    async def _count(self) -> None:
        """Have every worker's counts of now; one that is stuck keeps its last ones."""
        for worker, counts in await self._ask("counts", Counts):
            worker.counts = counts

    def _built(self) -> list[WorkerHandle]:
        return [worker for worker in self._fleet.workers.values() if worker.built]

    async def _ask(
        self, what: str, kind: Any, *, request_id: str = "", addresses: Sequence[Address] = ()
    ) -> list[tuple[WorkerHandle, Any]]:
        workers = self._built()
        answers = await asyncio.gather(
            *(
                worker.ask(what, kind, request_id=request_id, addresses=addresses, within_s=_PATIENCE_S)
                for worker in workers
            ),
            return_exceptions=True,
        )
        out = []
        for worker, answer in zip(workers, answers, strict=True):
            if isinstance(answer, NoAnswerError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            out.append((worker, answer))
        return out


class FleetPage:
    """`PageSource` for the page."""

    def __init__(self, fleet: Fleet, views: FleetViews) -> None:
        self._fleet = fleet
        self._views = views
        self._started = time.monotonic()

    @property
    def title(self) -> str:
        """The engine's address."""
        return self._views.upstream

    async def table(self, since_unix_ns: int | None, limit: int, vantage: str = GATEWAY) -> RecordTable:
        """Records at rest; they are there about 200 ms after a request has ended."""
        return await asyncio.to_thread(self._views.store.table, since_unix_ns, None, limit, vantage=vantage)

    async def record(self, request_id: str, vantage: str | None = None) -> RequestRecord | None:
        """One record with its timeline; the gateway's first, if no vantage is said."""
        return await self._views.record(request_id, vantage)

    async def live(self) -> LiveNow:
        """The state of this moment."""
        live, streams, ladders = await asyncio.gather(
            self._views.live(), self._views.streams(), self._views.degradation()
        )
        engine = self._fleet.engines.first
        out: LiveNow = {
            "in_flight": live.get("in_flight", 0),
            "lanes": cast("dict[str, LaneNow]", live.get("lanes", {})),
            "streams": cast("list[StreamNow]", streams),
            "given_up": rungs_in_force(ladders),
            "dropped": dropped_by_class(self._views.store_counters()),
            "loop_lag_ms": live.get("loop_lag_max_ms"),
            "uptime_s": time.monotonic() - self._started,
            "engine": engine.name,
            "engine_version": engine.version_with_caveat,
            "engine_trouble": engine.unready(),
            "simulated": "simulated" in engine.watch.server,
            "upstream": self._views.upstream,
            "upstream_ok": engine.reachable,
            "host": self._views.host_words(),
            "applications": self._views.applications.total,
        }
        state = engine.watch.state(monotonic_ns())
        if state is not None:
            out["engine_state"] = {
                name: value
                for name in ("running", "waiting", "kv_usage")
                if (value := getattr(state, name)) is not None
            }
        return out


def merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Several processes' numbers as one: added up, or the worst of them; of what is no number, the first."""
    out: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            known = out.get(name)
            if known is None:
                out[name] = merged([value]) if isinstance(value, dict) else value
            elif isinstance(value, dict):
                out[name] = _errors(known, value) if name.endswith("_error") else merged([known, value])
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                join: Callable[[Any, Any], Any] = max if name in _WORST else _plus
                out[name] = join(known, value)
    return out


def _errors(known: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    both = msgspec.convert(known, ErrorSummary), msgspec.convert(value, ErrorSummary)
    out: dict[str, Any] = msgspec.to_builtins(together(*both))
    return out


def _plus(a: Any, b: Any) -> Any:
    return a + b
