"""What is known of one latency of two routes: enough to compare them within strata, in memory that does not grow.

A stratum is a kind of request (so long a prompt, so long an answer); routes are compared within strata only, so a
route that gets longer requests is not slower for it. Per stratum and batch of time there are a count and a sum of
logarithms: their weighted differences are the mean's test. Per stratum there is a histogram of logarithms: how many
of each route lie above one threshold, in distance from the stratum's common centre, is the tail's test. Batches of time
are merged to longer ones when there are many, so that they outgrow the time in which requests depend on each other.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.stats.clustered import batch_variance, design_effect
from tailrace.stats.quantiles import Floats
from tailrace.stats.sequential import binomial_z, student_z

Ints = NDArray[np.int64]

BATCHES: Final = 128
"""Batches of time at most; then neighbours are merged."""
GROUPS: Final = 32
"""Clusters of sessions."""
QUANTILES: Final = (0.99, 0.998)
"""Whose exceedances are counted: p99, and one that a slow-down of the slowest 2 % crosses ten times as often."""
MOST_STRATA: Final = 1024
_CODES: Final = 128
FEWEST_BATCHES: Final = 6
SETTLED_BATCHES: Final = 60
"""With fewer batches of time the error counts as known from fewer pieces than there are."""
_FEWEST_REQUESTS: Final = 15
_EVENTS_TO_JUDGE: Final = 5
_WORTH_A_LOOK: Final = 2.0
"""No boundary is below this z."""
_BIN: Final = 0.05
"""Width of a bin in ln(latency): thresholds are met within 5 %, the same for both routes."""
_BELOW: Final = 40
_BINS: Final = 160
"""From e^-2 to e^6 times the first value seen; what lies beyond counts in the outermost bin."""


class Shift(NamedTuple):
    """By how much one route is slower, in ln(latency), and what is known of that."""

    z: float
    n: float
    """Effective requests: sum over the strata of n_c n_s / (n_c + n_s)."""
    shift: float
    error: float
    """Its standard error, dependence in time and within sessions included."""
    spread: float
    """Standard deviation of ln(latency) within the strata, the swing of the load taken out."""
    deff: float
    """By how much dependence inflates the variance."""
    freedom: float
    """Independent pieces of time that the error is known from, less one."""


class Excess(NamedTuple):
    """How many of one route's requests lie above a threshold that both share."""

    z: float
    n: float
    events: int
    requests: int
    due: float
    """How many would lie there if both routes were the same."""
    deff: float


def octave_quarters(tokens: Floats) -> Ints:
    """Token counts as quarters of an octave: 0 for none, at most 127."""
    return np.minimum((4.0 * np.log2(tokens + 1.0)).astype(np.int64), _CODES - 1)


def prompt_strata(prompt: Ints, _output: Ints) -> Ints:
    """Strata of TTFT: quarters of an octave of the prompt (19 % wide), because TTFT follows the prompt."""
    return prompt * _CODES


def pace_strata(prompt: Ints, output: Ints) -> Ints:
    """Strata of TPOT: octaves of both, because a short answer's TPOT scatters more."""
    return (prompt >> 2) * _CODES + (output >> 2)


def whole_strata(prompt: Ints, output: Ints) -> Ints:
    """Strata of E2E: half octaves of the prompt, quarters of the answer; a longer answer is no slower engine."""
    return (prompt >> 1) * _CODES + output


class BinaryTally:
    """Events of two routes by batch of time and by cluster of sessions: what their number scatters more than chance."""

    def __init__(self) -> None:
        self.events = np.zeros((2, BATCHES))
        self.seen = np.zeros((2, BATCHES))
        self.group_events = np.zeros((2, GROUPS))
        self.group_seen = np.zeros((2, GROUPS))

    def add(self, arm: Ints, event: NDArray[np.bool_], batch: int, group: Ints) -> None:
        """Requests of one batch."""
        self.seen[:, batch] += np.bincount(arm, minlength=2)
        self.events[:, batch] += np.bincount(arm[event], minlength=2)
        np.add.at(self.group_seen, (arm, group), 1.0)
        np.add.at(self.group_events, (arm[event], group[event]), 1.0)

    def halve(self) -> None:
        """Merge neighbouring batches."""
        self.events, self.seen = _halved(self.events), _halved(self.seen)

    def deff(self, batches: int, *, grouped: bool) -> float:
        """The design effect of the difference of the two rates."""
        seen, events = self.seen.sum(axis=1), self.events.sum(axis=1)
        if seen.min() < 1.0 or events.sum() < _EVENTS_TO_JUDGE:
            return 1.0
        rate = events / seen
        independent = float((rate * (1.0 - rate) / seen).sum())
        by_time = (self.events[:, :batches] - rate[:, None] * self.seen[:, :batches]) / seen[:, None]
        clustered = batch_variance(by_time[1] - by_time[0])
        if grouped:
            by_group = (self.group_events - rate[:, None] * self.group_seen) / seen[:, None]
            clustered = max(clustered, float((by_group**2).sum()) * GROUPS / (GROUPS - 1))
        return design_effect(clustered, independent)


