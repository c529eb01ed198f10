"""Traces laid open: which part of the client's request the servers' spans cover, and where the rest lies."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.observed.vocabulary import TO_MS, in_unit, unit_in_name
from tailrace.stats.intervals import union_length

__all__ = ["Cover", "covers", "engines_alone"]

_SKEW_MS: Final = 1.0
_DEEPEST: Final = 100
_HOPS: Final = 5


class Hop(NamedTuple):
    """One server's span."""

    name: str
    begins_ms: float
    """After the client's."""
    lasts_ms: float


class Cover(NamedTuple):
    """One trace."""

    trace: str
    total_ms: float
    """The client's span."""
    covered_ms: float
    """What spans of servers cover of it, once."""
    before_ms: float
    between_ms: float
    after_ms: float
    """Where the rest lies: before the first of them, between them, after the last."""
    first: str
    """The span that begins first: `llm_request (vllm)`."""
    client: str
    skew_ms: float
    """How far a server's span lies outside of the client's: the two clocks differ by at least so much."""
    ttft_ms: float
    """What the engine says of its first token; NaN where it does not."""
    place: str
    hops: tuple[Hop, ...] = ()
    """Spans of servers in the order of their beginnings, those that hold others too."""

    @property
    def share(self) -> float:
        """Covered, 0..1."""
        return self.covered_ms / self.total_ms


def covers(observed: Observed) -> list[Cover]:
    """The traces that have a client's span and at least one of a server that did its work."""
    return [cover for rows in observed.table("spans") for cover in _of_rows(rows)]


_CLIENT: Final = re.compile(
    r"^(?:client|request|caller|user|total|whole|browser)\b.*(?:time|span|latency|duration|e2e|total|wall)|e2e.*client|"
    r"client.*(?:e2e|ms|s)$|^(?:client|end to end|e2e)(?: m?s)?$"
)
_SPANS: Final = re.compile(r"(?:^|[_.])(?:server_?)?spans?(?:_m?s)?$")
_SERVER: Final = re.compile(
    r"^(?:server|engine|backend|llm)\b.*\bspans?\b|^llm request(?: m?s)?$|^(?:sum (?:of )?)?spans?\b(?:.*sum)?|"
    r"(?:sum|total) (?:of )?(?:the )?(?:server )?spans|llm request (?:span|duration|time)"
)


def stated_covers(observed: Observed) -> list[Cover]:
    """The same from sums that a table (one request a row) or a form states: without the place of what is left out."""
    rows = [
        (arm.name, str(arm.place), [(v.label, v.value, v.unit) for v in arm.values.values() if not v.relative])
        for arm in observed.arms
    ]
    form = [(item.name, item.number, item.unit) for item in observed.settings if item.number is not None]
    form += _sum_of_group(form)
    rows.append(("the request", str(observed.settings[0].place) if form else "", form))
    out = []
    for name, place, numbers in rows:
        client, server = _milliseconds(numbers, _CLIENT), _milliseconds(numbers, _SERVER)
        if client and server and server <= client:
            unknown = float("nan")
            out.append(
                Cover(name, client, server, unknown, unknown, unknown, "the servers' spans", name, 0.0, unknown, place)
            )
    return out


def _sum_of_group(form: list[tuple[str, float, str]]) -> list[tuple[str, float, str]]:
    """The sum of a form's group of spans: `server_spans: {queue: …, prefill: …}`; in ms where no unit is written."""
    groups: dict[str, list[float]] = {}
    for name, value, unit in form:
        group, dot, inner = name.rpartition(".")
        own = unit or unit_in_name(inner)[1] or unit_in_name(group)[1] or "ms"
        ms = in_unit(value, own, "ms") if own in TO_MS else None
        if dot and ms is not None and _SPANS.search(group):
            groups.setdefault(group, []).append(ms)
    return [("sum of server spans", sum(values), "ms") for values in groups.values() if len(values) > 1]


def _milliseconds(numbers: list[tuple[str, float, str]], words: re.Pattern[str]) -> float | None:
    for label, value, unit in numbers:
        plain = " ".join(re.sub(r"[(\[].*?[)\]]", " ", label.lower()).replace("_", " ").split())
        ms = in_unit(value, unit, "ms") if unit in TO_MS else None
        if ms is not None and words.search(plain):
            return ms
    return None


