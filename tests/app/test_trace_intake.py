"""What holds the receiver together: what it refuses, what it remembers, what it shows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailrace.app.trace_intake import FILE, TraceIntake
from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.amendments import RecentAmendments
from tailrace.gateway.config import Config, config_from
from tailrace.model.amendment import Amendment
from tailrace.model.errors import ConfigError
from tailrace.model.span import Span


def config(folder: Path, **changes: object) -> Config:
    return config_from({"backends": [{"url": "http://127.0.0.1:1"}], "records": {"dir": str(folder)}, **changes})


def span(name: str, number: int, parent: str = "", scope: str = "", **attributes: object) -> Span:
    return Span(
        trace_id="a" * 32,
        span_id=f"{number:016x}",
        parent_span_id=parent,
        name=name,
        scope=scope,
        start_unix_ns=1_000_000_000,
        end_unix_ns=3_000_000_000,
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
    )


class Full:
    """A sink that has no room."""

    def put(self, amendment: Amendment) -> bool:
        return not amendment


@pytest.mark.needs("grpc")
def test_the_network_needs_a_token(tmp_path: Path) -> None:
    far = {"grpc_listen": "0.0.0.0:4317"}
    with pytest.raises(ConfigError) as refused:
        TraceIntake(config(tmp_path, traces=far), RecentAmendments())
    assert "admin_token" in str(refused.value)
    TraceIntake(config(tmp_path, traces=far, admin_token="t"), RecentAmendments())
    TraceIntake(config(tmp_path, traces={"grpc_listen": "127.0.0.1:4317"}), RecentAmendments())


def test_what_is_shown_and_counted(tmp_path: Path) -> None:
    async def test() -> None:
        intake = TraceIntake(config(tmp_path), Full())
        await intake.desk.work(
            iter(
                [
                    span("llm_request", 1, "b" * 16, gen_ai__latency__time_in_queue=0.5),
                    span("llm_request", 2, gen_ai__latency__time_in_queue=0.5),
                    span("else", 3),
                    span("Overall Loading", 4, scope="vllm.v1"),
                ]
            )
        )
        view = intake.view()
        assert view["cold_start_ms"] == 2000.0
        assert view["spans"]["amendments_dropped"] == 1
        assert view["spans"]["unaddressed"] == 1
        assert view["spans"]["startup"] == 1
        assert view["spans"]["not_understood_by_name"] == {"else": 1}
        metrics = GatewayMetrics()
        intake.set_metrics(metrics)
        text = metrics.render()[0].decode()
        assert 'tailrace_spans_total{fate="not_understood"} 1.0' in text
        assert 'tailrace_span_amendments_total{fate="dropped"} 1.0' in text
        assert 'tailrace_engine_cold_start_seconds{part="Overall Loading"} 2.0' in text

    asyncio.run(test())


@pytest.mark.parametrize("damaged", [b"", b"{broken", b"[1]", b"\xff"])
def test_a_damaged_file_of_starts_is_no_start(tmp_path: Path, damaged: bytes) -> None:
    async def test() -> None:
        (tmp_path / FILE).write_bytes(damaged)
        intake = TraceIntake(config(tmp_path), RecentAmendments())
        await intake.start()
        try:
            assert intake.view()["cold_starts"] == []
        finally:
            await intake.close()

    asyncio.run(test())
