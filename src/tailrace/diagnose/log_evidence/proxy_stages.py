"""Where a proxy's own access log puts the time of its slow requests: itself, its queue, the connect, the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.observed import Observed, Rows
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["client_in_access", "connect_in_access", "overhead_in_access", "server_queue_in_access"]

Floats = NDArray[np.float64]
LEAST: Final = 10
SLOWEST: Final = 0.1
OWN_SHARE: Final = 0.3
"""Of the slow requests' time. A gateway that keeps a tenth is heavy; what is called a bottleneck keeps more."""
HALF: Final = 0.5
LEAST_MS: Final = 100.0
CLIENT_MS: Final = 1000.0
SENT: Final = 65_536.0
"""Bytes: a smaller answer fits into the sockets' buffers, whoever reads it."""
UPSTREAM_EVEN: Final = 1.5
FLAT: Final = 0.95


class _Part(NamedTuple):
    """A part of the slow requests' time."""

    rows: Rows
    slow: NDArray[np.int64]
    """Rows of the slowest tenth, slowest last."""
    part: Floats
    """Of every row (ms); NaN where it is not told."""
    whole: Floats
    share: float
    known: NDArray[np.bool_]

    @property
    def mean(self) -> float:
        """Of the slow requests (ms)."""
        return float(self.part[self.slow].mean())

    @property
    def of(self) -> float:
        """Mean time of the slow requests (ms)."""
        return float(self.whole[self.slow].mean())

    def where(self) -> str:
        """The slowest one's line."""
        return str(self.rows.line_of(int(self.slow[-1])))

    def facts(self, words: str, name: str) -> list[Evidence]:
        """The slowest one, the slow ones, all of them."""
        at, middle = int(self.slow[-1]), float(np.median(self.part[self.known]))
        return [
            Evidence(
                f"{self.part[at]:,.0f} of {self.whole[at]:,.0f} ms are {words} in the slowest request",
                self.where(), name, float(self.part[at]), "ms",
            ),
            Evidence(
                f"{self.mean:,.0f} of {self.of:,.0f} ms are {words} in the slowest {self.slow.size} of "
                f"{int(self.known.sum())} requests: {self.share:.0%}",
                self.rows.place.source, f"{name}_share", round(self.share, 4),
            ),
            Evidence(f"median {words}: {middle:,.0f} ms", self.rows.place.source, f"{name}_p50", middle, "ms"),
        ]  # fmt: skip

    @property
    def relation(self) -> str:
        """The arithmetic."""
        return f"{self.mean:,.0f} / {self.of:,.0f} ms = {self.share:.0%}"


def _part(rows: Rows, part: Floats, least_share: float, least_ms: float) -> _Part | None:
    """The part in the slowest tenth of the answered requests; `None` where it is small, or told of too few."""
    whole, status = rows.numbers("e2e"), rows.numbers("status")
    with np.errstate(invalid="ignore"):
        known = np.isfinite(part) & (whole > 0) & ~(status >= 400)
    if known.sum() < LEAST:
        return None
    order = np.flatnonzero(known)[np.argsort(whole[known], kind="stable")]
    slow = order[-max(1, round(SLOWEST * order.size)) :]
    share = float(part[slow].sum() / whole[slow].sum())
    found = _Part(rows, slow, part, whole, share, known)
    return found if share >= least_share and found.mean >= least_ms else None


def overhead_in_access(cause: Cause, observed: Observed) -> Finding | None:
    """GW_SELF_BOTTLENECK: what a gateway says of its own time (LiteLLM's overhead, Kong's latency)."""
    for rows in observed.table("access"):
        found = _part(rows, rows.numbers("overhead"), OWN_SHARE, LEAST_MS)
        if found is None:
            continue
        return cause.finding(
            statement=f"The gateway itself is slow, by its own word: {found.share:.0%} of the slowest requests' time "
            f"is its overhead ({found.mean:,.0f} of {found.of:,.0f} ms), not the engine's.",
            evidence=found.facts("the gateway's own overhead", "overhead"),
            explains_ms=found.mean,
            relation=found.relation,
            n=int(found.known.sum()),
            advice="Find what it does in that time: callbacks and logging on the request's path, guardrails, "
            "authentication against a slow store, rate limits in a remote store, plugins, one full process. Take them "
            "off the path, or run more of its processes. Tuning or adding engines changes nothing.",
            price="What runs off the path may be lost when the process dies.",
            verify="tailrace diagnose access.log  # after the change: its own time is small",
            missing=["CPU use of its process, or a profile: what it does in that time"],
            disproof_checked=[f"the upstream's part of the slow ones is {1 - found.share:.0%}"],
            action=Action.FIX,
            level=Level.SUSPECTED,
        )
    return None


