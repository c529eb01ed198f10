"""ENGINE_STALL between scrapes: requests run at both ends of a window in which the engine counted no token at all."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.asked_once import asked_once
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Counter, Observed, Series
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["tokens_stand_still"]

TWICE: Final = 2
"""Windows in a row: one alone may be as short as a step."""
KV_ROOM: Final = 0.9
LEAST_S: Final = 5.0
"""A window known to be shorter than this is no stall."""


class _Still(NamedTuple):
    """One engine's windows without a token."""

    whose: str
    windows: list[Counter]
    running: float
    """The fewest that ran at an end of one of them."""
    waiting: float
    kv: float | None
    usual: float | None
    """Tokens that other windows counted (median); `None` where there is no other."""


def tokens_stand_still(cause: Cause, observed: Observed) -> Finding | None:
    """Of all engines the one that stood still over the most windows."""
    found = [still for running in observed.of_series("running") if (still := _still(observed, running)) is not None]
    if not found:
        return None
    worst = max(found, key=lambda one: len(one.windows))
    windows, last = worst.windows, worst.windows[-1]
    seconds = [item.window_s for item in windows]
    whole = sum(value for value in seconds if value is not None) if None not in seconds else None
    lasted = f" ({whole:.0f} s)" if whole is not None else ""
    several = "windows in a row" if len(windows) > 1 else "window"
    missing = []
    if len(windows) < TWICE:
        missing.append(
            "a third scrape while it lasts"
            + ("" if whole is not None else ", and the time of each: one short window may lie inside a single step")
        )
    if worst.usual is None:
        missing.append("a window in which it works, for its usual rate")
    if worst.kv is None:
        missing.append("KV usage at the same time")
    evidence = [
        Evidence(
            text=f"{last.raw} stands at {last.last:,.0f} over {len(windows)} {several}{lasted}",
            source=str(last.place),
            name="output_tokens",
            value=last.last,
            unit="tokens",
        ),
        Evidence(
            text=f"{worst.running:g} requests run at both ends of each{worst.whose}",
            source="running",
            name="running",
            value=worst.running,
        ),
    ]
    if worst.waiting:
        evidence.append(Evidence(f"{worst.waiting:g} wait behind it", "waiting", "waiting", worst.waiting))
    if worst.kv is not None:
        evidence.append(Evidence(f"KV usage {worst.kv:.0%} meanwhile", "kv_usage", "kv_usage", round(worst.kv, 4)))
    if worst.usual is not None:
        evidence.append(
            Evidence(
                f"other windows count {worst.usual:,.0f} tokens", last.place.source, "usual", worst.usual, "tokens"
            )
        )
    return cause.finding(
        statement=f"The engine stands still while requests run: {worst.running:g} run{worst.whose} and not one token "
        f"was counted in {len(windows)} {several}{lasted}. That is no lack of capacity.",
        evidence=evidence,
        explains_ms=whole * 1e3 if whole is not None else None,
        relation=f"generated tokens {last.last:,.0f} - {windows[0].first:,.0f} = 0 at running {worst.running:g}",
        n=len(windows),
        advice="Take a stack dump of the engine process and of every worker while it lasts (py-spy dump --pid PID, "
        "twice, some seconds apart) and see which frame does not move. Replicas, limits and a larger cache do not "
        "help. Take the progress of the token counter as liveness: /health answers 200 meanwhile.",
        price="A dump stops the process for some milliseconds.",
        verify="tailrace diagnose t0.prom t1.prom t2.prom  # scrapes of /metrics 10 s apart: tokens must grow",
        missing=missing,
        disproof_checked=["no prompt token was counted meanwhile", f"not one window only ({len(windows)} in a row)"]
        if len(windows) >= TWICE
        else ["no prompt token was counted meanwhile"],
        action=Action.COLLECT,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )


def _still(observed: Observed, running: Series) -> _Still | None:
    """The longest row of windows of this engine in which nothing was counted."""
    if running.axis not in ("scrape", "time"):
        return None
    made = _of(observed, "output_tokens", running)
    if not made or not running.place.source or len(running) != max(item.order for item in made) + 2:
        return None
    prompts = {item.order: item.delta for item in _of(observed, "prompt_tokens", running)}
    kv = next((item for item in observed.of_series("kv_usage") if item.labels == running.labels), None)
    best: list[Counter] = []
    row: list[Counter] = []
    for item in made:
        ends = running.values[item.order : item.order + 2]
        full = kv is not None and float(np.nanmax(kv.values[item.order : item.order + 2])) >= KV_ROOM
        short = item.window_s is not None and item.window_s < LEAST_S
        still = item.delta == 0 and not (prompts.get(item.order) or 0) and bool((ends > 0).all()) and not full
        follows = not row or item.order == row[-1].order + 1
        row = ([*row, item] if follows else [item]) if still and not short else []
        if len(row) > len(best):
            best = row
    if not best:
        return None
    places = [place for item in best for place in (item.order, item.order + 1)]
    waits = next((item for item in observed.of_series("waiting") if item.labels == running.labels), None)
    others = [item.delta for item in made if item.delta]
    names = " ".join(f"{key} {value}" for key, value in running.labels.items() if key != "line")
    return _Still(
        f" ({names})" if names and len(observed.of_series("running")) > 1 else "",
        best,
        float(running.values[places].min()),
        float(np.nanmax(waits.values[places])) if waits is not None else 0.0,
        float(np.nanmax(kv.values[places])) if kv is not None else None,
        float(np.median(others)) if others else None,
    )


def _of(observed: Observed, name: str, like: Series) -> list[Counter]:
    """The counters of one engine, in order of their windows."""
    return _by_labels(observed, name).get(frozenset(like.labels.items()), [])


@asked_once
def _by_labels(observed: Observed, name: str) -> dict[frozenset[tuple[str, str]], list[Counter]]:
    """Counters of one name by their labels: a fleet has as many of them as it has gauges to look them up for."""
    out: dict[frozenset[tuple[str, str]], list[Counter]] = {}
    for item in sorted(observed.of_counter(name), key=lambda item: item.order):
        if not item.lifetime:
            out.setdefault(frozenset(item.labels.items()), []).append(item)
    return out
