"""Watching a gateway from outside, through its admin port: what `tailrace top` shows.

Reads `/healthz`, `/lanes`, `/streams`, `/degradation`, `/canary` and `/records?since=`; asks for nothing else and
changes nothing.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec

from tailrace.analyze.bench_summary import completed
from tailrace.analyze.stage_groups import StageGroups, stage_groups
from tailrace.analyze.vantage import without_cached
from tailrace.analyze.window import WindowSummary, default_metric, ended_since, summarise_window
from tailrace.engines.base import NOT_RUN, Basis
from tailrace.export.jsonl import from_public
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError, TargetError
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS, S
from tailrace.store.table import RecordTable
from tailrace.web.source import LaneNow, StreamNow, dropped_by_class, rungs_in_force

__all__ = ["Frame", "GatewayWatch", "Notable", "admin_url"]

DEFAULT_URL: Final = "http://127.0.0.1:9480"
TIMEOUT_S: Final = 5.0
FIRST_LIMIT: Final = 10_000
"""Records asked for on the first look: the most that the admin port gives at once."""
NEXT_LIMIT: Final = 2_000
"""Newest-ended records asked for on each later look."""
MARGIN_NS: Final = 1 * S
RECENT: Final = 50
CLOCK_TOLERANCE_S: Final = 2.0
"""A `Date` header has whole seconds: a smaller difference from our clock is none."""


class Notable(msgspec.Struct, frozen=True, kw_only=True):
    """A slow or unfinished request that ended lately."""

    request_id: str
    ended_unix_ms: int
    lane: str
    model: str
    outcome: str
    reason: str
    died_in: str
    slow: list[str]
    ttft_ms: float | None
    e2e_ms: float


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What one look says."""

    schema: int = 1
    url: str
    upstream: str
    engine: str
    engine_version: str
    engine_reachable: bool | None
    simulated: bool
    uptime_s: float | None
    window_s: float
    limited: bool
    """More requests ended between two looks than were read: the numbers rest on the newest."""
    summary: WindowSummary
    stages: StageGroups
    """Of the time to first token where answers are streamed, of the whole request otherwise."""
    in_flight: int | None
    lanes: dict[str, LaneNow]
    backends: dict[str, dict[str, int]]
    """Engine -> what of ours is with it."""
    cache: dict[str, Any]
    """The response cache's counters; empty where nothing is cached."""
    given_up: list[str]
    """Rungs of the degradation ladder that are in force, in any process."""
    canary: str
    """Its state, its share and what decided it; empty where there is none."""
    streams: list[StreamNow]
    """Oldest first."""
    dropped: dict[str, int]
    loop_lag_ms: float | None
    recent: list[Notable]
    """Newest first."""


def admin_url(text: str) -> str:
    """A gateway's admin address as the user typed it, with a scheme and without a path. InputError when it is none."""
    whole = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(whole)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or " " in whole or port == 0:
        raise InputError(f"{text!r} is no URL", remedy=f"Give a gateway's admin address, for example {DEFAULT_URL}.")
    return f"{parts.scheme}://{parts.netloc}"


