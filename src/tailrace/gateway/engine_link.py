"""The gateway's view of its engine: which adapter reads it, what it says of itself, how its answers are judged."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import aiohttp
import msgspec

from tailrace.engines.base import NOT_RUN, Basis, Detection, EngineAdapter, RequestAdditions, TimingFacts
from tailrace.engines.facts import NO_FACTS, EngineFacts
from tailrace.engines.metric_names.table import NONE_UNKNOWN, UnknownNames
from tailrace.engines.prometheus_text import SeriesMemo, parse_scrape
from tailrace.engines.registry import adapter, detect
from tailrace.engines.tallies import STARTED_AND_COUNTED
from tailrace.gateway.address import read_address
from tailrace.gateway.config_sections import BackendConfig, ScrapeConfig
from tailrace.gateway.engine_inquiry import EngineInquiry
from tailrace.gateway.engine_judge import EngineJudge
from tailrace.gateway.engine_profile import BatchReading, EngineProfile
from tailrace.gateway.identity import Identity
from tailrace.gateway.scrape import EngineWatch
from tailrace.gateway.tls import engine_context
from tailrace.gateway.work import Work
from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.meter import StreamMeter
from tailrace.measure.reported_parts import with_reported
from tailrace.measure.summary import StreamSummary
from tailrace.model.engine_state import EngineState

log = logging.getLogger(__name__)

_PLAIN: Final = "openai_compatible"
_AUTO: Final = "auto"
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
    draining: bool = False
    foreign: str = ""
    facts: EngineFacts = NO_FACTS
    unknown: UnknownNames = NONE_UNKNOWN
    batches: dict[str, BatchReading] = {}


class EngineLink:
    """One backend's adapter and watch.

    With `engine: auto` the adapter is the plain one until a scrape or an answer's headers say more; what was learnt is
    kept for the life of the process.
    """

    def __init__(self, backend: BackendConfig, scrape: ScrapeConfig) -> None:
        self._auto = backend.engine == _AUTO
        self.adapter: EngineAdapter = adapter(_PLAIN if self._auto else backend.engine)
        self.profile = EngineProfile()
        self.evidence = "" if self._auto else "configuration"
        self._confidence = 0
        self._additions: dict[tuple[str, bool, bool], RequestAdditions] = {}
        self._tls_config = backend.tls
        self.url = backend.url
        self.foreign = ""
        """Why the server at the address is not the engine, as this process or the one that asks has found."""
        self.address = read_address(backend.url)
        self.key_header = {"Authorization": f"Bearer {backend.api_key}"} if backend.api_key else {}
        self._scraped_elsewhere = backend.metrics_url is not None
        self.tls = self.fresh_tls()
        self.watch = EngineWatch(
            backend.metrics_url or f"{self.address.base}{self.adapter.metrics_path or '/metrics'}",
            session=partial(self.session, elsewhere=backend.metrics_url is not None),
            server_name=self.server_name if backend.metrics_url is None else None,
            parse=self._parse,
            period_ns=int(scrape.period),
            timeout_ns=int(scrape.timeout),
            stale_ns=int(scrape.stale),
            jitter=scrape.jitter,
            api_key=backend.api_key,
        )
        self._name = backend.name
        self._memo = SeriesMemo()
        self.judge = EngineJudge(backend.name, frozen_after_ns=int(scrape.frozen))
        self.identity = Identity(
            self.address.base,
            expected=backend.model,
            session=self.session,
            timeout_ns=int(scrape.timeout),
            server_name=self.server_name,
            api_key=backend.api_key,
        )
        self.inquiry = EngineInquiry(
            self, {"dtype": backend.dtype, "quantization": backend.quantization}, period_ns=int(scrape.period)
        )
        self.watch.on_late = self.judge.late
        self.judge.on_restart = self._restarted
        self.watch.look_further = self._look_further
        self.draining = False
        """An operator keeps new requests away."""
        self.restarts = 0
        """How often the engine was seen to have begun anew."""
        self.shut = ""
        """Why no new request may go to the engine; empty where it may."""

    def start(self) -> None:
        """Begin to scrape, and to ask."""
        self.watch.start()
        self.inquiry.start()

    async def close(self) -> None:
        """Stop and wait."""
        await self.inquiry.close()
        await self.watch.close()

    def _restarted(self) -> None:
        self.restarts += 1
        self.identity.again()
        self.inquiry.again()

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
        self.found(detect(headers, metric_names))

    @property
    def recognised(self) -> bool:
        """Whether it is known which engine this is."""
        return not self._auto or self._confidence > 0

    def found(self, hit: Detection) -> None:
        """Somebody knows which engine this is; a surer hint than the last one decides."""
        if not self._auto or hit.confidence <= self._confidence:
            return
        self._confidence, self.evidence = hit.confidence, hit.evidence
        if self._become(hit.name, hit.version):
            self.inquiry.forget()

    def _become(self, name: str, version: str) -> bool:
        """Read by this adapter from now on; whether it is another one."""
        before, self.adapter = self.adapter, adapter(name)
        self.profile.hear(version, self.evidence)
        self._additions.clear()
        if not self._scraped_elsewhere:
            self.watch.ask_at(f"{self.address.base}{self.adapter.metrics_path or '/metrics'}")
        return self.adapter is not before

    @property
    def version(self) -> str:
        """The engine's version, empty where nobody said it."""
        return self.profile.version

    @property
    def version_with_caveat(self) -> str:
        """The version for people's eyes; it says so where nobody has ever run this engine with Tailrace."""
        unproven = bool(self.name) and self.adapter.basis is Basis.READ_IN_SOURCE
        return f"{self.version} {NOT_RUN}".strip() if unproven else self.version

    def describe(self, ledger: RequestLedger) -> None:
        """Put into a request's account which engine served it, and what is true of that."""
        ledger.engine = self.name
        self.profile.describe(ledger, self.adapter)

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
        prefixes = {*self.adapter.metric_prefixes, *STARTED_AND_COUNTED}
        scrape = parse_scrape(text, prefixes=prefixes, memo=self._memo)
        self.profile.note_unknown(self.adapter.unknown_metrics(scrape), self.adapter.title)
        if self.inquiry.wants_metrics:
            self.inquiry.take_metrics(self.adapter.read_info_metrics(scrape))
        state = self.adapter.read_metrics(scrape, now)
        self.judge.feed(scrape, state, now)
        return state if state.names else None

    async def _look_further(self) -> None:
        if self.watch.reachable is False:
            self.identity.again()  # whoever answers next may be another
            return
        before = self.identity.foreign
        await self.identity.look()
        if self.identity.foreign != before:
            log.warning("backend %s: %s", self._name, self.identity.foreign or "the engine is back at its address")
            self._settle(self.identity.foreign)

    # -- keeping requests away

    def drain(self, *, on: bool) -> None:
        """Keep new requests away from the engine, or let them go to it again; those it works on are not touched."""
        self.draining = on
        self._settle(self.identity.foreign)

    def _settle(self, foreign: str) -> None:
        self.foreign = foreign
        drained = f"an operator drains the engine at {self.address.base}" if self.draining else ""
        changed, self.shut = self.shut, drained or foreign
        if changed != self.shut and self.watch.on_scrape is not None:
            self.watch.on_scrape()  # other processes are told with the news

    def unready(self) -> str:
        """Why a request sent now would not be served by the engine; empty where it would."""
        if self.watch.reachable is False:
            return f"the engine at {self.url} does not answer: {self.watch.error}"
        frozen = self.judge.frozen
        return self.shut or ("" if frozen is None else f"the engine at {self.url} is frozen: {frozen.text}")

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
            facts=self.profile.facts,
            unknown=self.profile.unknown,
            batches=self.profile.batches,
            draining=self.draining,
            foreign=self.foreign,
        )

    def take(self, news: EngineNews) -> None:
        """Know what another process has asked the engine."""
        if self._auto and news.confidence > self._confidence:
            self._confidence, self.evidence = news.confidence, news.evidence
            self._become(news.adapter, news.version)
        if news.facts != self.profile.facts:
            self.profile.know(news.facts)
        self.profile.unknown, self.profile.batches = news.unknown, news.batches
        watch = self.watch
        watch.latest, watch.reachable, watch.server = news.state, news.reachable, news.server
        watch.error, watch.scrapes, watch.failures = news.error, news.scrapes, news.failures
        self.draining = news.draining
        self._settle(news.foreign)

    # -- asking

    @property
    def names_requests(self) -> bool:
        """Whether requests that are not streamed get something, too: our id, in their body."""
        return self.adapter.id_field is not None

    def additions(self, endpoint: str, work: Work, body: bytes, request_id: str) -> RequestAdditions:
        """What to ask of the engine beyond what the client asked, and our id where the engine wants it in the body."""
        found = self._asked_for(endpoint, work)
        field = self.adapter.id_field
        if field is None or not self.adapter.takes_id(endpoint) or b'"%b"' % field.encode() in body:
            return found
        return msgspec.structs.replace(found, body={**found.body, field: request_id})

    def _asked_for(self, endpoint: str, work: Work) -> RequestAdditions:
        if not work.stream:
            return _NO_ADDITIONS
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
            said_headers=ledger.said_headers,
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
            "basis": self.adapter.basis.value if self.name else None,
            "reachable": self.watch.reachable,
            "error": self.watch.error,
            "scrapes": self.watch.scrapes,
            "scrape_failures": self.watch.failures,
            "state_age_ms": None if age is None else age / 1e6,
            "state": None if state is None else state_view(state),
            **self.profile.view(),
            "models": self.identity.models,
            "models_error": self.identity.error,
            "draining": self.draining,
            "shut": self.shut,
            "frozen": "" if self.judge.frozen is None else self.judge.frozen.text,
            "silent": "" if self.judge.silent is None else self.judge.silent.text,
            "preemption": self.judge.preemption.text,
        }

    def window_view(self, now: int, window_ns: int, objectives: Sequence[tuple[str, str, int]]) -> dict[str, Any]:
        """What the engine's metrics say of the last `window_ns`."""
        return self.judge.view(window_ns, now=now, engine=self.adapter.name, objectives=objectives)


def state_view(state: EngineState) -> dict[str, Any]:
    """The signals that are there, by name."""
    out: dict[str, Any] = {}
    for field in state.__struct_fields__:
        value = getattr(state, field)
        if field != "at_ns" and value is not None:
            out[field] = value
    return out
