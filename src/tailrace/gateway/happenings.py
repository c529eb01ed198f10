"""What happened to a gateway while it served: the last changes of its configuration, its engines and its own state.

A diagnosis that finds a change of level asks what changed then. The log has it and forgets it, and each view has only
what is so now; here the last 256 are kept with both clocks. One desk a process; nothing here is on a request's path:
what has no moment of its own (a breaker, an engine's version) is compared once a second.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from enum import StrEnum
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from tailrace.engines.facts import spoken
from tailrace.govern.breaker import BreakerState

if TYPE_CHECKING:
    from tailrace.gateway.backends import Backends
    from tailrace.gateway.engine_link import EngineLink

__all__ = ["Happening", "HappeningKind", "Happenings", "changed_keys", "ordered"]

KEPT: Final = 256
_SHOWN: Final = 6
"""Changed keys that are named."""
_AMOUNT: Final = re.compile(r"-?[0-9][0-9.]*\s*(ns|us|ms|s|m|min|h|d|%)?")
_ABSENT: Final = "absent"
_NAMED: Final = frozenset({"version"})
"""Facts that are told by themselves."""


class HappeningKind(StrEnum):
    """What it was about."""

    CONFIGURATION = "configuration"
    DRAIN = "drain"
    CANARY = "canary"
    WORKER = "worker"
    ENGINE = "engine"
    BREAKER = "breaker"
    EJECTION = "ejection"
    DEGRADATION = "degradation"


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    at_unix_ns: int
    """Wall clock."""
    at_ns: int
    """The machine's monotonic clock."""
    kind: HappeningKind
    text: str
    """A sentence without a full stop."""
    by: str = ""
    """Who did it: a signal, or who asked the admin port; empty where nobody did, or it is not known."""

    def view(self) -> dict[str, Any]:
        """As `GET /happenings` shows it."""
        return {
            "at_unix_ms": self.at_unix_ns / 1e6,
            "at_monotonic_ms": self.at_ns / 1e6,
            "kind": self.kind.value,
            "text": self.text,
            **({"by": self.by} if self.by else {}),
        }


class _Seen(NamedTuple):
    """An engine as it was at the last look."""

    reachable: bool | None
    restarts: int
    what: str
    """Its name and version, empty where nobody knows."""
    foreign: str
    draining: bool
    facts: Mapping[str, str]
    """What it says of its flags and sizes; a key that it once said stays, while it says nothing else."""


