"""What one engine has counted since somebody began to look, over its restarts.

A scrape shows totals since the engine's start. The odometer adds up the increases between one scrape and the next, so a
restart takes nothing back, and the difference of any two of its readings is what happened in between. Every scrape goes
through it, also those that nobody keeps: between two far ones a counter may fall and outgrow its old value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from tailrace.engines.counter_delta import STARTED, increase, restarted
from tailrace.engines.histogram_delta import histogram_increase
from tailrace.engines.prometheus_text import Histogram, Labels, Scrape, put_together
from tailrace.engines.signals import Alias
from tailrace.engines.tallies import COUNTERS, RATIOS, TIMINGS, Counter

_MOST_REASONS: Final = 32
"""Values of a reason that are told apart; a label with one for each request would fill the memory."""
_OTHER: Final = "other"


class Reading(msgspec.Struct, frozen=True):
    """All totals at one moment. What has not moved since the reading before is the same object as there."""

    at_ns: int
    counters: dict[str, dict[str, float]]
    """Noun -> reason (or empty text) -> total."""
    timings: dict[str, Histogram]
    """Noun -> all observations (seconds)."""
    ratios: dict[str, tuple[float, float]]
    """Noun -> (seconds, things counted)."""
    names: dict[str, str]
    """Noun -> the metric's name in this scrape."""
    summaries: dict[str, dict[float, tuple[float, float]]] = {}
    """Noun -> q -> span (seconds), over a window of the engine's own."""
    restarts: int = 0
    """How often the engine was seen to have begun anew."""
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    ours: dict[str, int] = {}
    """What the gateway itself had counted at this moment: `outcome` or `outcome/reason` -> requests sent to it."""


_NOTHING: Final = Scrape({}, {})
"""A scrape in which nothing is."""


