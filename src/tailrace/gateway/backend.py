"""One engine behind the gateway: how it is asked, reached and judged, and how much of our work is with it."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tailrace.gateway.amendments import AmendmentSink
from tailrace.gateway.balance_keys import engine_part
from tailrace.gateway.cancels import CancelWatch, at_engine
from tailrace.gateway.config import Config
from tailrace.gateway.config_sections import BackendConfig
from tailrace.gateway.engine_head import EngineHeads
from tailrace.gateway.engine_link import EngineLink
from tailrace.gateway.pool import UpstreamPool
from tailrace.gateway.wait_inference import WaitInference
from tailrace.govern.standing import Standing

if TYPE_CHECKING:
    from tailrace.gateway.in_flight import InFlight


class Backend:
    """Everything of one engine that lives as long as it is configured."""

    def __init__(
        self,
        backend: BackendConfig,
        config: Config,
        in_flight: Callable[[], Iterable[InFlight]],
        amendments: AmendmentSink,
    ) -> None:
        """`in_flight`: every request of the gateway; those of this engine are picked out."""
        self.config = backend
        self.name = backend.name
        self._in_flight = in_flight
        self.engine = EngineLink(backend, config.scrape)
        self.pool = UpstreamPool(
            self.engine.address,
            connect_timeout_ns=int(config.connect_timeout),
            keep_alive_ns=int(config.upstream_keepalive),
            tls=self.engine.tls,
            server_name=backend.tls.server_name if backend.tls else None,
            limit=config.limits.upstream_connections,
        )
        self.heads = EngineHeads()
        """The kinds of heads that this engine has shown."""
        self.standing = Standing(self.name, config.breaker.resolve())
        """What is held of it: how much work is with it, and whether it may get more."""
        self.cancels = CancelWatch(
            lambda: at_engine(self.ours()),
            wake=self.engine.watch.wake,
            period_ns=int(config.scrape.period),
            amendments=amendments,
            backend=self.name,
        )
        self.engine.watch.reader = self.cancels
        self.waits = WaitInference(config.inference, self.engine, self.ours)

    @property
    def url(self) -> str:
        """Where it is."""
        return self.config.url

    @property
    def shut(self) -> bool:
        """Whether no new request may go to it."""
        return bool(self.engine.shut)

    @property
    def requests(self) -> int:
        """Requests that are with it, or on their way to it."""
        return self.standing.requests

    @property
    def tokens(self) -> int:
        """Their work: prompt and output tokens, as far as they can be told beforehand."""
        return self.standing.tokens

    def ours(self) -> list[InFlight]:
        """The requests in flight that it was chosen for."""
        return [exchange for exchange in self._in_flight() if exchange.backend is self]

    def same_engine(self, config: BackendConfig) -> bool:
        """Whether `config` is of this very engine: all but what may change while it serves is as it was."""
        return engine_part(config) == engine_part(self.config)

    def apply(self, config: Config, tls: ssl.SSLContext | None) -> None:
        """A new configuration, for the connections and inferences that come."""
        self.engine.tls = self.pool.tls = tls
        self.pool.connect_timeout_ns = int(config.connect_timeout)
        self.pool.keep_alive_ns = int(config.upstream_keepalive)
        self.pool.limit = config.limits.upstream_connections
        self.waits.apply(config.inference)

    async def close(self) -> None:
        """Stop asking it, and close every connection to it."""
        await self.engine.close()
        await self.pool.close()

    def load(self) -> dict[str, Any]:
        """What of ours is with it at the moment; numbers of several processes add up."""
        return {
            "connections": len(self.pool.open),
            "idle_connections": len(self.pool.idle),
            "waiting_for_connection": len(self.pool.line),
            "outstanding_requests": self.requests,
            "outstanding_tokens": self.tokens,
        }