class Happenings:
    """The last of them, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[Happening] = deque(maxlen=KEPT)
        self._engines: dict[str, _Seen] = {}
        self._opened: dict[str, tuple[int, bool]] = {}
        """Backend -> how often its breaker has opened, and whether it is open or on probation."""
        self._ejections: dict[str, int] = {}

    def note(self, kind: HappeningKind, text: str, by: str = "") -> None:
        """It happened now."""
        self._kept.append(Happening(at_unix_ns=time_ns(), at_ns=monotonic_ns(), kind=kind, text=text, by=by))

    def view(self) -> list[dict[str, Any]]:
        """All that is kept, oldest first."""
        return [one.view() for one in self._kept]

    # -- what is compared with the last look

    def look_at_engines(self, links: Iterable[tuple[str, EngineLink]]) -> None:
        """Note what has changed of the engines. What is seen of one for the first time is no change."""
        before, self._engines = self._engines, {}
        for name, link in links:
            what = " ".join(part for part in (link.name, link.version) if part)
            was = before.get(name)
            facts = {key: spoken(fact.value) for key, fact in link.profile.facts.known.items() if key not in _NAMED}
            now = _Seen(
                link.watch.reachable,
                link.restarts,
                what,
                link.identity.foreign,
                link.draining,
                {**was.facts, **facts} if was is not None else facts,
            )
            self._engines[name] = now
            if was is not None and was != now:
                for kind, text in _of_engine(was, now):
                    self.note(kind, f"backend {name}: {text}")

    def look_at_breakers(self, backends: Backends, now: int) -> None:
        """Note breakers that opened or closed, and backends that were taken out for being slow."""
        opened, self._opened = self._opened, {}
        for backend in backends:
            breaker = backend.standing.breaker
            state = breaker.state(now)
            times, shut = opened.get(backend.name, (0, False))
            if breaker.opened_total > times:
                self.note(
                    HappeningKind.BREAKER,
                    f"backend {backend.name}: its breaker opened after {breaker.in_a_row} failures in a row"
                    if breaker.in_a_row
                    else f"backend {backend.name}: its breaker opened",
                )
            if shut and state is BreakerState.CLOSED:
                self.note(HappeningKind.BREAKER, f"backend {backend.name}: its breaker closed")
            self._opened[backend.name] = (breaker.opened_total, state is not BreakerState.CLOSED)
        for ejection in backends.balancing.ejected:
            seen = self._ejections.get(ejection.backend, 0)
            if ejection.until > seen:
                self._ejections[ejection.backend] = ejection.until
                self.note(
                    HappeningKind.EJECTION,
                    f"backend {ejection.backend} is out: its {ejection.cause} is {ejection.ratio:.1f} times that of "
                    f"the others ({ejection.n} requests)",
                )


def _of_engine(was: _Seen, now: _Seen) -> Iterable[tuple[HappeningKind, str]]:
    if now.restarts > was.restarts:
        yield HappeningKind.ENGINE, "the engine has restarted, its counters began anew"
    if was.what and now.what and was.what != now.what:
        yield HappeningKind.ENGINE, f"the engine is {now.what}, it was {was.what}"
    moved = [
        f"{key} {was.facts[key]} -> {value}" for key, value in now.facts.items() if was.facts.get(key, value) != value
    ]
    if moved:
        more = f" and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else ""
        yield HappeningKind.ENGINE, f"the engine runs with other settings: {', '.join(moved[:_SHOWN])}{more}"
    if was.reachable is True and now.reachable is False:
        yield HappeningKind.ENGINE, "the engine does not answer any more"
    if was.reachable is False and now.reachable is True:
        yield HappeningKind.ENGINE, "the engine answers again"
    if now.foreign != was.foreign:
        yield HappeningKind.ENGINE, now.foreign or "the engine is back at its address"
    if now.draining != was.draining:
        how = "keeps new requests away" if now.draining else "lets new requests go to it again"
        yield HappeningKind.DRAIN, f"an operator {how}"


def ordered(parts: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What several desks show, as one: oldest first, the newest 256."""
    return sorted((one for part in parts for one in part), key=lambda one: one["at_unix_ms"])[-KEPT:]


# -- what changed in a configuration


def changed_keys(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Which keys differ (both as `to_plain` spells a configuration), with their values where these are amounts: what is
    text may be a password.
    """
    found = list(_differences(before, after, ""))
    if not found:
        return "the configuration was loaded again, no key differs"
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"the configuration changed: {', '.join(found[:_SHOWN])}{more}"


def _differences(before: Any, after: Any, path: str) -> Iterable[str]:
    if before == after:
        return
    left, right = _named(before), _named(after)
    if left is None or right is None:
        old, new = _amount(before), _amount(after)
        yield f"{path} {old} -> {new}" if old and new else path
        return
    for key in [*left, *(key for key in right if key not in left)]:
        yield from _differences(left.get(key, _ABSENT), right.get(key, _ABSENT), f"{path}.{key}" if path else str(key))


def _named(value: Any) -> dict[str, Any] | None:
    """The parts of a section; of a list of things with names, by these."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and all(isinstance(one, dict) and one.get("name") for one in value):
        return {str(one["name"]): one for one in value}
    return None


def _amount(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value is _ABSENT:
        return _ABSENT
    if isinstance(value, (int, float)) or (isinstance(value, str) and _AMOUNT.fullmatch(value)):
        return str(value)
    return ""
