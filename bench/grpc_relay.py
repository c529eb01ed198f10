"""What the gRPC relay costs: calls and streamed messages through the gateway against the same ones direct.

    python bench/grpc_relay.py [--rounds 5] [--seconds 3]

Three processes: a scripted engine that answers at once, `tailrace serve`, and this client. Direct and relayed rounds
alternate. Printed are medians over the rounds: the latency that the gateway adds to a call at one connection, and its
CPU time per call and per streamed message (from /proc).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from grpc import aio

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.kserve_messages import SERVICE, answer, ask, end, wants_end, whole  # noqa: E402
from tests.wire.grpc_stand import LARGE, GrpcEngine, Rpc  # noqa: E402

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
TOKENS = 200
STREAMS = 16


async def engine() -> None:
    async def script(call: Rpc) -> None:
        message = await call.read()
        if call.method.endswith("ModelInfer"):
            await call.send(whole("1"))
            return
        piece = answer("1")
        for _ in range(TOKENS):
            await call.context.write(piece)
        if message is not None and wants_end(message):
            await call.send(end("1"))

    served = GrpcEngine(script)
    await served.start()
    print(json.dumps({"address": served.address}), flush=True)
    await served.server.wait_for_termination()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


async def calls_for(address: str, seconds: float) -> tuple[int, list[float]]:
    async with aio.insecure_channel(address, options=LARGE) as channel:
        infer = channel.unary_unary(SERVICE + "ModelInfer")
        message = ask("m", "1")
        for _ in range(50):
            await infer(message)
        took: list[float] = []
        until = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < until:
            await infer(message)
            took.append(time.perf_counter() - begin)
        return len(took) + 50, took


async def messages_for(address: str, seconds: float) -> int:
    until = time.perf_counter() + seconds
    count = 0

    async def one(channel: aio.Channel) -> None:
        nonlocal count
        while time.perf_counter() < until:
            call = channel.stream_stream(SERVICE + "ModelStreamInfer")()
            await call.write(ask("m", "1"))
            await call.done_writing()
            while isinstance(await call.read(), bytes):
                count += 1

    async with aio.insecure_channel(address, options=LARGE) as channel:
        await asyncio.gather(*(one(channel) for _ in range(STREAMS)))
    return count


async def measure(direct: str, relayed: str, pid: int, rounds: int, seconds: float) -> dict[str, float]:
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)

    for _ in range(rounds):
        for name, address in (("direct", direct), ("relayed", relayed)):
            before = cpu_s(pid)
            count, took = await calls_for(address, seconds)
            note(f"call_p50_us_{name}", statistics.median(took) * 1e6)
            if name == "relayed":
                note("gateway_cpu_us_per_call", (cpu_s(pid) - before) / count * 1e6)
        before = cpu_s(pid)
        count = await messages_for(relayed, seconds)
        note("gateway_cpu_us_per_message", (cpu_s(pid) - before) / count * 1e6)
        note("messages_per_s_relayed", count / seconds)
        note("messages_per_s_direct", await messages_for(direct, seconds) / seconds)
    return {name: round(statistics.median(values), 1) for name, values in sorted(rows.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine:
        uvloop.run(engine())
        return
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    behind = subprocess.Popen([sys.executable, __file__, "--engine"], stdout=subprocess.PIPE, text=True)
    gateway = None
    try:
        direct = json.loads(behind.stdout.readline())["address"]
        with tempfile.TemporaryDirectory() as folder:
            config = {
                "listen": "127.0.0.1:0",
                "admin": "127.0.0.1:0",
                "grpc_listen": "127.0.0.1:0",
                "backends": [{"url": "http://127.0.0.1:9", "grpc_url": direct}],
                "records": {"dir": folder},
            }
            (Path(folder) / "c.yaml").write_text(json.dumps(config))
            gateway = subprocess.Popen(
                [sys.executable, "-m", "tailrace", "serve", "-c", f"{folder}/c.yaml", "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=env,
            )
            ready = json.loads(gateway.stdout.readline())
            result = uvloop.run(measure(direct, ready["grpc"], gateway.pid, given.rounds, given.seconds))
            gateway.terminate()
            gateway.wait(10)
    finally:
        for child in (behind, gateway):
            if child is not None and child.poll() is None:
                child.kill()
    for name, value in result.items():
        print(f"{name:32} {value:12,.1f}")


if __name__ == "__main__":
    main()
