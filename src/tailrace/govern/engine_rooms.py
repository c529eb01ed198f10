"""Room in several engines, told by their own metrics (`engine_room`), as one answer: which of them may get one more.

Who is admitted is counted to an engine at once, so that not everybody is admitted on one reading; the dispatcher says
which engine it really became (`moved`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tailrace.govern.engine_room import EngineRoom, EngineRoomPolicy
from tailrace.model.engine_state import EngineState

SOLE = "default"
"""The engine's name where there is one and nobody gave it another."""


class EngineRooms:
    """One `EngineRoom` an engine, and how many of ours each has."""

    __slots__ = ("_in_flight", "_policy", "_processes", "_rooms")

    def __init__(self, policy: EngineRoomPolicy, engines: Iterable[str] = (SOLE,), *, processes: int = 1) -> None:
        """`processes`: how many hear the same readings, and share what they leave."""
        self._policy, self._processes = policy, processes
        self._rooms = {name: EngineRoom(policy, processes=processes) for name in engines}
        self._in_flight = dict.fromkeys(self._rooms, 0)

    def follow(self, engines: Collection[str]) -> None:
        """The engines are these now. A new one is full until its first reading; one that is gone is forgotten."""
        if self._rooms.keys() == set(engines):
            return
        for name in self._rooms.keys() - set(engines):
            del self._rooms[name], self._in_flight[name]
        for name in engines:
            if name not in self._rooms:
                self._rooms[name] = EngineRoom(self._policy, processes=self._processes)
                self._in_flight[name] = 0

    def hear(self, engine: str, state: EngineState | None, now: int) -> None:
        """A reading of one engine's metrics."""
        room = self._rooms.get(engine)
        if room is not None:
            room.hear(state, now)

    def pick(self, among: Collection[str], now: int) -> str | None:
        """The engine with room that has the fewest of ours, of `among` or, where that is empty, of all."""
        best: str | None = None
        for name, room in self._rooms.items():
            count = self._in_flight[name]
            if (
                (not among or name in among)
                and (best is None or count < self._in_flight[best])
                and room.room(now, count)
            ):
                best = name
        return best

    def take(self, engine: str) -> None:
        """One of ours goes there."""
        self._in_flight[engine] += 1
        self._rooms[engine].sent()

    def give(self, engine: str) -> None:
        """It is there no longer."""
        room = self._rooms.get(engine)
        if room is not None:
            # Of an engine that was away meanwhile, what it had before is not counted.
            self._in_flight[engine] = max(0, self._in_flight[engine] - 1)
            room.ended()

    def moved(self, engine: str, to: str) -> str:
        """One that was counted to `engine` goes `to` another; returns whom it is counted to."""
        if to not in self._rooms or to == engine:
            return engine
        self.give(engine)
        self.take(to)
        return to

    def why_not(self, now: int) -> dict[str, str]:
        """Engine -> what stands in the way of one more, in words; those with room are left out."""
        return {
            name: why
            for name, room in self._rooms.items()
            if not room.room(now, self._in_flight[name]) and (why := room.why_not(now))
        }
