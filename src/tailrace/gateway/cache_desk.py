"""The response cache at work: which requests it takes, and who gets whose answer.

Sits between reading a request and its lane. Without `cache.routes` there is no desk, and no request meets it.
"""

from __future__ import annotations

import os
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from tailrace.gateway.cache_keys import CacheConfig, CacheRouteConfig
from tailrace.gateway.cached_exchange import CachedExchange
from tailrace.gateway.head import Header
from tailrace.gateway.lane_facts import lane_facts
from tailrace.gateway.meaning import Meanings
from tailrace.gateway.recorded_answer import KeptAnswer, KeptHead
from tailrace.govern.cache_key import CACHEABLE_PATHS, Question, owner_of, question
from tailrace.govern.response_cache import Entry, ResponseCache
from tailrace.govern.rungs import Rung
from tailrace.govern.single_flight import Flight, Flights
from tailrace.measure.meter import summarise_body
from tailrace.model.outcome import OutcomeKind
from tailrace.model.thresholds import S

if TYPE_CHECKING:
    from tailrace.gateway.config import Config
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.routes import Route

LARGEST_BODY: Final = 4 * 1024 * 1024
"""Of a request that is looked up: a larger one is pictures, and reading it once more would hold up everybody."""
_COOKIE: Final = (b"cookie",)
_CREDENTIALS: Final = (b"authorization", b"x-api-key", b"api-key", *_COOKIE)
_SCOPE: Final = (b"anthropic-version", b"anthropic-beta", b"openai-organization", b"openai-project", b"accept")
"""Headers by which an API's answer to the same body differs."""
_SECRET_BYTES: Final = 32


