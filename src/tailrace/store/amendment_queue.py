"""The bounded queue of amendments before the disk: never waits, and counts what it gives up.

When it is full, what comes is dropped: an amendment refines a record, and none is worth another's place. Counted by
class all the same, because a span lost leaves a wait unsplit and a fact lost leaves a cell empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from tailrace.model.amendment import Amendment

__all__ = ["AmendmentQueue", "amendment_class"]

STAGES: Final = "stages"
FACTS: Final = "facts"
_DURATIONS: Final = ("queue_ns", "preprocess_ns", "encode_ns", "prefill_ns", "decode_ns", "postprocess_ns")
_MOST: Final = 2**63 - 1
"""The largest integer that a segment holds."""


def amendment_class(amendment: Amendment) -> str:
    """The class by which drops are counted: `stages` (it splits time), else `facts`."""
    if amendment.parts_ns or any(getattr(amendment, name) is not None for name in _DURATIONS):
        return STAGES
    return FACTS


class AmendmentQueue:
    """At most `capacity` amendments that wait for the writer's thread; also what became of the earlier ones."""

    def __init__(self, capacity: int, wake: Callable[[], None]) -> None:
        self.capacity = capacity
        self._wake = wake
        self._waiting: deque[Amendment] = deque()
        self.closed = False
        self.acknowledged = 0
        """Committed to the hot tier."""
        self.sealed = 0
        """Sealed into segments."""
        self.dropped: dict[str, int] = {}
        """Class -> amendments lost: the queue was full, closing ran out of time, or the disk cannot hold them."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def overfull(self) -> bool:
        """Whether it fills faster than it is emptied: the writer then does not let more gather."""
        return len(self._waiting) >= self.capacity // 4

    def put(self, amendment: Amendment) -> bool:
        """Take one in, never waiting. False when it was dropped."""
        if self.closed or len(self._waiting) >= self.capacity or not _fits(amendment):
            self.count_drop(amendment)
            return False
        self._waiting.append(amendment)
        self._wake()
        return True

    def take(self, limit: int) -> list[Amendment]:
        """Remove and return up to `limit`, oldest first. For the writer's thread."""
        out: list[Amendment] = []
        while len(out) < limit:
            try:
                out.append(self._waiting.popleft())
            except IndexError:
                break
        return out

    def count_drop(self, amendment: Amendment) -> None:
        """Count one as lost."""
        kind = amendment_class(amendment)
        self.dropped[kind] = self.dropped.get(kind, 0) + 1

    def counters(self) -> dict[str, int]:
        """Flat, for the writer's: `amendments.acknowledged`, `amendments.dropped.stages`, ..."""
        out = {"amendments.acknowledged": self.acknowledged, "amendments.sealed": self.sealed}
        out.update({f"amendments.dropped.{kind}": n for kind, n in sorted(self.dropped.items())})
        return out


def _fits(amendment: Amendment) -> bool:
    values = [getattr(amendment, name) for name in amendment.__struct_fields__]
    numbers = [value for value in values if isinstance(value, int)]
    return all(-_MOST <= number <= _MOST for number in [*numbers, *amendment.parts_ns.values()])
