"""Live evidence: what a running gateway or engine says about itself, fetched once."""

from __future__ import annotations

import asyncio
import ssl
from time import monotonic_ns

import msgspec

from tailrace.model.errors import TargetError
from tailrace.probe.pool import Answer, ConnectError, ConnectionPool, ask, resolve
from tailrace.probe.request import Envelope
from tailrace.probe.url import Url, parse_url

MAX_BYTES = 256 << 20
"""Of one answer; some 100,000 records as JSON lines."""


class Scrape(msgspec.Struct, frozen=True):
    """One scrape of a metrics endpoint: its text, and our monotonic clock when it had arrived (ns)."""

    text: str
    at_ns: int


class LiveEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a server gave. Parts that it does not have are empty, and `missing` says which and why."""

    url: str
    records: bytes = b""
    """Finished requests as JSON lines, as the admin port of a gateway gives them."""
    applications: bytes = b""
    """The same of the services before it; a gateway of an older version gives its own records again."""
    scrapes: list[Scrape] = []
    """Scrapes of `/metrics`, oldest first; differences need two."""
    signals: bytes = b""
    """What a gateway on the engine's machine has read of it (`/signals`), as it is."""
    happenings: bytes = b""
    """What a gateway says has happened to it (`/happenings`), as it is."""
    missing: list[str] = []


async def fetch_evidence(
    url: str,
    *,
    limit: int = 20_000,
    since: str = "",
    between_s: float = 0.0,
    token: str = "",
    timeout_s: float = 30.0,
) -> LiveEvidence:
    """Fetch `/records`, `/signals`, `/happenings`, `/metrics` of a gateway's admin port, or `/metrics` of an engine.

    `since` goes to `/records` as it is. With `between_s` above 0 the metrics are scraped again after that time.
    Raises `TargetError` when nobody answers or the server has neither.
    """
    target = parse_url(url)
    base = url_base(url)
    tls = ssl.create_default_context() if target.tls else None
    pool = ConnectionPool(await resolve(target.host, target.port, tls), connect_timeout_s=min(timeout_s, 10.0))
    envelope = Envelope(target.host_header, "/", api_key=token)
    missing: list[str] = []
    scrapes: list[Scrape] = []
    applications = b""
    try:
        query = f"?limit={limit}" + (f"&since={since}" if since else "")
        records = await _get(pool, envelope, f"{base}/records{query}", timeout_s)
        signals = happenings = b""
        if records.status != 200:
            missing.append(f"{base}/records: {records.status}")
        else:
            # Older gateways have none, and an engine is not asked.
            answer = await _get(pool, envelope, f"{base}/signals", timeout_s)
            signals = answer.body if answer.status == 200 else b""
            answer = await _get(pool, envelope, f"{base}/happenings", timeout_s)
            happenings = answer.body if answer.status == 200 else b""
            reported = await _get(pool, envelope, f"{base}/records{query}&vantage=application", timeout_s)
            applications = reported.body if reported.status == 200 else b""
        for wait_s in (0.0, between_s) if between_s > 0 else (0.0,):
            await asyncio.sleep(wait_s)
            answer = await _get(pool, envelope, f"{base}/metrics", timeout_s)
            if answer.status != 200:
                missing.append(f"{base}/metrics: {answer.status}")
                break
            scrapes.append(Scrape(answer.body.decode("utf-8", "replace"), answer.at_ns))
    except ConnectError as error:
        raise TargetError(
            f"no answer from {target.origin} ({error})", remedy="Is it running, and are host and port right?"
        ) from None
    finally:
        pool.close()
    if records.status != 200 and not scrapes:
        raise _nothing(target, missing)
    return LiveEvidence(
        url=url,
        records=records.body if records.status == 200 else b"",
        applications=applications,
        scrapes=scrapes,
        signals=signals,
        happenings=happenings,
        missing=missing,
    )


def url_base(url: str) -> str:
    """The path under which a server's own pages lie: that of the URL, without `/v1` or an endpoint at its end."""
    path = parse_url(url).paths[0].partition("?")[0]
    return path.removesuffix("/chat/completions").removesuffix("/completions").removesuffix("/v1")


async def _get(pool: ConnectionPool, envelope: Envelope, path: str, timeout_s: float) -> Answer:
    answer = await ask(pool, envelope.get(path), timeout_s=timeout_s, limit=MAX_BYTES)
    if answer.cut:
        raise ConnectError(answer.cut)
    return answer._replace(at_ns=answer.at_ns or monotonic_ns())


def _nothing(target: Url, missing: list[str]) -> TargetError:
    return TargetError(
        f"{target.origin} has neither records nor metrics ({', '.join(missing)})",
        remedy="Give the admin URL of a gateway, or the base URL of an engine",
    )
