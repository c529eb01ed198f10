"""Spans of this gateway, wherever they come in: the desk, its takers, the gRPC port, the clock, and what is shown.

One for all processes of a gateway: it is where the admin port is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from tailrace.export.prometheus import GatewayMetrics
from tailrace.gateway.admin import is_loopback
from tailrace.gateway.amendments import AmendmentSink
from tailrace.gateway.applications import ApplicationSpans
from tailrace.gateway.config import Config
from tailrace.gateway.entrance import split_address
from tailrace.gateway.otlp.engine_spans import EngineSpans, Holds, cold_start_view, decode_starts, encode_starts
from tailrace.gateway.otlp.span_desk import SpanDesk
from tailrace.model.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.gateway.otlp.grpc_port import GrpcSpans

log = logging.getLogger(__name__)

_TICK_S: Final = 1.0
FILE: Final = "cold_starts.json"
"""In the data directory: an engine's start is told once, and this process may be started again after it."""


class TraceIntake:
    """`start` binds the gRPC port, where there is one; `close` lets everything go."""

    def __init__(
        self, config: Config, sink: AmendmentSink, applications: ApplicationSpans, *, holds: Holds | None = None
    ) -> None:
        """`holds` tells which records there are.

        ConfigError where the network could reach the port without a token.
        """
        self._holds = holds
        self._config = config
        self._check(config)
        self._engines = EngineSpans(sink)
        self._applications = applications
        self.desk = SpanDesk(self._engines, applications)
        self._grpc: GrpcSpans | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._file = Path(config.records.dir) / FILE
        self._saved = b""

    @staticmethod
    def _check(config: Config) -> None:
        listen = config.traces.grpc_listen
        if listen is None:
            return
        host, _ = split_address(listen, "traces.grpc_listen")
        if not is_loopback(host) and not config.admin_token:
            raise ConfigError(
                "spans would be taken from the network without a token",
                place="traces.grpc_listen",
                remedy="Set `admin_token`, or bind it to 127.0.0.1.",
            )

    async def start(self) -> None:
        """Begin. InputError when the gRPC address cannot be had; `close` still has to be called then."""
        self._engines.earlier = await asyncio.to_thread(self._read)
        listen = self._config.traces.grpc_listen
        if listen is not None:
            # Only here: without this key nothing of gRPC is loaded.
            from tailrace.gateway.otlp.grpc_port import KEY, GrpcSpans  # noqa: PLC0415

            self._grpc = GrpcSpans(self.desk, body_bytes=self._config.traces.body_bytes, token=self._config.admin_token)
            await self._grpc.start(split_address(listen, KEY))
        self._ticking = asyncio.ensure_future(self._tick())

    async def close(self) -> None:
        """Stop taking spans. What waits for a request's first span is let go."""
        ticking, self._ticking = self._ticking, None
        if ticking is not None:
            ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticking
        if self._grpc is not None:
            await self._grpc.close()
        self._applications.close()

    @property
    def grpc_address(self) -> str:
        """Where gRPC is bound; empty without it."""
        return "" if self._grpc is None else self._grpc.address

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                await self._once_a_second()
            except Exception:
                log.exception("spans that came could not be looked after")

    async def _once_a_second(self) -> None:
        self._engines.tick(time_ns())
        self._applications.tick(time_ns())
        if self._holds is not None:
            await self._engines.look_for_records(self._holds, time_ns())
        text = encode_starts(self._engines.cold_starts)
        if len(text) > len("[]") and text != self._saved:
            self._saved = text
            with contextlib.suppress(OSError):  # shown from memory all the same
                await asyncio.to_thread(self._write, text)

    def _read(self) -> list[Any]:
        try:
            return decode_starts(self._file.read_bytes())
        except OSError:
            return []

    def _write(self, text: bytes) -> None:
        new = self._file.with_suffix(f".{os.getpid()}")
        new.write_bytes(text)
        new.replace(self._file)

    # -- what is shown

    def view(self) -> dict[str, Any]:
        """For `/backends`."""
        return {
            **cold_start_view(self._engines.cold_starts),
            "spans": {**self.desk.view(), **self._engines.view()},
            "applications": self._applications.view(),
        }

    def set_metrics(self, metrics: GatewayMetrics) -> None:
        """The numbers of this moment."""
        seen, engines = self.desk.view(), self._engines
        for fate in ("understood", "not_understood", "malformed"):
            metrics.counter("tailrace_spans_total", seen[fate], fate=fate)
        metrics.counter("tailrace_spans_late_total", seen["late"])
        metrics.counter("tailrace_span_posts_refused_total", seen["refused_posts"])
        counts = engines.counts
        metrics.counter("tailrace_spans_orphaned_total", counts["orphaned"])
        for fate, name in (
            ("kept", "amendments"),
            ("dropped", "amendments_dropped"),
            ("joined", "joined"),
            ("unaddressed", "unaddressed"),
        ):
            metrics.counter("tailrace_span_amendments_total", counts[name], fate=fate)
        said = self._applications.view()
        for fate, name in (("kept", "records"), ("dropped", "records_dropped")):
            metrics.counter("tailrace_application_records_total", said[name], fate=fate)
        metrics.counter("tailrace_application_reports_lost_total", sum(said["reports_lost"].values()))
        metrics.clear("tailrace_engine_cold_start_seconds")
        starts = [start for start in engines.cold_starts if start.complete]
        if starts:
            metrics.gauge("tailrace_engine_cold_start_seconds", starts[-1].total_ns / 1e9, part="total")
            for part, value_ns in starts[-1].parts_ns.items():
                metrics.gauge("tailrace_engine_cold_start_seconds", value_ns / 1e9, part=part)
