"""The installed tool against streams of known truth: through the probe, and through the whole gateway.

A scripted upstream in a process of its own plays every scenario and stamps what it sends. Three vantages are judged:
`client` (the probe, straight at the upstream), `gateway` (the gateway's own records, the probe before it) and `relay`
(the probe's records of those same requests: does the gateway pass streams on as they were?).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import uvloop

from tailrace.app.children import Child
from tailrace.gateway.config import Config
from tailrace.gateway.config_sections import BackendConfig, RecordsConfig
from tailrace.gateway.gateway import Gateway
from tailrace.model.errors import InputError
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS
from tailrace.probe.run import run_bench
from tailrace.probe.spec import BenchSpec
from tailrace.simserve.scenarios import MODEL_PREFIX, SCENARIOS
from tailrace.simserve.truth import Judgement, Tolerance, Truth, judge
from tailrace.store.run_file import read_run
from tailrace.workload.arrivals import Arrivals
from tailrace.workload.length import Fixed
from tailrace.workload.mix import TrafficClass
from tailrace.workload.plan import Workload

CLIENT: Final = "client"
GATEWAY: Final = "gateway"
RELAY: Final = "relay"
VANTAGES: Final = (CLIENT, GATEWAY, RELAY)
_AT_ONCE: Final = 18
"""Streams in flight together; two cores carry them without being late."""
_TRIES: Final = 5
_TOKENS: Final = 40
_THROUGH_A_HOP: Final = Tolerance(ttft_ns=15 * MS)
"""Behind the gateway, the time of one more hop is no error of the load generator."""
_PATIENCE_S: Final = 3.0
"""For records and truths that become final a moment after the client's end."""


class SelftestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario from one vantage."""

    scenario: str
    vantage: str
    ok: bool
    n: int
    must_report: str
    """What the scenario is for."""
    wrong: list[str] = []
    late: list[str] = []
    median_error_ms: dict[str, float] = {}
    tries: int = 1


class SelftestReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace selftest --json` prints."""

    schema: int = 1
    ok: bool
    passed: int
    failed: int
    seconds: float
    rows: list[SelftestRow]


OnRow = Callable[[SelftestRow], None]


def selftest(
    scenarios: Sequence[str] = (), *, requests: int = 6, seed: int = 0, on_row: OnRow | None = None
) -> SelftestReport:
    """Run the scenarios (all of them by default), `requests` of each a vantage. InputError for an unknown name."""
    unknown = [name for name in scenarios if name not in SCENARIOS]
    if unknown:
        raise InputError(
            f"there is no scenario {unknown[0]!r}", place="--scenario", remedy=f"Choose from {', '.join(SCENARIOS)}."
        )
    if requests < 2:
        raise InputError(f"{requests} requests are too few", place="--requests", remedy="Give 2 or more.")
    began = time.monotonic()
    command = [sys.executable, "-m", "tailrace.simserve.scripted", "--seed", str(seed)]
    with Child("scripted upstream", command) as upstream, tempfile.TemporaryDirectory() as folder:
        rows = uvloop.run(
            _run(str(upstream.ready["url"]), scenarios or list(SCENARIOS), requests, Path(folder), on_row)
        )
    passed = sum(row.ok for row in rows)
    return SelftestReport(
        ok=passed == len(rows),
        passed=passed,
        failed=len(rows) - passed,
        seconds=round(time.monotonic() - began, 2),
        rows=rows,
    )


class _KeptRecords:
    """A record sink that keeps everything, by the client's request id."""

    def __init__(self) -> None:
        self.by_client_id: dict[str, RequestRecord] = {}
        self._news = asyncio.Event()

    def put(self, record: RequestRecord) -> bool:
        self.by_client_id[record.client_request_id] = record
        self._news.set()
        return True

    async def wait_for(self, ids: Iterable[str]) -> None:
        """A record is made when the client has drained its answer, a moment after the client saw the end."""
        wanted = list(ids)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while any(one not in self.by_client_id for one in wanted):
                    self._news.clear()
                    await self._news.wait()


