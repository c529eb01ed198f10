"""What an adapter does: the base class is a plain OpenAI-compatible server, subclasses know more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, ClassVar, Final

import msgspec

from tailrace.engines.batches import BatchCounts
from tailrace.engines.errors import Ending, ending_of_error
from tailrace.engines.facts import Fact
from tailrace.engines.metric_names.table import NONE_UNKNOWN, MetricNames, UnknownNames
from tailrace.engines.prometheus_text import Scrape, parse_scrape
from tailrace.engines.sglang_generate import SGLANG_GENERATE
from tailrace.engines.signals import SignalTable, read_state
from tailrace.engines.tgi_generate import TGI_GENERATE
from tailrace.engines.triton_generate import TRITON_GENERATE
from tailrace.measure.dialect import Dialect, EngineFault
from tailrace.measure.dialects import dialect_for
from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.openai import decode_leniently
from tailrace.measure.stage_account import Passage
from tailrace.measure.summary import StreamSummary
from tailrace.model.engine_state import EngineState
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.timeline import EventKind

GENERATING: Final = ("/chat/completions", "/completions")


class Detection(msgspec.Struct, frozen=True):
    """An engine recognised."""

    name: str
    version: str = ""
    evidence: str = ""
    """What gave it away, in words."""
    confidence: int = 1
    """4: its own name, though it speaks like another; 3: what only this engine says; 2: a strong hint; 1: a guess."""


class Basis(Enum):
    """How an adapter's facts came to be known. It is shown wherever the engine is."""

    RUN = "run"
    """The engine was run, and its answers captured."""
    READ_IN_SOURCE = "read_in_source"
    """Names and messages were read in the engine's source; it was never run."""


NOT_RUN: Final = "(read in source, not run)"
"""How `READ_IN_SOURCE` is told to people."""


class RequestAdditions(msgspec.Struct, frozen=True):
    """What the gateway adds to a request upstream on its own account, and must take out of the answer."""

    body: dict[str, Any] = {}
    """Members to set at the top level of the JSON body; objects are merged one level deep."""
    headers: dict[str, str] = {}
    cut: frozenset[EventKind] = frozenset()
    """Kinds of events that the client did not ask for."""

    def __bool__(self) -> bool:
        return bool(self.body or self.headers)


class TimingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What our clock saw around the engine's work; absolute stamps (ns)."""

    sent: int
    headers: int | None = None
    first_token: int | None = None
    end: int
    """The end of the engine's answer, or the moment in which it was given up."""
    stream: bool = True
    said_headers: Mapping[str, str] = {}
    """The adapter's `timing_headers` that this answer had, lower case."""

    @property
    def wait_ns(self) -> int:
        """Send -> first token; where none was seen, send -> end."""
        return max((self.first_token if self.first_token is not None else self.end) - self.sent, 0)


