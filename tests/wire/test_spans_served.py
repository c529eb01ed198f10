"""`tailrace serve`, one process and several: spans that come later stand in the records, a start's are remembered."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.wire.client import chat_body, request
from tests.wire.fleet_stand import Fleet, fleet
from tests.wire.scripted import Incoming, ScriptedEngine
from tests.wire.stand import run

pytestmark = pytest.mark.long(reason="starts three processes or more, several seconds on a busy machine")


async def slow_answer(incoming: Incoming) -> None:
    if not incoming.target.startswith("/v1/"):
        await incoming.reply({}, 404)
        return
    await asyncio.sleep(0.05)
    await incoming.stream()


def span(name: str, trace_id: str, parent: str, **attributes: float) -> dict[str, Any]:
    now = time.time_ns()
    return {
        "traceId": trace_id,
        "spanId": "5" * 16,
        "parentSpanId": parent,
        "name": name,
        "startTimeUnixNano": str(now - 50_000_000),
        "endTimeUnixNano": str(now),
        "attributes": [
            {"key": key.replace("__", "."), "value": {"doubleValue": value}} for key, value in attributes.items()
        ],
    }


async def post(served: Fleet, *spans: dict[str, Any], scope: str = "vllm.tracing.otel") -> None:
    body = {"resourceSpans": [{"scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}]}]}
    async with aiohttp.ClientSession() as session, session.post(served.admin + "/v1/traces", json=body) as answer:
        assert answer.status == 200
        assert await answer.json() == {}


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.tier("ci")), 2])
def test_spans_that_come_later_stand_in_the_record(tmp_path: Path, workers: int) -> None:
    async def test() -> None:
        traces = {"share": 1.0, "per_second": 100}
        async with (
            ScriptedEngine(slow_answer) as engine,
            fleet(tmp_path, engine, workers=workers, traces=traces) as served,
        ):
            replies = [await served.ask(request(chat_body())) for _ in range(3)]
            ids = [reply.headers["x-request-id"] for reply in replies]
            asked = {
                one.headers["x-request-id"]: one.headers["traceparent"].split("-")
                for one in engine.requests
                if one.target.startswith("/v1/chat")
            }
            assert {parts[3] for parts in asked.values()} == {"01"}
            for number, request_id in enumerate(ids[:2]):
                _, trace_id, parent, _ = asked[request_id]
                said = {
                    "gen_ai__latency__time_in_queue": 0.004,
                    "gen_ai__latency__time_in_model_prefill": 0.030 + number,
                }
                await post(served, span("llm_request", trace_id, parent, **said))
            await post(served, span("else", "9" * 32, ""))

            async def joined() -> bool:
                records = {one["request_id"]: one for one in await served.records()}
                return "prefill" in records[ids[0]]["stages_ms"]

            await served.until(joined, within=10)
            first, second, third = [await served.get(f"/records/{one}") for one in ids]
            assert first["stages_ms"]["prefill"] == 30.0
            assert first["parts_ms"]["queue.engine"] == 4.0
            assert first["stage_sources"]["prefill"] == "reported(span.gen_ai.latency.time_in_model_prefill)"
            # A second of prefill does not fit into the 50 ms that our clock saw: cut, and said.
            assert second["stages_ms"]["prefill"] < 1000
            assert "clamped from 1030.000 ms" in second["stage_sources"]["prefill"]
            # Its spans never came.
            assert "prefill" not in third["stages_ms"]
            assert third["stage_sources"]["unattributed"] == "inferred(remainder)"
            for record in (first, second, third):
                assert sum(record["stages_ms"].values()) == pytest.approx(record["e2e_ms"], abs=1e-6)

            spans = (await served.get("/backends"))["backends"][0]["spans"]
            assert (spans["received"], spans["understood"], spans["amendments"]) == (3, 2, 2)
            assert spans["not_understood_by_name"] == {"else": 1}
            await post(served, span("llm_request", "8" * 32, "5" * 15 + "4", gen_ai__latency__time_in_queue=0.1))

            async def looked_for() -> bool:
                spans = (await served.get("/backends"))["backends"][0]["spans"]
                return bool((spans["joined"], spans["unjoined"]) == (2, 1))

            await served.until(looked_for, within=10)
            assert await served.metric("tailrace_span_amendments_total", fate="joined") == 2
            assert await served.metric("tailrace_spans_total", fate="understood") == 3
            assert await served.metric("tailrace_span_amendments_total", fate="kept") == 3
            assert await served.metric("tailrace_traces_asked_total", why="share", answer="granted") == 3

    run(test(), within=100)


@pytest.mark.tier("ci")
def test_an_engines_start_is_remembered(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedEngine(slow_answer) as engine:
            async with fleet(tmp_path, engine, workers=1) as served:
                backend = (await served.get("/backends"))["backends"][0]
                assert (backend["cold_start_ms"], backend["cold_starts"]) == (None, [])
                await post(
                    served,
                    {**span("Load weights", "7" * 32, "5" * 16), "spanId": "6" * 16},
                    span("Overall Loading", "7" * 32, ""),
                    scope="vllm.v1.engine",
                )
                backend = (await served.get("/backends"))["backends"][0]
                assert 50 <= backend["cold_start_ms"] < 60
                assert set(backend["cold_starts"][0]["parts_ms"]) == {"Load weights", "Overall Loading"}
                assert 0.05 <= await served.metric("tailrace_engine_cold_start_seconds", part="total") < 0.06
                file = tmp_path / "records" / "cold_starts.json"

                async def kept() -> bool:
                    return file.exists()

                await served.until(kept, within=10)
            async with fleet(tmp_path, engine, workers=2) as served:
                again = (await served.get("/backends"))["backends"][0]
                assert again["cold_starts"] == backend["cold_starts"]

    run(test(), within=100)


@pytest.mark.tier("ci")
@pytest.mark.needs("grpc")
def test_a_fleet_serves_grpc_in_its_supervisor(tmp_path: Path) -> None:
    async def test() -> None:
        traces = {"grpc_listen": "127.0.0.1:0"}
        async with ScriptedEngine(slow_answer) as engine, fleet(tmp_path, engine, workers=2, traces=traces) as served:
            assert served.ready["traces_grpc"].startswith("127.0.0.1:")
            assert not served.ready["traces_grpc"].endswith(":0")

    run(test(), within=100)
