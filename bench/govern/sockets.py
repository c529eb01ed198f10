"""The overload scene on real sockets: the simulated engine behind HTTP, the gateway, and load generators."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import scene
import visitors
import yaml

from tailrace.app.children import Child, child_environment
from tailrace.export.jsonl import from_public_json
from tailrace.govern.attainment import met_all
from tailrace.model.outcome import Reason
from tailrace.model.record import RequestRecord
from tailrace.simulate.clients import Call
from tailrace.simulate.free_slots import FreeSlots, RefusedTry
from tailrace.simulate.lane_figures import RefusalFigures, refusal_figures
from tailrace.store.run_file import read_run

CHAT_SHARE = 0.9
_S = 1_000_000_000
_HANDOVER_NS = 1_000_000
"""A place is handed on when the engine's end is read, a moment (0.1 ms) before the last token's write is stamped."""
_AT_ONCE_NS = 1_000_000
"""Who was in the lane for less than this did not wait."""
_CLIENT_LIMITED = 3
"""Exit code of a load test whose own machine was too small: the table says so."""


class Arm(NamedTuple):
    """One load, as its clients saw it."""

    name: str
    rate: float
    chat: int
    chat_failed: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    chat_good: float
    """Chat requests a second within the objectives."""
    documents: int
    served: int
    """Documents that got their answer."""
    refused: int
    with_retry_after: int
    refusals: RefusalFigures | None
    late: str
    """Why the load generator itself was the limit; empty: it was not."""


class Engine(NamedTuple):
    """A simulated engine that serves, as a process."""

    url: str
    model: str
    pid: int


@contextmanager
def engine(policy: str = "fcfs", *, port: int = 0, **knobs: Any) -> Iterator[Engine]:
    """The simulated engine as a server, on a free port or on this one."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**scene.KNOBS, **knobs}.items()]
    with Child.tailrace(
        "engine", "engine", "--preset", scene.PRESET, "--port", str(port), "--policy", policy, *flags
    ) as child:
        yield Engine(child.ready["url"], child.ready["model"], child.ready["pid"])


@contextmanager
def gateway(upstream: str, changes: dict[str, Any] | None = None) -> Iterator[tuple[str, str]]:
    """The gateway with the example's lanes: its two addresses."""
    config = yaml.safe_load(scene.CONFIG.read_text()) | (changes or {})
    config["backends"][0] |= {"url": upstream, "engine": "auto"}
    with serving(config) as where:
        yield where


