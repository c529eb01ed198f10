"""GW_UPSTREAM_TIMEOUT from answers that break off in the middle, all at one age: a timer on the whole answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.configured.failure_ages import Pile, failure_ages, pile_of
from tailrace.diagnose.configured.timers import Timer, alike, timers
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["cut_mid_answer"]

CAME: Final = 0.8
"""Of the failures had received something."""
CLOSE: Final = 0.02
"""Their ages agree to this share of the timer, while what they had received may be anything."""
LEAST_MS: Final = 1000.0


def cut_mid_answer(cause: Cause, observed: Observed) -> Finding | None:
    """Failures of one age with tokens flowing until the end, and no answer that lived longer."""
    found = [pile for ages in failure_ages(observed) if (pile := pile_of(ages)) is not None and _is_cut(pile)]
    return _found(cause, observed, max(found, key=lambda pile: pile.n)) if found else None


def _is_cut(pile: Pile) -> bool:
    came = pile.ages.received[pile.members]
    known = np.isfinite(came)
    flowing = bool(known.any()) and float((came[known] > 0).mean()) >= CAME
    own = pile.ages.own[pile.members] | pile.ages.hung[pile.members]
    close = pile.high - pile.low <= max(CLOSE * pile.ms, 100.0)
    return flowing and close and pile.ms >= LEAST_MS and float(own.mean()) < 0.5 and _longest(pile) <= 1.02 * pile.ms


def _longest(pile: Pile) -> float:
    """The longest answer that came to its end (ms); 0 where none did."""
    rows = pile.ages.rows
    age = rows.numbers("t_last_ms") - rows.numbers("t_send_ms")
    age = np.where(np.isfinite(age), age, rows.numbers("e2e_ms"))
    done = np.array([text.lower() in {"ok", "success", "completed"} for text in rows.texts("status")])
    known = age[done & np.isfinite(age)]
    return float(known.max()) if known.size else 0.0


def _pace(pile: Pile) -> tuple[float, float] | None:
    """(tokens received until the cut, tokens a second), medians; `None` where tokens or first stamps are missing."""
    rows, at = pile.ages.rows, pile.ages.at[pile.members]
    tokens = rows.numbers("output_tokens")[at]
    took = (rows.numbers("t_last_ms") - rows.numbers("t_first_ms"))[at]
    known = np.isfinite(tokens) & np.isfinite(took) & (took > 0) & (tokens > 1)
    if not known.any():
        return None
    return float(np.median(tokens[known])), float(np.median(tokens[known] / took[known]) * 1e3)


def _found(cause: Cause, observed: Observed, pile: Pile) -> Finding:
    seconds = pile.ms / 1e3
    near = [timer for timer in alike(observed, pile.ms) if timer.kind in {"total", "read"}]
    idle = [timer for timer in timers(observed) if timer.kind == "idle"]
    pace, longest = _pace(pile), _longest(pile)
    client = bool(near) and near[0].owner == "client"
    missing = []
    if not near:
        missing.append(
            "the timers of every hop and of the client: none that is known has this value"
            if timers(observed)
            else "the configuration of every hop on the way, and the client's timeout"
        )
    wanted = pile.ages.rows.numbers("max_tokens")[pile.ages.at[pile.members]]
    most = float(np.nanmax(wanted)) if np.isfinite(wanted).any() else 0.0
    room = ""
    if pace is not None:
        room = f" At {pace[1]:.3g} tok/s no answer can have more than {seconds:.4g} x {pace[1]:.3g} = "
        room += f"{seconds * pace[1]:.0f} tokens" + (f" (max_tokens {most:.0f})." if most else ".")
    who = f"{near[0].name} ({near[0].ms / 1e3:g} s)" if near else "a timer on the whole request"
    return cause.finding(
        statement=f"{pile.n} of {pile.failed} failed answers break off {seconds:.2f} s after they were sent, in the "
        f"middle of the stream: {who} ends them, whatever they are doing.{room}",
        evidence=[
            Evidence(
                f"{pile.n} of {pile.failed} failures at an age of {pile.low:.0f} to {pile.high:.0f} ms "
                f"({pile.low / 1e3:.2f} to {pile.high / 1e3:.2f} s)",
                pile.place, "failure_age", round(pile.ms, 3), "ms",
            ),
            Evidence(f"{pile.failed} of {pile.ages.total} requests failed", pile.place),
            *([_of_timer(near[0])] if near else []),
            *([Evidence(f"the longest whole answer took {longest / 1e3:.2f} s", pile.place, "longest", longest, "ms")]
              if longest else []),
            *([Evidence(f"{pace[0]:.0f} tokens had come, {pace[1]:.3g} tok/s until the cut (medians)", pile.place,
                        "tokens", pace[0], "tokens")] if pace else []),
            *(_of_timer(timer) for timer in idle[:2] if timer not in near),
        ],
        explains_ms=pile.ms,
        relation=f"ages {pile.low / 1e3:.3f} to {pile.high / 1e3:.3f} s (median {seconds:.2f} s)"
        + (f" = {near[0].ms / 1e3:g} s of {near[0].name}" if near else f", {pile.n} of {pile.failed}")
        + (f"; longest whole answer {longest / 1e3:.2f} s" if longest else ""),
        n=pile.failed,
        advice="Switch the timer on the whole answer off for streaming routes and bound the silence between tokens "
        "instead (Gateway API `timeouts.request: 0s`, Envoy `timeout: 0s` with an idle timeout, client read timeout "
        "instead of a total one), or cap max_tokens to what fits. An idle timeout is another timer: raising it "
        "changes nothing here.",
        price="A hung stream then lives until the idle timer.",
        verify="tailrace bench http://localhost:8080 --output-tokens 4000 --requests 20 --out after.run  "
        f"# answers outlive {seconds:.0f} s",
        missing=missing,
        rivals=[] if near and not client else ["CLIENT_TIMEOUT_BUDGET"],
        disproof_checked=[
            f"{pile.n} of {pile.failed} ages lie within {pile.high - pile.low:.0f} ms",
            "tokens flow until the cut: silence is not what ends them",
            *([f"no whole answer lived longer ({longest / 1e3:.2f} s)"] if longest else []),
        ],
        action=Action.TUNE,
    )  # fmt: skip


def _of_timer(timer: Timer) -> Evidence:
    scope = f" of {timer.scope.removesuffix(' (default)')}" if timer.scope else ""
    return Evidence(f"{timer.name}{scope} is {timer.ms / 1e3:g} s", timer.place, timer.name, timer.ms, "ms")
