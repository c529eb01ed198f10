"""`stage(name)`: time a block or a function as a stage of the current request."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from tailrace.stages.collector import CURRENT, Collector, subtract

REPORTABLE: Final = ("queue", "preprocess", "encode", "prefill", "decode", "postprocess")
"""Stages that a service may report. `ingress`, `response` and `unattributed` are the gateway's to know."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Open:
    """A stage that is running: who runs around it, and what ran inside it that is not part of it."""

    __slots__ = ("collector", "holes", "parent", "root", "start_ns")

    def __init__(self, collector: Collector, root: str, parent: _Open | None) -> None:
        self.collector = collector
        self.root = root
        self.parent = parent
        self.holes: list[tuple[int, int]] = []
        self.start_ns = collector.clock()


_OPEN: ContextVar[_Open | None] = ContextVar("tailrace_stages_open", default=None)


class stage:  # noqa: N801  (reads as a keyword: `with stage("preprocess.tokenize"):`)
    """Time a block, a function or a coroutine function as `name`: a stage of `REPORTABLE`, or `stage.part`.

    Outside of `collect()` it does nothing. A part lies inside its stage; an unrelated stage entered inside another is
    taken off the outer one. Use a new object for each block; as a decorator, one object serves all calls.
    """

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name.partition(".")[0] not in REPORTABLE:
            raise ValueError(
                f"{name!r} is no stage: use {', '.join(REPORTABLE)}, or a part such as preprocess.tokenize"
            )
        self.name = name
        self._root = name.partition(".")[0]
        self._open: _Open | None = None
        self._token: Token[_Open | None] | None = None

    def __enter__(self) -> Self:
        if self._token is not None:
            raise RuntimeError(f"stage({self.name!r}) is already running; make a new one for each block")
        collector = CURRENT.get()
        if collector is not None:
            parent = _OPEN.get()
            if parent is not None and parent.collector is not collector:
                parent = None  # belongs to an outer request
            self._open = _Open(collector, self._root, parent)
            self._token = _OPEN.set(self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running, token = self._open, self._token
        if running is None or token is None:
            return
        end_ns = running.collector.clock()
        _OPEN.reset(token)
        self._open = self._token = None
        # A stage that took no time was still there: its name appears with 0.
        for start, stop in subtract((running.start_ns, end_ns), running.holes) or [(end_ns, end_ns)]:
            running.collector.add(self.name, start, stop)
        outer = running.parent
        while outer is not None and outer.root != running.root:
            outer.holes.append((running.start_ns, end_ns))
            outer = outer.parent

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function or a coroutine function; generators are refused, they would time only their creation."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__name__} is a generator: use `with stage({self.name!r}):` inside it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed_coroutine(*args: Any, **kwargs: Any) -> Any:
                with stage(self.name):
                    return await function(*args, **kwargs)

            return cast("_Function", timed_coroutine)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with stage(self.name):
                return function(*args, **kwargs)

        return cast("_Function", timed)
