"""Identical requests at once are one piece of work: the first leads, the others follow its answer.

A follower gets what has come so far and then what comes, in the same pieces. It reads at its own pace: what it has not
taken waits in the flight, once for all of them. Whether the leader's client is still there does not matter to the
flight; its owner goes on while `wanted`. Sans-IO.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

Head = TypeVar("Head")


class Follower(Protocol):
    """Who waits for another request's answer. Told in the middle of the leader's work: it must not raise."""

    position: int
    """Pieces that it has taken."""

    def flight_moved(self) -> None:
        """There is more to take, or the head may go."""

    def flight_landed(self) -> None:
        """The answer is whole; everything of it may be taken."""

    def flight_failed(self) -> None:
        """There will be no whole answer. It has been let go: what it does now is its own."""

    def flight_lost(self) -> None:
        """It was too slow for an answer that is too large to be held. It has been let go."""


class Leader(Protocol):
    """Whose answer it is."""

    def flight_unwanted(self) -> None:
        """The last follower has gone."""


class Flight(Generic[Head]):
    """One answer on its way. `bound`: bytes of it that are held at most."""

    __slots__ = (
        "_bound",
        "_flights",
        "base",
        "followers",
        "head",
        "held",
        "key",
        "landed",
        "leader",
        "over",
        "owner",
        "pieces",
        "released",
        "token_at",
    )

    def __init__(self, flights: Flights[Head], key: bytes, bound: int) -> None:
        self._flights = flights
        self._bound = bound
        self.key = key
        self.head: Head | None = None
        self.pieces: list[bytes] = []
        self.base = 0
        """Pieces given up: the first of `pieces` is number `base`."""
        self.held = 0
        """Bytes of `pieces`."""
        self.released = False
        """The leader's head has left: no other status can take its place."""
        self.landed = False
        self.over = False
        """It has failed, or landed."""
        self.followers: dict[Follower, None] = {}
        self.leader: Leader | None = None
        """Who hears that nobody follows any more, once it asks to."""
        self.owner: object = None
        """Whose answer it is, for whoever asks."""
        self.token_at: int | None = None
        """Number of the piece behind the one with the first token."""

    @property
    def whole(self) -> bool:
        """Whether everything that came is still held: somebody may join, and it may be stored."""
        return self.base == 0

    @property
    def wanted(self) -> bool:
        """Whether somebody follows."""
        return bool(self.followers)

    @property
    def end(self) -> int:
        """Number of the piece behind the last."""
        return self.base + len(self.pieces)

    def join(self, follower: Follower) -> bool:
        """Follow it, from its beginning. False where that is not held any more."""
        if self.over or not self.whole:
            return False
        follower.position = 0
        self.followers[follower] = None
        return True

    def leave(self, follower: Follower) -> None:
        """A follower has gone."""
        if follower in self.followers:
            del self.followers[follower]
            self._check_wanted()

    def _check_wanted(self) -> None:
        if not self.followers and self.leader is not None and not self.over:
            self.leader.flight_unwanted()

    def take(self, follower: Follower, most: int) -> list[bytes]:
        """The next pieces for a follower, of together `most` bytes (one piece at least, if there is one)."""
        at, size = follower.position - self.base, 0
        taken: list[bytes] = []
        while at < len(self.pieces) and (not taken or size + len(self.pieces[at]) <= most):
            taken.append(self.pieces[at])
            size += len(self.pieces[at])
            at += 1
        follower.position = self.base + at
        return taken

    # -- what the leader tells

    def begin(self, head: Head) -> None:
        """The head of the answer."""
        self.head = head

    def release(self) -> None:
        """The head has left for the leader's client, or would have."""
        if not self.released and not self.over:
            self.released = True
            self._tell()

    def push(self, piece: bytes) -> None:
        """A piece of the body, as it was relayed."""
        if self.over or not piece:
            return
        self.pieces.append(piece)
        self.held += len(piece)
        if self.released:
            self._tell()
        if self.held > self._bound:
            self._give_up()

    def mark_token(self) -> None:
        """The last piece pushed has the first token."""
        if self.token_at is None:
            self.token_at = self.end
            self._tell()

    def land(self) -> None:
        """The answer is whole."""
        if self.over:
            return
        self.landed = self.over = self.released = True
        self._flights.gone(self)
        followers, self.followers = self.followers, {}
        for follower in followers:
            follower.flight_landed()

    def fail(self) -> None:
        """There will be no whole answer: nobody is held any longer."""
        if self.over:
            return
        self.over = True
        self._flights.gone(self)
        followers, self.followers = self.followers, {}
        for follower in followers:
            follower.flight_failed()
        self.pieces.clear()
        self.held = 0

    def _tell(self) -> None:
        for follower in list(self.followers):
            follower.flight_moved()

    def _give_up(self) -> None:
        """Too large to be held: what everybody has is forgotten, and who lags by more than the bound is let go."""
        self._flights.gone(self)  # nobody joins any more
        if not self.released:
            # Nothing of it has gone to anybody, and it cannot be kept for them: they do better on their own.
            self._let_go(list(self.followers))
        before = len(self.followers)
        taken = min((follower.position for follower in self.followers), default=self.end)
        self._forget(taken)
        while self.held > self._bound:
            slowest = min(follower.position for follower in self.followers)
            self._let_go([follower for follower in self.followers if follower.position == slowest])
            self._forget(min((follower.position for follower in self.followers), default=self.end))
        if len(self.followers) < before:
            self._check_wanted()

    def _let_go(self, followers: list[Follower]) -> None:
        for follower in followers:
            del self.followers[follower]
            follower.flight_lost()

    def _forget(self, position: int) -> None:
        count = position - self.base
        if count > 0:
            self.held -= sum(map(len, self.pieces[:count]))
            del self.pieces[:count]
            self.base = position


class Flights(Generic[Head]):
    """The answers on their way that somebody may follow."""

    def __init__(self) -> None:
        self._open: dict[bytes, Flight[Head]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def find(self, key: bytes) -> Flight[Head] | None:
        """The flight of a question, if there is one to follow."""
        return self._open.get(key)

    def lead(self, key: bytes, bound: int, *, alone: bool = False) -> Flight[Head]:
        """Begin one. Nobody finds it with `alone`, nor where another request leads already."""
        flight = Flight(self, key, bound)
        if not alone:
            self._open.setdefault(key, flight)
        return flight

    def gone(self, flight: Flight[Head]) -> None:
        """Nobody may join it any more."""
        if self._open.get(flight.key) is flight:
            del self._open[flight.key]
