"""`stage(name)`: time a block or a function as a stage of the current request."""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from tailrace.stages.budget import EARLY_NS, Budget, Interruption, StageTimeout, budget_ns, is_timeout, running_task
from tailrace.stages.collector import CURRENT, Collector, StageSpan
from tailrace.stages.generators import timed_async_generator, timed_generator

REPORTABLE: Final = ("queue", "preprocess", "encode", "prefill", "decode", "model", "postprocess")
"""Stages that a service may report. `ingress`, `response` and `unattributed` are the gateway's to know.

`model` is a call of the hop behind, from the call to its last token: that hop's own record splits it.
"""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_KNOWN: Final[dict[str, None]] = {}
_KNOWN_NAMES: Final = 1024
_LONGEST: Final = 200
"""Of a name: the gateway takes none that is longer."""
_Function = TypeVar("_Function", bound=Callable[..., Any])
_monotonic_ns: Final = time.monotonic_ns
_NO_ERRORS: Final = (StopIteration, StopAsyncIteration, GeneratorExit)
"""How generators end, which is no failure."""


class _Open:
    """A stage that is running, and the one around it."""

    __slots__ = ("closed", "collector", "failed", "limit_ns", "name", "number", "parent", "start_ns")

    def __init__(self, name: str, collector: Collector | None, parent: _Open | None) -> None:
        self.name = name
        self.collector = collector
        self.parent = parent
        self.closed = False
        self.failed: tuple[BaseException, str] | None = None
        """The last exception that came out of a stage inside this one, and the innermost that it came out of."""
        self.number = 0
        self.start_ns = 0
        self.limit_ns: int | None = None
        """When it must be over: its own budget, that of a stage around it, or the request's deadline."""

    def came_out(self, error: BaseException, timeout: StageTimeout | None) -> None:
        """An exception has left this stage, as `timeout` where that was its budget's."""
        where = self.failed[1] if self.failed is not None and self.failed[0] is error else self.name
        if self.parent is not None:
            self.parent.failed = (error if timeout is None else timeout, where)
        if self.collector is not None:
            self.collector.failed_in = where
            if timeout is not None:
                self.collector.timeout = timeout


_OPEN: ContextVar[_Open | None] = ContextVar("tailrace_stages_open", default=None)


def deadline_ns() -> int | None:
    """When the innermost budget around here is over, on the collector's clock; `None` where there is none."""
    running = _innermost()
    collector = CURRENT.get()
    if running is not None and (collector is None or running.collector is collector):
        return running.limit_ns
    return None if collector is None else collector.deadline_ns


def deadline() -> float | None:
    """When the time is over for what runs here, in seconds of `time.monotonic()`; `None`: there is no limit.

    The earliest of the budgets of the stages around it and of the request's own deadline (`x-deadline-ms`).
    """
    at = deadline_ns()
    return None if at is None else at / 1e9


def remaining() -> float | None:
    """Seconds until `deadline()`, never negative; `None`: there is no limit. Made for a client's timeout."""
    at = deadline_ns()
    if at is None:
        return None
    collector = CURRENT.get()
    return max(0, at - (_monotonic_ns() if collector is None else collector.clock())) / 1e9


def _innermost() -> _Open | None:
    running = _OPEN.get()
    # One that was left in another order than entered (a generator's) is over, and no parent any more.
    while running is not None and running.closed:
        running = running.parent
    return running


