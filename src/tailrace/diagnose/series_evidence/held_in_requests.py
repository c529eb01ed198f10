"""GW_PROXY_BUFFERING from requests with stamps on both sides: the first byte waits for the last, tokens speed up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.series_evidence.proxy_bursts import ADVICE, PRICE, VERIFY
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["held_in_requests"]

Floats = NDArray[np.float64]
LEAST: Final = 3
LATER: Final = 3.0
LATER_MS: Final = 200.0
FASTER: Final = 0.5
MOST: Final = 0.8
"""Of the requests: buffering shifts every stream of a path."""
_FIRST: Final = re.compile(
    r"(?:upstream|engine|server|backend|origin).*(?:first|ttfb|ttft)|"
    r"(?:first|ttfb|ttft).*(?:upstream|engine|server|backend|origin)"
)
_STAMP: Final = re.compile(r"^t_|_at$|stamp|_t$")


def held_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """A path on which (nearly) every first token comes late to the client, and the rest faster than it was made."""
    for rows in observed.table("requests"):
        found = _upstream_first(rows)
        if found is None:
            continue
        name, upstream = found
        send, first, last = (rows.numbers(f"t_{what}_ms") for what in ("send", "first", "last"))
        ttft = np.where(np.isfinite(first - send), first - send, rows.numbers("ttft_ms"))
        whole = np.where(np.isfinite(last - send), last - send, rows.numbers("e2e_ms"))
        tokens = rows.numbers("output_tokens")
        with np.errstate(invalid="ignore"):
            known = (ttft > 0) & (upstream > 0) & (tokens > 2) & (whole >= ttft) & (upstream <= ttft)
            made = (whole - upstream) / (tokens - 1)
            seen = (whole - ttft) / (tokens - 1)
            held = known & (ttft > LATER * upstream) & (ttft - upstream > LATER_MS) & (seen < FASTER * made)
        if known.sum() < LEAST or held.sum() < MOST * known.sum():
            continue
        return _found(cause, rows, name, (ttft, upstream, seen, made), held, int(known.sum()))
    return None


def _upstream_first(rows: Rows) -> tuple[str, Floats] | None:
    """(column, time from the send to the first byte from upstream in ms)."""
    for name in rows.columns:
        if not _FIRST.search(name) or name in {"t_first_ms", "ttft_ms"} or not rows.has(name):
            continue
        values = rows.numbers(name)
        if not np.isfinite(values).any():
            continue
        stamp = _STAMP.search(name) is not None
        return name, values - rows.numbers("t_send_ms") if stamp else values
    return None


def _found(
    cause: Cause, rows: Rows, name: str, times: tuple[Floats, Floats, Floats, Floats], held: NDArray[np.bool_], n: int
) -> Finding:
    client, upstream, seen, made = (float(np.median(values[held])) for values in times)
    place = str(rows.line_of(int(np.flatnonzero(held)[0])))
    return cause.finding(
        statement=f"A hop holds the stream: the first token reaches the client after {client:,.0f} ms where the "
        f"upstream's first byte came after {upstream:,.0f} ms, and then one every {seen:.3g} ms where they were made "
        f"one every {made:.3g} ms: a hop cannot speed tokens up.",
        evidence=[
            Evidence(f"first token at the client {client:,.0f} ms (median)", place, "ttft", round(client, 3), "ms"),
            Evidence(f"{name}: {upstream:,.0f} ms (median)", place, name, round(upstream, 3), "ms"),
            Evidence(f"ITL at the client {seen:.3g} ms", place, "itl_client", round(seen, 4), "ms"),
            Evidence(f"ITL as they are made {made:.3g} ms", place, "itl_upstream", round(made, 4), "ms"),
            Evidence(f"{int(held.sum())} of {n} requests come so", place, "held", float(held.sum())),
        ],
        explains_ms=client - upstream,
        relation=f"{client:,.0f} / {upstream:,.0f} ms = {client / upstream:.3g}; ITL {seen:.3g} < {made:.3g} ms",
        n=n,
        advice=ADVICE,
        price=PRICE,
        verify=VERIFY,
        disproof_checked=[f"{int(held.sum())} of {n} requests are shifted, not the tail alone"],
        action=Action.FIX,
    )
