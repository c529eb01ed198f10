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

from tailrace.engines.counter_delta import increase, restarted
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


class Odometer:
    """Turns scrapes into readings. One for each engine; not for two addresses that are asked in turn."""

    def __init__(self) -> None:
        self._before: Scrape | None = None
        self._last: Reading | None = None

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
        before, last = self._before, self._last
        first = before is None or last is None
        base = scrape if before is None else before
        anew = not first and restarted(base, scrape)
        counters: dict[str, dict[str, float]] = {}
        timings: dict[str, Histogram] = {}
        ratios: dict[str, tuple[float, float]] = {}
        names: dict[str, str] = {}
        summaries: dict[str, dict[float, tuple[float, float]]] = {}
        resets = 0
        for noun, counter in COUNTERS.items():
            alias = _present(counter.aliases, scrape)
            if alias is None:
                continue
            names[noun] = alias.name
            grown, fell = _grown(counter, alias, base, scrape, anew=anew)
            resets += fell
            known = {} if last is None else last.counters.get(noun, {})
            counters[noun] = _added(known, grown)
        for noun, timing in TIMINGS.items():
            found = _histograms(timing.aliases, scrape)
            if found is None:
                continue
            alias, now_seen = found
            names[noun] = alias.name
            old_seen = base.histograms(alias.name)
            parts = []
            for labels, seen in now_seen.items():
                part, fell = histogram_increase(old_seen.get(labels), seen, anew=anew)
                resets += fell
                parts.append(part)
            known_seen = None if last is None else last.timings.get(noun)
            timings[noun] = _summed(known_seen, parts, alias.scale)
        for noun, ratio in RATIOS.items():
            sums, counts = _present(ratio.sums, scrape), _present(ratio.counts, scrape)
            if sums is None or counts is None or noun in timings:
                continue
            names[noun] = f"{sums.name} / {counts.name}"
            spent, fell = _increase_of(sums.name, base, scrape, anew=anew)
            done, _ = _increase_of(counts.name, base, scrape, anew=anew)
            resets += fell
            seconds, things = (0.0, 0.0) if last is None else last.ratios.get(noun, (0.0, 0.0))
            ratios[noun] = (seconds + spent * sums.scale, things + done)
            for alias in ratio.summaries:
                summary = scrape.summary(alias.name)
                if summary is not None:
                    scaled = {
                        q: (low * alias.scale, high * alias.scale) for q, (low, high) in summary.quantiles.items()
                    }
                    summaries[noun] = scaled
        past = 0 if last is None else last.restarts
        reading = Reading(
            now,
            counters,
            timings,
            ratios,
            names if last is None or last.names != names else last.names,
            summaries,
            past + (anew or resets > 0),
            running,
            waiting,
            kv_usage,
            ours or {},
        )
        self._before, self._last = scrape, reading
        return reading


def _present(aliases: Sequence[Alias], scrape: Scrape) -> Alias | None:
    for alias in aliases:
        if alias.name in scrape:
            return alias
    return None


def _histograms(aliases: Sequence[Alias], scrape: Scrape) -> tuple[Alias, dict[Labels, Histogram]] | None:
    for alias in aliases:
        found = scrape.histograms(alias.name)
        if found:
            return alias, found
    return None


def _increase_of(name: str, before: Scrape, after: Scrape, *, anew: bool) -> tuple[float, int]:
    old = before.series(name)
    total, resets = 0.0, 0
    for labels, value in after.series(name).items():
        grown, fell = increase(old.get(labels), value, anew=anew)
        total += grown
        resets += fell
    return total, resets


def _grown(
    counter: Counter, alias: Alias, before: Scrape, after: Scrape, *, anew: bool
) -> tuple[dict[str, float], int]:
    old = before.series(alias.name)
    out: dict[str, float] = {}
    resets = 0
    for labels, value in after.series(alias.name).items():
        named = dict(labels)
        # A label that this engine does not have excludes nothing: SGLang counts its aborts under a name of their own.
        if any(named.get(label, wanted) != wanted for label, wanted in counter.only.items()):
            continue
        grown, fell = increase(old.get(labels), value, anew=anew)
        resets += fell
        reason = named.get(counter.by, "") if counter.by else ""
        out[reason] = out.get(reason, 0.0) + grown * alias.scale
    return out, resets


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
    if not math.isfinite(grown.sum):
        grown = Histogram(grown.bounds, grown.counts, math.nan, grown.count)
    if known.bounds == grown.bounds:
        counts = [a + b for a, b in zip(known.counts, grown.counts, strict=True)]
        return Histogram(known.bounds, counts, known.sum + grown.sum, known.count + grown.count)
    return put_together([known, grown])
