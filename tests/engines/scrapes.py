"""Scrapes of made-up engines whose every observation is known, written by the reference client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from tailrace.engines.prometheus_text import Scrape, parse_scrape

VLLM_PHASE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0)
"""How vLLM's queue, prefill, decode and end-to-end buckets begin."""


class Observed:
    """One histogram with label `engine`."""

    def __init__(self, bounds: Sequence[float], name: str = "h") -> None:
        self.name = name
        self._registry = CollectorRegistry()
        self._histogram = Histogram(name, "H", ["engine"], buckets=bounds, registry=self._registry)

    def see(self, values: Iterable[float], engine: str = "0") -> None:
        for value in values:
            self._histogram.labels(engine).observe(value)

    def scrape(self) -> Scrape:
        return parse_scrape(generate_latest(self._registry).decode())


def nearest_rank(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the share `q` of all do not exceed."""
    ranked = sorted(values)
    return next(value for index, value in enumerate(ranked, 1) if index >= q * len(ranked) - 1e-9)