class CacheDesk:
    """The answers of one process, and the requests that wait for one another."""

    def __init__(self, config: CacheConfig) -> None:
        self._secret = os.urandom(_SECRET_BYTES)
        self._config = config
        self.entry_bytes = config.entry_bytes
        self.meanings = Meanings(config.embedding) if config.embedding is not None else None
        self.cache: ResponseCache[KeptAnswer] = ResponseCache(
            config.max_bytes, config.entry_bytes, on_drop=self._dropped
        )
        self._flights: Flights[KeptHead] = Flights()
        self._apply(config)

    def _apply(self, config: CacheConfig) -> None:
        self._config = config
        self.entry_bytes = config.entry_bytes
        self._vary = tuple(name.lower().encode("latin-1") for name in config.vary)
        self._paths = {
            path: [one for one in config.routes if not one.paths or path in one.paths] for path in CACHEABLE_PATHS
        }
        self.cache.resize(config.max_bytes, config.entry_bytes)

    def reconfigure(self, config: CacheConfig) -> None:
        """New routes and bounds; what is kept stays, for those that may still have it."""
        if config.embedding != self._config.embedding:
            old, self.meanings = self.meanings, None
            if old is not None:
                old.let_go()
            if config.embedding is not None:
                self.meanings = Meanings(config.embedding)
        self._apply(config)

    def takes(self, route: Route) -> bool:
        """Whether requests of a path may be of a cached route."""
        return bool(self._paths.get(route.endpoint))

    # -- a request

    def _route(self, exchange: GatewayExchange) -> CacheRouteConfig | None:
        model = exchange.ledger.model
        for one in self._paths.get(exchange.route.endpoint, ()):
            if not one.models or any(_fits(pattern, model) for pattern in one.models):
                return one
        return None

    def question(self, exchange: GatewayExchange, body: bytes) -> Question | None:
        """What a request asks; `None` where it is none of the cache's."""
        route = self._route(exchange)
        if route is None or len(body) > LARGEST_BODY:
            return None
        named = exchange.head.named
        if b"no-store" in named.get(b"cache-control", b"").lower():
            self.cache.counters.bypassed += 1
            return None
        self._classify(exchange)
        # A key that we know ourselves says no more than its tenant; of any other nobody knows whose it is.
        proofs = _COOKIE if exchange.gateway.callers.ours(named) else _CREDENTIALS
        # The whole of them, each time they are there: an engine may read another of two than we do, and of a tenant's
        # name the ledger has no more than its beginning.
        header = exchange.gateway.callers.header
        says = _whole(exchange.head.headers, (*proofs, *self._vary, *(() if header is None else (header,))))
        owner = owner_of(self._secret, exchange.ledger.tenant, says)
        query = exchange.head.target.partition(b"?")[2]
        return question(
            body,
            path=exchange.route.endpoint,
            owner=owner,
            scope=(query, *_whole(exchange.head.headers, _SCOPE)),
            semantic=route.semantic is not None and self.meanings is not None,
        )

    def _classify(self, exchange: GatewayExchange) -> None:
        """Its tenant and its lane, as admission will see them."""
        lanes, clock = exchange.gateway.lanes, exchange.clock
        facts = lane_facts(
            exchange.ledger,
            exchange.work,
            exchange.head.named,
            stream=exchange.work.stream,
            deadline_at=clock.deadline_at,
            callers=exchange.gateway.callers,
        )
        exchange.lane = exchange.ledger.lane = lane = lanes.lane_of(facts)
        clock.budgets = lanes.policy(lane).budgets

    def serve(self, exchange: CachedExchange, asked: Question, now: int, *, alone: bool = False) -> None:
        """Give what is kept, follow who asks the same, or lead. `alone`: it has followed often enough."""
        directives = exchange.head.named.get(b"cache-control", b"").lower()
        fresh = b"no-cache" in directives
        lane = exchange.lane
        counters = self.cache.counters
        if fresh:
            counters.bypassed += 1
        else:
            entry = self.cache.look(asked.key, now, max_age_ns=_max_age(directives))
            if entry is not None:
                counters.hits += 1
                if entry.expires_at <= now:
                    exchange.ledger.degradation = Rung.CACHED.value
                self._give(exchange, entry, "hit", now)
                return
        # Whoever waits for another waits in that one's lane: only in its own can nobody be held up by it.
        key = asked.key + lane.encode()
        flight = self._flights.find(key) if self._config.single_flight and not fresh and not alone else None
        if flight is not None and flight.join(exchange):
            counters.shared += 1
            exchange.follow(flight)
            leader = self.leader_of(flight)
            if leader is not None:
                leader.followed()
            return
        counters.misses += 1
        # One with a deadline of its own would take its followers with it.
        open_to_all = self._config.single_flight and exchange.clock.deadline_at is None
        flight = self._flights.lead(key, self.entry_bytes, alone=not open_to_all)
        flight.owner = exchange
        exchange.lead(flight)
        route = self._route(exchange)
        if asked.partition and not fresh and route is not None and route.semantic is not None:
            self._wonder(exchange, asked, route.semantic)
            return
        exchange.go_on(now)

    def _give(self, exchange: CachedExchange, entry: Entry[KeptAnswer], how: str, now: int) -> None:
        exchange.give(entry.answer, how, entry.age_ns(now) // S, now)

    # -- by meaning

    def _wonder(self, exchange: CachedExchange, asked: Question, threshold: float) -> None:
        meanings = self.meanings
        assert meanings is not None
        exchange.wonder()

        def told(*, known: bool) -> None:
            if not exchange.wonders:
                return
            now = monotonic_ns()
            found = meanings.nearest(asked, threshold) if known else None
            entry = None if found is None else self.cache.look(found.key, now)
            if entry is None:
                exchange.go_on(now)
                return
            meanings.forget(asked.key)
            self.cache.counters.misses -= 1
            self.cache.counters.semantic += 1
            self._give(exchange, entry, "semantic", now)

        meanings.ask(asked, told)

    def _dropped(self, key: bytes) -> None:
        if self.meanings is not None:
            self.meanings.drop(key)

    # -- its answer

    def landed(self, exchange: CachedExchange, flight: Flight[KeptHead], now: int) -> None:
        """The leader's answer has come to its proper end: share it, and keep it."""
        head = flight.head
        whole = head is not None and self._judge(exchange, flight, head, now)
        if head is None or not whole:
            self.cache.counters.not_whole += 1
            flight.fail()
            return
        ledger, asked = exchange.ledger, exchange.asked
        degraded = bool(ledger.degradation) or ledger.truncated_from is not None or ledger.capped_to is not None
        # A canary's answers would outlive its rollback.
        lasting = head.keepable and not degraded and ledger.route == "stable"
        if flight.whole and lasting and asked is not None:
            route = self._route(exchange)
            ttl = self._config.ttl if route is None or route.ttl is None else route.ttl
            answer = KeptAnswer(head, tuple(flight.pieces))
            kept = route is not None and self.cache.store(asked.key, answer, answer.size, now, int(ttl))
            if kept and self.meanings is not None and asked.partition:
                self.meanings.keep(asked)
        elif not flight.whole:
            self.cache.counters.too_large += 1
        else:
            self.cache.counters.not_whole += 1
        flight.land()

    def _judge(self, exchange: CachedExchange, flight: Flight[KeptHead], head: KeptHead, now: int) -> bool:
        """Whether it is an answer to be given again; what was measured of it goes with it."""
        meter = exchange.transit.meter
        if meter is not None:
            summary = meter.summary(timeline=False)
            head.summary = msgspec.structs.replace(summary, timings=None, client_blocked=[])
            return summary.fault is None and not summary.protocol_fault
        if not flight.whole:
            return True  # nobody keeps it, and whoever followed has gone on alone
        adapter = exchange.backend.engine.adapter
        meaning = adapter.dialect(exchange.route.endpoint).read_body(b"".join(flight.pieces))
        summary = summarise_body(meaning, origin_ns=exchange.received, now=now)
        head.summary = msgspec.structs.replace(summary, timings=None)
        if summary.fault is not None:
            return False
        return not summary.finish_reason or adapter.judge(summary).outcome is OutcomeKind.COMPLETED

    def leader_of(self, flight: Flight[KeptHead]) -> CachedExchange | None:
        """Whose answer a flight is, while it flies."""
        return cast("CachedExchange | None", flight.owner)

    # -- time, control, views

    def sweep(self, now: int) -> None:
        """Give back the memory of what is too old."""
        self.cache.sweep(now)
        if self.meanings is not None:
            self.meanings.sweep(now)

    def purge(self) -> int:
        """Forget every answer; returns how many there were."""
        return self.cache.purge()

    def in_flight(self) -> int:
        """Answers on their way that somebody could follow."""
        return len(self._flights)

    async def close(self) -> None:
        """Stop asking what questions mean."""
        if self.meanings is not None:
            await self.meanings.close()

    def view(self) -> dict[str, Any]:
        """Counters since the start, and what is held now; those of several processes add up."""
        out: dict[str, Any] = {
            **msgspec.to_builtins(self.cache.counters),
            "entries": len(self.cache),
            "bytes": self.cache.bytes,
            "in_flight": self.in_flight(),
        }
        if self.meanings is not None:
            out["embedding"] = self.meanings.view()
        return out


def fitted(desk: CacheDesk | None, config: Config) -> CacheDesk | None:
    """The desk as a configuration wants it: a new one, the same with other bounds, or none."""
    if desk is None:
        return CacheDesk(config.cache) if config.cache.routes else None
    desk.reconfigure(config.cache)
    if config.cache.routes:
        return desk
    desk.purge()
    if desk.meanings is not None:
        desk.meanings.let_go()
    return None


def _whole(headers: list[Header], names: tuple[bytes, ...]) -> list[bytes]:
    """All values of each of these headers (lower case), in order."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        found.setdefault(name.lower(), []).append(value)
    return [b"\0".join(found.get(name, ())) for name in names]


def _fits(pattern: str, model: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else model == pattern


def _max_age(directives: bytes) -> int | None:
    """What a client takes at most (ns); `None` where it does not say."""
    for word in directives.split(b","):
        name, _, value = word.strip().partition(b"=")
        if name == b"max-age" and value.isdigit() and len(value) < 10:
            return int(value) * S
    return None
