"""GW_IDLE_TIMEOUT from requests that failed at one age with nothing received, and the timers that could do it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.configured.failure_ages import Pile, failure_ages, pile_of
from tailrace.diagnose.configured.timers import Timer, alike, timers
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.timer_ends import GAVE_UP
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["early_end", "idle_timeout_in_requests", "short_timers", "upstream_timeout_in_requests"]

OWN: Final = 0.5
EARLY_MS: Final = 30_000.0
"""Long answers stream for longer than this as a matter of course."""
_ADVICE: Final = (
    "Set the idle timer of that hop above the p99 of TTFT (and above the longest gap between tokens), or send SSE "
    "comments (`: heartbeat`) while the engine works; stop retrying these requests meanwhile: each retry starts "
    "again at the end of the queue."
)
_ALIGN: Final = (
    "Align the proxy's timers with the budgets of the stages (above the p99 of TTFT for streams, of the whole answer "
    "for the rest); answers that take longer unstreamed belong into asynchronous jobs; stop retrying on 504."
)
_PRICE: Final = "A longer timer keeps dead connections longer; heartbeats cost a few bytes a second."


def idle_timeout_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """Ages of failures pile up at one value and nothing had been received."""
    piles = [pile for ages in failure_ages(observed) if (pile := pile_of(ages)) is not None]
    piles = [
        pile for pile in piles if _is_empty(pile) is not False and not _is_own(pile) and not _by_total(observed, pile)
    ]
    return _found(cause, observed, max(piles, key=lambda pile: pile.n)) if piles else None


def upstream_timeout_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """The same where a proxy answers with its own error (504) instead of cutting the connection."""
    piles = [
        pile for ages in failure_ages(observed) if (pile := pile_of(ages)) is not None and _by_total(observed, pile)
    ]
    return _found(cause, observed, max(piles, key=lambda pile: pile.n)) if piles else None


def _by_total(observed: Observed, pile: Pile) -> bool:
    """Whether a timer of the whole upstream request ended them: a proxy answered, and no idle timer has the number."""
    near = alike(observed, pile.ms, owner="gateway")
    return _is_answered(pile) and not (near and near[0].kind == "idle")


def _is_answered(pile: Pile) -> bool:
    """Whether most of them got a proxy's own word for a timeout."""
    return bool(float(np.isin(_status(pile), GAVE_UP).mean()) > OWN)


def _status(pile: Pile) -> np.ndarray:
    rows = pile.ages.rows
    return rows.numbers("status" if rows.kind == "access" else "http_status")[pile.ages.at[pile.members]]


def _is_empty(pile: Pile) -> bool | None:
    """Whether nothing had been received by most of them; `None` where nobody counted."""
    came = pile.ages.received[pile.members]
    known = np.isfinite(came)
    return None if not known.any() else bool(float((came[known] == 0).mean()) >= 0.8)


def _is_own(pile: Pile) -> bool:
    """Whether the clients themselves gave up, by a timer of their own, or left."""
    given_up = pile.ages.own[pile.members] | pile.ages.hung[pile.members]
    return bool(float(given_up.mean()) > OWN)


def _found(cause: Cause, observed: Observed, pile: Pile) -> Finding:
    seconds = pile.ms / 1e3
    low, high = pile.low / 1e3, pile.high / 1e3
    empty = _is_empty(pile)
    near = alike(observed, pile.ms, owner="gateway")
    theirs = alike(observed, pile.ms, owner="client")
    evidence = [
        Evidence(
            text=f"{pile.n} of {pile.failed} failures at an age of {low:.2f} to {high:.2f} s (median {seconds:.2f} s)",
            source=pile.place,
            name="failure_age",
            value=round(pile.ms, 3),
            unit="ms",
        ),
        Evidence(text=f"{pile.failed} of {pile.ages.total} requests failed", source=pile.place),
    ]
    missing, rivals = [], []
    checked = [f"{pile.n} of {pile.failed} ages lie within {(high - low) * 1e3:.0f} ms"]
    if empty:
        evidence.append(Evidence(text="0 bytes had been received by them", source=pile.place, value=0.0))
        checked.append("0 bytes had been received")
    else:
        missing.append("the bytes that each failed request had received")
    answered = _is_answered(pile)
    cuts = "cuts streams whose first token takes longer"
    if answered and _by_total(observed, pile):
        cuts = "ends requests that the engine still works on"
        words = ", ".join(f"{status:.0f}" for status in np.intersect1d(_status(pile), GAVE_UP))
        evidence.append(Evidence(f"a proxy answered with its own timeout status ({words})", pile.place))
    words = "a timer of a hop"
    if near:
        evidence.append(_of_timer(near[0]))
        words = f"{near[0].name} ({near[0].ms / 1e3:g} s)"
    elif theirs:
        evidence.append(_of_timer(theirs[0]))
        rivals.append("CLIENT_TIMEOUT_BUDGET")
        missing.append("the idle timer of every hop: a timer of the client fits as well")
    elif timers(observed):
        missing.append("the timers of every hop: none that is known has this value")
    else:
        missing.append("the configuration of every hop on the way (idle and read timeouts)")
    return cause.finding(
        statement=f"{pile.n} of {pile.failed} failed requests end at one age, {seconds:.2f} s, before a byte came: "
        f"{words} {cuts}.",
        evidence=evidence,
        explains_ms=pile.ms,
        relation=f"ages {low:.2f} to {high:.2f} s"
        + (f" = {near[0].ms / 1e3:g} s of {near[0].name}" if near else f", {pile.n} of {pile.failed}"),
        n=pile.failed,
        advice=_ALIGN if _by_total(observed, pile) else _ADVICE,
        price=_PRICE,
        verify=(
            "tailrace bench http://localhost:8080 --prompt-tokens 8000 --requests 20 "
            f"--first-token-timeout {int(seconds * 2) + 1}s --out after.run  # the first tokens may "
            f"come after {seconds:.0f} s"
        ),
        missing=missing,
        rivals=rivals,
        disproof_checked=checked,
        action=Action.TUNE,
    )


