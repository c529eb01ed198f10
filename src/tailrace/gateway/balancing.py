"""The governor's choice among engines at work: whom a request goes to, what is learnt of them from how it ends.

Nothing here touches a socket. `Backends` asks whom, `Dispatch` asks whether again, and every request that ends is told.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from tailrace.govern.balance import BalancePolicy, Balancer, Skew, Want
from tailrace.govern.breaker import STATE_CODES
from tailrace.govern.hedge import Hedger
from tailrace.govern.outlier import Ejection, OutlierWatch
from tailrace.govern.retry_policy import Again, RetryBudget, Trouble, decide
from tailrace.govern.ring import key_of
from tailrace.model.gap_event import GapEvent
from tailrace.model.outcome import OutcomeKind, Reason

if TYPE_CHECKING:
    from random import Random

    from tailrace.gateway.backend import Backend
    from tailrace.gateway.config import Config
    from tailrace.gateway.exchange import GatewayExchange
    from tailrace.gateway.verdict import Verdict
    from tailrace.model.record import RequestRecord

_BYTES_PER_TOKEN: Final = 4
_HEADS: Final = (b'"messages"', b'"prompt"', b'"input"', b'"text_input"', b'"text"')
"""The fields in which the supported APIs put the prompt."""
_FAULTS: Final = frozenset(
    {
        Reason.ENGINE_CRASH,
        Reason.ENGINE_ERROR,
        Reason.ENGINE_ABORT_UNKNOWN,
        Reason.ENGINE_UNREACHABLE,
        Reason.ENGINE_LOADING,
        Reason.ENGINE_QUEUE_TIMEOUT,
        Reason.ENGINE_RUN_TIMEOUT,
        Reason.STREAM_CUT,
        Reason.PROTOCOL_ERROR,
        Reason.FIRST_TOKEN_TIMEOUT,
        Reason.IDLE_TIMEOUT,
    }
)
"""Ends that are the engine's fault. A long answer that exceeds its total is not; one that never came is (below)."""

_NOTHING: Final = Want()
_REMEMBERED: Final = 100


