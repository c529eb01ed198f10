"""Readings of /metrics as observations: counters and histograms between two of them, gauges over all of them.

Readings of several replicas (files named so, or labels that say so) are compared within a replica only. A window in
which a replica's counters fell was cut by a restart: it is dropped and said, unless it is the only one.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from tailrace.diagnose.observed import (
    Clock,
    Counter,
    Event,
    Histogram,
    Observed,
    Place,
    Series,
    Setting,
    Understood,
)
from tailrace.diagnose.readers.gpu_series import series_of_gpus
from tailrace.diagnose.readers.metric_quantities import (
    Measured,
    counters_in,
    gauges_in,
    histograms_in,
    identity,
    is_mean_only,
)
from tailrace.diagnose.readers.metric_readings import Reading
from tailrace.engines.counter_delta import restarted as began_anew
from tailrace.engines.dcgm import read_dcgm
from tailrace.engines.histogram_delta import histogram_increase
from tailrace.engines.prometheus_text import Histogram as Cumulative
from tailrace.engines.prometheus_text import Labels, Scrape, put_together
from tailrace.engines.registry import ADAPTERS

__all__ = ["in_order", "observations_of"]

_REPLICA: Final = re.compile(
    r"(?:^|[^a-z])((?:replica|pod|worker|node|instance|engine|backend|server|host|rank|gpu|dp)[-_ ]?[a-z]?\d+)"
    r"(?![a-z])",
    re.IGNORECASE,
)
_EARLY: Final = re.compile(r"(?:^|[^a-z])(before|start|begin|first|old|baseline|pre|t0)(?![a-z0-9])", re.IGNORECASE)
_LATE: Final = re.compile(r"(?:^|[^a-z])(after|end|later|last|new|post)(?![a-z0-9])", re.IGNORECASE)
_DIGITS: Final = re.compile(r"\d+")
_PERCENT: Final = 1.5
_FACT_NAMES: Final = {"kv_tokens": "kv_capacity_tokens", "block_size": "kv_block_tokens"}

Whose = tuple[tuple[str, str], ...]
"""Labels that say whose a series is."""


def observations_of(readings: Sequence[Reading]) -> Observed:
    """What readings say together. One alone gives gauges, and counters and histograms since the engine's start."""
    out = Observed()
    groups = _by_replica(readings)
    for replica, group in groups.items():
        ordered, note = in_order(group)
        labels = (("replica", replica),) if replica else ()
        part = _of_one(ordered, labels)
        if note:
            part.understood.append(note)
        out = Observed.joined([out, part])
    return out


def _by_replica(readings: Sequence[Reading]) -> dict[str, list[Reading]]:
    """Readings apart by the replica that their file's name names, where several are named."""
    out: dict[str, list[Reading]] = {}
    for reading in readings:
        found = _REPLICA.search(reading.source.rsplit("/", 1)[-1])
        out.setdefault(found[1].lower() if found else "", []).append(reading)
    if len(out) > 1 and "" not in out:
        return out
    return {"": list(readings)}


def in_order(readings: Sequence[Reading]) -> tuple[list[Reading], Understood | None]:
    """Readings as they were taken: by their stamps, else by what their files' names say, else as given.

    Two of one process whose counters all fell were given in the wrong order: they are turned round, and it is said.
    """
    items = list(readings)
    if len(items) < 2:
        return items, None
    if all(item.at is not None for item in items) and len({item.clock for item in items}) == 1:
        return sorted(items, key=lambda item: item.at or 0.0), None
    names = [item.source for item in items]
    roles = [0 if _EARLY.search(name) else 2 if _LATE.search(name) else 1 for name in names]
    if 0 in roles or 2 in roles:
        items = [item for _, item in sorted(zip(roles, items, strict=True), key=lambda pair: pair[0])]
    elif len({_DIGITS.sub("#", name) for name in names}) == 1 and len(set(names)) == len(names):
        items.sort(key=lambda item: [int(number) for number in _DIGITS.findall(item.source)])
    if len(items) == 2 and _all_fell(items[0].scrape, items[1].scrape):
        items.reverse()
        return items, Understood(
            source=items[1].source,
            format="metrics",
            understood=0,
            total=1,
            what="orders of the two scrapes",
            examples=["every counter of the second file is below the first one's, of one process: taken the other way"],
        )
    return items, None


def _all_fell(first: Scrape, second: Scrape) -> bool:
    """Whether one process counted less later, in everything that changed: the files are in the wrong order."""
    starts = first.series("process_start_time_seconds"), second.series("process_start_time_seconds")
    if not starts[0] or starts[0] != starts[1]:
        return False
    fell = rose = 0
    for item in counters_in(second):
        old, new = first.total(item.raw), second.total(item.raw)
        if old is not None and new is not None:
            fell += new < old
            rose += new > old
    return fell > 0 and not rose