@contextmanager
def serving(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A gateway of this configuration, with records of its own: its two addresses."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tailrace.yaml"
        path.write_text(yaml.safe_dump({**config, "records": {"dir": str(Path(folder) / "data")}}))
        with Child.tailrace(
            "gateway", "serve", "-c", str(path), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"
        ) as child:
            yield child.ready["url"], child.ready["admin"]


def play(
    name: str, url: str, model: str, rate: float, seconds: float, *, admin: str = "", priority: bool = False
) -> Arm:
    """Chat from `tailrace bench`, documents from clients that read refusals; together the scene's mix."""
    documents = [call for call in scene.calls(rate, seconds) if call.kind != scene.CHAT]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "chat.run"
        command = [
            "bench", url, "--model", model, "--mix", scene.CHAT, "--rate", f"{rate * CHAT_SHARE:g}", "--duration",
            f"{seconds:g}s", "--seed", str(scene.SEED), "--chars-per-token", "4", "--out", str(out), "--json",
        ]  # fmt: skip
        if priority:
            command += ["--header", "x-vllm-priority: -10"]
        seen = asyncio.run(_both(command, url, model, documents, {"x-vllm-priority": "10"} if priority else {}))
        summary, visited = seen
        run = read_run(out)
    chat = [record for record in run.records if (record.run_offset_ns or 0) >= 0]
    bounds = scene.lanes()[0].objectives
    good = sum(met_all(record, bounds) for record in chat)
    ttft = [record.ttft_ns / 1e6 for record in chat if record.ttft_ns is not None and record.outcome == "completed"]
    refused = [one for one in visited if one.status == 429]
    return Arm(
        name=name,
        rate=rate,
        chat=len(chat),
        chat_failed=sum(record.outcome != "completed" for record in chat),
        ttft_p50_ms=float(np.quantile(ttft, 0.5)),
        ttft_p99_ms=float(np.quantile(ttft, 0.99)),
        chat_good=good / seconds,
        documents=len(visited),
        served=sum(one.status == 200 and not one.error for one in visited),
        refused=len(refused),
        with_retry_after=sum(one.retry_after_s is not None for one in refused),
        refusals=_judged(admin, refused) if admin and refused else None,
        late=summary["client"].get("why", "") if summary["client"].get("limited") else "",
    )


async def _both(
    command: list[str], url: str, model: str, documents: list[Call], headers: dict[str, str]
) -> tuple[dict[str, Any], list[visitors.Visit]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tailrace", *command, stdout=asyncio.subprocess.PIPE, env=child_environment()
    )
    assert process.stdout is not None
    visiting = asyncio.ensure_future(visitors.visits(url, model, documents, headers))
    text = await process.stdout.read()
    if await process.wait() not in (0, _CLIENT_LIMITED):
        visiting.cancel()
        raise SystemExit("tailrace bench failed")
    return json.loads(text), await visiting


def backends(**urls: str) -> list[dict[str, Any]]:
    """Their entries in a configuration, by name."""
    return [{"name": name, "url": url} for name, url in urls.items()]


def records_of(admin: str) -> list[RequestRecord]:
    """Everything that the gateway recorded."""
    with urllib.request.urlopen(f"{admin}/records?limit=10000&timeline=0") as answer:
        return [from_public_json(line) for line in answer.read().splitlines()]


def _judged(admin: str, refused: list[visitors.Visit]) -> RefusalFigures:
    """Follow the lane's queue in the gateway's records: what each refusal was told, and when its slot came."""
    told = {one.request_id: one for one in refused}
    slots = FreeSlots()
    records = [record for record in records_of(admin) if record.lane == "document"]
    for at, _, what, request_id in sorted(event for record in records for event in _events(record, told)):
        if what == "queued":
            slots.queued("document", request_id)
        elif what == "granted":
            slots.granted("document", request_id, at)
        elif what == "gone":
            slots.gone("document", request_id)
        elif what == "open":
            slots.open("document", at)
        else:
            slots.refused(_refused_try(told[request_id], at))
    return refusal_figures(slots.refusals)


def _events(record: RequestRecord, told: dict[str, visitors.Visit]) -> list[tuple[int, int, str, str]]:
    """What a record says of its lane: (when, order at the same moment, what, whose)."""
    came = record.start_unix_ns + (record.ingress_ns or 0)
    waited = record.queue_gateway_ns or 0
    if record.request_id in told:
        return [(came, 2, "refused", record.request_id)]
    if waited < _AT_ONCE_NS:
        return [(came, 0, "open", record.request_id)]
    end = "gone" if record.reason is Reason.QUEUE_TIMEOUT else "granted"
    return [(came, 1, "queued", record.request_id), (came + waited, 0, end, record.request_id)]


def _refused_try(one: visitors.Visit, at: int) -> RefusedTry:
    wait = one.predicted_wait_ms
    return RefusedTry(
        at_ns=at,
        request_id=one.request_id,
        lane="document",
        reason=Reason.PREDICTED_WAIT,
        position=one.position or 1,
        predicted_wait_ns=None if wait is None else round(wait * 1e6),
        retry_after_s=one.retry_after_s,
        http_status=one.status,
    )


class Burst(NamedTuple):
    """Forty requests at once, at a limit of four and a queue of four."""

    served: int
    refused: int
    with_retry_after: int
    slowest_refusal_ms: float
    """By the gateway's record; `seen_ms` as its client saw it, with the connection that it opened."""
    seen_ms: float
    most_at_work: int
    """Between their start and their last token."""


def burst() -> Burst:
    """What a burst gets, and how many of it were at the engine at once by the gateway's own records."""
    lanes = [{"name": "all", "running": 4, "queued": 4, "budgets": {"queue": "30s"}}]
    asked = [msgspec.structs.replace(call, at_ns=0) for call in scene.calls(40, 30) if call.kind == scene.CHAT][:40]
    with engine() as (upstream, model, _), gateway(upstream, {"lanes": lanes}) as (url, admin):
        seen = asyncio.run(visitors.visits(url, model, asked))
        records = records_of(admin)
    steps = []
    for record in records:
        if record.outcome == "completed":
            begun = record.start_unix_ns + (record.ingress_ns or 0) + (record.queue_gateway_ns or 0) + _HANDOVER_NS
            steps += [(begun, 1), (record.start_unix_ns + (record.e2e_last_token_ns or record.e2e_ns), -1)]
    refused = [one for one in seen if one.status == 429]
    return Burst(
        served=sum(one.status == 200 for one in seen),
        refused=len(refused),
        with_retry_after=sum(one.retry_after_s is not None for one in refused),
        slowest_refusal_ms=max((record.e2e_ns for record in records if record.http_status == 429), default=0) / 1e6,
        seen_ms=1e3 * max((one.ended - one.begun for one in refused), default=0.0),
        most_at_work=int(max(np.cumsum([step for _, step in sorted(steps)]), default=0)),
    )
