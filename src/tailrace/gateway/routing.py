"""Which set of backends a request goes to: the stable route's or the canary's. And the canary's ears and eyes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from tailrace.gateway.canary_keys import CanaryConfig
from tailrace.gateway.happenings import HappeningKind
from tailrace.gateway.shadow import ShadowDesk
from tailrace.govern.canary import Canary, CanaryError, CanaryEvent
from tailrace.govern.canary_policy import CANARY, SHADOW, STABLE, CanaryState, Observation
from tailrace.model.errors import InputError
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS, S

if TYPE_CHECKING:
    from tailrace.gateway.backend import Backend
    from tailrace.gateway.backends import Backends
    from tailrace.gateway.config import Config
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.gateway import Gateway

log = logging.getLogger(__name__)

_WATCH_NS: Final = S
_GAVE_UP_NS: Final = 500 * MS
"""A client that left before the first token and after this time counts with the time that it had waited: leaving out
those who gave up would make the slower route look faster."""
_LOUD: Final = frozenset({"rolled_back", "regressed", "widened", "held", "promoted"})
"""What it does by itself: an operator finds it where the gateway's own words are."""
ACTIONS: Final = ("pin", "pause", "resume", "promote", "abort")


class Routing:
    """The routes of one gateway. There is none where the configuration has neither a canary nor a shadow."""

    def __init__(self, gateway: Gateway, config: Config) -> None:
        self._gateway = gateway
        self.canary: Canary | None = None
        self.shadow: ShadowDesk | None = None
        self.kv_usage: float | None = None
        """How full the canary's fullest KV cache is, where its metrics tell."""
        self.gpu_utilization: float | None = None
        self.astray = 0
        """Requests of a route none of whose backends took any: another route served them."""
        self._config: CanaryConfig | None = None
        self.waiting = False
        """The canary waits for its first `resume`."""
        self._names: dict[str, tuple[str, ...]] = {}
        self._next_watch = 0
        self._told: CanaryEvent | None = None
        self.apply(config)

    def apply(self, config: Config) -> None:
        """A new configuration: the same canary goes on where it stands, another one begins anew."""
        now = monotonic_ns()
        wanted = config.canary
        shadows = config.shadow.backends if config.shadow is not None else []
        canaries = wanted.backends if wanted is not None else []
        apart = {*shadows, *canaries}
        self._names = {
            STABLE: tuple(backend.name for backend in config.backends if backend.name not in apart),
            CANARY: tuple(canaries),
        }
        if wanted is None:
            self.canary = None
        elif self.canary is not None and self._config is not None and _same(self._config, wanted):
            self.canary.revise(wanted.policy(), now)
        else:
            self.canary = Canary(wanted.policy(), now, paused=wanted.start == "paused")
            self.waiting = wanted.start == "paused"
            self._tell()
        self._config = wanted
        if config.shadow is None:
            if self.shadow is not None:
                self.shadow.close()
            self.shadow = None
        elif self.shadow is None:
            self.shadow = ShadowDesk(self._gateway, config.shadow)
        else:
            self.shadow.config = config.shadow

    # -- a request

    def among(self, exchange: GatewayExchange, allowed: Collection[str] = ()) -> Collection[str]:
        """The names of the backends that may have the request; its record says which route that is.

        `allowed`: the only ones that its lane may use, where there are any. Where none of a route's takes requests the
        other route serves it: a dead canary must not cost a request, nor a dead stable route one that the canary could
        answer.
        """
        ledger = exchange.ledger
        route = STABLE
        canary = self.canary
        if canary is not None and not self.waiting and canary.takes(ledger.session_id or ledger.request_id):
            route = CANARY
        names = self._names_of(route, allowed)
        if canary is not None and not self._open(names):
            other = STABLE if route == CANARY else CANARY
            others = self._names_of(other, allowed)
            if self._open(others) and not self._over(other):
                self.astray += bool(names)
                route, names = other, others
        ledger.route = route
        # Nobody at all is no set: it would mean "any", a shadow's backends too.
        return names or self._names[STABLE]

    def _names_of(self, route: str, allowed: Collection[str]) -> tuple[str, ...]:
        names = self._names[route]
        return tuple(name for name in names if name in allowed) if allowed else names

    def _over(self, route: str) -> bool:
        return route == CANARY and self.canary is not None and self.canary.state is CanaryState.ABORTED

    def _open(self, names: Iterable[str]) -> bool:
        backends = self._gateway.backends
        return any(not backend.shut for name in names if (backend := backends.named(name)) is not None)

    # -- evidence

    def hear(self, record: RequestRecord) -> None:
        """A record was made. Called with the desk's batch, never between two chunks."""
        if self.canary is not None and record.route != SHADOW:
            observation = observed(record)
            if observation is not None:
                self.canary.hear(observation, monotonic_ns())

    def sweep(self, now: int) -> None:
        """Judge what was heard, where that is due."""
        if self.shadow is not None:
            self.shadow.sweep(now)
        canary = self.canary
        if canary is None or self.waiting:
            return
        if now >= self._next_watch:
            self._next_watch = now + _WATCH_NS
            self.kv_usage = _fullest(self._gateway.backends, self._names[CANARY], now)
            gpus = self._config.gpus if self._config is not None else ()
            self.gpu_utilization = self._gateway.gpu_busy(gpus)
            canary.watch(self.kv_usage, self.gpu_utilization)
        if canary.look(now):
            self._tell()

    def _tell(self) -> None:
        assert self.canary is not None
        event = self.canary.events[-1]
        if event is not self._told:
            self._told = event
            level = logging.WARNING if event.kind in _LOUD else logging.INFO
            log.log(level, "canary %s: %s: %s", self.canary.policy.name, event.kind, event.text)
            self._gateway.happenings.note(
                HappeningKind.CANARY, f"canary {self.canary.policy.name}: {event.kind}: {event.text}"
            )

    # -- an operator

    def command(self, action: str, share: float | None) -> None:
        """Pin, pause, resume, promote or abort. InputError where that cannot be."""
        canary = self.canary
        if canary is None:
            raise _none()
        now = monotonic_ns()
        try:
            match action:
                case "pin":
                    canary.pin(canary.share if share is None else share, now)
                case "pause":
                    canary.pause(now)
                case "resume":
                    canary.resume(now, anew=self.waiting)
                case "promote":
                    canary.promote(now)
                case "abort":
                    canary.abort(now)
                case _:
                    raise InputError(
                        f"{action!r} is no action", place="action", remedy=f"Send one of {', '.join(ACTIONS)}."
                    )
        except CanaryError as error:
            raise InputError(str(error), place="action", remedy="`tailrace canary status` shows where it is.") from None
        if action != "pause":
            self.waiting = False
        self._tell()

    def view(self) -> dict[str, Any]:
        """What `GET /canary` answers."""
        now = monotonic_ns()
        out: dict[str, Any] = {"configured": self.canary is not None, "canary": None}
        if self.canary is None:
            out["why"] = "the configuration has no `canary`"
        else:
            view = self.canary.view(now)
            if self.waiting:
                view |= {"share": 0.0, "decision": "it waits for `resume` (`start: paused`) and gets no traffic"}
            out["canary"] = {
                **view,
                "backends": list(self._names[CANARY]),
                "stable_backends": list(self._names[STABLE]),
                "kv_usage": self.kv_usage,
                "gpu_utilization": self.gpu_utilization,
                "served_by_other_route": self.astray,
            }
        if self.shadow is not None:
            out["shadow"] = self.shadow.view()
        return out

    def close(self) -> None:
        """End every copy that is under way."""
        if self.shadow is not None:
            self.shadow.close()