def short_timers(cause: Cause, observed: Observed, *, kinds: tuple[str, ...]) -> Finding | None:
    """A timer that is shorter than the tail of what it times: never more than a suspicion."""
    tail = _tail(observed, streamed="total" not in kinds)
    if tail is None:
        return None
    value, what, place = tail
    short = [
        timer for timer in timers(observed) if timer.kind in kinds and timer.ms < value and timer.owner == "gateway"
    ]
    if not short:
        return None
    timer = min(short, key=lambda one: one.ms)
    return cause.finding(
        statement=f"{timer.name} of {timer.scope or 'the gateway'} is {timer.ms / 1e3:g} s, and {what} is "
        f"{value / 1e3:.4g} s: the slowest requests are cut.",
        evidence=[
            _of_timer(timer),
            Evidence(f"{what} {value / 1e3:.4g} s", place, what, round(value, 3), "ms"),
        ],
        explains_ms=None,
        relation=f"{timer.ms / 1e3:g} s < {value / 1e3:.4g} s",
        n=1,
        advice=_ADVICE,
        price=_PRICE,
        verify="tailrace bench http://localhost:8080 --prompt-tokens 8000 --requests 20 --out after.run",
        missing=["the ages of failed requests: they pile up at the timer if it cuts them"],
        level=Level.SUSPECTED,
        action=Action.TUNE,
    )


def early_end(cause: Cause, observed: Observed) -> Finding | None:
    """A timer on the whole answer that long streams outlive, however healthy they are."""
    early = [one for one in timers(observed) if one.kind == "total" and one.owner == "gateway" and one.ms <= EARLY_MS]
    if not early or _tail(observed, streamed=False) is not None:
        return None
    timer = min(early, key=lambda one: one.ms)
    default = " (the gateway's default: the route sets none)" if timer.default else ""
    scope = timer.scope.removesuffix(" (default)") or "the gateway"
    return cause.finding(
        statement=f"{scope} ends every answer {timer.ms / 1e3:g} s after its request, streamed or not{default}.",
        evidence=[_of_timer(timer)],
        explains_ms=None,
        relation=f"{timer.name} {timer.ms / 1e3:g} s <= {EARLY_MS / 1e3:g} s",
        n=1,
        advice="Switch the timer on the whole answer off for streaming routes (Envoy: timeout 0s, with idle_timeout "
        "instead); put a budget on each stage at the gateway that knows them.",
        price=_PRICE,
        verify=(
            "tailrace bench http://localhost:8080 --output-tokens 4000 --requests 20 --out after.run  "
            "# no stream ends at the timer"
        ),
        missing=["p99 E2E of the answers, or the ages of failed requests"],
        level=Level.SUSPECTED,
        action=Action.TUNE,
    )


def _tail(observed: Observed, *, streamed: bool) -> tuple[float, str, str] | None:
    """(ms, its name, its place) of the tail that such a timer must leave room for."""
    quantity = "ttft" if streamed else "e2e"
    for arm in observed.arms:
        for stat in ("p99", "p95", "max"):
            found = arm.quoted(quantity, stat)
            if found is not None and not found.relative:
                return found.value, f"{quantity.upper()} {stat}", str(found.place if found.place.source else arm.place)
    for rows in observed.table("requests"):
        values = rows.numbers("ttft_ms" if streamed else "e2e_ms")
        values = values[np.isfinite(values)]
        if values.size >= 20:
            return float(values.max()), f"the longest {quantity.upper()}", str(rows.place)
    return None


def _of_timer(timer: Timer) -> Evidence:
    default = " (default)" if timer.default else ""
    scope = f" of {timer.scope.removesuffix(' (default)')}" if timer.scope else ""
    return Evidence(
        text=f"{timer.name}{scope} is {timer.ms / 1e3:g} s{default}",
        source=timer.place,
        name=timer.name,
        value=timer.ms,
        unit="ms",
    )
