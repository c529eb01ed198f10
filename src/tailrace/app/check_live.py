"""What running servers say of themselves: an engine's pages, and a gateway's engines, configuration and records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec

from tailrace.engines.base import EngineAdapter
from tailrace.engines.facts import Fact
from tailrace.engines.flags.server_info import read_scheduler
from tailrace.engines.flags.triton_model import TritonModel, triton_model
from tailrace.engines.prometheus_text import Scrape, parse_scrape
from tailrace.engines.registry import ADAPTERS, detect
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.engine_state import EngineState
from tailrace.model.errors import TargetError

_TIMEOUT_S: Final = 10.0
_LARGEST: Final = 16 * 1024 * 1024
_LARGEST_RECORDS: Final = 256 * 1024 * 1024
_MOST_MODELS: Final = 256
_LOOKS: Final = ("/version", "/v1/models", "/metrics", "/v2", "/props", "/info", "/knobs", "/healthz", "/backends")
"""Pages by which servers are told apart; most servers lack most of them."""


class Page(msgspec.Struct, frozen=True):
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; `None` where it is none."""
        try:
            return msgspec.json.decode(self.body) if self.status == 200 else None
        except UNREADABLE:
            return None


class LiveEngine(msgspec.Struct, kw_only=True):
    """One engine."""

    url: str
    name: str = ""
    engine: str = "openai_compatible"
    evidence: str = ""
    metrics_facts: dict[str, Fact] = {}
    facts: dict[str, Fact] = {}
    scrape: Scrape | None = None
    state: EngineState | None = None
    models: list[TritonModel] = []
    not_ready: list[tuple[str, str]] = []
    missing: list[str] = []


class LiveGateway(msgspec.Struct, kw_only=True):
    """A gateway's admin port."""

    url: str
    config: Any = None
    records: bytes = b""


class Live(msgspec.Struct, kw_only=True):
    """Everything behind one address."""

    engines: list[LiveEngine]
    gateway: LiveGateway | None = None


