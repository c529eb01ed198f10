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
        self._sources: dict[str, dict[str, str]] = {}
        """Where a batch size is known from -> the sources of a record's facts; shared by all records alike."""
        self._warned: set[str] = set()

    @property
    def version(self) -> str:
        """The engine's version, empty where nobody said it."""
        return self.facts.text("version") or self.hinted

    def know(self, facts: EngineFacts) -> None:
        """More, or something else, is known."""
        self.facts = facts
        self._sources.clear()

    def hear(self, version: str, evidence: str) -> None:
        """The engine was recognised by this, which may name its version."""
        self.hinted, self.hint = version, evidence
        self._sources.clear()

    def note_unknown(self, unknown: UnknownNames, title: str) -> None:
        """Report names that nothing here explains, each once."""
        self.unknown = unknown
        new = [name for name in unknown.names if name not in self._warned]
        if new and len(self._warned) < _MOST_WARNED:
            self._warned.update(new)
            log.warning("%s exports metrics that Tailrace does not know: %s", title, ", ".join(new))

    def describe(self, ledger: RequestLedger, adapter: EngineAdapter) -> None:
        """Put into a request's account what is true of the engine that served it."""
        facts = self.facts
        ledger.engine_version = self.version
        ledger.dtype, ledger.quantization = facts.text("dtype"), facts.text("quantization")
        batch = self._batch_source(ledger, adapter)
        sources = self._sources.get(batch)
        if sources is None:
            sources = self._sources[batch] = self._told(batch)
        ledger.fact_sources = sources

    def _batch_source(self, ledger: RequestLedger, adapter: EngineAdapter) -> str:
        reading = self.batches.get(ledger.model) if self.batches else None
        if reading is not None and ledger.sent is not None and ledger.sent - reading.until < _RECENT_NS:
            ledger.batch_size = reading.span.seen_by_a_request
            kind = "all alike" if reading.span.exact else "mean over requests"
            return f"{adapter.statistics_path}: batch_stats of the last look, {kind}"
        state = ledger.at_first_token
        metric = state.names.get("running") if state is not None else None
        return "" if metric is None else f"{metric} at the first token"

    def _told(self, batch: str) -> dict[str, str]:
        out = {"batch_size": batch} if batch else {}
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
            "batch_sizes": {
                model: {str(size): ran for size, ran in sorted(reading.span.sizes.items())}
                for model, reading in self.batches.items()
            },
            "unknown_metrics": {"count": self.unknown.count, "names": list(self.unknown.names)},
        }
