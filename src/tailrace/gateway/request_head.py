"""The head of a request: what was read of it, and what follows from that.

On a connection that is kept, the next head nearly always differs in its length alone. Reading, checking and rewriting
it again would cost a tenth of what a request costs, so it shares the earlier one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.gateway.config import Config
from tailrace.gateway.head import Header
from tailrace.gateway.routes import Route

if TYPE_CHECKING:
    from tailrace.gateway.backend import Backend

_LENGTH = b"content-length"


class RequestHead:
    """A request's head, checked. Nothing in it may be changed: several requests share it."""

    __slots__ = (
        "_after",
        "_before",
        "_config",
        "_length_at",
        "headers",
        "method",
        "named",
        "onward",
        "route",
        "target",
        "version",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        version: str,
        headers: list[Header],
        named: dict[bytes, bytes],
        route: Route,
        config: Config,
    ) -> None:
        self.method = method
        self.target = target
        """In origin form."""
        self.version = version
        self.headers = headers
        self.named = named
        """Lower-case name -> first value. The length is the first request's: see `length_of`."""
        self.route = route
        self._config = config
        self.onward: dict[Backend, bytes] = {}
        """As each engine gets it, up to the lines that are each request's own; made when it is first needed."""
        at = next((at for at, pair in enumerate(headers) if pair[0].lower() == _LENGTH), len(headers))
        self._length_at = at
        self._before, self._after = headers[:at], headers[at + 1 :]

    def same(self, method: bytes, target: bytes, version: str, headers: list[Header], config: Config) -> bool:
        """Whether this head means the same, but for the value of its `Content-Length`."""
        at, mine = self._length_at, self.headers
        return (
            len(headers) == len(mine)
            and target == self.target
            and method == self.method
            and version == self.version
            and config is self._config
            and headers[:at] == self._before
            and headers[at + 1 :] == self._after
            and (at == len(mine) or headers[at][0] == mine[at][0])
        )

    def length_of(self, headers: list[Header]) -> int:
        """The length that a head which is the same announces; 0 where there is none."""
        return int(headers[self._length_at][1]) if self._length_at < len(headers) else 0
