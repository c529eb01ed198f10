"""What an engine is asked once a start: who it is, its version, its precision and sizes; off every request's path.

It is asked when it first answers, when it has been away or counts anew, when it turns out to be another engine than
thought, and every five minutes for its version, which alone may change behind a balancer. What its metrics say of it
is read with the scrape that is due anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

import aiohttp

from tailrace.engines.batches import BatchCounts
from tailrace.engines.facts import CONFIGURATION, Fact, agreed_facts, merge_facts
from tailrace.engines.registry import TELLING_PATHS, recognise
from tailrace.gateway.engine_profile import BatchReading
from tailrace.model.thresholds import S

if TYPE_CHECKING:
    from tailrace.gateway.engine_link import EngineLink

log = logging.getLogger(__name__)

AGENT: Final = {"User-Agent": "tailrace-inquiry"}
_TIMEOUT_S: Final = 2.0
_MAX_BYTES: Final = 1024 * 1024
"""llama.cpp's answer holds its chat template, vLLM's the whole configuration: tens of kilobytes. Decoding as much as
this takes the loop some five milliseconds."""
_VERSION_NS: Final = 300 * S
_AGAIN_NS: Final = 10 * S
_LONGEST_AGAIN_NS: Final = 600 * S
_NO_ANSWER: Final = frozenset({404, 405, 501})
"""The engine has no such path: asking again would change nothing."""


class EngineInquiry:
    """Asks one engine. `start` and `close` own its task; what it learns goes into the link's profile."""

    def __init__(self, link: EngineLink, configured: Mapping[str, str], *, period_ns: int) -> None:
        """`configured`: facts that the operator gives, by key. `period_ns`: how often statistics are read."""
        self._link = link
        self._configured = {key: Fact(value, CONFIGURATION) for key, value in configured.items() if value}
        self._period_s = period_ns / 1e9
        self._from_paths: dict[str, Fact] = {}
        self._from_metrics: dict[str, Fact] = {}
        self.wants_metrics = True
        """The next scrape is to be read for facts, too."""
        self.asked = 0
        """How often the engine has been asked."""
        self._counts: tuple[int, dict[str, BatchCounts]] | None = None
        self._lost = 0
        self._asked_of: object = None
        self._due = 0
        self._pause_ns = _AGAIN_NS
        self._task: asyncio.Task[None] | None = None
        self._merge()

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(self._run())  # noqa: TID251  (owned: `close` cancels and awaits it)

    async def close(self) -> None:
        """Stop and wait."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def again(self) -> None:
        """It may be another one now: it has begun to count anew."""
        self._asked_of = None

    def take_metrics(self, facts: dict[str, Fact]) -> None:
        """What a scrape said."""
        # A starting engine has metrics before it has a cache to tell of.
        self.wants_metrics = not facts
        if facts != self._from_metrics:
            self._from_metrics = facts
            self._merge()

    def forget(self) -> None:
        """The engine is another one than thought: nothing that was read of it holds."""
        self._from_paths, self._from_metrics = {}, {}
        self.wants_metrics = True
        self._merge()

    def _merge(self) -> None:
        self._link.profile.know(merge_facts(self._configured, self._from_metrics, self._from_paths))

    # -- when

    async def _run(self) -> None:
        await self._link.watch.first_answer()
        while True:
            try:
                await self._look(monotonic_ns())
            except Exception:
                # Whatever an engine answers: without facts everything else works.
                log.exception("the engine's answers about itself could not be read")
            await asyncio.sleep(self._period_s)

    async def _look(self, now: int) -> None:
        watch = self._link.watch
        if watch.reachable is not True:
            return
        anew = watch.lost != self._lost or self._asked_of is not self._link.adapter
        if anew or now >= self._due:
            self._lost = watch.lost
            await self._ask(anew=anew)
        if self._link.adapter.statistics_path is not None:
            await self._read_statistics(self._link.adapter.statistics_path)

    # -- what

    async def _ask(self, *, anew: bool) -> None:
        """`anew`: it may be another engine, of which nothing that was told before holds."""
        self.asked += 1
        failed = False
        async with self._link.session(timeout_s=_TIMEOUT_S, headers={**AGENT, **self._link.key_header}) as session:
            if not self._link.recognised:
                for path in TELLING_PATHS:
                    body, lost = await self._get(session, path)
                    failed = failed or lost
                    hit = recognise(path, body) if body else None
                    if hit is not None:
                        self._link.found(hit)
                        break
            adapter = self._asked_of = self._link.adapter
            found: dict[str, Fact] = {}
            further: dict[str, None] = {}
            for path in adapter.asked_once():
                body, lost = await self._get(session, path)
                failed = failed or lost
                if body:
                    # What is asked first is the newer or the better path, so it wins.
                    found = {**adapter.read_info(path, body), **found}
                    further |= dict.fromkeys(adapter.further_info(path, body))
            groups: list[dict[str, Fact]] = []
            for path in further:
                body, lost = await self._get(session, path)
                failed = failed or lost
                if body:
                    groups.append(adapter.read_info(path, body))
        self._pause_ns = min(self._pause_ns * 2, _LONGEST_AGAIN_NS) if failed else _AGAIN_NS
        self._due = monotonic_ns() + (self._pause_ns // 2 if failed else _VERSION_NS)
        # A busy engine that is late with an answer is what it was.
        before = self._from_paths if failed and not anew else {}
        self._from_paths = {**before, **agreed_facts(groups), **found}
        self.wants_metrics = True
        self._merge()

    async def _get(self, session: aiohttp.ClientSession, path: str) -> tuple[bytes, bool]:
        """The answer, empty without one; and whether it may come another time."""
        link = self._link
        try:
            url = f"{link.address.base}{path}"
            async with session.get(url, allow_redirects=False, server_hostname=link.server_name) as answer:
                if answer.status != 200:
                    return b"", answer.status not in _NO_ANSWER and answer.status >= 500
                body = await answer.content.read(_MAX_BYTES)
                while len(body) < _MAX_BYTES and (more := await answer.content.read(_MAX_BYTES - len(body))):
                    body += more
                return body, False
        except (aiohttp.ClientError, TimeoutError, OSError):
            return b"", True

    async def _read_statistics(self, path: str) -> None:
        async with self._link.session(timeout_s=_TIMEOUT_S, headers={**AGENT, **self._link.key_header}) as session:
            body, _ = await self._get(session, path)
        now = monotonic_ns()
        counts = self._link.adapter.read_statistics(body) if body else {}
        before, self._counts = self._counts, (now, counts)
        if before is None:
            return
        batches = self._link.profile.batches
        for model, count in counts.items():
            past = before[1].get(model)
            span = count.since(past) if past is not None else None
            if span is not None:
                batches[model] = BatchReading(span, before[0], now)
        for model in batches.keys() - counts.keys():
            del batches[model]
