"""TRACE_GAP without spans: the client's time beside what the servers' spans cover, in a table with a row a span."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arms.asked import said
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["gap_stated"]

COVERED: Final = 0.9
_CLIENT: Final = re.compile(r"\bclient|browser|caller|\broot\b|load ?test|end user|\buser\b", re.IGNORECASE)
_SPAN: Final = re.compile(r"\bspans?\b|\btrace\b", re.IGNORECASE)


class _Told(NamedTuple):
    name: str
    ms: float
    place: str


def gap_stated(cause: Cause, observed: Observed) -> Finding | None:
    """The servers' spans, one or summed, against the client's."""
    found = _in_table(observed)
    if found is None:
        return None
    client, served = found
    covered = sum(item.ms for item in served)
    if covered > client.ms:  # one lies in another
        covered = max(item.ms for item in served)
    share = covered / client.ms
    if not 0 < share < COVERED:
        return None
    gap = client.ms - covered
    return cause.finding(
        statement=f"Servers' spans cover {share:.0%} of the request: {gap / 1e3:.3g} of {client.ms / 1e3:.3g} s are in "
        "none of them.",
        evidence=[
            Evidence(f"{item.name}: {item.ms / 1e3:.4g} s", item.place, item.name, item.ms, "ms")
            for item in (client, *served)
        ],
        explains_ms=gap,
        relation=f"{covered / 1e3:.4g}/{client.ms / 1e3:.4g} s = {share:.2f} < {COVERED}",
        n=1,
        advice="Stamp what is missing: the read of the request, tokenising, the router, the pool before the engine (a "
        "gateway in front that stamps both sides does).",
        price="A span more for each request.",
        verify="tailrace serve --upstream http://localhost:8000",
        missing=["the spans with their beginnings: whether the gap lies before the engine or after the last token"],
        disproof_checked=["where the gap lies is not known"],
        action=Action.COLLECT,
        level=Level.CONSISTENT,
    )


def _in_table(observed: Observed) -> tuple[_Told, list[_Told]] | None:
    rows = []
    for arm in observed.arms:
        words = f"{' '.join(arm.keys)} {said(arm)}"
        item = next((v for v in arm.values.values() if v.unit in {"s", "ms"} and not v.relative), None)
        if item is not None and _SPAN.search(words.replace("_", " ")):
            rows.append(_Told(arm.label or arm.name, item.value * (1e3 if item.unit == "s" else 1.0), str(arm.place)))
    clients = [row for row in rows if _CLIENT.search(row.name)]
    served = [row for row in rows if row not in clients and row.ms > 0]
    return (clients[0], served) if len(clients) == 1 and served and clients[0].ms > 0 else None