class LatencyEvidence:
    """One latency of both routes (row 0 stable, row 1 canary) since the evidence was begun."""

    def __init__(self) -> None:
        self._index = np.full(_CODES * _CODES, -1, dtype=np.int64)
        self._strata = 0
        self._room = 0
        self.count = np.zeros((2, BATCHES, 0))
        self.total = np.zeros((2, BATCHES, 0))
        self.group_count = np.zeros((2, GROUPS, 0))
        self.group_total = np.zeros((2, GROUPS, 0))
        self.squares = np.zeros((2, 0))
        self.n = np.zeros((2, 0))
        self.sums = np.zeros((2, 0))
        self.bins = np.zeros((2, 0, _BINS), dtype=np.int64)
        self.origin = np.zeros(0)
        self.tallies = tuple(BinaryTally() for _ in QUANTILES)
        self._above: Floats | None = None
        """Per quantile and stratum: the ln(latency) above which requests count, as the last look found it."""

    def add(self, arm: Ints, code: Ints, value: Floats, batch: int, group: Ints) -> None:
        """Requests that ended within `batch`; `value` is ln(latency in ns)."""
        index = self._index[code]
        if index.size and int(index.min()) < 0:
            self._open(code[index < 0], value[index < 0])
            index = self._index[code]
            kept = index >= 0
            arm, index, value, group = arm[kept], index[kept], value[kept], group[kept]
        if not index.size:
            return
        np.add.at(self.count[:, batch], (arm, index), 1.0)
        np.add.at(self.total[:, batch], (arm, index), value)
        np.add.at(self.group_count, (arm, group, index), 1.0)
        np.add.at(self.group_total, (arm, group, index), value)
        np.add.at(self.n, (arm, index), 1.0)
        np.add.at(self.sums, (arm, index), value)
        np.add.at(self.squares, (arm, index), (value - self.origin[index]) ** 2)
        place = np.clip(((value - self.origin[index]) / _BIN + _BELOW).astype(np.int64), 0, _BINS - 1)
        np.add.at(self.bins, (arm, index, place), 1)
        if self._above is not None and self._above.shape[1] == self._room:
            for tally, above in zip(self.tallies, self._above, strict=True):
                tally.add(arm, value > above[index], batch, group)

    def _open(self, codes: Ints, values: Floats) -> None:
        fresh, first = np.unique(codes, return_index=True)
        free = MOST_STRATA - self._strata
        fresh, first = fresh[:free], first[:free]
        if self._strata + fresh.size > self._room:
            more = max(64, self._room, fresh.size)
            self._room += more
            self.count, self.total = _wider(self.count, more), _wider(self.total, more)
            self.group_count, self.group_total = _wider(self.group_count, more), _wider(self.group_total, more)
            self.squares, self.n, self.sums = (_wider(part, more) for part in (self.squares, self.n, self.sums))
            self.bins = np.concatenate((self.bins, np.zeros((2, more, _BINS), dtype=np.int64)), axis=1)
            self.origin = _wider(self.origin, more)
        places = np.arange(self._strata, self._strata + fresh.size)
        self._index[fresh] = places
        self.origin[places] = values[first]
        self._strata += fresh.size

    def halve(self) -> None:
        """Merge neighbouring batches."""
        self.count, self.total = _halved(self.count), _halved(self.total)
        for tally in self.tallies:
            tally.halve()

    def requests(self, arm: int) -> int:
        """How many are known of a route."""
        return int(self.n[arm].sum())

    def shift(self, batches: int, accepted: float, *, grouped: bool) -> Shift | None:
        """The mean's test against "slower by no more than `accepted`" (in ln). None while there is too little.

        Within strata the difference of means, weighted with n_c n_s / (n_c + n_s): the minimum variance for one shift
        in all strata (Cochran, "The combination of estimates from different experiments", Biometrics 10, 1954). The
        swing of each batch of time, which both routes share, is taken out: it moves the shift only as far as the
        routes' requests do not lie alike in time.
        """
        n = self.n[:, : self._strata]
        used = (n[0] > 0) & (n[1] > 0)
        filled = int((self.count[1, :batches, : self._strata].sum(axis=1) > 0).sum())
        if filled < FEWEST_BATCHES or n[1, used].sum() < _FEWEST_REQUESTS:
            return None
        known = np.where(n > 0, n, 1.0)
        weight = np.where(used, n[0] * n[1] / np.where(used, n[0] + n[1], 1.0), 0.0)
        whole = float(weight.sum())
        mean = self.sums[:, : self._strata] / known
        shift = float((weight * (mean[1] - mean[0])).sum()) / whole
        # Where a stratum holds one canary request, its mean is itself: centred on the other route's, plus the shift.
        centre = np.stack((mean[0], mean[0] + shift)) * used
        lever = weight / known / whole

        counted = [self._folded(self.count, arm, batches, used) for arm in (0, 1)]
        beside = [
            self._folded(self.total, arm, batches, used) - self._folded(self.count, arm, batches, centre[arm])
            for arm in (0, 1)
        ]
        requests = counted[0] + counted[1]
        swing = (beside[0] + beside[1]) / np.where(requests > 0, requests, 1.0)
        freedom = float(n[:, used].sum()) - 2.0 * float(used.sum()) - filled
        if freedom < _FEWEST_REQUESTS:
            return None
        inner = (
            self.squares[:, : self._strata]
            - (self.sums[:, : self._strata] - n * self.origin[: self._strata]) ** 2 / known
        )
        scatter = float(inner[:, used].sum())
        variance = max(scatter - float((requests * swing**2).sum()), 0.05 * scatter) / freedom
        presence = self._folded(self.count, 1, batches, lever[1]) - self._folded(self.count, 0, batches, lever[0])
        """How much more of the canary's weight lies in each batch: chance; times the swing, it moves the shift."""
        shift -= float(swing @ presence)
        centre = np.stack((mean[0], mean[0] + shift)) * used
        influence = [
            self._folded(self.total, arm, batches, lever[arm])
            - self._folded(self.count, arm, batches, lever[arm] * centre[arm])
            for arm in (0, 1)
        ]
        independent = variance / whole
        clustered = batch_variance(influence[1] - influence[0] - swing * presence)
        if grouped:
            for arm in (0, 1):
                part = self.group_total[arm, :, : self._strata] @ lever[arm]
                part -= self.group_count[arm, :, : self._strata] @ (lever[arm] * centre[arm])
                influence[arm] = part
            by_group = float((influence[0] ** 2 + influence[1] ** 2).sum())
            clustered = max(clustered, by_group * GROUPS / (GROUPS - 1))
        error = math.sqrt(max(independent, clustered))
        pieces = pieces_of(filled)
        z = student_z((shift - accepted) / error, pieces) if error > 0.0 else 0.0
        return Shift(z, whole, shift, error, math.sqrt(variance), design_effect(clustered, independent), pieces)

    def _folded(self, table: Floats, arm: int, batches: int, by: Floats) -> Floats:
        """A value a batch: the strata of one route, weighted."""
        out: Floats = table[arm, :batches, : self._strata] @ by
        return out

    def excesses(self, batches: int, accepted: float, *, grouped: bool) -> list[Excess] | None:
        """The tail's tests, one for each of `QUANTILES`, against "no more than 1 + `accepted` times the due number".

        The threshold lies so far above the strata's common centres that 1 - q of all requests exceed it. Which route
        those belong to is, given their number in a stratum, hypergeometric where the routes are the same (Mantel and
        Haenszel, J. Natl. Cancer Inst. 22, 1959); summed over strata it is taken for binomial, whose tail is heavier.
        """
        strata = self._strata
        n = self.n[0, :strata] + self.n[1, :strata]
        whole = float(n.sum())
        seen = self.n.sum(axis=1)
        if seen.min() < _FEWEST_REQUESTS:
            return None
        origin = self.origin[:strata]
        offset = np.rint(((self.sums[0, :strata] + self.sums[1, :strata]) / n - origin) / _BIN).astype(np.int64)
        both = self.bins[0, :strata] + self.bins[1, :strata]
        stratum, place = np.nonzero(both)
        distance = place - offset[stratum]
        lowest = int(distance.min())
        pooled = np.bincount(distance - lowest, weights=both[stratum, place])
        beyond = pooled[::-1].cumsum()[::-1]
        """How many lie in each bin or above it."""
        information = seen[0] * seen[1] / whole
        share = self.n[1, :strata] / n
        above = np.full((len(QUANTILES), self._room), np.inf)
        out = []
        for number, quantile in enumerate(QUANTILES):
            cut = lowest + int(np.searchsorted(-beyond, -(1.0 - quantile) * whole))
            above[number, :strata] = origin + (offset + cut - _BELOW) * _BIN
            over = distance >= cut
            where, at = stratum[over], place[over]
            total = float(both[where, at].sum())
            events = float(self.bins[1, where, at].sum())
            due = float((both[where, at] * share[where]).sum())
            z, deff = _excess_z(events, total, due, accepted, self.tallies[number], batches, grouped=grouped)
            out.append(Excess(z, information, int(events), int(seen[1]), due, deff))
        self._above = above
        return out