def _of_one(readings: Sequence[Reading], extra: Whose) -> Observed:
    out = Observed()
    out.series += _gauges(readings, extra)
    out.settings += _settings(readings)
    windows = list(itertools.pairwise(readings))
    if not windows:
        for reading in readings:
            out.counters += _lifetime_counters(reading, extra)
            out.histograms += _lifetime_histograms(reading, extra)
        return out
    cut: list[str] = []
    for order, (before, after) in enumerate(windows):
        anew = began_anew(before.scrape, after.scrape)
        fell = _fallen(before.scrape, after.scrape)
        every = anew or (fell and len(fell) == len(_owners(after.scrape)))
        for whose in fell if not anew else {()}:
            words = _words(extra + whose)
            cut.append(f"the counters{words} fell between {before.source} and {after.source}: a restart")
            out.events.append(
                Event(
                    kind="restart",
                    at=after.at,
                    clock=after.clock,
                    text=f"counters{words} began anew between {before.source} and {after.source}",
                    attributes={"order": float(order)},
                    place=Place(after.source),
                )
            )
        if every and len(windows) > 1:
            continue
        skip = fell if len(windows) > 1 else set()
        out.counters += _counters(before, after, order, extra, skip)
        out.histograms += _histograms(before, after, order, extra, skip, anew=anew)
    if cut:
        out.understood.append(
            Understood(
                source=readings[-1].source,
                format="metrics",
                understood=len(windows) - min(len(cut), len(windows)),
                total=len(windows),
                what="windows",
                examples=cut[:5],
            )
        )
    return out


# -- counters


def _owners(scrape: Scrape) -> set[Whose]:
    return {identity(labels) for item in counters_in(scrape) for labels in scrape.series(item.raw)}


def _fallen(before: Scrape, after: Scrape) -> set[Whose]:
    """Whose counters fell: one series is enough, a process begins anew as a whole."""
    out = set()
    for item in counters_in(after):
        old = before.series(item.raw)
        for labels, value in after.series(item.raw).items():
            if labels in old and value < old[labels]:
                out.add(identity(labels))
    return out


def _counters(before: Reading, after: Reading, order: int, extra: Whose, skip: set[Whose]) -> list[Counter]:
    window = _seconds(before, after)
    names = {(item.name, item.raw): item for item in (*counters_in(before.scrape), *counters_in(after.scrape))}
    out = []
    for item in names.values():
        first, last = _sums(before.scrape, item), _sums(after.scrape, item)
        if not last and item.raw not in after.scrape:
            continue
        for whose, value in last.items():
            if identity(whose) in skip:
                continue
            out.append(
                Counter(
                    name=item.name,
                    labels=dict(extra + whose),
                    first=first.get(whose, 0.0) * item.scale,
                    last=value * item.scale,
                    window_s=window,
                    order=order,
                    unit=item.unit,
                    raw=item.raw,
                    place=Place(after.source, after.line(item.raw)),
                )
            )
    return out


def _sums(scrape: Scrape, item: Measured) -> dict[Whose, float]:
    """Value by owner, over label sets that differ in nothing else that matters."""
    out: dict[Whose, float] = {}
    for labels, value in scrape.series(item.raw).items():
        said = dict(labels)
        if all(said.get(key, wanted) == wanted for key, wanted in item.only.items()):
            whose = identity(labels, item.by)
            out[whose] = out.get(whose, 0.0) + value
    return out


def _lifetime_counters(reading: Reading, extra: Whose) -> list[Counter]:
    return [
        Counter(
            name=item.name,
            labels=dict(extra + whose),
            first=0.0,
            last=value * item.scale,
            lifetime=True,
            unit=item.unit,
            raw=item.raw,
            place=Place(reading.source, reading.line(item.raw)),
        )
        for item in counters_in(reading.scrape)
        for whose, value in _sums(reading.scrape, item).items()
    ]


# -- histograms


def _histograms(
    before: Reading, after: Reading, order: int, extra: Whose, skip: set[Whose], *, anew: bool
) -> list[Histogram]:
    out = []
    for item in histograms_in(after.scrape):
        old = _cumulative(before.scrape, item.raw)
        parts: dict[Whose, list[tuple[Cumulative, bool]]] = {}
        for labels, now in _cumulative(after.scrape, item.raw).items():
            if identity(labels) in skip:
                continue
            parts.setdefault(identity(labels), []).append(histogram_increase(old.get(labels), now, anew=anew))
        for whose, found in parts.items():
            seen = put_together(part for part, _ in found)
            out.append(
                _observed(
                    item,
                    seen,
                    extra + whose,
                    Place(after.source, _line(after, item.raw)),
                    window_s=_seconds(before, after),
                    order=order,
                    lifetime=any(reset for _, reset in found),
                )
            )
    return out