async def look(url: str, *, token: str = "", limit: int = 10_000) -> Live:
    """Look at a server. TargetError where nobody answers."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        pages = await _pages(session, base, _LOOKS)
        if not any(page is not None for page in pages.values()):
            raise TargetError("nobody answers", place=url, remedy="Is it running, and are host and port right?")
        listed = _json(pages, "/backends")
        if isinstance(listed, dict) and isinstance(listed.get("backends"), list) and pages["/healthz"] is not None:
            return await _gateway(session, base, listed["backends"], limit)
        return Live(engines=[await _engine(session, base, pages)])


def _json(pages: Mapping[str, Page | None], path: str) -> Any:
    page = pages.get(path)
    return page.json() if page is not None else None


async def _get(session: aiohttp.ClientSession, url: str, *, most: int = _LARGEST, method: str = "GET") -> Page | None:
    """One page; `None` where nobody answered in time."""
    try:
        async with session.request(method, url) as answer:
            body = await answer.content.read(most)
            while len(body) < most and (more := await answer.content.read(most - len(body))):
                body += more
            return Page(answer.status, {name.lower(): value for name, value in answer.headers.items()}, body)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


async def _pages(session: aiohttp.ClientSession, base: str, paths: tuple[str, ...]) -> dict[str, Page | None]:
    found = await asyncio.gather(*(_get(session, base + path) for path in paths))
    return dict(zip(paths, found, strict=True))


async def _gateway(session: aiohttp.ClientSession, base: str, backends: list[Any], limit: int) -> Live:
    config, records = await asyncio.gather(
        _get(session, f"{base}/config"), _get(session, f"{base}/records?limit={limit}", most=_LARGEST_RECORDS)
    )
    engines = []
    for backend in backends:
        url = backend.get("url") if isinstance(backend, dict) else None
        if not isinstance(url, str) or not url.startswith("http"):
            continue
        base_url = url.rstrip("/")
        # The token of the admin port is none of the engine's business.
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as plain:
            pages = await _pages(plain, base_url, _LOOKS)
            if not any(page is not None for page in pages.values()):
                engines.append(LiveEngine(url=base_url, missing=[f"{base_url}: nobody answers from here"]))
                continue
            engine = await _engine(plain, base_url, pages)
            engine.name = str(backend.get("name") or "")
            engines.append(engine)
    return Live(
        engines=engines,
        gateway=LiveGateway(
            url=base,
            config=config.json() if config is not None else None,
            records=records.body if records is not None and records.status == 200 else b"",
        ),
    )


async def _engine(session: aiohttp.ClientSession, base: str, pages: dict[str, Page | None]) -> LiveEngine:
    metrics = pages.get("/metrics")
    scrape = None
    if metrics is not None and metrics.status == 200:
        scrape = parse_scrape(metrics.body.decode("utf-8", "replace"))
    headers: dict[str, str] = {}
    for page in pages.values():
        headers |= page.headers if page is not None else {}
    found = detect(headers, scrape.names if scrape is not None else ())
    out = LiveEngine(url=base, engine=found.name, evidence=found.evidence, scrape=scrape)
    told = _json(pages, "/v2")
    if isinstance(told, dict) and "triton" in str(told.get("name")):
        out.engine, out.evidence = "triton", "/v2: name"
        out.facts["version"] = Fact(str(told.get("version") or ""), "/v2: version")
        out.models, out.not_ready = await _triton_models(session, base)
    told = _json(pages, "/info")
    if found.confidence == 0 and isinstance(told, dict) and "max_total_tokens" in told:
        out.engine, out.evidence = "tgi", "/info"
    adapter = ADAPTERS.get(out.engine)
    if adapter is None:
        return out
    if scrape is not None and metrics is not None:
        out.metrics_facts = adapter.read_info_metrics(scrape)
        out.state = adapter.parse_metrics(metrics.body.decode("utf-8", "replace"), 0)
    elif adapter.metrics_path is not None:
        out.missing.append(f"{base}{adapter.metrics_path}: no metrics there")
    await _info(session, base, pages, adapter, out)
    return out


def saved_scrape(name: str, text: str) -> LiveEngine:
    """An engine of which only a scrape of `/metrics` is at hand, called `name`."""
    scrape = parse_scrape(text)
    found = detect({}, scrape.names)
    out = LiveEngine(url="", name=name, engine=found.name, evidence=found.evidence, scrape=scrape)
    adapter = ADAPTERS.get(found.name)
    if adapter is not None:
        out.metrics_facts = adapter.read_info_metrics(scrape)
        out.state = adapter.parse_metrics(text, 0)
    return out


async def _info(
    session: aiohttp.ClientSession, base: str, pages: dict[str, Page | None], adapter: EngineAdapter, out: LiveEngine
) -> None:
    """What the engine's own pages say, and its version."""
    paths = [adapter.version_path] if adapter.version_path is not None else []
    for path in [*paths, *adapter.info_paths]:
        page = pages.get(path) if path in pages else await _get(session, base + path)
        if page is not None and page.status == 200:
            out.facts.update(adapter.read_info(path, page.body))
            out.facts.update(read_scheduler(path, page.body))
        else:
            out.missing.append(f"{base}{path}: {page.status if page is not None else 'no answer'}")


async def _triton_models(session: aiohttp.ClientSession, base: str) -> tuple[list[TritonModel], list[tuple[str, str]]]:
    """(configurations of the models that are served, names and reasons of those that are not)."""
    index = await _get(session, f"{base}/v2/repository/index", method="POST")
    names = index.json() if index is not None else None
    out: list[TritonModel] = []
    not_ready: list[tuple[str, str]] = []
    for one in (names if isinstance(names, list) else [])[:_MOST_MODELS]:
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str):
            continue
        if one.get("state") not in {None, "READY"}:
            not_ready.append((name, str(one.get("reason") or "")))
            continue
        page = await _get(session, f"{base}/v2/models/{quote(name, safe='')}/config")
        said = page.json() if page is not None else None
        if isinstance(said, dict):
            out.append(triton_model(said, source=f"/v2/models/{name}/config", name=name))
    return out, not_ready
