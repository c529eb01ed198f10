"""What can wait, waits for what arrives: in order, to its end, and an error is told once."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
import uvloop

from tailrace.probe.afterwards import Afterwards


def test_items_are_taken_in_order_and_between_them_sockets_are_read():
    async def main() -> tuple[list[object], list[int]]:
        loop = asyncio.get_running_loop()
        seen: list[object] = []
        errors: list[Exception] = []

        def slow(item: int) -> None:
            time.sleep(0.001)
            seen.append(item)

        one, other = socket.socketpair()
        one.setblocking(False)
        loop.add_reader(one, lambda: seen.append(one.recv(10)))
        afterwards = Afterwards(slow, errors.append, loop)
        for item in range(100):
            afterwards.put(item)
        await asyncio.sleep(0)
        other.send(b"read")
        for _ in range(3000):
            await asyncio.sleep(0)
            if len(seen) == 101:
                break
        loop.remove_reader(one)
        one.close()
        other.close()
        assert errors == []
        return seen, [one for one in seen if isinstance(one, int)]

    seen, items = uvloop.run(main())
    assert items == list(range(100))
    assert seen.index(b"read") < 20, "a read waits for a turn's worth of items, not for all of them"


def test_an_error_is_told_once_and_the_rest_is_dropped():
    async def main() -> tuple[list[int], list[Exception]]:
        taken: list[int] = []
        errors: list[Exception] = []

        def take(item: int) -> None:
            taken.append(item)
            if item == 3:
                raise ValueError(item)

        afterwards = Afterwards(take, errors.append, asyncio.get_running_loop())
        for item in range(10):
            afterwards.put(item)
        for _ in range(20):
            await asyncio.sleep(0)
        afterwards.put(11)
        afterwards.finish()
        return taken, errors

    taken, errors = uvloop.run(main())
    assert taken == [0, 1, 2, 3, 11]
    assert [str(one) for one in errors] == ["3"]


def test_the_end_takes_what_is_left_and_raises():
    async def main() -> None:
        def take(item: int) -> None:
            raise ValueError(item)

        afterwards = Afterwards(take, lambda _: None, asyncio.get_running_loop())
        afterwards.put(1)
        with pytest.raises(ValueError, match="1"):
            afterwards.finish()

    uvloop.run(main())
