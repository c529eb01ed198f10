"""What an adapter does: the base class is a plain OpenAI-compatible server, subclasses know more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

import msgspec

from tailrace.engines.errors import Ending, ending_of_error
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.sglang_generate import SGLANG_GENERATE
from tailrace.engines.signals import SignalTable, read_state
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

    @property
    def wait_ns(self) -> int:
        """Send -> first token; where none was seen, send -> end."""
        return max((self.first_token if self.first_token is not None else self.end) - self.sent, 0)


class EngineAdapter:
    """A plain OpenAI-compatible server: no metrics, no timings, errors by HTTP status and wording.

    One stateless instance serves every request. A new engine is one file with one subclass, listed in `registry`.
    """

    name: ClassVar[str] = "openai_compatible"
    metrics_path: ClassVar[str | None] = None
    """Where metrics are scraped, on the engine's own port unless its operator says otherwise."""
    metric_prefixes: ClassVar[tuple[str, ...]] = ()
    signals: ClassVar[SignalTable] = {}
    lower_priority_first: ClassVar[bool | None] = None
    """How the engine reads a request's `priority`: `True` where the lower number goes first; `None`: not at all."""
    queue_begins_between_steps: ClassVar[bool] = False
    """Whether the queue time that it reports leaves out the step which runs when a request arrives."""
    preempts_silently: ClassVar[bool] = False
    """Whether it takes running requests' memory and does not say of which."""
    health_path: ClassVar[str] = "/health"
    version_path: ClassVar[str | None] = None
    """Where the engine tells its version, as JSON."""
    version_field: ClassVar[str] = "version"

    # -- recognising

    def detect(self, headers: Mapping[str, str], metric_names: Collection[str]) -> Detection | None:
        """Whether these response headers (lower-case names) or metric names are this engine's."""
        _ = headers, metric_names
        return None

    def version(self, body: bytes) -> str:
        """The version in the answer of `version_path`; empty where it is not there."""
        obj = decode_leniently(body)
        value = obj.get(self.version_field) if isinstance(obj, dict) else None
        return value if isinstance(value, str) else ""

    # -- asking

    def dialect(self, path: str) -> Dialect:
        """How to read answers of an API path.

        Triton's and SGLang's own paths speak their own shapes, whether or not the engine behind has been recognised:
        Triton's metrics are on another port, where nobody looks unless told to.
        """
        if "/v2/" in path:
            return TRITON_GENERATE
        return SGLANG_GENERATE if path.partition("?")[0].endswith("/generate") else dialect_for(path)

    def additions(self, path: str, body: Mapping[str, Any], request_id: str = "") -> RequestAdditions:
        """What to add to a request with this decoded JSON body; `request_id` is ours.

        Asks for usage in streams, which every engine here understands, and cuts the extra frame if the client did not
        ask for it.
        """
        _ = request_id
        route = path.partition("?")[0].rstrip("/")
        if not body.get("stream") or not route.endswith(GENERATING):
            return RequestAdditions()
        options = body.get("stream_options")
        options = options if isinstance(options, dict) else {}
        if options.get("include_usage"):
            return RequestAdditions()
        return RequestAdditions({"stream_options": {"include_usage": True}}, {}, frozenset({EventKind.USAGE}))

    def priority(self, rank: int) -> int:
        """Our rank (0 first, larger later) as the number this engine wants."""
        return rank if self.lower_priority_first is not False else -rank

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
        return read_state(parse_scrape(text, prefixes=self.metric_prefixes), self.signals, now)