class stage:  # noqa: N801  (reads as a keyword: `with stage("preprocess.tokenize"):`)
    """Time a block, a function, a coroutine function or a generator as `name`: a stage, or `stage.part`.

    Outside of a request it times nothing. A part lies inside its stage; an unrelated stage entered inside another is
    taken off the outer one. Use a new object for each block; as a decorator, one object serves all calls.

    `budget` (seconds, or `"800ms"`) bounds it, inside a request or not. In a task of asyncio the block is cancelled
    when it is over, and `StageTimeout` comes out of it. In sync code nothing can be interrupted: pass `remaining()` to
    what waits, and the timeout that it raises becomes a `StageTimeout`; an overrun that nobody stopped is recorded.
    """

    __slots__ = ("_budget_ns", "_interruption", "_open", "_root", "_token", "_where", "name")

    def __init__(self, name: str, budget: Budget | None = None) -> None:
        if name not in _KNOWN:
            if len(name) > _LONGEST or not _NAME.fullmatch(name) or name.partition(".")[0] not in REPORTABLE:
                raise ValueError(
                    f"{name[:_LONGEST]!r} is no stage: use {', '.join(REPORTABLE)}, or a part such as "
                    "preprocess.tokenize"
                )
            if len(_KNOWN) < _KNOWN_NAMES:
                _KNOWN[name] = None
        self.name = name
        self._budget_ns = None if budget is None else budget_ns(budget)
        self._open: _Open | None = None
        self._token: Any = None
        self._interruption: Interruption | None = None
        self._where = ""

    def __enter__(self) -> Self:
        if self._token is not None:
            raise RuntimeError(f"stage({self.name!r}) is already running; make a new one for each block")
        collector = CURRENT.get()
        budget = self._budget_ns
        if collector is None and budget is None:
            return self
        parent = _OPEN.get()
        if parent is not None and (parent.closed or parent.collector is not collector):
            parent = _innermost()
            if parent is not None and parent.collector is not collector:
                parent = None  # belongs to an outer request
        running = self._open = _Open(self.name, collector, parent)
        self._token = _OPEN.set(running)
        if collector is None:
            running.start_ns = _monotonic_ns()
            limit = None
        else:
            running.number = number = collector.number()
            collector.running[number] = running
            running.start_ns = collector.clock()
            limit = collector.deadline_ns
        if parent is not None and parent.limit_ns is not None:
            limit = parent.limit_ns
        if budget is not None:
            own = running.start_ns + budget
            limit = own if limit is None else min(own, limit)
            task = running_task()
            if task is not None:
                self._interruption = Interruption(task, budget / 1e9, self._budget_over)
        running.limit_ns = limit
        return self

    def _budget_over(self) -> None:
        running = self._open
        if running is not None and running.collector is not None:
            self._where = running.collector.innermost_in(running)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running, token = self._open, self._token
        if running is None or token is None:
            return
        if kind is not None and issubclass(kind, _NO_ERRORS):
            kind = error = None
        collector = running.collector
        end_ns = _monotonic_ns() if collector is None else collector.clock()
        running.closed = True
        try:
            _OPEN.reset(token)
        except ValueError:
            # Entered in another context: a generator that another task goes on with. It is closed, which is enough.
            if _OPEN.get() is running:
                _OPEN.set(running.parent)
        self._open = self._token = None
        timeout = None if self._budget_ns is None else self._judge(running, kind, error, end_ns)
        parent = running.parent
        if collector is not None:
            over = self._budget_ns is not None and end_ns - running.start_ns > self._budget_ns
            collector.add(
                StageSpan(
                    self.name,
                    running.start_ns,
                    end_ns,
                    running.number,
                    -1 if parent is None else parent.number,
                    over or timeout is not None,
                    "" if kind is None else kind.__name__,
                )
            )
        if error is not None:
            running.came_out(error, timeout)
        if timeout is not None:
            raise timeout from error

    def _judge(
        self, running: _Open, kind: type[BaseException] | None, error: BaseException | None, end_ns: int
    ) -> StageTimeout | None:
        """Whether what comes out of the block is this stage's budget being over."""
        budget = self._budget_ns
        assert budget is not None
        interruption, self._interruption = self._interruption, None
        if interruption is not None and interruption.end(kind):
            return StageTimeout(self.name, budget, self._where)
        late = end_ns >= running.start_ns + budget - EARLY_NS
        if late and error is not None and not isinstance(error, StageTimeout) and is_timeout(error):
            inside = running.failed
            return StageTimeout(self.name, budget, inside[1] if inside is not None and inside[0] is error else "")
        return None

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def remaining(self) -> float | None:
        """Seconds that this block still has (its own budget and those around it); `None`: there is no limit."""
        running = self._open
        if running is None or running.limit_ns is None:
            return None
        now = _monotonic_ns() if running.collector is None else running.collector.clock()
        return max(0, running.limit_ns - now) / 1e9

    def deadline(self) -> float | None:
        """When this block must be over, in seconds of `time.monotonic()`; `None`: there is no limit."""
        running = self._open
        return None if running is None or running.limit_ns is None else running.limit_ns / 1e9

    def again(self) -> stage:
        """A new block of the same name and budget."""
        fresh = stage(self.name)
        fresh._budget_ns = self._budget_ns
        return fresh

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function, a coroutine function, or a generator of either kind.

        Of a generator the time counts in which it runs, not that in which its reader does something else. It takes no
        budget: which of the two times would be bounded is for a block around the loop to say.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            if self._budget_ns is not None:
                raise TypeError(
                    f"{function.__name__} is a generator, and a budget of one could mean two things: put "
                    f"`with stage({self.name!r}, budget=…):` around the loop that reads it"
                )
            if inspect.isgeneratorfunction(function):
                return cast("_Function", timed_generator(function, self.again))
            return cast("_Function", timed_async_generator(function, self.again))
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed_coroutine(*args: Any, **kwargs: Any) -> Any:
                with self.again():
                    return await function(*args, **kwargs)

            return cast("_Function", timed_coroutine)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.again():
                return function(*args, **kwargs)

        return cast("_Function", timed)
