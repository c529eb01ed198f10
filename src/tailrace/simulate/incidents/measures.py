"""What a user would notice of a window, straight from its flows; and whether two windows differ by more than chance.

It says whether a fault had an effect at all. A fault without one is no incident: nobody can be asked for its cause.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.model.outcome import OutcomeKind
from tailrace.model.thresholds import MS
from tailrace.simulate.incidents.flow import Flow
from tailrace.stats.quantiles import quantile, quantile_interval
from tailrace.stats.student import t_quantile

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Bounds = dict[str, dict[float, int]]
"""Metric -> quantile -> objective (ns), as `Objectives.bounds`."""

_STALL_MS: Final = 500.0
_STALL_FACTOR: Final = 10.0
_GAP_MS: Final = 150.0
"""Gaps from which a reader sees that the text has stopped; see `SlowThresholds`."""
_TOLERANCE: Final = 1.10
_AS_USUAL: Final = 1.5
_ALLOWED: Final = 0.01
_LONG_FACTOR: Final = 4.0
_ALPHA: Final = 0.01
"""A promise is broken where the system that keeps it would show as many late requests once in a hundred windows."""
_BESIDE: Final = 0.001
"""Chance of blocks of time to show a rise of one metric beside the window before, where nothing changed. A window is
compared by some ten shares: together few more windows may differ than the diagnosis may call ill by mistake."""
_BLOCKS: Final = 20


class Measures(NamedTuple):
    """Milliseconds of each completed request, and which did not complete; all in order of time."""

    ttft: Floats
    tpot: Floats
    gap: Floats
    """The longest gap of each stream."""
    e2e: Floats
    stops: Floats
    """1 for each stream that stalled, 0 for the others."""
    fails: Floats
    """1 for each request that did not complete, 0 for the others."""

    @property
    def stalled(self) -> int:
        """How many streams stalled."""
        return int(self.stops.sum())

    @property
    def streams(self) -> int:
        """How many streams have gaps."""
        return self.stops.size

    @property
    def failed(self) -> int:
        """How many requests did not complete."""
        return int(self.fails.sum())

    @property
    def n(self) -> int:
        """How many requests there were."""
        return self.fails.size


def held(flows: list[Flow]) -> list[Flow]:
    """Those whom an objective binds: a prompt of four times the usual length is not held to it (`analyze.classes`)."""
    if not flows:
        return flows
    most = _LONG_FACTOR * float(np.median([flow.call.prompt for flow in flows]))
    return [flow for flow in flows if flow.call.prompt < most]


def measure(flows: list[Flow]) -> Measures:
    """Of all flows of a window."""
    ttft, tpot, gap, e2e, stops, fails = [], [], [], [], [], []
    for flow in flows:
        failed = flow.ending.outcome is not OutcomeKind.COMPLETED
        fails.append(failed)
        if failed:
            continue
        e2e.append(flow.end - flow.received)
        delivered, chunks = flow.delivered, flow.chunks
        if delivered is None or chunks is None or not flow.call.stream:
            continue
        read = delivered.read
        ttft.append(int(delivered.written[0]) - flow.received)
        if read.size > 2:
            gaps = np.diff(read)
            worst = int(gaps.max())
            gap.append(worst)
            tpot.append((int(read[-1]) - int(read[0])) / max(int(chunks.tokens.sum()) - 1, 1))
            stops.append(worst > max(_STALL_MS * MS, _STALL_FACTOR * float(np.median(gaps))))
    waits, paces, gaps_ms, whole = (np.array(values, dtype=np.float64) / MS for values in (ttft, tpot, gap, e2e))
    stopped, failed_ones = (np.array(flags, dtype=np.float64) for flags in (stops, fails))
    return Measures(waits, paces, gaps_ms, whole, stopped, failed_ones)


def objectives(healthy: Measures, margin: float, *, with_e2e: bool) -> Bounds:
    """What the operator of a healthy system promises: its own p99 with some room."""
    out: Bounds = {}
    for name, grain in (("ttft", 10.0), ("tpot", 1.0), ("e2e", 100.0)):
        values: Floats = getattr(healthy, name)
        if values.size < 20 or (name == "e2e" and not with_e2e):
            continue
        high = max(quantile(values, 0.99), 1.25 * quantile(values, 0.95))
        out[name] = {0.99: round(np.ceil(margin * high / grain) * grain * MS)}
    return out


def differs(healthy: Measures, faulty: Measures, *, by_blocks: bool = False) -> bool:
    """Whether p95, p99 or the share of stalled or failed requests rose beyond its own sampling interval.

    Of a quantile: the 95 % intervals of the two windows do not overlap. At equal n that is an effect of 3.9 standard
    errors of one of them, which a comparison of two such windows finds four times in five. A change of less than a
    tenth, and a gap too short to be seen, are noticed by nobody.

    `by_blocks`: the windows have different calls, and requests that lose their time together are one event. Blocks of
    time must then show it as well: more of their requests are above the old quantile, stall or fail (Welch's t over 20
    blocks, one in a thousand by chance).
    """
    for name in ("ttft", "tpot", "gap", "e2e"):
        old: Floats = getattr(healthy, name)
        new: Floats = getattr(faulty, name)
        for p in (0.95, 0.99):
            if min(old.size, new.size) * (1 - p) < 5:
                continue
            high, low = quantile_interval(old, p)[1], quantile_interval(new, p)[0]
            grew = quantile(new, p) > _TOLERANCE * quantile(old, p)
            bound = quantile(old, p)
            if by_blocks and not _rose_in_blocks(old > bound, new > bound):
                continue
            if high is not None and low is not None and low > high and grew and (name != "gap" or low > _GAP_MS):
                return True
    return any(
        _rose(int(a.sum()), a.size, int(b.sum()), b.size) and (not by_blocks or _rose_in_blocks(a, b))
        for a, b in ((healthy.stops, faulty.stops), (healthy.fails, faulty.fails))
    )


def breaks(bounds: Bounds, seen: Measures, binding: Measures | None = None, *, usual: Measures | None = None) -> bool:
    """Whether the window breaks an objective, stalls or fails more often than chance allows. `binding`: those of its
    requests that an objective binds, where these are not all. `usual`: the same without the fault; stalls and failures
    that are there anyway are no sign of it.
    """
    for name, wanted in bounds.items():
        values: Floats = getattr(seen if binding is None else binding, name)
        for p, bound in wanted.items():
            if _more(int((values > bound / MS).sum()), values.size, 1 - p):
                return True
    stalls = fails = 0.0
    if usual is not None:
        stalls, fails = usual.stalled / max(usual.streams, 1), usual.failed / max(usual.n, 1)
    return _more(seen.stalled, seen.streams, max(_ALLOWED, _AS_USUAL * stalls)) or _more(
        seen.failed, seen.n, max(_ALLOWED, _AS_USUAL * fails)
    )


def keeps(bounds: Bounds, seen: Measures) -> bool:
    """Whether the window itself keeps every objective, and at most one in a hundred stalls or fails."""
    for name, wanted in bounds.items():
        values: Floats = getattr(seen, name)
        if any((values > bound / MS).sum() > (1 - p) * values.size for p, bound in wanted.items()):
            return False
    return seen.stalled <= _ALLOWED * seen.streams and seen.failed <= _ALLOWED * seen.n


def _more(count: int, n: int, share: float) -> bool:
    from scipy.special import bdtrc  # noqa: PLC0415  (loaded only where it is used)

    return count > 0 and n > 0 and count > share * n and float(bdtrc(count - 1, n, share)) < _ALPHA


def _rose_in_blocks(old: Floats | Flags, new: Floats | Flags) -> bool:
    """Both in order of time."""
    if min(old.size, new.size) < 2 * _BLOCKS:
        return False
    a, b = (np.array([part.mean() for part in np.array_split(side, _BLOCKS)]) for side in (old, new))
    variances = [float(side.var(ddof=1)) / _BLOCKS for side in (a, b)]
    freedom = sum(variances) ** 2 / max(sum(value**2 / (_BLOCKS - 1) for value in variances), 1e-30)
    return float(b.mean() - a.mean()) > t_quantile(1.0 - _BESIDE, max(freedom, 1.0)) * float(np.sqrt(sum(variances)))


def _rose(a: int, n_a: int, b: int, n_b: int) -> bool:
    """A share is larger, one-sided, by more than the normal approximation of its difference allows."""
    if not n_a or not n_b or b < 5:
        return False
    p, q = a / n_a, b / n_b
    pooled = (a + b) / (n_a + n_b)
    deviation = np.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / n_a + 1 / n_b))
    return bool(q - p > 1.96 * deviation)
