"""Budgets: how long a stage may take, and what happens when that is over.

Async code is cancelled at its budget, as `asyncio.timeout` does it. Sync code cannot be interrupted from outside: it
passes `remaining()` to whatever waits for it (a client's timeout), and an overrun is recorded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final

_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0}
_TEXT: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*")
EARLY_NS: Final = 2_000_000
"""A client's timeout may come this much before the moment that it was computed from: it rounds."""
_CHAIN: Final = 12
"""How deep a timeout is looked for behind the exceptions that client libraries wrap it in."""

Budget = float | int | str
"""Seconds, or text with a unit: `0.8`, `"800ms"`, `"2s"`."""


class StageTimeout(TimeoutError):  # noqa: N818  (a timeout, as `TimeoutError` is one)
    """A stage took longer than its budget."""

    def __init__(self, stage: str, budget_ns: int, where: str = "") -> None:
        self.stage = stage
        """The stage whose budget is over."""
        self.budget_ns = budget_ns
        self.where = where or stage
        """The innermost stage that was running then."""
        inside = f", inside {self.where}" if self.where != stage else ""
        super().__init__(f"stage {stage} is over its budget of {budget_ns / 1e9:g} s{inside}")

    def __reduce__(self) -> tuple[type[StageTimeout], tuple[str, int, str]]:
        return type(self), (self.stage, self.budget_ns, self.where)


def budget_ns(budget: Budget) -> int:
    """Nanoseconds of a budget. ValueError for what is no positive length of time."""
    if isinstance(budget, str):
        found = _TEXT.fullmatch(budget)
        unit = _UNITS.get(found[2] or "s") if found else None
        if found is None or unit is None:
            raise ValueError(f"{budget!r} is no budget: use seconds (0.8) or text such as '800ms', '2s', '1m'")
        value = float(found[1]) * unit
    else:
        value = float(budget)
    nanoseconds = round(value * 1e9) if 0 < value < float("inf") else 0
    if nanoseconds <= 0:
        raise ValueError(f"{budget!r} is no budget: it must be more than 0")
    return nanoseconds


def is_timeout(error: BaseException | None) -> bool:
    """Whether a timeout stands behind this exception: itself, its cause, context, or urllib's `reason`."""
    waiting, seen = [error], 0
    while waiting and seen < _CHAIN:
        one = waiting.pop()
        seen += 1
        if isinstance(one, TimeoutError):
            return True
        if isinstance(one, BaseException):
            reason = getattr(one, "reason", None)
            waiting += [one.__cause__, one.__context__, reason if isinstance(reason, BaseException) else None]
    return False


class Interruption:
    """Cancels the asyncio task that made it after `after_s` seconds; `end` says whether that cancel is what came.

    The protocol of `asyncio.timeout`: a cancel that somebody else asked for meanwhile is never swallowed.
    """

    __slots__ = ("_cancelling", "_handle", "_on_fire", "_task", "fired")

    def __init__(self, task: asyncio.Task[object], after_s: float, on_fire: Callable[[], None]) -> None:
        self.fired = False
        self._task = task
        self._cancelling = task.cancelling()
        self._on_fire = on_fire
        self._handle = task.get_loop().call_later(max(0.0, after_s), self._fire)

    def _fire(self) -> None:
        self.fired = True
        self._on_fire()
        self._task.cancel()

    def end(self, kind: type[BaseException] | None) -> bool:
        """The block is over, with an exception of this kind or none. True: our cancel, and nobody else's, ended it."""
        self._handle.cancel()
        if not self.fired:
            return False
        ours_alone = self._task.uncancel() <= self._cancelling
        return ours_alone and kind is not None and issubclass(kind, asyncio.CancelledError)


def running_task() -> asyncio.Task[object] | None:
    """The task that runs now; `None` outside of asyncio, where nothing can be interrupted."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
