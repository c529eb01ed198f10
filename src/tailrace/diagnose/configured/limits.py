"""Limits of hosts and clients beside what has to pass them: CPU of a container, connections of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.commands import CPU_STAT_TWICE
from tailrace.diagnose.observed import Observed, Setting
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["client_connections", "cpu_limit"]

BESIDE: Final = 2.0
"""An engine has a process of its own for HTTP and one that schedules, beside one for each card."""


def cpu_limit(cause: Cause, observed: Observed) -> Finding | None:
    """A CPU limit below the busy processes of an engine."""
    for limit in observed.settings:
        if limit.name != "k8s.cpu_limit" or limit.number is None:
            continue
        engine = next((one for one in observed.settings if one.name == "engine" and one.scope == limit.scope), None)
        if engine is None:
            continue
        cards, counted = _cards(observed, limit.scope)
        needed = cards + BESIDE
        if limit.number >= needed:
            continue
        evidence = [
            Evidence(
                text=f"{limit.scope}: CPU limit {limit.number:g} cores",
                source=str(limit.place),
                name=limit.name,
                value=limit.number,
                unit="cores",
            ),
            Evidence(
                text=f"{engine.value} keeps {needed:g} cores busy: one for each of {cards:g} card"
                f"{'s' if cards != 1 else ''}, {BESIDE:g} beside them",
                source=str(counted.place) if counted is not None else str(engine.place),
                name="processes",
                value=needed,
            ),
        ]
        return cause.finding(
            statement=f"{limit.scope} may use {limit.number:g} cores, and {engine.value} has {needed:g} processes "
            "that are busy at once: the kernel stops it when its share of a period is used up.",
            evidence=evidence,
            explains_ms=None,
            relation=f"{limit.number:g} < {needed:g} cores",
            n=1,
            advice=f"Raise the limit to {int(2 * needed)} cores or leave it away, and ask for {needed:g} as the "
            "request.",
            price="Cores that other work cannot use.",
            verify=CPU_STAT_TWICE,
            missing=["nr_throttled and nr_periods of the container (cpu.stat), or ITL at a higher limit"],
            level=Level.SUSPECTED,
            action=Action.TUNE,
        )
    return None


def _cards(observed: Observed, scope: str) -> tuple[float, Setting | None]:
    for name in ("k8s.gpus", "tensor_parallel"):
        found = next((one for one in observed.settings if one.name == name and one.scope == scope), None)
        if found is not None and found.number:
            return found.number, found
    return 1.0, None


MANY: Final = 500.0
"""So many at once no engine runs by itself: such a limit is none until more are seen under way."""


def client_connections(cause: Cause, observed: Observed) -> Finding | None:
    """A client whose pool lets fewer requests through than it has under way."""
    limits = [
        item
        for item in observed.settings
        if item.name in {"client.connection_limit", "client.connection_limit_per_host"} and item.number
    ]
    if not limits:
        return None
    offered = _offered(observed)
    if offered is None:  # then only what nobody chose, and what one engine can outgrow, is worth a word
        limits = [item for item in limits if item.scope.endswith("(default)") and (item.number or 0.0) < MANY]
    limit = min(limits, key=lambda item: item.number or 0.0, default=None)
    cap = limit.number if limit is not None else None
    if limit is None or cap is None or (offered is not None and offered[0] <= cap):
        return None
    default = limit.scope.endswith("(default)")
    library = limit.scope.removesuffix(" (default)")
    evidence = [
        Evidence(
            text=f"{library}: {cap:g} connections{' (the default: nothing sets it)' if default else ''}",
            source=str(limit.place),
            name=limit.name,
            value=cap,
        )
    ]
    words, relation = "", f"limit {cap:g}"
    if offered is not None:
        words = f", and {offered[0]:g} requests are to be under way at once: {offered[0] - cap:g} wait for a connection"
        relation = f"{offered[0]:g} - {cap:g} = {offered[0] - cap:g}"
        evidence.append(Evidence(f"{offered[0]:g} requests at once", offered[1], "concurrency", offered[0]))
        evidence.append(
            Evidence(f"{offered[0] - cap:g} above the limit", str(limit.place), "waiting", offered[0] - cap)
        )
    return cause.finding(
        statement=f"{library} lets {cap:g} requests through at once{words}.",
        evidence=evidence,
        explains_ms=None,
        relation=relation,
        n=1,
        advice="aiohttp: TCPConnector(limit=0) or a number above the engine's max_num_seqs plus its queue; httpx: "
        "Limits(max_connections=None); and count the wait for a connection as queue.",
        price="The queue moves into the engine; bound it there or at the gateway, or it grows without limit.",
        verify=(f"tailrace bench http://localhost:8080 --concurrency {int(2 * cap)} --duration 60 --out after.run"),
        missing=[
            "requests in flight before and behind the client, and the engine's waiting (0 shows that it has room)"
        ],
        level=Level.SUSPECTED,
        action=Action.TUNE,
    )


def _offered(observed: Observed) -> tuple[float, str] | None:
    """(requests under way at once, where it stands) as somebody stated or drove them."""
    best: tuple[float, str] | None = None
    for item in observed.settings:
        if item.name in {"max_concurrency", "concurrency", "client.concurrency"} and item.number:
            best = max(best or (0.0, ""), (item.number, str(item.place) or "form"))
    for arm in observed.arms:
        value = arm.keys.get("concurrency", arm.get("concurrency"))
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            best = max(best or (0.0, ""), (float(value), str(arm.place) or "form"))
    return best
