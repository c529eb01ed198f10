"""Generators as stages: each run between two `yield`s is timed, the reader's time in between is not."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

Block = Callable[[], AbstractContextManager[Any]]
"""Makes a block that times what runs inside it."""


def timed_generator(function: Callable[..., Generator[Any, Any, Any]], block: Block) -> Callable[..., Any]:
    """`function` with its running time timed; `send`, `throw`, `close` and the returned value pass through."""

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        step: Callable[[], Any] = functools.partial(next, inner)
        while True:
            try:
                with block():
                    item = step()
            except StopIteration as end:
                return end.value
            try:
                sent = yield item
            except GeneratorExit:
                with block():
                    inner.close()
                raise
            except BaseException as error:  # noqa: BLE001  (whatever was thrown in is for the generator to handle)
                step = functools.partial(inner.throw, error)
            else:
                step = functools.partial(inner.send, sent)

    return timed


def timed_async_generator(function: Callable[..., AsyncGenerator[Any, Any]], block: Block) -> Callable[..., Any]:
    """The same for an async generator: what it awaits is its time, what its reader awaits is not."""

    @functools.wraps(function)
    async def timed(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        step: Callable[[], Any] = functools.partial(anext, inner)
        while True:
            try:
                with block():
                    item = await step()
            except StopAsyncIteration:
                return
            try:
                sent = yield item
            except GeneratorExit:
                with block():
                    await inner.aclose()
                raise
            except BaseException as error:  # noqa: BLE001  (whatever was thrown in is for the generator to handle)
                step = functools.partial(inner.athrow, error)
            else:
                step = functools.partial(inner.asend, sent)

    return timed
