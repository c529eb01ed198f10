"""Prometheus exposition of what a gateway sees: our own counters and histograms, collected when scraped.

`observe` keeps the ended requests, and counts them many at once into plain dicts and lists (two microseconds a
request, a fifth of the cost one by one); the library formats them when somebody scrapes. Every metric stands in
`metric_table.METRIC_TABLE`. Bounds of objectives are added to the bucket lists at the start, because attainment read
from a classic histogram is exact only at a bound.

Percentiles are not for these histograms (interpolation between fixed bounds is off by up to a quarter): they serve
attainment and alarms; percentiles come from records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from operator import add, attrgetter
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import tailrace
from tailrace.export.metric_table import BUCKET_LIST_VERSION, METRIC_TABLE, REQUEST_LABELS, Metric
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.stage import QUEUE_ENGINE, QUEUE_GATEWAY, STAGES
from tailrace.model.thresholds import Objectives

__all__ = ["GatewayMetrics", "MetricsSnapshot"]

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_Reader = tuple[str, Callable[[RequestRecord], int | None], Callable[[str, tuple[str, ...], list[int]], None]]
"""Name, what a record shows, and what is done with what several show."""
_Readers = tuple[tuple[str, ...], list[_Reader]]
_REQUESTS: Final = "tailrace_requests_total"
_MAX_VALUES: Final = 100
"""Distinct values a label may take: model names come from clients, and a client must not fill our memory."""
_OTHER: Final = "other"
_MERGES: Final[dict[str, Callable[[float, float], float]]] = {"sum": add, "max": max, "min": min}
_BATCH: Final = 128
"""Ended requests counted at once: half a millisecond."""
_STAGE_READERS: Final[list[tuple[str, str, Callable[[RequestRecord], int | None]]]] = [
    *(("tailrace_stage_seconds", str(stage), attrgetter(f"{stage}_ns")) for stage in STAGES),
    *(
        ("tailrace_stage_part_seconds", part, attrgetter(f"{part.replace('.', '_')}_ns"))
        for part in (QUEUE_GATEWAY, QUEUE_ENGINE)
    ),
]
_OPEN_LABELS: Final = ("lane", "model", "engine")
"""Labels whose values come from outside; those of the others are closed sets."""


class MetricsSnapshot(msgspec.Struct, kw_only=True):
    """All series of one process, for the one that adds up those of several."""

    numbers: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    bounds: dict[str, list[float]] = {}
    histograms: dict[str, list[tuple[tuple[str, ...], list[float]]]] = {}

    def ended(self) -> MetricsSnapshot:
        """What is left of a process that is gone: what it counted, and nothing of the moment."""
        kept = {name: series for name, series in self.numbers.items() if METRIC_TABLE[name].kind == "counter"}
        return MetricsSnapshot(numbers=kept, bounds=self.bounds, histograms=self.histograms)


class GatewayMetrics(Collector):
    """The metrics of one gateway process, in a registry of its own.

    `observe` every record (all of them: sampling is for timelines). Live numbers are set by `gauge` and `counter`, or
    pulled at scrape time by a function given to `on_render`.
    """

    def __init__(self, objectives: Objectives | None = None, *, table: Mapping[str, Metric] = METRIC_TABLE) -> None:
        """Bounds of `objectives` become bucket bounds; those of the defaults are there already."""
        self._table = table
        bounds = (objectives or Objectives()).bounds
        self._bounds: dict[str, list[float]] = {
            metric.name: _with_objectives(metric, bounds) for metric in self._table.values() if metric.buckets
        }
        self._numbers: dict[str, dict[tuple[str, ...], float]] = {
            metric.name: {} for metric in self._table.values() if metric.kind != "histogram"
        }
        self._histograms: dict[str, dict[tuple[str, ...], list[float]]] = {name: {} for name in self._bounds}
        self._known: dict[str, set[str]] = {}
        self._of_requests = self._readers()
        self._ended: list[RequestRecord] = []
        self._pulls: list[Callable[[GatewayMetrics], None]] = []
        added = sorted(
            {bound for name, known in self._bounds.items() for bound in set(known) - {*self._table[name].buckets}}
        )
        version = str(BUCKET_LIST_VERSION) + "".join(f"+{bound:g}" for bound in added)
        self.gauge("tailrace_build_info", 1, version=tailrace.__version__, bucket_list=version)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    # -- feeding

    def observe(self, record: RequestRecord) -> None:
        """Count one ended request; it shows in the next `render`."""
        self._ended.append(record)
        if len(self._ended) >= _BATCH:
            self._count_ended()

    def _count_ended(self) -> None:
        """Many at once, by what they have in common: a third of the cost of one by one."""
        ended, self._ended = self._ended, []
        alike: dict[tuple[str, ...], list[RequestRecord]] = {}
        for record in ended:
            where = (record.backend, record.lane, record.model, record.engine)
            words = (*where, record.outcome, record.reason, record.died_in, record.cache)
            alike.setdefault(words, []).append(record)
        for records in alike.values():
            self._count_alike(records)

    def _count_alike(self, records: list[RequestRecord]) -> None:
        words = {label: of(records[0]) for label, of in REQUEST_LABELS.items()}
        served = records[0].outcome is OutcomeKind.COMPLETED
        for label in _OPEN_LABELS:
            words[label] = self._bounded(label, words[label], served=served)
        if records[0].from_cache:
            # No engine worked for these: their times and tokens would make every engine look better than it is.
            labels = self._table[_REQUESTS].labels
            self._add(_REQUESTS, tuple([words[label] for label in labels]), [len(records)])
            return
        for labels, metrics in self._of_requests:
            series = tuple([words[label] for label in labels])
            for name, of, count in metrics:
                values = [value for value in map(of, records) if value is not None]
                if values:
                    count(name, series, values)
        lane = words["lane"]
        for name, stage, of in _STAGE_READERS:
            values = [value for value in map(of, records) if value is not None]
            if values:
                self._note(name, (stage, lane), values)
        for record in records:
            for threshold in record.slow:
                self._add("tailrace_slow_requests_total", (lane, threshold), [1])

    def show(self, name: str, value_ns: int, **labels: str) -> None:
        """One observation of a histogram that no record carries."""
        self._note(name, self._labels(name, labels), [value_ns])

    def add(self, name: str, amount: int, **labels: str) -> None:
        """Add to a counter that no record carries."""
        self._add(name, self._labels(name, labels), [amount])

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge. KeyError for a name that is not in the table; ValueError for wrong labels."""
        self._numbers[name][self._labels(name, labels)] = value

    def counter(self, name: str, total: float, **labels: str) -> None:
        """Set a counter to its total so far, as its owner counts it."""
        self._numbers[name][self._labels(name, labels)] = total

    def clear(self, name: str) -> None:
        """Forget the series of a gauge, so that a lane or backend that is gone does not stay for ever."""
        self._numbers[name].clear()

    def records(self, counters: Mapping[str, int], *, disk_ok: bool) -> None:
        """Take over `RecordWriter.counters()`."""
        self.counter("tailrace_records_acknowledged_total", counters.get("acknowledged", 0))
        self.gauge("tailrace_records_waiting", counters.get("waiting", 0))
        self.gauge("tailrace_records_disk_ok", int(disk_ok))
        for kind in ("normal", "slow"):
            # Said from the start, as 0: an alarm on a series that is absent never fires.
            self.counter("tailrace_records_dropped_total", counters.get(f"dropped.{kind}", 0), **{"class": kind})
        self.counter("tailrace_amendments_acknowledged_total", counters.get("amendments.acknowledged", 0))
        for kind in ("stages", "facts"):
            lost = counters.get(f"amendments.dropped.{kind}", 0)
            self.counter("tailrace_amendments_dropped_total", lost, **{"class": kind})
        for name, total in counters.items():
            if name.startswith("dropped."):
                self.counter("tailrace_records_dropped_total", total, **{"class": name.removeprefix("dropped.")})

    def on_render(self, pull: Callable[[GatewayMetrics], None]) -> None:
        """Call `pull(self)` at the beginning of every scrape, to set live numbers."""
        self._pulls.append(pull)

    # -- several processes

    def series(self, name: str) -> list[tuple[tuple[str, ...], float]]:
        """One counter's or gauge's series, every request that has ended included."""
        self._count_ended()
        return list(self._numbers[name].items())

    def snapshot(self) -> MetricsSnapshot:
        """All series as they are now."""
        for pull in self._pulls:
            pull(self)
        self._count_ended()
        return MetricsSnapshot(
            numbers={name: list(series.items()) for name, series in self._numbers.items() if series},
            bounds={name: self._bounds[name] for name, series in self._histograms.items() if series},
            histograms={name: list(series.items()) for name, series in self._histograms.items() if series},
        )

    def absorb(self, snapshot: MetricsSnapshot) -> None:
        """Add the series of another process: counters and histograms add up, gauges as their `merge` says.

        Where the other has other bounds, what it counted below one of them is counted below the next of ours.
        """
        for name, numbers in snapshot.numbers.items():
            mine, merge = self._numbers[name], _MERGES[self._table[name].merge]
            for labels, value in numbers:
                mine[labels] = merge(mine[labels], value) if labels in mine else value
        for name, histograms in snapshot.histograms.items():
            places = [bisect_left(self._bounds[name], bound) for bound in snapshot.bounds[name]]
            places.append(len(self._bounds[name]))
            cells_of = self._histograms[name]
            for labels, cells in histograms:
                sums = cells_of.setdefault(labels, [0.0] * (len(self._bounds[name]) + 2))
                for place, count in zip(places, cells, strict=False):
                    sums[place] += count
                sums[-1] += cells[-1]

    # -- reading

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition and its content type; `accept` is the scraper's header (OpenMetrics where it asks for it)."""
        for pull in self._pulls:
            pull(self)
        self._count_ended()
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterable[_Family]:
        """Called by the registry."""
        for metric in self._table.values():
            if metric.kind == "histogram":
                yield self._histogram_family(metric)
            else:
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                out = family(metric.name, metric.definition, labels=metric.labels)
                for labels, value in list(self._numbers[metric.name].items()):
                    out.add_metric(labels, value)
                yield out

    def describe(self) -> Iterable[_Family]:
        """Nothing: the registry must not scrape us in order to register us."""
        return ()

    def _histogram_family(self, metric: Metric) -> HistogramMetricFamily:
        out = HistogramMetricFamily(metric.name, metric.definition, labels=metric.labels)
        bounds = [*(repr(bound) for bound in self._bounds[metric.name]), "+Inf"]
        for labels, cells in list(self._histograms[metric.name].items()):
            *counts, total = cells
            below, buckets = 0.0, []
            for bound, count in zip(bounds, counts, strict=True):
                below += count
                buckets.append((bound, below))
            out.add_metric(labels, buckets, total)
        return out

    # -- inside

    def _readers(self) -> list[_Readers]:
        """The metrics that read a record themselves, by their labels: one series key serves them all."""
        by_labels: dict[tuple[str, ...], list[_Reader]] = {}
        for metric in self._table.values():
            if metric.of is not None:
                seconds = self._add_seconds if metric.unit == "seconds" else self._add
                count = self._note if metric.kind == "histogram" else seconds
                by_labels.setdefault(metric.labels, []).append((metric.name, metric.of, count))
        return list(by_labels.items())

    def _add_seconds(self, name: str, labels: tuple[str, ...], values_ns: list[int]) -> None:
        series = self._numbers[name]
        series[labels] = series.get(labels, 0) + sum(values_ns) / 1e9

    def _add(self, name: str, labels: tuple[str, ...], amounts: list[int]) -> None:
        series = self._numbers[name]
        series[labels] = series.get(labels, 0) + sum(amounts)

    def _note(self, name: str, labels: tuple[str, ...], values_ns: list[int]) -> None:
        bounds = self._bounds[name]
        series = self._histograms[name]
        cells = series.get(labels)
        if cells is None:
            # One cell a bucket, one for +Inf, and the sum.
            cells = series[labels] = [0.0] * (len(bounds) + 2)
        for value_ns in values_ns:
            cells[bisect_left(bounds, value_ns / 1e9)] += 1
        cells[-1] += sum(values_ns) / 1e9

    def _bounded(self, label: str, value: str, *, served: bool) -> str:
        known = self._known.setdefault(label, set())
        if value in known:
            return value
        # Names that no engine has served may be anybody's invention: half of the places are not for them.
        if len(known) >= (_MAX_VALUES if served else _MAX_VALUES // 2):
            return _OTHER
        known.add(value)
        return value

    def _labels(self, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        wanted = self._table[name].labels
        if set(wanted) != set(labels):
            raise ValueError(f"{name} has the labels {', '.join(wanted) or 'none'}, not {', '.join(labels) or 'none'}")
        return tuple(labels[label] for label in wanted)


def _with_objectives(metric: Metric, objectives: Mapping[str, Mapping[float, int]]) -> list[float]:
    extra = objectives.get(metric.objective, {}).values() if metric.objective else ()
    return sorted({*metric.buckets, *(bound_ns / 1e9 for bound_ns in extra)})