def engines_alone(observed: Observed) -> bool:
    """Whether there are engine's spans, and none of whoever asked."""
    tables = observed.table("spans")
    return any(bool((rows.numbers("engine") > 0.5).any()) for rows in tables) and not covers(observed)


def _of_rows(rows: Rows) -> list[Cover]:
    begin, end = rows.numbers("start_ms"), rows.numbers("end_ms")
    names, services = rows.texts("name"), rows.texts("service")
    spans, parents, traces = rows.texts("span"), rows.texts("parent"), rows.texts("trace")
    engine = rows.numbers("engine") > 0.5
    first_token = rows.numbers("ttft_ms")
    groups: dict[str, list[int]] = {}
    for index, trace in enumerate(traces):
        if np.isfinite(begin[index]) and np.isfinite(end[index]) and end[index] >= begin[index]:
            groups.setdefault(trace, []).append(index)
    out = []
    for trace, members in groups.items():
        known = {spans[index] for index in members}
        below: dict[str, list[int]] = {}
        for index in members:
            if parents[index] in known and parents[index] != spans[index]:
                below.setdefault(parents[index], []).append(index)
        roots = [index for index in members if parents[index] not in known and not engine[index]]
        if not roots:
            continue
        root = max(roots, key=lambda index: end[index] - begin[index])
        total = float(end[root] - begin[root])
        leaves = _leaves(root, below, spans, engine)
        # Engines often begin a trace of their own branch: what has no parent here belongs to the request all the same.
        leaves += [index for index in members if engine[index] and parents[index] not in known]
        served = [index for index in leaves if engine[index] or services[index] != services[root]]
        if total <= 0 or not served:
            continue
        cover = _cover(trace, root, leaves, begin, end, total, names, services, first_token, rows)
        others = sorted((i for i in members if i != root and services[i] != services[root]), key=lambda i: begin[i])
        hops = [
            Hop(_called(names[i], services[i]), float(begin[i] - begin[root]), float(end[i] - begin[i]))
            for i in others[:_HOPS]
        ]
        out.append(cover._replace(hops=tuple(hops)))
    return out


def _leaves(root: int, below: dict[str, list[int]], spans: list[str], engine: np.ndarray) -> list[int]:
    """The spans that did the work: an engine's request whole, of others those that hold no more."""
    out: list[int] = []
    left = [(child, 1) for child in below.get(spans[root], [])]
    seen = {root}
    while left:
        index, depth = left.pop()
        if index in seen:
            continue
        seen.add(index)
        inside = below.get(spans[index], [])
        if engine[index] or not inside or depth > _DEEPEST:
            out.append(index)
        else:
            left += [(child, depth + 1) for child in inside]
    return out


def _cover(
    trace: str,
    root: int,
    leaves: list[int],
    begin: np.ndarray,
    end: np.ndarray,
    total: float,
    names: list[str],
    services: list[str],
    first_token: np.ndarray,
    rows: Rows,
) -> Cover:
    low, high = float(begin[root]), float(end[root])
    outside = max(
        max((low - float(begin[index]) for index in leaves), default=0.0),
        max((float(end[index]) - high for index in leaves), default=0.0),
    )
    covered, until = 0.0, low
    inside = sorted((max(float(begin[index]), low), min(float(end[index]), high)) for index in leaves)
    for start, stop in inside:
        covered += max(0.0, stop - max(start, until))
        until = max(until, stop)
    if outside > _SKEW_MS:
        # Another clock: its length is right, its place is not.
        covered = min(total, union_length([(float(begin[index]), float(end[index])) for index in leaves]))
    before = max(0.0, inside[0][0] - low)
    after = max(0.0, high - until)
    earliest = min(leaves, key=lambda index: begin[index])
    said = [float(first_token[index]) for index in leaves if np.isfinite(first_token[index])]
    line = int(rows.lines[root]) if rows.lines is not None else 0
    return Cover(
        trace,
        total,
        covered,
        before,
        max(0.0, total - covered - before - after),
        after,
        _called(names[earliest], services[earliest]),
        _called(names[root], services[root]),
        outside if outside > _SKEW_MS else 0.0,
        max(said, default=float("nan")),
        f"{rows.place.source}:{line}" if line > 1 else rows.place.source,
    )


def _called(name: str, service: str) -> str:
    return f"{name} ({service})" if service else name