def server_queue_in_access(cause: Cause, observed: Observed) -> Finding | None:
    """GW_CONN_POOL_CAP: the time in a balancer's queue for a connection to a server (HAProxy's Tw)."""
    for rows in observed.table("access"):
        found = _part(rows, rows.numbers("hop_queue"), HALF, LEAST_MS)
        if found is None:
            continue
        held, queued = rows.numbers("server_conns"), rows.numbers("queued")
        most = float(np.nanmax(held[found.known])) if np.isfinite(held[found.known]).any() else float("nan")
        flat = most == most and float((held[found.known] >= FLAT * most).mean()) >= HALF  # noqa: PLR0124  (NaN)
        deepest = float(np.nanmax(queued[found.known])) if np.isfinite(queued[found.known]).any() else 0.0
        facts = found.facts("wait for a connection to a server", "hop_queue")
        if flat:
            facts.append(
                Evidence(f"connections to the server stand at {most:.0f}", rows.place.source, "server_conns", most)
            )
        if deepest:
            facts.append(
                Evidence(f"up to {deepest:.0f} requests wait in its queue", rows.place.source, "queued", deepest)
            )
        return cause.finding(
            statement=f"Requests wait in the balancer for a connection to the engine: {found.share:.0%} of the slowest "
            f"requests' time ({found.mean:,.0f} of {found.of:,.0f} ms)"
            + (f", with connections to the server flat at {most:.0f}." if flat else "."),
            evidence=facts,
            explains_ms=found.mean,
            relation=found.relation + (f"; connections flat at {most:.0f}" if flat else ""),
            n=int(found.known.sum()),
            advice="If the engine has nobody waiting, raise the server's connection limit (HAProxy `maxconn` on the "
            "server line) to what the engine can run at once. If the engine is full too, the queue is only in a better "
            "place here: bound it (`timeout queue`), shed, or add a replica.",
            price="A higher limit moves the queue into the engine, where nothing bounds it.",
            verify="tailrace diagnose haproxy.log  # after the change: Tw near 0",
            missing=["waiting requests of the engine at the same time (0 clears it)"],
            rivals=["SCHED_QUEUE_SATURATION"],
            disproof_checked=[f"the server's own time is {1 - found.share:.0%} of the slow ones' at most"],
            level=Level.SUSPECTED,
        )
    return None


def connect_in_access(cause: Cause, observed: Observed) -> Finding | None:
    """GW_NETWORK: the time to connect to the upstream."""
    for rows in observed.table("access"):
        found = _part(rows, rows.numbers("upstream_connect"), OWN_SHARE, LEAST_MS)
        if found is None:
            continue
        return cause.finding(
            statement=f"Connecting to the upstream takes {found.share:.0%} of the slowest requests' time "
            f"({found.mean:,.0f} of {found.of:,.0f} ms): the network, or an upstream that accepts late.",
            evidence=found.facts("connecting to the upstream", "connect"),
            explains_ms=found.mean,
            relation=found.relation,
            n=int(found.known.sum()),
            advice="Keep connections alive to the upstream (nginx `keepalive` and an empty Connection header), look at "
            "the route, at lost SYNs (a full accept queue: `ss -lnt`), at DNS and TLS on each request.",
            price="Idle connections cost memory on both sides.",
            verify="tailrace diagnose access.log  # after the change: connect near 0",
            missing=["retransmits or the accept queue of the upstream (nstat, ss -lnt)"],
            disproof_checked=["the rest of the time is smaller than the connect's"]
            if found.share > HALF
            else [f"the rest of the time is {1 - found.share:.0%}"],
            level=Level.SUSPECTED,
        )
    return None


def client_in_access(cause: Cause, observed: Observed) -> Finding | None:
    """CLIENT_SLOW_READER: nginx's request time goes on long after the upstream had given all of a large answer."""
    for rows in observed.table("access"):
        if not rows.has("upstream_last"):
            continue  # only nginx's upstream time ends with the last byte
        upstream = rows.numbers("upstream")
        found = _part(rows, rows.numbers("e2e") - upstream, HALF, CLIENT_MS)
        if found is None:
            continue
        others = found.known.copy()
        others[found.slow] = False
        theirs, usual = float(np.median(upstream[found.slow])), float(np.median(upstream[others]))
        size = rows.numbers("bytes")[found.slow]
        if theirs > UPSTREAM_EVEN * usual or not np.isfinite(size).all() or float(np.median(size)) < SENT:
            continue
        facts = found.facts("after the upstream's last byte (or before its first)", "client")
        facts.append(
            Evidence(
                f"the upstream takes {theirs:,.0f} ms for them, {usual:,.0f} ms for the others (median)",
                rows.place.source, "upstream", theirs, "ms",
            )
        )  # fmt: skip
        facts.append(Evidence(f"{np.median(size):,.0f} bytes were sent to each (median)", rows.place.source, "bytes"))
        return cause.finding(
            statement=f"The client takes its answer slowly: {found.share:.0%} of the slowest requests' time "
            f"({found.mean:,.0f} of {found.of:,.0f} ms) lies outside of the upstream's, which answers them as fast as "
            "the others.",
            evidence=facts,
            explains_ms=found.mean,
            relation=f"request {found.of:,.0f} - upstream {found.of - found.mean:,.0f} = {found.mean:,.0f} ms",
            n=int(found.known.sum()),
            advice="Look at those clients (network, buffer, rendering while reading), send them less, compress; the "
            "engine is not to blame.",
            price="None at the server.",
            verify="tailrace diagnose access.log  # after the client was changed",
            missing=["$request_length and the time of the request's last byte: a slow upload looks alike"],
            rivals=["CLIENT_UPLOAD_LATE", "GW_NETWORK"],
            disproof_checked=[f"upstream time of theirs / of the others' = {theirs / max(usual, 1e-9):.2f}"],
            level=Level.SUSPECTED,
        )
    return None
