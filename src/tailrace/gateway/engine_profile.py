"""What is true of the engine, as records and views tell it: version, precision, batches, what was not understood."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from tailrace.engines.base import EngineAdapter
from tailrace.engines.batches import BatchSpan
from tailrace.engines.facts import NO_FACTS, EngineFacts
from tailrace.engines.metric_names.table import NONE_UNKNOWN, UnknownNames
from tailrace.measure.ledger import RequestLedger
from tailrace.model.thresholds import S

log = logging.getLogger(__name__)

_RECENT_NS: Final = 3 * S
"""Older statistics say nothing about a request that was sent after them."""
_FIELDS: Final = (("engine_version", "version"), ("dtype", "dtype"), ("quantization", "quantization"))
_MOST_WARNED: Final = 1000


class BatchReading(msgspec.Struct, frozen=True):
    """What one model has executed between two looks at the engine's statistics."""

    span: BatchSpan
    since: int
    until: int
    """Our clock (ns)."""


class EngineProfile:
    """Facts with their sources, kept by whoever asks the engine and read by whoever writes a record."""

    def __init__(self) -> None:
        self.facts: EngineFacts = NO_FACTS
        self.hinted = ""
        """A version that something else gave away: a `Server` header."""
        self.hint = ""
        """What gave it away."""
        self.batches: dict[str, BatchReading] = {}
        """Model -> its last executions, of engines that count them by size."""
        self.unknown: UnknownNames = NONE_UNKNOWN
        """What the last scrape had that no table of ours explains."""
        self.version = ""
        """The engine's version, empty where nobody said it."""
        self._dtype = self._quantization = ""
        self._sources: dict[str, dict[str, str]] = {}
        """Where a batch size is known from -> the sources of a record's facts; shared by all records alike."""
        self._warned: set[str] = set()

    def know(self, facts: EngineFacts) -> None:
        """More, or something else, is known."""
        self.facts = facts
        self.version = facts.text("version") or self.hinted
        self._dtype, self._quantization = facts.text("dtype"), facts.text("quantization")
        self._sources.clear()

    def hear(self, version: str, evidence: str) -> None:
        """The engine was recognised by this, which may name its version."""
        self.hinted, self.hint = version, evidence
        self.know(self.facts)

    def note_unknown(self, unknown: UnknownNames, title: str) -> None:
        """Report names that nothing here explains, each once."""
        self.unknown = unknown
        new = [name for name in unknown.names if name not in self._warned]
        if new and len(self._warned) < _MOST_WARNED:
            self._warned.update(new)
            log.warning("%s exports metrics that Tailrace does not know: %s", title, ", ".join(new))

    def describe(self, ledger: RequestLedger, adapter: EngineAdapter) -> None:
        """Put into a request's account what is true of the engine that served it."""
        ledger.engine_version = self.version
        ledger.dtype, ledger.quantization = self._dtype, self._quantization
        batch = self._counted(ledger, adapter) if self.batches else ""
        if not batch:
            state = ledger.at_first_token
            batch = state.names.get("running", "") if state is not None and ledger.running_with_it else ""
        sources = self._sources.get(batch)
        if sources is None:
            sources = self._sources[batch] = self._told(batch)
        ledger.fact_sources = sources

    def _counted(self, ledger: RequestLedger, adapter: EngineAdapter) -> str:
        """Where the batch size that the engine counted stands; empty where it counted none of this time."""
        reading = self.batches.get(ledger.model)
        if reading is None or ledger.sent is None or ledger.sent - reading.until >= _RECENT_NS:
            return ""
        ledger.batch_size = reading.span.seen_by_a_request
        kind = "all alike" if reading.span.exact else "mean over requests"
        return f"{adapter.statistics_path}: batch_stats of the last look, {kind}"

    def _told(self, batch: str) -> dict[str, str]:
        # A gauge is of one moment, which is the first token's; statistics say of which time they are.
        out = {"batch_size": batch if batch.startswith("/") else f"{batch} at the first token"} if batch else {}
        for field, key in _FIELDS:
            fact = self.facts.get(key)
            if fact is not None:
                out[field] = fact.source
        if self.hinted and "engine_version" not in out:
            out["engine_version"] = self.hint
        return out

    def view(self) -> dict[str, Any]:
        """For the admin port."""
        return {
            "facts": self.facts.view(),
            "contradictions": [
                {
                    "fact": each.key,
                    "believed": each.believed.value,
                    "says": each.other.value,
                    "source": each.other.source,
                }
                for each in self.facts.contradictions
            ],
            "batches": {model: _batch_view(reading) for model, reading in self.batches.items()},
            "unknown_metrics": {"count": self.unknown.count, "names": list(self.unknown.names)},
        }


def _batch_view(reading: BatchReading) -> dict[str, Any]:
    span = reading.span
    return {
        "executions": {str(size): ran for size, ran in sorted(span.sizes.items())},
        "seen_by_a_request": span.seen_by_a_request,
        "queue_mean_ms": None if span.queue_mean_ns is None else span.queue_mean_ns / 1e6,
        "over_ms": (reading.until - reading.since) / 1e6,
    }
