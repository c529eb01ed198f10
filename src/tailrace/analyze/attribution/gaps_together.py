"""Do streams stop together, or one alone? All of an engine's streams together: the engine or its host. All engines'
together: what stands before them. One alone: that request, or its client.

A stop is laid beside every stream that decoded at its middle. Where timelines are a sample, a stream counts as many
times as it stands for (`keep_weight`): the slow ones are all kept, and by themselves always seem to stop together.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.stats.quantiles import wilson_interval

__all__ = ["Episodes", "GapsTogether", "Stops", "Streams", "episodes_of", "gaps_together"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_COMPANY: Final = 2.0
"""With fewer other streams than this beside it, a stop says nothing of together or alone."""
_MOST: Final = 0.5
_FEW: Final = 0.1
_CLEAR: Final = 2.0 / 3.0
"""Of the stops that can be judged, this share must be of one kind for a verdict."""


class Streams(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Streams whose gaps are known; times in ns on one axis, shape (n,)."""

    first: Floats
    """First token."""
    end: Floats
    """Last token."""
    group: Ints
    """The replica that served it, 0 where there is one."""
    weight: Floats
    """How many streams it stands for."""


class Stops(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Long gaps; times in ns on the same axis, shape (m,)."""

    stream: Ints
    begin: Floats
    end: Floats


class Episodes(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Stops that overlap, joined: one episode each (of one replica)."""

    begin: Floats
    end: Floats
    group: Ints
    streams: Ints
    """Streams that stopped in it."""
    of: Ints
    """The episode of each stop."""


class GapsTogether(msgspec.Struct, frozen=True, kw_only=True):
    """What laying the stops beside the streams found. Shares are of the time stopped in stops that can be judged."""

    stops: int
    judged: int
    """Stops with at least two other streams decoding beside them."""
    together: float
    """At least half of the streams beside it stopped as well."""
    alone: float
    """At most a tenth did."""
    across: float
    """Of it, where streams of another replica were there too: at least half of those stopped as well."""
    chance: float
    """Share of their time for which streams stand still: so many of the others would be found stopped by chance."""
    episodes: int
    common: int
    """Episodes in which at least half of the streams stopped."""
    common_low: float
    common_high: float
    """95 % interval (Wilson) of the share of episodes that are common."""
    length_ms: float
    """Median length of an episode."""
    verdict: str
    """`engine`, `before the engines`, `request`, `mixed`, or empty where nothing can be said."""

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if not self.verdict:
            return f"{self.stops} stops of streams; too few had company to say whether streams stop together."
        place = {
            "engine": "the engine or its host, no single request",
            "before the engines": "what stands before the engines (gateway, host, network), no engine",
            "request": "that request or its client, not the engine",
            "mixed": "several causes",
        }[self.verdict]
        how = f"for {self.together:.0%} of the time stopped most streams stop together, for {self.alone:.0%} one alone"
        return (
            f"{how} ({self.common} of {self.episodes} episodes common, [{self.common_low:.0%}, "
            f"{self.common_high:.0%}]; by chance {self.chance:.0%} would be stopped): {place}."
        )


def episodes_of(stops: Stops, streams: Streams) -> Episodes:
    """Join overlapping stops of one replica."""
    if not stops.stream.size:
        nothing, none = np.empty(0), np.empty(0, dtype=np.int64)
        return Episodes(begin=nothing, end=nothing, group=none, streams=none, of=none)
    group = streams.group[stops.stream]
    base = _apart(streams, stops)
    begin, end = stops.begin + group * base, stops.end + group * base
    order = np.argsort(begin, kind="stable")
    reach = np.maximum.accumulate(end[order])
    fresh = np.concatenate([[True], begin[order][1:] >= reach[:-1]])
    of = np.empty(begin.size, dtype=np.int64)
    of[order] = np.cumsum(fresh) - 1
    count = int(fresh.sum())
    first = np.full(count, np.inf)
    np.minimum.at(first, of, stops.begin)
    last = np.full(count, -np.inf)
    np.maximum.at(last, of, stops.end)
    pairs = np.unique(of * (streams.first.size + 1) + stops.stream)
    hit = np.bincount(pairs // (streams.first.size + 1), minlength=count)
    return Episodes(begin=first, end=last, group=group[order][fresh], streams=hit.astype(np.int64), of=of)


def gaps_together(streams: Streams, stops: Stops) -> GapsTogether | None:
    """Lay the stops beside the streams. `None` without a stop."""
    if not stops.stream.size or not streams.first.size:
        return None
    group = streams.group[stops.stream]
    base = _apart(streams, stops)
    middle = (stops.begin + stops.end) / 2.0
    own = streams.weight[stops.stream]
    alive = _alive(streams, middle, group, base) - own
    stopped = np.maximum(_stopped(streams, stops, middle, group, base) - own, 0.0)
    length = stops.end - stops.begin
    judged = alive >= _COMPANY
    share = np.divide(stopped, alive, out=np.zeros_like(alive), where=alive > 0)
    spent = float(length[judged].sum())
    weight = length / spent if spent > 0 else np.zeros_like(length)
    together = float(weight[judged & (share >= _MOST)].sum())
    alone = float(weight[judged & (share <= _FEW)].sum())
    across = _across(streams, stops, middle, group, weight, judged & (share >= _MOST))
    decoded = float(((streams.end - streams.first) * streams.weight).sum())
    episodes = episodes_of(stops, streams)
    longest = np.zeros(episodes.begin.size)
    np.maximum.at(longest, episodes.of, np.where(judged, share, -1.0))
    seen = np.zeros(episodes.begin.size, dtype=bool)
    seen[episodes.of[judged]] = True
    common, n = int((longest[seen] >= _MOST).sum()), int(seen.sum())
    low, high = wilson_interval(common, n) or (0.0, 1.0)
    found = ""
    if n >= 3:
        found = "engine" if together >= _CLEAR else "request" if alone >= _CLEAR else "mixed"
        if found == "engine" and across >= _CLEAR:
            found = "before the engines"
    return GapsTogether(
        stops=int(stops.stream.size),
        judged=int(judged.sum()),
        together=together,
        alone=alone,
        across=across,
        chance=min(1.0, float((length * own).sum()) / decoded) if decoded > 0 else 0.0,
        episodes=n,
        common=common,
        common_low=low,
        common_high=high,
        length_ms=float(np.median(episodes.end - episodes.begin)) / 1e6,
        verdict=found,
    )


def _apart(streams: Streams, stops: Stops) -> float:
    """A shift that keeps the replicas' axes apart, so that one sorted array answers for all of them."""
    return 2.0 * float(max(streams.end.max(), stops.end.max()) - min(streams.first.min(), stops.begin.min()) + 1.0)


def _running(at: Floats, weight: Floats, asked: Floats, *, side: str) -> Floats:
    """Weight of those whose time is at or before each asked time (`side` right) or before it (left)."""
    order = np.argsort(at, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(weight[order])])
    found: Floats = total[np.searchsorted(at[order], asked, side=side)]  # type: ignore[call-overload]
    return found


def _alive(streams: Streams, at: Floats, group: Ints, base: float) -> Floats:
    shift, asked = streams.group * base, at + group * base
    begun = _running(streams.first + shift, streams.weight, asked, side="right")
    return begun - _running(streams.end + shift, streams.weight, asked, side="left")


def _stopped(streams: Streams, stops: Stops, at: Floats, group: Ints, base: float) -> Floats:
    owner = streams.group[stops.stream] * base
    weight, asked = streams.weight[stops.stream], at + group * base
    begun = _running(stops.begin + owner, weight, asked, side="right")
    return begun - _running(stops.end + owner, weight, asked, side="left")


def _across(
    streams: Streams, stops: Stops, at: Floats, group: Ints, weight: Floats, together: NDArray[np.bool_]
) -> float:
    """Of the time stopped together, the share in which most streams of the other replicas stopped as well."""
    if not together.any() or not (streams.group != streams.group[0]).any():
        return 0.0
    one = msgspec.structs.replace(streams, group=np.zeros_like(streams.group))
    every, base = np.zeros_like(group), _apart(streams, stops)
    others = _alive(one, at, every, 0.0) - _alive(streams, at, group, base)
    still = _stopped(one, stops, at, every, 0.0) - _stopped(streams, stops, at, group, base)
    judged = together & (others >= _COMPANY)
    total = float(weight[together].sum())
    return float(weight[judged & (still >= _MOST * others)].sum()) / total if total > 0 else 0.0
