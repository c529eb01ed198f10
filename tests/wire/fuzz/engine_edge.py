"""Bytes into an `UpstreamConnection` over a transport of memory: no answer reaches another's request."""

from __future__ import annotations

from tailrace.gateway.head import Header
from tailrace.gateway.upstream import UpstreamConnection
from tests.wire.fuzz.client_edge import Wire, pieces


class Books:
    """The pool."""

    def __init__(self) -> None:
        self.open = 0
        self.free = False

    def opened(self, connection: UpstreamConnection) -> None:
        self.open += 1

    def closed(self, connection: UpstreamConnection) -> None:
        self.open -= 1
        self.free = False

    def release(self, connection: UpstreamConnection, now: int) -> None:
        assert connection.receiver is None
        assert not self.free
        self.free = True


class Asker:
    """One request; notes what it is told, and that nothing is told twice or afterwards."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self.body = b""
        self.end = ""

    def upstream_head(self, status: int, headers: list[Header], now: int) -> None:
        assert not self.status
        assert not self.end
        assert status >= 200
        self.status, self.headers = status, headers

    def upstream_body(self, data: bytes, now: int) -> None:
        assert self.status
        assert not self.end
        assert data
        self.body += data

    def steady(self) -> Asker | None:
        """Takes some of the whole chunks itself, as a stream in its steady state does."""
        return self if len(self.body) % 3 else None

    def take(self, data: bytes, now: int) -> bool:
        end = data.find(b"\r\n")
        if end < 2 or data[:end] != b"%x" % (len(data) - end - 4) or not data.endswith(b"\r\n") or len(self.body) % 2:
            return False
        self.body += data[end + 2 : -2]
        return True

    def leave(self) -> None:
        pass

    def upstream_complete(self, now: int) -> None:
        assert self.status
        assert not self.end
        self.end = "complete"

    def upstream_lost(self, error: str, *, untouched: bool, now: int) -> None:
        assert not self.end
        self.end = "lost"

    def upstream_broken(self, now: int) -> None:
        raise AssertionError("a fault of ours")


PART = b"\x1e"
"""Between what an engine sends before and after its connection is used again."""


def play(data: bytes, plan: bytes, *, head: bool, again: bool = True) -> list[tuple[int, bytes, str]]:
    """One request after another on one connection, as long as it is free and `again` wants. How each ended."""
    books = Books()
    connection = UpstreamConnection(books)  # type: ignore[arg-type]
    wire = Wire()
    connection.connection_made(wire)
    asked: list[Asker] = []

    def ask() -> None:
        books.free = False
        asked.append(Asker())
        connection.send(asked[-1], b"GET / HTTP/1.1\r\n\r\n", without_body=head)

    ask()
    for part in data.split(PART):
        for piece, _ in pieces(part, plan):
            if books.free and not wire.closing and again:
                ask()
            told = [(one.status, one.body, one.end) for one in asked[:-1]]
            if piece and not wire.closing:
                connection.data_received(piece)
            # What comes now is the last one's, or nobody's.
            assert told == [(one.status, one.body, one.end) for one in asked[:-1]]
            if books.free:
                assert asked[-1].end == "complete"
    if not wire.closing:
        connection.eof_received()
    connection.connection_lost(None)
    assert books.open == 0
    assert connection.receiver is None
    for one in asked:
        assert one.end
    return [(one.status, one.body, one.end) for one in asked]


def engine_edge(data: bytes, plan: bytes) -> None:
    """Nothing breaks, nothing is told twice; and the first answer is the same whatever the split."""
    for head in (False, True):
        play(data, b"", head=head)
        play(data, plan, head=head)
        first = data.split(PART)[0]
        whole = play(first, b"", head=head, again=False)
        split = play(first, plan, head=head, again=False)
        # Where it breaks, what came before that may have been told by then: never anything else.
        if whole[0][2] == "complete":
            assert split == whole
        else:
            assert split[0][2] == whole[0][2]
            assert split[0][1].startswith(whole[0][1]) or whole[0][1].startswith(split[0][1])
