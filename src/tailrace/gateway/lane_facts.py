"""A request as lanes read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.gateway.work import Work
from tailrace.govern.lane import RequestFacts
from tailrace.measure.ledger import RequestLedger


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
    ledger: RequestLedger, work: Work, named: dict[bytes, bytes], *, stream: bool, deadline_at: int | None
) -> RequestFacts:
    """What lanes match and order by: the body's words (`work`), the headers (`named`), the deadline (ns)."""
    return RequestFacts(
        request_id=ledger.request_id,
        prompt_tokens=work.prompt_tokens or 0,
        max_tokens=work.max_tokens,
        stream=stream,
        model=work.model,
        path=ledger.endpoint,
        lane=ledger.lane if ledger.truncated_from is not None else "",
        headers=LaneHeaders(named),
        deadline_ns=deadline_at,
    )
