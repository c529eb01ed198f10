"""Whether the server at an engine's address is the engine: which models it lists.

A server that took the port of a stopped engine answers `/health` with 200 as well. What it serves tells them apart, so
`/v1/models` is asked beside the metrics: with a model configured every few seconds, else once a start of the engine.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Final

import msgspec

from tailrace.gateway.scrape import SessionMaker
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.thresholds import S

PATH: Final = "/v1/models"
_PERIOD_NS: Final = 10 * S
_MAX_BYTES: Final = 1024 * 1024
_MOST_SHOWN: Final = 100
AGENT: Final = "tailrace-identity"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class Identity:
    """What the server calls its models, and whether the configured one is among them."""

    def __init__(
        self,
        base: str,
        *,
        expected: str | None,
        session: SessionMaker,
        timeout_ns: int,
        server_name: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._url = f"{base}{PATH}"
        self._base = base
        self.expected = expected
        self._session = session
        self._timeout_s = timeout_ns / 1e9
        self._server_name = server_name
        self._headers = {"User-Agent": AGENT, **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
        self._next_at: int | None = 0
        self.models: list[str] | None = None
        """What it lists; `None` where it has not said so."""
        self.error = ""
        """Why it is not known."""

    @property
    def foreign(self) -> str:
        """Why this is not the engine that was configured; empty where it is, or nobody can say."""
        if self.expected is None or self.models is None or self.expected in self.models:
            return ""
        found = ", ".join(repr(model) for model in self.models[:_MOST_SHOWN]) or "no model"
        return f"the server at {self._base} is not the engine: it lists {found}, not {self.expected!r}"

    def again(self) -> None:
        """It may be another one now: look after the next scrape."""
        self._next_at = 0

    async def look(self) -> None:
        """Ask, if it is time. Never raises for what an engine says or does."""
        now = monotonic_ns()
        if self._next_at is None or now < self._next_at:
            return
        await self._ask()
        # Without a model to look for, once is enough until somebody says `again`.
        self._next_at = now + _PERIOD_NS if self.expected is not None or self.error else None

    async def _ask(self) -> None:
        try:
            async with (
                self._session(timeout_s=self._timeout_s, headers=self._headers) as session,
                session.get(self._url, allow_redirects=False, server_hostname=self._server_name) as answer,
            ):
                body = bytearray()
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > _MAX_BYTES:
                        break
                self._read(answer.status, bytes(body))
        except Exception as error:  # noqa: BLE001  (whatever is there must not end the watch)
            # Late or gone: what it listed before is the best that is known of it.
            self.error = str(error) or type(error).__name__

    def _read(self, status: int, body: bytes) -> None:
        if status == 404:
            # Triton, and many a server in front of one model, have no such path; an engine with the model has.
            self.models, self.error = (None if self.expected is None else []), ""
            return
        if status != 200:
            self.error = f"{PATH} is answered with {status}"
            return
        try:
            self.models, self.error = [model.id for model in msgspec.json.decode(body, type=_Models).data], ""
        except UNREADABLE:
            self.error = f"{PATH} is answered with what is no list of models"