class EngineAdapter:
    """A plain OpenAI-compatible server: no metrics, no timings, errors by HTTP status and wording.

    One stateless instance serves every request. A new engine is one file with one subclass, listed in `registry`.
    """

    name: ClassVar[str] = "openai_compatible"
    title: ClassVar[str] = "OpenAI-compatible server"
    """As people call it."""
    basis: ClassVar[Basis] = Basis.RUN
    """How what is written here came to be known."""
    versions: ClassVar[str] = ""
    """The versions that it is known of."""
    owners: ClassVar[tuple[str, ...]] = ()
    """What it says as `owned_by` in `/v1/models`, which tells it from others where metrics are off or elsewhere."""
    metrics_path: ClassVar[str | None] = None
    """Where metrics are scraped, on the engine's own port unless its operator says otherwise."""
    metric_prefixes: ClassVar[tuple[str, ...]] = ()
    metric_names: ClassVar[MetricNames | None] = None
    """Every name that the engine is known to export under its prefixes; any other is reported."""
    signals: ClassVar[SignalTable] = {}
    """Fields of `EngineState`, by the names of its versions."""
    lower_priority_first: ClassVar[bool | None] = None
    """How the engine reads a request's `priority`: `True` where the lower number goes first; `None`: not at all."""
    priority_levels: ClassVar[bool] = False
    """Whether its priorities are levels that count from the highest, not any numbers."""
    priority_header: ClassVar[bytes | None] = None
    """The header (lower case) by which a client may give its own, where there is one; it wins over the body."""
    queue_begins_between_steps: ClassVar[bool] = False
    """Whether the queue time that it reports leaves out the step which runs when a request arrives."""
    preempts_silently: ClassVar[bool] = False
    """Whether it takes running requests' memory and does not say of which."""
    id_field: ClassVar[str | None] = None
    """Where our request's id goes in a JSON body, for engines that take it in no header; see `takes_id`."""
    health_path: ClassVar[str] = "/health"
    version_path: ClassVar[str | None] = None
    """Where the engine tells its version, as JSON."""
    version_field: ClassVar[str] = "version"
    info_paths: ClassVar[tuple[str, ...]] = ()
    """What is asked once a start of the engine for its facts, by GET; each answers JSON or is absent."""
    timing_headers: ClassVar[frozenset[bytes]] = frozenset()
    """Response headers (lower case) that carry one request's timings; given back in `TimingFacts.said_headers`."""
    statistics_path: ClassVar[str | None] = None
    """Where it keeps statistics by model that its metrics lack; read by `read_statistics`."""

    # -- recognising

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """Whether these response headers (lower-case names) or metric names are this engine's."""
        _ = headers, metric_names
        return None

    def recognise(self, path: str, body: bytes) -> Detection | None:
        """Whether the answer of one of `registry.TELLING_PATHS` is this engine's: by the owner of the models there."""
        if path != "/v1/models" or not self.owners:
            return None
        said = decode_leniently(body)
        cards = said.get("data") if isinstance(said, dict) else None
        for card in cards if isinstance(cards, list) else []:
            if isinstance(card, dict) and card.get("owned_by") in self.owners:
                return Detection(self.name, "", f"/v1/models: owned_by {card['owned_by']}", 3)
        return None

    def version(self, body: bytes) -> str:
        """The version in the answer of `version_path`; empty where it is not there."""
        obj = decode_leniently(body)
        value = obj.get(self.version_field) if isinstance(obj, dict) else None
        return value if isinstance(value, str) else ""

    # -- facts, once a start

    def asked_once(self) -> tuple[str, ...]:
        """Every path that is asked at an engine's start."""
        paths = dict.fromkeys((self.version_path, *self.info_paths))
        return tuple(path for path in paths if path is not None)

    def read_info(self, path: str, body: bytes) -> dict[str, Fact]:
        """The facts in the answer of one of `asked_once`; nothing where the answer is not what it should be."""
        version = self.version(body) if path == self.version_path else ""
        return {"version": Fact(version, f"{path}: {self.version_field}")} if version else {}

    def read_settings(self, path: str, body: bytes) -> dict[str, Fact]:
        """Settings that an answer of `asked_once` has beyond the facts, by the engine's own names."""
        _ = path, body
        return {}

    def further_info(self, path: str, body: bytes) -> tuple[str, ...]:
        """What is to be asked beyond `asked_once`, now that this answer is here: the models that it names."""
        _ = path, body
        return ()

    def read_info_metrics(self, scrape: Scrape) -> dict[str, Fact]:
        """The facts that a scrape carries: info metrics, whose labels are the values."""
        _ = scrape
        return {}

    def read_statistics(self, body: bytes) -> dict[str, BatchCounts]:
        """Model -> what it has executed so far, from the answer of `statistics_path`."""
        _ = body
        return {}

    def unknown_metrics(self, scrape: Scrape) -> UnknownNames:
        """What the scrape has under the engine's prefixes and nothing here knows: a newer or a renamed metric."""
        names = self.metric_names
        return NONE_UNKNOWN if names is None else names.unknown(scrape, self.metric_prefixes)

    # -- asking

    def dialect(self, path: str) -> Dialect:
        """How to read answers of an API path.

        Triton's, SGLang's and TGI's own paths speak their own shapes, also before the engine has been recognised.
        """
        if "/v2/" in path:
            return TRITON_GENERATE
        route = path.partition("?")[0]
        if route.endswith("/generate_stream"):  # only TGI has it
            return TGI_GENERATE
        return SGLANG_GENERATE if route.endswith("/generate") else dialect_for(path)

    def additions(self, path: str, body: Mapping[str, Any]) -> RequestAdditions:
        """What to add to a request with this decoded JSON body.

        Asks for usage in streams, which every engine here understands, and cuts the extra frame if the client did not
        ask for it.
        """
        route = path.partition("?")[0].rstrip("/")
        if not body.get("stream") or not route.endswith(GENERATING):
            return RequestAdditions()
        options = body.get("stream_options")
        options = options if isinstance(options, dict) else {}
        if options.get("include_usage"):
            return RequestAdditions()
        return RequestAdditions({"stream_options": {"include_usage": True}}, {}, frozenset({EventKind.USAGE}))

    def takes_id(self, path: str) -> bool:
        """Whether requests of this API may carry `id_field`."""
        _ = path
        return self.id_field is not None

    def with_deadline(self, path: str, body: bytes, left_ns: int) -> bytes:
        """`body` with the time that the client still waits, for an engine whose API has a place for it on `path`.

        Of those that are known only Triton has one. vLLM, llama.cpp and TGI take none; SGLang's and vLLM's timeouts are
        environment variables, the same for every request.
        """
        _ = path, left_ns
        return body

    def priority(self, rank: int) -> int:
        """Our rank (lower first) as the number this engine wants. With `priority_levels`, ranks count from 0."""
        return rank if self.lower_priority_first is not False else -rank

    def priority_fields(self, path: str, rank: int) -> dict[str, Any]:
        """The members by which the JSON body of a request of this API carries a rank; nothing where it takes none."""
        if self.lower_priority_first is None or not path.partition("?")[0].rstrip("/").endswith(GENERATING):
            return {}
        return {"priority": self.priority(rank)}

    # -- reading

    def passages(self, sent: int, headers: int | None) -> list[Passage]:
        """What the time of the status line says about the engine's stages; nothing for most."""
        _ = sent, headers
        return []

    def timings(self, facts: TimingFacts, said: Mapping[str, Any] | None) -> EngineTimings:
        """The engine's stages for one request, from what it said (`StreamSummary.timings`) and our stamps."""
        _ = facts, said
        return NO_TIMINGS

    def span_timings(self, attributes: Mapping[str, Any]) -> EngineTimings:
        """The engine's stages from the attributes of its own trace span."""
        _ = attributes
        return NO_TIMINGS

    def error(self, status: int, body: bytes, *, path: str = "", tokens_seen: bool = False) -> Ending:
        """The ending of a request that the engine answered with an HTTP error status."""
        fault = self.dialect(path).read_body(body).fault
        if fault is None:
            fault = EngineFault(body[:300].decode("utf-8", "replace").strip())
        return self.fault(fault, status=status, tokens_seen=tokens_seen)

    def fault(self, fault: EngineFault, *, status: int | None = None, tokens_seen: bool = False) -> Ending:
        """The ending of a request for which the engine sent an error object, in a body or inside a stream."""
        return ending_of_error(fault, status=status, tokens_seen=tokens_seen)

    def status(self, fault: EngineFault, ending: Ending) -> int:
        """The HTTP status that a client gets for an error that is the first event of its stream."""
        said = fault.code or 0
        return said if 400 <= said <= 599 else ending.http_status or 502

    def judge(self, summary: StreamSummary) -> Ending:
        """How a stream (or body) ended, from what was read of it alone.

        `[DONE]` is not success: an error before it fails the request. An end without end marker and finish reason is
        `stream_cut`, whatever HTTP says.
        """
        seen = summary.first_token_at is not None
        if summary.fault is not None:
            return self.fault(summary.fault, tokens_seen=seen)
        if summary.protocol_fault:
            return Ending(OutcomeKind.FAILED, Reason.PROTOCOL_ERROR, "decode" if seen else "prefill", not seen)
        if summary.finish_reason in {"abort", "error"}:
            reason = Reason.ENGINE_ABORT_UNKNOWN if summary.finish_reason == "abort" else Reason.ENGINE_ERROR
            return Ending(OutcomeKind.FAILED, reason, "decode" if seen else "prefill", not seen)
        if summary.finished:
            return Ending(OutcomeKind.COMPLETED, Reason.NONE, "", retry_other=False)
        return Ending(OutcomeKind.FAILED, Reason.STREAM_CUT, "decode" if seen else "prefill", not seen)

    def parse_metrics(self, text: str, now: int) -> EngineState:
        """The engine's state from one scrape that arrived at `now`."""
        return self.read_metrics(parse_scrape(text, prefixes=self.metric_prefixes), now)

    def read_metrics(self, scrape: Scrape, now: int) -> EngineState:
        """The same from one that was parsed already."""
        return read_state(scrape, self.signals, now)
