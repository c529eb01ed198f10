"""The gateway's view of its engine: which adapter reads it, what it says of itself, how its answers are judged."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import aiohttp
import msgspec

from tailrace.engines.base import EngineAdapter, RequestAdditions, TimingFacts
from tailrace.engines.registry import adapter, detect
from tailrace.gateway.address import read_address
from tailrace.gateway.config_sections import BackendConfig, ScrapeConfig
from tailrace.gateway.scrape import EngineWatch
from tailrace.gateway.tls import engine_context
from tailrace.gateway.work import Work
from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.meter import StreamMeter
from tailrace.measure.reported_parts import with_reported
from tailrace.measure.summary import StreamSummary
from tailrace.model.engine_state import EngineState

_PLAIN: Final = "openai_compatible"
_ALIASES: Final = {"auto": _PLAIN, "openai": _PLAIN, "llama.cpp": "llamacpp"}
_NO_ADDITIONS: Final = RequestAdditions()


class EngineNews(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has learnt of the engine, for those of its side that do not ask themselves."""

    adapter: str
    version: str
    evidence: str
    confidence: int
    state: EngineState | None
    reachable: bool | None
    server: str
    error: str
    scrapes: int
    failures: int


class EngineLink:
    """One backend's adapter and watch.

    With `engine: auto` the adapter is the plain one until a scrape or an answer's headers say more; what was learnt is
    kept for the life of the process.
    """

    def __init__(self, backend: BackendConfig, scrape: ScrapeConfig) -> None:
        self._auto = backend.engine == "auto"
        self.adapter: EngineAdapter = adapter(_ALIASES.get(backend.engine, backend.engine))
        self.version = ""
        self.evidence = "" if self._auto else "configuration"
        self._confidence = 0
        self._additions: dict[tuple[str, bool, bool], RequestAdditions] = {}
        self._tls_config = backend.tls
        self.address = read_address(backend.url)
        self.tls = self.fresh_tls()
        self.watch = EngineWatch(
            backend.metrics_url or f"{self.address.base}{self.adapter.metrics_path or '/metrics'}",
            session=partial(self.session, elsewhere=backend.metrics_url is not None),
            server_name=self.server_name if backend.metrics_url is None else None,
            parse=self._parse,
            period_ns=int(scrape.period),
            timeout_ns=int(scrape.timeout),
            stale_ns=int(scrape.stale),
            api_key=backend.api_key,
        )

    def fresh_tls(self) -> ssl.SSLContext | None:
        """A context from the files as they are now; `None` where the engine is not reached by HTTPS."""
        return engine_context(self._tls_config) if self.address.tls else None

    def session(
        self, *, timeout_s: float, headers: Mapping[str, str] | None = None, elsewhere: bool = False
    ) -> aiohttp.ClientSession:
        """A client for what is asked beside the requests (metrics, knobs); reaches the engine the way they do.

        `elsewhere`: what is asked has an address of its own, and the engine's socket is not its.
        """
        if self.address.socket and not elsewhere:
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(self.address.socket)
        else:
            connector = aiohttp.TCPConnector(ssl=self.tls if self.tls is not None else True)
        return aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=timeout_s), headers=headers
        )

    @property
    def server_name(self) -> str | None:
        """The name that the engine's certificate is judged by, where it is not the address's."""
        return self._tls_config.server_name if self._tls_config is not None else None

    @property
    def name(self) -> str:
        """The adapter's name; empty while nothing is known of the engine."""
        return "" if self._auto and self.adapter.name == _PLAIN else self.adapter.name

    # -- recognising

    def recognise(self, headers: Mapping[str, str], metric_names: tuple[str, ...] = ()) -> None:
        """Look at what an answer gives away; a surer hint than the last one decides."""
        if not self._auto:
            return
        hit = detect(headers, metric_names)
        if hit.confidence > self._confidence:
            self._confidence = hit.confidence
            self.adapter = adapter(hit.name)
            self.version, self.evidence = hit.version, hit.evidence
            self._additions.clear()

    def answered(self, server: bytes) -> None:
        """An answer came, with this `Server` header: somebody is there, and may have given himself away."""
        self.watch.answers()
        if self._auto and not self._confidence and server:
            self.recognise({"server": server.decode("latin-1")})

    def _parse(self, text: str, server: str, now: int) -> EngineState | None:
        if self._auto and self._confidence < 3:
            metric_names = tuple(
                {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if line[:1] != "#"}
            )
            self.recognise({"server": server} if server else {}, metric_names)
        state = self.adapter.parse_metrics(text, now)
        return state if state.names else None

    # -- several processes, one of which asks

    def news(self) -> EngineNews:
        """What the last scrape told."""
        watch = self.watch
        return EngineNews(
            adapter=self.adapter.name,
            version=self.version,
            evidence=self.evidence,
            confidence=self._confidence,
            state=watch.latest,
            reachable=watch.reachable,
            server=watch.server,
            error=watch.error,
            scrapes=watch.scrapes,
            failures=watch.failures,
        )

    def take(self, news: EngineNews) -> None:
        """Know what another process has asked the engine."""
        if self._auto and news.confidence > self._confidence:
            self._confidence = news.confidence
            self.adapter = adapter(news.adapter)
            self.version, self.evidence = news.version, news.evidence
            self._additions.clear()
        watch = self.watch
        watch.latest, watch.reachable, watch.server = news.state, news.reachable, news.server
        watch.error, watch.scrapes, watch.failures = news.error, news.scrapes, news.failures

    # -- asking

    def additions(self, endpoint: str, work: Work) -> RequestAdditions:
        """What to ask of the engine beyond what the client asked."""
        key = (endpoint, work.usage_asked, work.progress_asked)
        found = self._additions.get(key)
        if found is None:
            body: dict[str, Any] = {"stream": True}
            if work.usage_asked:
                body["stream_options"] = {"include_usage": True}
            if work.progress_asked:
                body["return_progress"] = True
            found = self._additions[key] = self.adapter.additions(endpoint, body)
        return found

    # -- reading

    def timings(self, ledger: RequestLedger, summary: StreamSummary | None) -> EngineTimings:
        """The engine's own stages for one request that was sent to it.

        What its status line says of them is put into the ledger: it is known even of a request that died early.
        """
        if ledger.sent is None:
            return NO_TIMINGS
        ledger.passages = [*ledger.passages, *self.adapter.passages(ledger.sent, ledger.headers)]
        if ledger.server_timing:
            return with_reported(self._said(ledger, summary), ledger.server_timing)
        return self._said(ledger, summary)

    def _said(self, ledger: RequestLedger, summary: StreamSummary | None) -> EngineTimings:
        if summary is None or ledger.sent is None:
            return NO_TIMINGS
        end = ledger.upstream_end or summary.ended_at or ledger.sent
        facts = TimingFacts(
            sent=ledger.sent,
            headers=ledger.headers,
            first_token=summary.first_token_at,
            end=end,
            stream=ledger.stream,
        )
        return self.adapter.timings(facts, summary.timings)

    def stage_before_first_token(self, ledger: RequestLedger, meter: StreamMeter | None, now: int) -> str:
        """Where a request is that was sent and has no token yet: still queued in the engine, or in prefill.

        A passage (llama.cpp's status line, a progress frame) is the surest sign; then the engine's own count of
        waiting requests; else prefill, which every engine has.
        """
        if meter is not None and meter.first_progress_ns is not None:
            return "prefill"
        if ledger.sent is not None:
            passages = [*ledger.passages, *self.adapter.passages(ledger.sent, ledger.headers)]
            if passages:
                return max(passages, key=lambda passage: passage.at_ns).stage
        state = self.watch.state(now)
        return "queue" if state is not None and state.waiting else "prefill"

    # -- views

    @property
    def reachable(self) -> bool | None:
        """Whether the engine answers at all; `None` until somebody has asked."""
        return self.watch.reachable

    @property
    def error(self) -> str:
        """Why the last scrape failed."""
        return self.watch.error

    def view(self, now: int) -> dict[str, Any]:
        """For the admin port."""
        state = self.watch.state(now)
        age = self.watch.age_ns(now)
        return {
            "engine": self.name or "unknown",
            "version": self.version,
            "evidence": self.evidence,
            "reachable": self.watch.reachable,
            "error": self.watch.error,
            "scrapes": self.watch.scrapes,
            "scrape_failures": self.watch.failures,
            "state_age_ms": None if age is None else age / 1e6,
            "state": None if state is None else state_view(state),
        }


def state_view(state: EngineState) -> dict[str, Any]:
    """The signals that are there, by name."""
    out: dict[str, Any] = {}
    for field in state.__struct_fields__:
        value = getattr(state, field)
        if field != "at_ns" and value is not None:
            out[field] = value
    return out
