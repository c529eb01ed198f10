"""How much each replica has in flight: from a table with a row a replica, a form's lists, or gauges with a label."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs

from tailrace.diagnose.arms.asked import figure, told
from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.observed import Arm, Observed, Series
from tailrace.diagnose.readers.heading import statistic

__all__ = ["IN_FLIGHT", "Spread", "is_replica", "spreads"]

_REPLICA: Final = re.compile(
    r"^(?:dp[ _-]?)?(?:rank|replica|worker|engine|pod|instance|node|gpu|backend|server|shard|host|upstream|endpoint)s?"
    r"(?:[ _#-]*[\w.:-]+)?$",
    re.IGNORECASE,
)
_LABELS: Final = (
    *("engine", "replica", "instance", "pod", "worker", "rank", "dp_rank", "backend", "node", "server"),
    *("worker_id", "worker_addr", "worker_url", "addr", "address"),
)
_OF_REPLICAS: Final = re.compile(
    r"(?:running|waiting|queued|in.?flight|requests|tokens|load|queue)\w*[ _](?:per|by|of|on|each)[ _](?:the )?"
    r"(?:dp )?(?:rank|replica|worker|engine|pod|instance|node|gpu|backend|server)s?"
    r"|(?:per|each)[ _](?:dp )?(?:rank|replica|worker|engine|pod|instance|node|gpu|backend|server)s?[ _]",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"^[\d.,]+[kKmM]?$")
_TIME: Final = re.compile(r"^\s*~?\d[\d.,]*\s*(?:ns|us|µs|ms|s|sec|secs|min|minutes?|seconds?)\b", re.IGNORECASE)
_LATENCIES: Final = ("ttft", "tpot", "itl", "e2e", "req_s", "output_tok_s")
QUANTITIES: Final = (
    ("tokens_in_flight", "tokens in flight"),
    ("running", "running requests"),
    ("concurrency", "requests in flight"),
    ("n", "requests"),
    ("waiting", "waiting requests"),
)
_COUNTED: Final = dict(QUANTITIES)
IN_FLIGHT: Final = "in_flight"
_IN_FLIGHT_WORDS: Final = "requests in flight (running and waiting)"
_COLUMN: Final = re.compile(
    r"\b(?:(?:replica|worker|engine|pod|instance|node|gpu|backend|server|rank|shard)[ #-]?(?:\d+|[a-z])|[rw]\d+)\b",
    re.IGNORECASE,
)
FEWEST_ROWS: Final = 12
MOST_ROWS: Final = 50
SLOWER: Final = 1.5
IDLE: Final = 0.05
"""Of the mean: a replica with less is idle."""


class Spread(NamedTuple):
    """One quantity over the replicas, at the time at which it is most uneven."""

    quantity: str
    what: str
    names: tuple[str, ...]
    values: tuple[float, ...]
    places: tuple[str, ...]
    times: int = 1
    """How many readings there are."""
    before: float | None = None
    """The skew of the first reading, where there are several."""

    @property
    def counts_tokens(self) -> bool:
        """Whether it weighs requests by their length."""
        return "token" in self.quantity or "token" in self.what

    @property
    def mean(self) -> float:
        """Over all replicas, idle ones too."""
        return float(np.mean(self.values))

    @property
    def most(self) -> float:
        """Of the busiest."""
        return max(self.values)

    @property
    def least(self) -> float:
        """Of the least busy."""
        return min(self.values)

    @property
    def skew(self) -> float:
        """Busiest / mean; 1 is even."""
        return self.most / self.mean if self.mean else 1.0

    @property
    def busiest(self) -> str:
        """The name of the busiest."""
        return self.names[self.values.index(self.most)]

    @property
    def lightest(self) -> str:
        """The name of the least busy."""
        return self.names[self.values.index(self.least)]

    @property
    def idle(self) -> tuple[str, ...]:
        """The names of those with (next to) nothing."""
        least = IDLE * self.mean
        return tuple(name for name, value in zip(self.names, self.values, strict=True) if value <= least)


def is_replica(arm: Arm) -> bool:
    """Whether a row is a replica: its heading or its label says so, or it has work in flight and no latency at all."""
    if any(_REPLICA.match(name.replace("_", " ")) for name in arm.keys):
        return True
    if _REPLICA.match(arm.label.strip()) and arm.label.strip()[-1:].isalnum() and re.search(r"\d|-", arm.label):
        return True
    measured = {item.quantity for item in arm.values.values()}
    # A row that is called by a bare number and tells times as well is a length or a load that somebody tried.
    if _NUMBER.match(arm.label.strip()) and any(_TIME.search(str(value)) for value in _cells(arm)):
        return False
    return bool(measured & {"tokens_in_flight", "running"}) and not measured & set(_LATENCIES)


def _cells(arm: Arm) -> list[object]:
    times = [f"{item.value:g} {item.unit}" for item in arm.values.values()]
    return [*times, *arm.keys.values()]


@asked_once
def spreads(observed: Observed) -> list[Spread]:
    """Every quantity that is known of at least two replicas."""
    tables: dict[str, list[Arm]] = {}
    for arm in observed.arms:
        if is_replica(arm):
            tables.setdefault(arm.place.source, []).append(arm)
    each = [_of_arms(arms) for arms in tables.values()]
    both, of_arms = [one for known in each for one in _both(known)], [one for known in each for one in known]
    of_series = _of_series(observed)
    return [
        *both, *of_arms, *_of_columns(observed.arms), *_of_settings(observed), *_together(observed),
        *_of_requests(observed),
        *of_series,
    ]  # fmt: skip


def _both(known: Sequence[Spread]) -> list[Spread]:
    """What runs and what waits on each replica are in flight there together."""
    of = {item.quantity: item for item in known}
    running, waiting = of.get("running"), of.get("waiting")
    if running is None or waiting is None or running.names != waiting.names or "concurrency" in of:
        return []
    values = tuple(one + two for one, two in zip(running.values, waiting.values, strict=True))
    return [Spread(IN_FLIGHT, _IN_FLIGHT_WORDS, running.names, values, running.places)]


def _together(observed: Observed) -> list[Spread]:
    """The same of series: the two gauges of one replica were read together."""
    both = []
    known: dict[frozenset[tuple[str, str]], Series] = {}
    for item in observed.of_series("waiting"):
        known.setdefault(frozenset(item.labels.items()), item)
    for running in observed.of_series("running"):
        waiting = known.get(frozenset(running.labels.items()))
        if waiting is None or len(waiting) != len(running):
            return []
        both.append(structs.replace(running, values=running.values + np.nan_to_num(waiting.values)))
    for label in _LABELS:
        mine = {item.labels[label]: item for item in both if label in item.labels and len(item)}
        if len(mine) >= 2:
            return _over_time(IN_FLIGHT, _IN_FLIGHT_WORDS, label, mine)
    return []


def _of_columns(arms: Sequence[Arm]) -> list[Spread]:
    """A column a replica: `worker 0 running | worker 1 running`; the row in which it is most uneven."""
    out: list[Spread] = []
    for arm in arms:
        of: dict[str, list[tuple[str, float, str]]] = {}
        for value in arm.values.values():
            found = _COLUMN.search(value.label.replace("_", " "))
            if found is not None and not value.relative and value.unit in {"count", ""} and value.value >= 0:
                what = value.quantity if value.quantity in _COUNTED else ""
                if what:
                    of.setdefault(what, []).append((found[0].strip(), value.value, str(value.place) or "form"))
        for quantity, members in of.items():
            if len(members) >= FEWEST and len({name for name, *_ in members}) == len(members):
                names, values, places = zip(*members, strict=True)
                out.append(Spread(quantity, _COUNTED[quantity], names, values, places))
    return [max(out, key=lambda one: one.skew)] if out else []


def _of_arms(arms: Sequence[Arm]) -> list[Spread]:
    out = []
    for quantity, what in QUANTITIES:
        found = [(arm, value) for arm in arms if (value := figure(arm, quantity)) is not None]
        if len(found) >= 2 and len(found) == len(arms) and all(value.value >= 0 for _, value in found):
            out.append(
                Spread(
                    quantity,
                    what,
                    tuple(_name(arm) for arm, _ in found),
                    tuple(value.value for _, value in found),
                    tuple(str(value.place if value.place.source else arm.place) or "form" for arm, value in found),
                )
            )
    return out


def _name(arm: Arm) -> str:
    heading = next((name for name in arm.keys if _REPLICA.match(name.replace("_", " "))), "")
    label = arm.label or arm.name
    if heading and not re.search("[A-Za-z]", label):
        return f"{heading.replace('_', ' ')} {label}"
    return label if re.search("[A-Za-z]", label) else f"replica {label}"


def _of_settings(observed: Observed) -> list[Spread]:
    out = []
    for name, names, values, place in _lists(observed):
        words = name.replace("_", " ")
        named = _OF_REPLICAS.search(f"{words} ") is not None
        # A pair is a range unless its name says that it goes by replica.
        if len(values) < 2 or (not named and (len(values) < FEWEST or not _in_flight(name))):
            continue
        tokens = "token" in words
        out.append(
            Spread(
                "tokens_in_flight" if tokens else name,
                "tokens in flight" if tokens else _what(words),
                names,
                values,
                (place,) * len(values),
            )
        )
    return out


def _lists(observed: Observed) -> list[tuple[str, tuple[str, ...], tuple[float, ...], str]]:
    """(name, the replicas, their counts, the place) of every list of counts, and of every group `name.replica`."""
    out = []
    groups: dict[str, list[tuple[str, float, str]]] = {}
    for item in told(observed):
        place = str(item.place) or "form"
        if item.unit in _NO_COUNTS:
            continue
        if isinstance(item.value, list) and all(_is_count(value) for value in item.value):
            replicas = tuple(f"replica {index}" for index in range(len(item.value)))
            out.append((item.name, replicas, tuple(float(value) for value in item.value), place))
        elif "." in item.name and _is_count(item.value):
            name, member = item.name.rsplit(".", maxsplit=1)
            if statistic(member.split("_")[0]):
                continue  # `p50`, `p99` of one number are no replicas
            groups.setdefault(name, []).append((member, item.number or 0.0, place))
    for name, members in groups.items():
        names = tuple(f"replica {member}" for member, _, _ in members)
        out.append((name, names, tuple(value for _, value, _ in members), members[0][2]))
    return out


FEWEST: Final = 3
_NO_COUNTS: Final = frozenset({"s", "ms", "us", "min", "h", "%"})


def _is_count(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value >= 0


def _in_flight(name: str) -> bool:
    return re.search(r"running|in.?flight|queued|waiting", name, re.IGNORECASE) is not None


def _what(words: str) -> str:
    if "wait" in words or "queue" in words:
        return "waiting requests"
    return "running requests" if "running" in words else "requests in flight"


def _of_series(observed: Observed) -> list[Spread]:
    out = []
    for name, what in (
        ("running", "running requests"),
        ("waiting", "waiting requests"),
        ("tokens_in_flight", "tokens in flight"),
        *((name, "requests in flight") for name in ("inflight", "in_flight", "concurrency", "inflight_upstream")),
    ):
        series = observed.of_series(name)
        for label in _LABELS:
            mine = {item.labels[label]: item for item in series if label in item.labels and len(item)}
            if len(mine) >= 2:
                out += _over_time(name, what, label, mine)
                break
    return out


def _of_requests(observed: Observed) -> list[Spread]:
    """Requests under way on average at each replica, of tables with too few rows for the rules on records; only where
    those of the busiest also take longer to their first token: else it may just be given longer answers.
    """
    out = []
    for rows in observed.table("requests"):
        replicas = {name: members for name, members in rows.members("replica").items() if name}
        if len(replicas) < FEWEST or not FEWEST_ROWS <= len(rows) < MOST_ROWS or not rows.has("t_send_ms"):
            continue
        took = np.nan_to_num(rows.numbers("e2e_ms"), nan=0.0)
        span = float(np.nanmax(rows.numbers("t_send_ms") + took) - np.nanmin(rows.numbers("t_send_ms")))
        means = {name: round(float(took[members].sum()) / max(span, 1e-9), 2) for name, members in replicas.items()}
        busiest = max(means, key=lambda name: means[name])
        first = rows.numbers("ttft_ms")
        theirs = first[replicas[busiest]]
        others = np.concatenate([first[members] for name, members in replicas.items() if name != busiest])
        theirs, others = theirs[np.isfinite(theirs)], others[np.isfinite(others)]
        if min(theirs.size, others.size) < FEWEST or np.median(theirs) < SLOWER * np.median(others):
            continue
        place = str(rows.place)
        names = tuple(means)
        out.append(
            Spread(
                "in_flight_mean",
                "requests under way on average",
                names,
                tuple(means.values()),
                (place,) * len(names),
                len(rows),
            )
        )
    return out


def _over_time(name: str, what: str, label: str, mine: dict[str, Series]) -> list[Spread]:
    """The reading with the most uneven spread; places on the axis are matched by rank where all have as many."""
    size = min(len(item) for item in mine.values())
    values = np.array([np.nan_to_num(item.values[:size], posinf=0.0, neginf=0.0) for item in mine.values()])
    total = values.sum(axis=0)
    if not (total > 0).any():
        return []
    skews = np.where(total > 0, values.max(axis=0) / np.maximum(total / len(mine), 1e-12), 1.0)
    # An almost empty system is uneven by nature: only readings with a fair part of the most work count.
    worth = np.flatnonzero(total >= 0.5 * total.max())
    worst = int(worth[np.argmax(skews[worth])])
    return [
        Spread(
            name,
            what,
            tuple(f"{label} {key}" for key in mine),
            tuple(float(value) for value in values[:, worst]),
            tuple(str(item.line_of(worst)) for item in mine.values()),
            times=size,
            before=float(skews[0]) if worst > 0 and total[0] > 0 else None,
        )
    ]