def no_canary() -> dict[str, Any]:
    """What `GET /canary` answers where there are no routes."""
    return {"configured": False, "canary": None, "why": "the configuration has no `canary`"}


def _none() -> InputError:
    return InputError(
        "there is no canary",
        place="canary",
        remedy="Add `canary: {backends: [NAME]}` to the configuration and reload it.",
    )


def command(routing: Routing | None, action: str, share: float | None) -> None:
    """An operator's command. InputError where there is no canary, or it cannot be followed now."""
    if routing is None:
        raise _none()
    routing.command(action, share)


def _same(old: CanaryConfig, new: CanaryConfig) -> bool:
    return old.name == new.name and old.backends == new.backends


def _fullest(backends: Backends, names: Iterable[str], now: int) -> float | None:
    known: list[Backend] = [backend for name in names if (backend := backends.named(name)) is not None]
    states = [backend.engine.watch.state(now) for backend in known]
    return max((state.kv_usage for state in states if state is not None and state.kv_usage is not None), default=None)


def observed(record: RequestRecord) -> Observation | None:
    """What a record says of its route; `None` for one that no engine had a part in.

    The wait in our own lane is not the route's: it is taken out of TTFT and E2E.
    """
    outcome, reason = record.outcome, record.reason
    if not record.backend or reason is Reason.QUEUE_TIMEOUT or reason is Reason.CLIENT_ERROR:
        return None
    reached = record.connection_reused is not None or reason is Reason.ENGINE_UNREACHABLE
    if not reached:
        return None
    # An engine that refuses counts, whoever's fault it is: clients' own mistakes come to both routes alike, and a
    # canary that lacks a model or a parameter shows only so.
    failed = outcome in (OutcomeKind.FAILED, OutcomeKind.TIMED_OUT, OutcomeKind.REJECTED)
    group = 1 + crc32(record.session_id.encode("utf-8", "replace")) if record.session_id else 0
    prompt, output = record.prompt_tokens or 0, record.output_tokens or 0
    canary = record.route == CANARY
    size = record.prompt_bytes or 0
    if failed:
        return Observation(canary, prompt, output, 0, 0, 0, failed=True, group=group, prompt_bytes=size)
    ours = record.queue_gateway_ns or 0
    whole = 0
    ttft = record.ttft_ns
    if outcome is OutcomeKind.COMPLETED:
        whole = max(0, (record.e2e_last_token_ns or record.e2e_ns) - ours)
    elif ttft is None and record.e2e_ns - ours > _GAVE_UP_NS:
        ttft = record.e2e_ns
    first = 0 if ttft is None else max(0, ttft - ours)
    pace = record.tpot_ns or 0
    return Observation(canary, prompt, output, first, pace, whole, failed=False, group=group, prompt_bytes=size)