class Balancing:
    """What is shared by all backends: the balancer, the budget of retries, the watch for outliers, the skew."""

    def __init__(self, config: Config, backends: Sequence[Backend], random: Random) -> None:
        self._random = random
        self._by_name: dict[str, Backend] = {}
        self.settings = config.balance.resolve()
        self.retry = config.retry.resolve()
        self.budget = RetryBudget(self.retry)
        self.outliers = OutlierWatch(config.outliers.resolve())
        self.skew = Skew()
        self.hedger: Hedger | None = None
        """Makes second attempts, where that is switched on and there are several engines."""
        self.ejected: list[Ejection] = []
        """The last ones, oldest first."""
        self._balancer = Balancer((), self.settings, random)
        self._several = False
        self.learns = False
        """Whether it matters how requests end: there is another engine, or the same may be asked again."""
        self.apply(config, backends)

    def apply(self, config: Config, backends: Sequence[Backend]) -> None:
        """Other backends, or other keys. What is known of those that stay is kept."""
        for gone in self._by_name.keys() - {backend.name for backend in backends}:
            self.outliers.forget(gone)
        self._by_name = {backend.name: backend for backend in backends}
        self._several = len(backends) > 1
        apart = [set(section.backends) for section in (config.canary, config.shadow) if section is not None]
        routes = [{backend.name for backend in backends}.difference(*apart), *apart]
        self._routes = [[backend.standing for backend in backends if backend.name in names] for names in routes]
        self.learns = self._several or config.retry.same_backend
        self.settings = config.balance.resolve()
        self.retry = self.budget.policy = config.retry.resolve()
        self.outliers.policy = config.outliers.resolve()
        hedge = config.hedge.resolve() if config.hedge.enabled and self._several else None
        if hedge is None or self.hedger is None:
            self.hedger = None if hedge is None else Hedger(hedge)
        else:
            self.hedger.policy = hedge
        breaker = config.breaker.resolve()
        for backend in backends:
            standing = backend.standing
            standing.breaker.policy = breaker
            standing.weight, standing.max_prompt_tokens = backend.config.weight, backend.config.max_prompt_tokens
        self._balancer.replace([backend.standing for backend in backends], self.settings)

    # -- whom

    def want(self, exchange: GatewayExchange, body: bytes, tokens: int) -> Want | None:
        """What a request asks of whoever serves it; `None` where there is only one engine."""
        if not self._several:
            return None
        work, settings = exchange.work, self.settings
        key: int | None = None
        session = exchange.ledger.session_id
        if session and settings.sessions:
            key = key_of(session.encode("utf-8", "surrogatepass"))
        elif settings.policy is BalancePolicy.PREFIX and (work.prompt_tokens or 0) >= settings.prefix_tokens:
            key = head_key(body, settings.prefix_tokens * _BYTES_PER_TOKEN)
        return Want(tokens=tokens, prompt_tokens=work.prompt_tokens or 0, key=key)

    def choose(self, able: Sequence[Backend], want: Want | None, now: int, but: Collection[Backend]) -> Backend | None:
        """One of `able`, `None` where that is empty."""
        chosen = self._balancer.choose(
            [backend.standing for backend in able],
            now,
            want or _NOTHING,
            but=[backend.standing for backend in but] if but else (),
        )
        return None if chosen is None else self._by_name[chosen.name]

    # -- again

    def again(
        self,
        exchange: GatewayExchange,
        trouble: Trouble,
        *,
        able: Sequence[Backend],
        tried: Collection[Backend],
        cuts: int,
        not_before: int,
        now: int,
    ) -> Again | None:
        """Whether the request whose attempt failed is sent again. `able`: the backends that take requests."""
        # An engine whose breaker is open is tried by a request of its own, never by somebody's second attempt.
        elsewhere = any(
            one not in tried and one.standing.usable(now) and not one.standing.breaker.opened for one in able
        )
        if not elsewhere and (exchange.backend not in able or exchange.backend.standing.breaker.opened):
            return None
        found = decide(
            self.retry,
            self.budget,
            trouble,
            attempts=exchange.ledger.attempts,
            cuts=cuts,
            elsewhere=elsewhere,
            not_before=not_before,
            until=exchange.clock.total_at(),
            now=now,
            random=self._random,
        )
        if found is not None:
            exchange.backend.standing.retried += 1
        return found

    # -- what is learnt

    def ended(self, exchange: GatewayExchange, verdict: Verdict, now: int) -> None:
        """A request that was sent to an engine has ended."""
        dispatch = exchange.dispatch
        if not dispatch.begun:
            return
        standing = exchange.backend.standing
        if verdict.outcome is OutcomeKind.COMPLETED:
            standing.succeeded(dispatch.begun, now)
        elif self._at_fault(exchange, verdict) and exchange.backend not in dispatch.blamed:
            standing.failed(dispatch.begun, now)

    def _at_fault(self, exchange: GatewayExchange, verdict: Verdict) -> bool:
        status = exchange.answer.status or 0
        if 400 <= status < 500 and status != 408:
            return False
        if verdict.reason is Reason.TOTAL_TIMEOUT:
            return verdict.budget == "unstreamed_total" and exchange.ledger.headers is None
        if verdict.outcome is OutcomeKind.REJECTED and status >= 500:
            # The engine's own 503. One with a `Retry-After` is no fault: it is left alone until then.
            return not exchange.dispatch.told_when
        return verdict.reason in _FAULTS

    def observed(self, record: RequestRecord, now: int) -> None:
        """The record of a request that an engine has served."""
        if self.hedger is not None:
            wait = record.ttft_upstream_ns or record.headers_ns
            if wait is not None:
                self.hedger.answered(record.lane, wait + record.retry_wait_ns, now)
        if self._several and record.backend and record.ttft_upstream_ns is not None:
            self.outliers.sample(
                record.backend,
                prompt_tokens=record.prompt_tokens or 0,
                ttft_ns=record.ttft_upstream_ns,
                tpot_ns=record.tpot_ns,
                now=now,
                gaps=min(1, record.stall_count),
            )

    def gap(self, event: GapEvent) -> None:
        """A stream stands still for longer than its lane allows: told while it does."""
        self.outliers.gap(event.backend, event.at)

    def sweep(self, now: int) -> None:
        """Once a second: judge, and look how even the work is."""
        if not self._several:
            return
        standings = [backend.standing for backend in self._by_name.values()]
        for route in self._routes:  # a canary gets another share than the rest, by intent
            self.skew.sample(route, now)
        self.ejected = [*self.ejected, *self.outliers.judge(standings, now)][-_REMEMBERED:]

    # -- views

    def view(self, backend: Backend, now: int) -> dict[str, Any]:
        """How one backend stands. Numbers of several processes add up: an open breaker counts 1."""
        standing = backend.standing
        breaker = standing.breaker
        state = breaker.state(now)
        return {
            "weight_now": round(standing.share(now), 4),
            "breaker": {
                "state": state.value,
                "code": STATE_CODES[state],
                "failures_in_a_row": breaker.in_a_row,
                "opened_total": breaker.opened_total,
            },
            "ejected": int(standing.ejected_until > now),
            "ejections_total": self.outliers.ejections(backend.name),
            "retry_after_ms": max(0, standing.not_before - now) / 1e6,
            "retries_total": standing.retried,
        }

    def whole_view(self, now: int) -> dict[str, Any]:
        """What concerns all backends together."""
        return {
            "skew": {"skew_cv": self.skew.cv, "skew_max_over_mean": self.skew.peak},
            "retry_budget_left": round(self.budget.left(now), 2),
            "retries_total": self.budget.taken,
            "retries_denied_total": self.budget.denied,
            "hedges_total": 0 if self.hedger is None else self.hedger.made,
            "hedges_denied_total": 0 if self.hedger is None else self.hedger.denied,
            "hedges_won_total": 0 if self.hedger is None else self.hedger.won,
            "affinity_asked_total": self._balancer.affinity_asked,
            "affinity_met_total": self._balancer.affinity_met,
            "forced_total": self._balancer.forced,
        }


def head_key(body: bytes, size: int) -> int:
    """Hash of the first `size` bytes of the prompt, as they stand in the JSON body, with the field's name."""
    for name in _HEADS:
        at = body.find(name)
        if at >= 0:
            return key_of(body[at : at + size])
    return key_of(body[:size])
