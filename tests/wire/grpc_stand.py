"""A gateway between a scripted gRPC engine and gRPC clients, with every record kept. Imports grpcio."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
from tests.kserve_messages import SERVICE
from tests.wire.scripted import ScriptedEngine
from tests.wire.stand import Records

LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0)]


@dataclass
class Rpc:
    """One call as the engine got it."""

    method: str
    context: Any
    metadata: dict[str, Any]
    at: float = field(default_factory=time.monotonic)
    messages: list[bytes] = field(default_factory=list)
    cancelled_at: float | None = None

    async def read(self) -> bytes | None:
        """The next message; `None` at the end."""
        message = await self.context.read()
        if not isinstance(message, bytes):
            return None
        self.messages.append(message)
        return message

    async def send(self, *messages: bytes, gap: float = 0.0) -> None:
        for message in messages:
            await self.context.write(message)
            await asyncio.sleep(gap)

    def status(self, code: grpc.StatusCode, details: str) -> None:
        self.context.set_code(code)
        self.context.set_details(details)

    async def hang(self) -> None:
        """Until the call is cancelled."""
        await asyncio.Event().wait()


Script = Callable[[Rpc], Awaitable[None]]


class GrpcEngine(grpc.GenericRpcHandler):
    """Runs `script` for each call of any method."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[Rpc] = []
        self.open = 0
        self.address = ""
        self.server: Any = None

    def service(self, details: Any) -> Any:
        async def serve(_: object, context: Any) -> None:
            call = Rpc(details.method, context, dict(context.invocation_metadata()))
            self.calls.append(call)
            self.open += 1
            try:
                await self.script(call)
            except asyncio.CancelledError:
                call.cancelled_at = time.monotonic()
                raise
            finally:
                self.open -= 1

        return grpc.stream_stream_rpc_method_handler(serve)

    async def start(self, port: int = 0) -> None:
        self.server = aio.server(options=[*LARGE, ("grpc.so_reuseport", 0)])
        self.server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port(f'127.0.0.1:{port}')}"
        await self.server.start()

    async def die(self) -> None:
        """Everything is gone at once."""
        await self.server.stop(None)


class Cable:
    """A stretch of TCP between two ends, which can be cut."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    def cut(self) -> float:
        """Both ends are reset now; when that was."""
        for writer in self._writers:
            writer.transport.abort()
        return time.monotonic()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.sleep(0.01)


class GrpcStand:
    """Engine, gateway, records, and one client channel."""

    def __init__(self, gateway: Gateway, engine: GrpcEngine, records: Records, channel: Any) -> None:
        self.gateway, self.engine, self._records, self.channel = gateway, engine, records, channel
        assert gateway.rpc is not None
        self.address = f"127.0.0.1:{gateway.rpc.port}"

    @property
    def records(self) -> Records:
        """Every record, those of requests that have just ended included."""
        self.gateway.flush_records()
        return self._records

    def unary(self, name: str = "ModelInfer", service: str = SERVICE) -> Any:
        return self.channel.unary_unary(service + name)

    def stream(self, name: str = "ModelStreamInfer", service: str = SERVICE, **options: Any) -> Any:
        return self.channel.stream_stream(service + name)(**options)

    async def record(self, count: int = 1) -> Any:
        """The newest record, once there are `count`."""
        await self.until(lambda: len(self.records.all) >= count)
        assert len(self.records.all) == count
        return self.records.all[-1]

    async def until(self, what: Callable[[], bool], within: float = 5.0) -> None:
        async with asyncio.timeout(within):
            while not what():  # noqa: ASYNC110
                await asyncio.sleep(0.002)


async def read_all(call: Any) -> list[bytes]:
    """Every message of a call until it ends. Raises the call's error."""
    out = []
    while isinstance(message := await call.read(), bytes):
        out.append(message)
    return out


async def error_of(awaitable: Awaitable[Any]) -> Any:
    """The error that a call ends with."""
    try:
        await awaitable
    except aio.AioRpcError as error:
        return error
    raise AssertionError("the call ended well")


def said(error: Any, name: str) -> Any:
    """A value of the trailing metadata."""
    return dict(error.trailing_metadata()).get(name)


@asynccontextmanager
async def grpc_stand(script: Script, *, channel_options: list[Any] | None = None, **config: Any) -> AsyncIterator[Any]:
    """`config`: keys of the YAML file. Afterwards nothing may be left in any table of the gateway."""

    async def silent(_: Any) -> None:
        raise AssertionError("nothing of these tests comes by HTTP")

    engine = GrpcEngine(script)
    await engine.start()
    async with ScriptedEngine(silent) as side:
        backend = {"url": side.url, "metrics_url": side.url + "/metrics", "grpc_url": engine.address}
        plain = {
            "listen": "127.0.0.1:0",
            "grpc_listen": "127.0.0.1:0",
            "backends": [{**backend, **config.pop("backend", {})}],
            "scrape": {"period": "60s"},
            "records": {"sample": 1.0},
            **config,
        }
        records = Records()
        gateway = Gateway(config_from(plain), records)
        await gateway.start()
        assert gateway.rpc is not None
        channel = aio.insecure_channel(f"127.0.0.1:{gateway.rpc.port}", options=channel_options or LARGE)
        out = GrpcStand(gateway, engine, records, channel)
        try:
            yield out
        finally:
            await gateway.close(0.2)
            await channel.close()
            await engine.server.stop(None)
        assert not gateway.in_flight
        assert gateway.rpc.idle
        assert gateway.counters.record_errors == 0
        for lane in gateway.lanes.snapshot(0).values():
            assert (lane["running"], lane["queued"]) == (0, 0)
