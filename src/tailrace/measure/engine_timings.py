"""What an engine said about one request's stages, in our terms."""

from __future__ import annotations

import msgspec


class EngineTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Durations (ns) of the stages inside the engine; `None` where it said nothing.

    An adapter of `tailrace.engines` makes it from the engine's own words. The ledger never lets the parts exceed what
    our clock measured around them.
    """

    queue_ns: int | None = None
    preprocess_ns: int | None = None
    encode_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    """Used only where our clock saw no token, that is for an answer that was not streamed."""
    postprocess_ns: int | None = None
    """As `decode_ns`: what follows the last token we measure ourselves."""
    parts_ns: dict[str, int] = {}
    """Parts by name, of services and engines: `preprocess.retrieval`. Each is contained in its stage."""
    sources: dict[str, str] = {}
    """Stage (`queue`, `preprocess`, `encode`, `prefill`, `decode`, `postprocess`) or part -> source."""
    preemptions: int | None = None
    cached_tokens: int | None = None

    def part(self, stage: str) -> tuple[int, str] | None:
        """(ns, source) of a stage, `None` where it is not known. Negative values count as not known."""
        value: int | None = getattr(self, f"{stage}_ns")
        if value is None or value < 0:
            return None
        return value, self.sources.get(stage, "reported")


NO_TIMINGS = EngineTimings()
"""The engine said nothing."""