class FailureEvidence:
    """Failed requests of both routes, within octaves of the request's size."""

    def __init__(self) -> None:
        self.n = np.zeros((2, _CODES))
        self.failed = np.zeros((2, _CODES))
        self.tally = BinaryTally()

    def add(self, arm: Ints, size: Ints, failed: NDArray[np.bool_], batch: int, group: Ints) -> None:
        """Requests that ended within `batch`."""
        np.add.at(self.n, (arm, size >> 2), 1.0)
        np.add.at(self.failed, (arm[failed], size[failed] >> 2), 1.0)
        self.tally.add(arm, failed, batch, group)

    def excess(self, batches: int, accepted: float, *, grouped: bool) -> Excess | None:
        """The test of "the canary fails no more than 1 + `accepted` times as often"; as for the tail."""
        n = self.n.sum(axis=0)
        seen = self.n.sum(axis=1)
        if seen.min() < 1.0:
            return None
        failed = self.failed.sum(axis=0)
        total, events = float(failed.sum()), float(self.failed[1].sum())
        due = float((failed * self.n[1] / np.where(n > 0, n, 1.0)).sum())
        z, deff = _excess_z(events, total, due, accepted, self.tally, batches, grouped=grouped)
        return Excess(z, float(seen[0] * seen[1] / seen.sum()), int(events), int(seen[1]), due, deff)