def _cumulative(scrape: Scrape, raw: str) -> dict[Labels, Cumulative]:
    """A histogram by its labels; one without buckets where only sum and count were given."""
    if not is_mean_only(scrape, raw):
        return scrape.histograms(raw)
    sums = scrape.series(f"{raw}_sum")
    return {
        labels: Cumulative([], [], sums.get(labels, math.nan), count)
        for labels, count in scrape.series(f"{raw}_count").items()
    }


def _line(reading: Reading, raw: str) -> int:
    return reading.line(f"{raw}_bucket") or reading.line(f"{raw}_sum")


def _lifetime_histograms(reading: Reading, extra: Whose) -> list[Histogram]:
    out = []
    for item in histograms_in(reading.scrape):
        parts: dict[Whose, list[Cumulative]] = {}
        for labels, found in _cumulative(reading.scrape, item.raw).items():
            parts.setdefault(identity(labels), []).append(found)
        place = Place(reading.source, _line(reading, item.raw))
        for whose, every in parts.items():
            out.append(_observed(item, put_together(every), extra + whose, place, lifetime=True))
    return out


def _observed(
    item: Measured,
    seen: Cumulative,
    labels: Labels,
    place: Place,
    *,
    window_s: float | None = None,
    order: int = 0,
    lifetime: bool = False,
) -> Histogram:
    counts, below = [], 0.0
    for count in seen.counts:
        counts.append(max(count - below, 0.0))
        below = max(count, below)
    counts.append(max(seen.count - below, 0.0))
    return Histogram(
        name=item.name,
        labels=dict(labels),
        bounds=[bound * item.scale for bound in seen.bounds],
        counts=counts,
        sum=None if math.isnan(seen.sum) else seen.sum * item.scale,
        window_s=window_s,
        order=order,
        lifetime=lifetime,
        unit=item.unit,
        raw=item.raw,
        place=place,
    )


# -- gauges, settings


def _gauges(readings: Sequence[Reading], extra: Whose) -> list[Series]:
    """One series a quantity and owner, over all readings: by their stamps, else counted from 0."""
    stamped = all(item.at is not None for item in readings) and len({item.clock for item in readings}) == 1
    clock = readings[0].clock if readings and stamped else Clock.NONE
    found: dict[tuple[str, Whose], tuple[Measured, dict[int, float]]] = {}
    for place, reading in enumerate(readings):
        for item in gauges_in(reading.scrape):
            cells: dict[Whose, float] = {}
            share = item.unit == "share"
            for labels, value in reading.scrape.series(item.raw).items():
                whose = identity(labels)
                cells[whose] = max(cells.get(whose, value), value) if share else cells.get(whose, 0.0) + value
            for whose, value in cells.items():
                found.setdefault((item.name, whose), (item, {}))[1][place] = value * item.scale
    out = []
    at = np.array([reading.at if stamped else float(place) for place, reading in enumerate(readings)], dtype=np.float64)
    for (name, whose), (item, values) in found.items():
        column = np.array([values.get(place, math.nan) for place in range(len(readings))], dtype=np.float64)
        if item.unit == "share":
            known = column[np.isfinite(column)]
            if known.size and float(known.max()) > _PERCENT:
                column = column / 100.0
        last = max(values)
        out.append(
            Series(
                name=name,
                labels=dict(extra + whose),
                axis="time" if stamped else "scrape",
                at=at,
                values=column,
                unit=item.unit,
                clock=clock,
                place=Place(readings[last].source, readings[last].line(item.raw)),
            )
        )
    return [*out, *_gpus(readings)]


def _gpus(readings: Iterable[Reading]) -> list[Series]:
    states = []
    for order, reading in enumerate(readings):
        if any(name.startswith(("DCGM_", "dcgm_")) for name in reading.scrape.samples):
            at = reading.at if reading.at is not None else float(order)
            states += read_dcgm(reading.text, round(at * 1e9))[0]
    return series_of_gpus(states, "dcgm") if states else []


def _settings(readings: Sequence[Reading]) -> list[Setting]:
    """What the engine's info metrics say of its configuration."""
    if not readings:
        return []
    last = readings[-1]
    out: list[Setting] = []
    for adapter in ADAPTERS.values():
        for key, fact in adapter.read_info_metrics(last.scrape).items():
            name = _FACT_NAMES.get(key, key)
            if not any(item.name == name for item in out):
                metric = (
                    fact.source.split(":")[0] if fact.source.count(":") < 2 else ":".join(fact.source.split(":")[:2])
                )
                out.append(Setting(name=name, value=fact.value, place=Place(last.source, last.line(metric))))
    return out


def _seconds(before: Reading, after: Reading) -> float | None:
    if before.at is None or after.at is None or before.clock is not after.clock:
        return None
    return after.at - before.at


def _words(labels: Whose) -> str:
    return f" of {', '.join(f'{key} {value}' for key, value in labels)}" if labels else ""