class Odometer:
    """Turns scrapes into readings. One for each engine; not for two addresses that are asked in turn.

    A name that a scrape does not have keeps its total, and is compared with the last scrape that had it when it is
    back: half an answer, or another server's, neither counts as a restart nor counts everything again.
    """

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._held: dict[str, Scrape] = {}
        """Name -> the last scrape that had it."""
        self._anew = False
        self._resets = 0

    def feed(
        self,
        scrape: Scrape,
        now: int,
        *,
        running: int | None = None,
        waiting: int | None = None,
        kv_usage: float | None = None,
        ours: dict[str, int] | None = None,
    ) -> Reading:
        """A scrape that was answered at `now`. The first one is where counting begins: what it shows is before us."""
        last = self._last
        self._anew, self._resets = restarted(self._base(STARTED, scrape), scrape), 0
        names: dict[str, str] = {}
        counters = self._counters(scrape, names)
        timings = self._timings(scrape, names)
        ratios, summaries = self._ratios(scrape, names)
        reading = Reading(
            now,
            counters,
            timings,
            ratios,
            names if last is None or last.names != names else last.names,
            summaries,
            (0 if last is None else last.restarts) + (self._anew or self._resets > 0),
            running,
            waiting,
            kv_usage,
            ours or {},
        )
        self._hold(STARTED, scrape)
        self._last = reading
        return reading

    def _base(self, name: str, scrape: Scrape) -> Scrape:
        """What this scrape's `name` is to be compared with."""
        held = self._held.get(name)
        if held is not None:
            return held
        # Nothing was there before: it is all from before us. Something was: this one was created with its first event.
        return scrape if self._last is None or not self._last.names else _NOTHING

    def _hold(self, name: str, scrape: Scrape) -> None:
        if name in scrape or f"{name}_bucket" in scrape:
            self._held[name] = scrape

    def _counters(self, scrape: Scrape, names: dict[str, str]) -> dict[str, dict[str, float]]:
        out = {} if self._last is None else dict(self._last.counters)
        used = set()
        for noun, counter in COUNTERS.items():
            alias = _present(counter.aliases, scrape)
            if alias is None:
                continue
            names[noun] = alias.name
            used.add(alias.name)
            out[noun] = _added(out.get(noun, {}), self._grown(counter, alias, scrape))
        for name in used:  # several nouns may share a name
            self._hold(name, scrape)
        return out

    def _grown(self, counter: Counter, alias: Alias, scrape: Scrape) -> dict[str, float]:
        old = self._base(alias.name, scrape).series(alias.name)
        out: dict[str, float] = {}
        for labels, value in scrape.series(alias.name).items():
            named = dict(labels)
            # A label that an engine does not have excludes nothing: SGLang counts its aborts under a name of its own.
            if any(named.get(label, wanted) != wanted for label, wanted in counter.only.items()):
                continue
            grown, fell = increase(old.get(labels), value, anew=self._anew)
            self._resets += fell
            reason = named.get(counter.by, "") if counter.by else ""
            out[reason] = out.get(reason, 0.0) + grown * alias.scale
        return out

    def _timings(self, scrape: Scrape, names: dict[str, str]) -> dict[str, Histogram]:
        out = {} if self._last is None else dict(self._last.timings)
        for noun, timing in TIMINGS.items():
            found = _histograms(timing.aliases, scrape)
            if found is None:
                continue
            alias, seen = found
            names[noun] = alias.name
            old = self._base(alias.name, scrape).histograms(alias.name)
            parts = []
            for labels, one in seen.items():
                part, fell = histogram_increase(old.get(labels), one, anew=self._anew)
                self._resets += fell
                parts.append(part)
            out[noun] = _summed(out.get(noun), parts, alias.scale)
            self._hold(alias.name, scrape)
        return out

    def _ratios(
        self, scrape: Scrape, names: dict[str, str]
    ) -> tuple[dict[str, tuple[float, float]], dict[str, dict[float, tuple[float, float]]]]:
        out = {} if self._last is None else dict(self._last.ratios)
        summaries: dict[str, dict[float, tuple[float, float]]] = {}
        for noun, ratio in RATIOS.items():
            sums, counts = _present(ratio.sums, scrape), _present(ratio.counts, scrape)
            if sums is None or counts is None or noun in names:
                continue
            names[noun] = f"{sums.name} / {counts.name}"
            seconds, things = out.get(noun, (0.0, 0.0))
            # The count is a counter of its own, whose base has moved on already: both bases are kept under this pair.
            spent = self._increase(sums.name, scrape, under=names[noun])
            done = self._increase(counts.name, scrape, under=names[noun])
            self._held[names[noun]] = scrape
            out[noun] = (seconds + spent * sums.scale, things + done)
            for alias in ratio.summaries:
                summary = scrape.summary(alias.name)
                if summary is not None:
                    spans = summary.quantiles.items()
                    summaries[noun] = {q: (low * alias.scale, high * alias.scale) for q, (low, high) in spans}
        return out, summaries

    def _increase(self, name: str, scrape: Scrape, *, under: str) -> float:
        old = self._base(under, scrape).series(name)
        total = 0.0
        for labels, value in scrape.series(name).items():
            grown, fell = increase(old.get(labels), value, anew=self._anew)
            total += grown
            self._resets += fell
        return total


def _present(aliases: Sequence[Alias], scrape: Scrape) -> Alias | None:
    for alias in aliases:
        if alias.name in scrape:
            return alias
    return None


def _histograms(aliases: Sequence[Alias], scrape: Scrape) -> tuple[Alias, dict[Labels, Histogram]] | None:
    for alias in aliases:
        found = scrape.histograms(alias.name)
        if found:
            # Without its sum a histogram has no mean: it is then as good as not there, for this once.
            return (alias, found) if all(math.isfinite(one.sum) for one in found.values()) else None
    return None


def _added(known: dict[str, float], grown: dict[str, float]) -> dict[str, float]:
    if known and not any(grown.values()) and grown.keys() <= known.keys():
        return known
    out = dict(known)
    for reason, value in grown.items():
        place = reason if reason in out or len(out) < _MOST_REASONS else _OTHER
        out[place] = out.get(place, 0.0) + value
    return out


def _summed(known: Histogram | None, parts: list[Histogram], scale: float) -> Histogram:
    grown = put_together(parts)
    if scale != 1.0:
        grown = Histogram([bound * scale for bound in grown.bounds], grown.counts, grown.sum * scale, grown.count)
    if known is None:
        return grown
    if not grown.count:
        return known
    if known.bounds == grown.bounds:
        counts = [a + b for a, b in zip(known.counts, grown.counts, strict=True)]
        return Histogram(known.bounds, counts, known.sum + grown.sum, known.count + grown.count)
    return put_together([known, grown])