def pieces_of(batches: float) -> float:
    """How many independent pieces (less one) so many batches of time are worth to the error's own certainty.

    Few batches may all lie within one swing of the load, which none of them shows: they count for fewer.
    """
    return (batches - 1.0) * min(1.0, batches / SETTLED_BATCHES) ** 2


def _excess_z(
    events: float, total: float, due: float, accepted: float, tally: BinaryTally, batches: int, *, grouped: bool
) -> tuple[float, float]:
    """The z of `events` of `total` where `due` were to be expected, and the design effect by which both are divided.

    The design effect is not worked out (1) where even independent events would say nothing.
    """
    if total <= 0.0 or due <= 0.0:
        return 0.0, 1.0
    odds = (1.0 + accepted) * due / max(total - due, 1e-9)
    share = odds / (1.0 + odds)
    z = binomial_z(events, total, share)
    if z < _WORTH_A_LOOK:
        return z, 1.0
    deff = tally.deff(batches, grouped=grouped)
    return binomial_z(events / deff, total / deff, share), deff


def _wider(part: Floats, more: int) -> Floats:
    out: Floats = np.concatenate((part, np.zeros((*part.shape[:-1], more))), axis=-1)
    return out


def _halved(part: Floats) -> Floats:
    out = np.zeros_like(part)
    out[:, : BATCHES // 2] = part[:, 0::2] + part[:, 1::2]
    return out
