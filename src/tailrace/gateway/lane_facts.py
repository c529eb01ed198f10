"""A request as lanes read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tailrace.gateway.callers import NOBODY, Caller, Callers
from tailrace.gateway.routes import PASSTHROUGH_LANE
from tailrace.gateway.work import Work
from tailrace.govern.lane import RequestFacts
from tailrace.measure.ledger import RequestLedger

_LANE: Final = b"x-lane"


class LaneHeaders(Mapping[str, str]):
    """Request headers as lane matches read them; decoded only when one asks."""

    __slots__ = ("_named",)

    def __init__(self, named: dict[bytes, bytes]) -> None:
        self._named = named

    def __getitem__(self, name: str) -> str:
        return self._named[name.encode("latin-1", "replace")].decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._named)

    def __len__(self) -> int:
        return len(self._named)


def lane_facts(
    ledger: RequestLedger,
    work: Work,
    named: dict[bytes, bytes],
    *,
    stream: bool,
    deadline_at: int | None,
    callers: Callers,
) -> RequestFacts:
    """What lanes match and order by: the body's words (`work`), the headers (`named`), the deadline (ns), the key.

    Puts the tenant into the ledger.
    """
    caller = NOBODY
    asked = ""
    if not callers.idle:
        caller = callers.find(named)
        ledger.tenant = caller.tenant
        if callers.scoped and _LANE in named:
            asked, named = _asked_lane(caller, named)
    if ledger.lane != PASSTHROUGH_LANE:
        # Its limits have been applied: what they have made of the request does not take it to another lane.
        asked = ledger.lane
    return RequestFacts(
        request_id=ledger.request_id,
        prompt_tokens=work.prompt_tokens or 0,
        max_tokens=work.max_tokens,
        sequences=work.completions,
        audio_seconds=work.audio_seconds,
        stream=stream,
        model=work.model,
        tenant=caller.tenant,
        key=caller.key,
        asked_lane=asked,
        path=ledger.endpoint,
        headers=LaneHeaders(named),
        deadline_ns=deadline_at,
    )


def _asked_lane(caller: Caller, named: dict[bytes, bytes]) -> tuple[str, dict[bytes, bytes]]:
    """The lane that the caller may ask for and does; and the headers that a match may see."""
    asked = named[_LANE].decode("latin-1")
    if asked in caller.lanes:
        return asked, named
    return "", {name: value for name, value in named.items() if name != _LANE}