class GatewayWatch:
    """Looks at one gateway again and again; holds the records of the last `window_s` seconds."""

    def __init__(self, url: str, *, window_s: float = 60.0, token: str = "") -> None:
        self.url = admin_url(url)
        self._window_s = window_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._records: dict[str, RequestRecord] = {}
        self._since_unix_ns: int | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), trust_env=False
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def look(self) -> Frame:
        """Ask once. TargetError, in one sentence, when nobody answers or what answers is no gateway."""
        health, now_unix_ns = await self._health()
        streams = _list(_object(await self._get("/streams"), "/streams"), "streams")
        lanes = _object(await self._get("/lanes"), "/lanes").get("lanes")
        ladders = _list(_object(await self._get("/degradation"), "/degradation"), "degradation")
        canary = _object(await self._get("/canary"), "/canary").get("canary")
        limited = await self._read_records(now_unix_ns, streams)
        return self._frame(
            health,
            now_unix_ns,
            streams,
            lanes if isinstance(lanes, dict) else {},
            given_up=rungs_in_force(ladders),
            canary=_canary(canary) if isinstance(canary, dict) else "",
            limited=limited,
        )

    # -- asking

    async def _health(self) -> tuple[dict[str, Any], int]:
        assert self._session is not None
        body = _object(await self._get("/healthz"), "/healthz")
        if "started_unix_ns" not in body or "in_flight" not in body:
            raise self._no_gateway("/healthz answers, but not as a gateway does")
        return body, self._now_unix_ns

    async def _get(self, path: str) -> bytes:
        assert self._session is not None
        try:
            async with self._session.get(self.url + path, allow_redirects=False) as answer:
                body = await answer.read()
                self._now_unix_ns = _gateway_clock(answer.headers.get("Date"))
        except TimeoutError:
            raise TargetError(
                f"no answer within {TIMEOUT_S:.0f} s", place=self.url, remedy="Is this a gateway's admin port?"
            ) from None
        except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError, ConnectionError) as error:
            what = "nobody listens there" if isinstance(error, aiohttp.ClientConnectorError) else "it hung up"
            raise TargetError(
                what,
                place=self.url,
                remedy="Start a gateway with `tailrace serve --upstream URL`; its first line names the admin address.",
            ) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise self._no_gateway(f"its answer is no HTTP ({type(error).__name__})") from None
        if answer.status in (401, 403):
            raise TargetError(
                "this admin port asks for a token",
                place=self.url,
                remedy="Give it with --token or TAILRACE_ADMIN_TOKEN.",
            )
        if answer.status != 200:
            raise self._no_gateway(f"{path} answers {answer.status}")
        return body

    def _no_gateway(self, why: str) -> TargetError:
        return TargetError(
            f"this is no Tailrace gateway's admin port: {why}",
            place=self.url,
            remedy=f"Give the admin address that `tailrace serve` prints, by default {DEFAULT_URL}; not the data port.",
        )

    async def _read_records(self, now_unix_ns: int, streams: list[StreamNow]) -> bool:
        """Bring the window up to date; True when more ended than were read."""
        window_ns = int(self._window_s * S)
        first = self._since_unix_ns is None
        since = now_unix_ns - 2 * window_ns - MARGIN_NS if first else self._since_unix_ns
        limit = FIRST_LIMIT if first else NEXT_LIMIT
        lines = (await self._get(f"/records?since={since}&limit={limit}")).splitlines()
        fresh = 0
        for line in lines:
            record = self._record(line)
            fresh += record.request_id not in self._records
            self._records[record.request_id] = record
        # What ends after this look is in flight now, or begins later.
        oldest_ms = max((stream.get("age_ms", 0.0) for stream in streams), default=0.0)
        self._since_unix_ns = now_unix_ns - int(oldest_ms * MS) - MARGIN_NS
        ended_after = now_unix_ns - window_ns
        self._records = {
            key: record for key, record in self._records.items() if record.start_unix_ns + record.e2e_ns >= ended_after
        }
        return len(lines) >= limit and (first or fresh == len(lines))

    def _record(self, line: bytes) -> RequestRecord:
        public = _object(line, "/records")
        # Timelines are big, and nothing here shows one.
        public.pop("timeline", None)
        return from_public(public, place=f"{self.url}/records")

    # -- telling

    def _frame(
        self,
        health: Mapping[str, Any],
        now_unix_ns: int,
        streams: list[StreamNow],
        lanes: dict[str, LaneNow],
        *,
        given_up: list[str],
        canary: str,
        limited: bool,
    ) -> Frame:
        ended = ended_since(RecordTable.from_records(self._records.values()), now_unix_ns - int(self._window_s * S))
        table = without_cached(ended)
        done = table.where(completed(table))
        engine = health.get("engine")
        engine = engine if isinstance(engine, dict) else {}
        store = health.get("store")
        uptime_s = max(0.0, (now_unix_ns - int(health["started_unix_ns"])) / S)
        return Frame(
            url=self.url,
            upstream=str(health.get("upstream", "")),
            engine=str(engine.get("engine") or ""),
            engine_version=_version(engine),
            engine_reachable=engine.get("reachable"),
            simulated=_simulated(engine, streams, self._records.values()),
            uptime_s=uptime_s,
            window_s=self._window_s,
            limited=limited,
            summary=summarise_window(
                table, now_unix_ns=now_unix_ns, window_s=self._window_s, uptime_s=uptime_s, limited=limited
            ),
            stages=stage_groups(done, default_metric(done)),
            in_flight=health.get("in_flight"),
            lanes=lanes,
            backends=health.get("backends") or {},
            cache=health.get("cache") or {},
            given_up=given_up,
            canary=canary,
            streams=sorted(streams, key=lambda stream: -stream.get("age_ms", 0.0)),
            dropped=dropped_by_class(store) if isinstance(store, dict) else {},
            loop_lag_ms=health.get("loop_lag_ms"),
            recent=_recent(self._records.values()),
        )


def _object(body: bytes, path: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except UNREADABLE:
        value = None
    if not isinstance(value, dict):
        raise TargetError(
            f"this is no Tailrace gateway's admin port: {path} is no JSON object",
            remedy="Give the admin address that `tailrace serve` prints.",
        )
    return value


def _list(body: dict[str, Any], name: str) -> list[Any]:
    value = body.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _canary(canary: Mapping[str, Any]) -> str:
    share = canary.get("share")
    part = f", {share:.0%} of the sessions" if isinstance(share, float | int) else ""
    ended = canary.get("state") in ("rolled_back", "promoted", "aborted")
    return f"{canary.get('state', '')}{part}{': ' + str(canary.get('decision', '')) if ended else ''}"


def _gateway_clock(date: str | None) -> int:
    """The gateway's wall clock (ns): its `Date` header where that differs from ours, ours (finer) otherwise."""
    ours = time.time_ns()
    if date is None:
        return ours
    try:
        theirs = email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return ours
    return ours if abs(theirs - ours / S) < CLOCK_TOLERANCE_S else int(theirs * S)


def _version(engine: Mapping[str, Any]) -> str:
    said = str(engine.get("version") or "")
    return f"{said} {NOT_RUN}".strip() if engine.get("basis") == Basis.READ_IN_SOURCE.value else said


def _simulated(engine: Mapping[str, Any], streams: list[StreamNow], records: Any) -> bool:
    """Whether the engine calls itself simulated: it does so in its name, its evidence and its model's name."""
    said = " ".join(str(engine.get(name) or "") for name in ("engine", "version", "evidence"))
    models = [str(stream.get("model", "")) for stream in streams]
    last = next(reversed(list(records)), None)
    models += [] if last is None else [last.model]
    return any("simulated" in text.lower() for text in (said, *models))


def _recent(records: Any) -> list[Notable]:
    found = [record for record in records if record.outcome is not OutcomeKind.COMPLETED or record.slow]
    found.sort(key=lambda record: -(record.start_unix_ns + record.e2e_ns))
    return [
        Notable(
            request_id=record.request_id,
            ended_unix_ms=(record.start_unix_ns + record.e2e_ns) // MS,
            lane=record.lane,
            model=record.model,
            outcome=record.outcome.value,
            reason=record.reason.value,
            died_in=record.died_in,
            slow=record.slow,
            ttft_ms=None if record.ttft_ns is None else record.ttft_ns / MS,
            e2e_ms=record.e2e_ns / MS,
        )
        for record in found[:RECENT]
    ]
