"""`Views`: built views, kept for their refresh period, built in one worker thread, never twice at once.

The gateway's event loop shares its interpreter with this: so a view is built off the loop, for all viewers once,
and the more a build costs the longer it is kept (at most a twentieth of one core goes into the page).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

import msgspec

from tailrace.store.table import RecordTable
from tailrace.web.assets import Asset
from tailrace.web.selection import VANTAGES, WINDOWS_S, Selection
from tailrace.web.source import LiveNow, PageSource
from tailrace.web.view import build_view

REFRESH_S: Final = 2.0
SHARE: Final = 0.05
"""At most this share of one core, averaged, builds views."""
KEPT: Final = 24
"""Selections kept; the least recently asked for goes first."""
ROWS: Final = 20_000
"""Newest records read for one view; the page says so when a window has more."""
SLACK_NS: Final = 120 * 1_000_000_000
"""Tables are asked for by start, windows are by end: a request may have started this much before its window."""

_encode: Final = msgspec.json.Encoder().encode


class _Kept(msgspec.Struct):
    asset: Asset
    until: float
    """Monotonic seconds."""


class Views:
    """A bounded cache of encoded views in front of a `PageSource`."""

    def __init__(
        self,
        source: PageSource,
        *,
        unix_ns: Callable[[], int],
        refresh_s: float = REFRESH_S,
        rows: int = ROWS,
    ) -> None:
        self._source = source
        self._unix_ns = unix_ns
        self._refresh_s = refresh_s
        self._rows = rows
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tailrace-page")
        self._kept: OrderedDict[Selection, _Kept] = OrderedDict()
        self._tables: dict[tuple[str, str], tuple[float, RecordTable]] = {}
        self._building = asyncio.Lock()
        self.builds = 0
        """How many views were built; a test watches it."""

    async def get(self, chosen: Selection) -> Asset:
        """The view as JSON, no older than its period. Callers that come while it is built wait for that build."""
        kept = self._fresh(chosen)
        if kept is None:
            async with self._building:
                kept = self._fresh(chosen) or await self._build(chosen)
        return kept.asset

    def close(self) -> None:
        """Let the worker end; a build under way finishes unseen."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _fresh(self, chosen: Selection) -> _Kept | None:
        kept = self._kept.get(chosen)
        if kept is None or kept.until <= time.monotonic():
            return None
        self._kept.move_to_end(chosen)
        return kept

    async def _build(self, chosen: Selection) -> _Kept:
        started = time.monotonic()
        now = self._unix_ns()
        table = await self._table(chosen, now, started)
        uptime_s = cast("LiveNow", await self._source.live()).get("uptime_s")
        asset, cpu_s = await asyncio.get_running_loop().run_in_executor(
            self._worker, self._work, table, chosen, now, uptime_s
        )
        self.builds += 1
        period = max(self._refresh_s, cpu_s / SHARE)
        # A little less than the period, so that a viewer who polls at that period gets a new view each time.
        kept = self._kept[chosen] = _Kept(asset, started + period * 0.9)
        self._kept.move_to_end(chosen)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return kept

    async def _table(self, chosen: Selection, now: int, started: float) -> RecordTable:
        """One read serves every lane, metric and theme of a window."""
        key = (chosen.window, chosen.vantage)
        known = self._tables.get(key)
        if known is not None and known[0] > started:
            return known[1]
        since = chosen.since_unix_ns(now)
        table = await self._source.table(
            None if since is None else since - SLACK_NS, self._rows, vantage=chosen.vantage
        )
        took = time.monotonic() - started
        # Tables are the big thing here: only those of windows that somebody looks at now are held.
        self._tables = {name: pair for name, pair in self._tables.items() if pair[0] > started}
        self._tables[key] = (started + max(self._refresh_s * 0.8, took / SHARE), table)
        assert len(self._tables) <= len(WINDOWS_S) * len(VANTAGES)
        return table

    def _work(self, table: RecordTable, chosen: Selection, now: int, uptime_s: float | None) -> tuple[Asset, float]:
        began = time.thread_time()
        view = build_view(table, chosen, now_unix_ns=now, limit=self._rows, uptime_s=uptime_s)
        # Level 1: half a millisecond; a view lives for seconds.
        asset = Asset.of(_encode(view), "application/json", level=1)
        return asset, time.thread_time() - began