async def _run(
    upstream: str, scenarios: Sequence[str], requests: int, folder: Path, on_row: OnRow | None
) -> list[SelftestRow]:
    config = Config(
        listen="127.0.0.1:0",
        backends=[BackendConfig(url=upstream, engine="openai")],
        records=RecordsConfig(sample=1.0),  # every timeline, so that every gap can be judged
    )
    kept = _KeptRecords()
    gateway = Gateway(config, kept)
    await gateway.start()
    try:
        async with aiohttp.ClientSession() as session:
            bench = _Bench(upstream, gateway, kept, session, requests, folder)
            final: dict[tuple[str, str], SelftestRow] = {}
            wanted = list(scenarios)
            for tries in range(1, _TRIES + 1):
                for row in [*await bench.direct(wanted), *await bench.relayed(wanted)]:
                    before = final.get((row.scenario, row.vantage))
                    if before is None or (before.late and not before.wrong):
                        final[row.scenario, row.vantage] = msgspec.structs.replace(row, tries=tries)
                # What missed only times runs again, with less beside it: a busy machine makes late readers, and a
                # meter that is wrong stays wrong.
                wanted = [name for name in wanted if any(r.late and not r.wrong for r in _of(final.values(), name))]
                if not wanted:
                    break
                bench.at_once = max(2, bench.at_once // 3)
    finally:
        await gateway.close(drain_s=0)
    rows = [final[name, vantage] for name in scenarios for vantage in VANTAGES]
    for row in rows:
        if on_row is not None:
            on_row(row)
    return rows


def _of(rows: Iterable[SelftestRow], scenario: str) -> list[SelftestRow]:
    return [row for row in rows if row.scenario == scenario]


def _row(judged: Judgement) -> SelftestRow:
    return SelftestRow(
        scenario=judged.scenario,
        vantage=judged.vantage,
        ok=judged.ok,
        n=judged.n,
        must_report=SCENARIOS[judged.scenario].note,
        wrong=judged.wrong,
        late=judged.late,
        median_error_ms=judged.median_error_ms,
    )


_Pairs = dict[str, list[tuple[RequestRecord, Truth]]]


class _Bench:
    """Runs scenarios in turn, collects the records of every vantage and the truth, and lets them be judged."""

    def __init__(
        self,
        upstream: str,
        gateway: Gateway,
        kept: _KeptRecords,
        session: aiohttp.ClientSession,
        requests: int,
        folder: Path,
    ) -> None:
        self.at_once = _AT_ONCE
        self._upstream = upstream
        self._gateway = gateway
        self._kept = kept
        self._session = session
        self._requests = requests
        self._folder = folder
        self._runs = 0

    async def direct(self, names: Sequence[str]) -> list[SelftestRow]:
        """The probe straight at the upstream."""
        records = await self._load(self._upstream, names)
        truths = await self._truths(names, [record.request_id for record in records])
        pairs: _Pairs = {name: [] for name in names}
        for record in records:
            if (truth := truths.get(record.request_id)) is not None:
                pairs[truth.scenario].append((record, truth))
        return self._judged(pairs, CLIENT)

    async def relayed(self, names: Sequence[str]) -> list[SelftestRow]:
        """The probe through the gateway; rows of the gateway's records, then of the probe's."""
        records = await self._load(self._gateway.url, names)
        await self._kept.wait_for(record.request_id for record in records)
        ours = self._kept.by_client_id
        known = [(record, ours[record.request_id]) for record in records if record.request_id in ours]
        truths = await self._truths(names, [own.request_id for _, own in known])
        gateway: _Pairs = {name: [] for name in names}
        relay: _Pairs = {name: [] for name in names}
        for record, own in known:
            if (truth := truths.get(own.request_id)) is not None:
                gateway[truth.scenario].append((own, truth))
                relay[truth.scenario].append((record, truth))
        return [*self._judged(gateway, GATEWAY), *self._judged(relay, RELAY)]

    def _judged(self, pairs: _Pairs, vantage: str) -> list[SelftestRow]:
        return [
            _row(
                judge(
                    name,
                    found,
                    vantage=vantage,
                    missing=self._requests - len(found),
                    behind_gateway=vantage == RELAY,
                    tolerance=_THROUGH_A_HOP if vantage == RELAY else None,
                )
            )
            for name, found in pairs.items()
        ]

    async def _load(self, url: str, names: Sequence[str]) -> list[RequestRecord]:
        """One load test in which the scenarios take turns; its records as the run file has them."""
        self._runs += 1
        out = self._folder / f"{self._runs}.run"
        shape = TrafficClass(name="truth", weight=1.0, prompt=Fixed(20), output=Fixed(_TOKENS))
        spec = BenchSpec(
            url=url,
            model=_model(names),
            workload=Workload(arrivals=Arrivals(concurrency=self.at_once), mix=[shape]),
            requests=self._requests * len(names),
            chars_per_token=4.0,  # nothing to calibrate
        )
        await run_bench(spec, out=out)
        return list(read_run(out).records)

    async def _truths(self, names: Sequence[str], wanted: list[str]) -> dict[str, Truth]:
        """By the request id that reached the upstream; waits a moment for those that are not final yet."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            async with self._session.get(f"{self._upstream}/truth", params={"model": _model(names)}) as answer:
                lines = (await answer.read()).splitlines()
            truths = [msgspec.json.decode(line, type=Truth) for line in lines]
            found = {truth.request_id: truth for truth in truths}
            if all(one in found for one in wanted) or time.monotonic() > until:
                return found
            await asyncio.sleep(0.01)


def _model(names: Sequence[str]) -> str:
    return MODEL_PREFIX + "+".join(names)
