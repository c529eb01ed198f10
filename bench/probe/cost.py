"""What the load generator costs: CPU seconds per 100,000 token events, everything in.

    scripts/bench probe-cost                   # 64 streams, 640 answers of 100 tokens, one event every 20 ms each
    python bench/probe/cost.py --concurrency 128 --requests 1280

The server is a child process that writes prepared bytes, so that its own speed is out of the figure. The CPU time is
that of this process alone, from the look before the run to the summary after it; `--profile` shows where it goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tailrace.probe.run import run_bench
from tailrace.probe.spec import BenchSpec
from tailrace.workload.arrivals import Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload

CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"raw","choices":'
    b'[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class RawServer(asyncio.Protocol):
    """Answers every POST with `max_tokens` events at a fixed distance, usage and end marker last."""

    def __init__(self, gap_s: float) -> None:
        self.gap_s = gap_s
        self.buffer = b""
        self.loop = asyncio.get_running_loop()
        self.chunk = framed(CHUNK)

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        at = head.find(b"content-length: ")
        length = int(head[at + 16 :].split(b"\r\n")[0]) if at >= 0 else 0
        if len(self.buffer) < end + 4 + length:
            return
        body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
        if not body:
            self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        self.left = self.tokens = json.loads(body)["max_tokens"]
        self.transport.write(HEAD)
        self.due = self.loop.time() + self.gap_s
        self.loop.call_at(self.due, self.step)

    def step(self) -> None:
        self.left -= 1
        if self.left:
            self.transport.write(self.chunk)
            self.due += self.gap_s
            self.loop.call_at(self.due, self.step)
            return
        usage = b'{"prompt_tokens":50,"completion_tokens":%d,"total_tokens":0}' % self.tokens
        last = b'data: {"id":"chatcmpl-1","choices":[],"usage":%b}\n\ndata: [DONE]\n\n' % usage
        self.transport.write(self.chunk + framed(last) + b"0\r\n\r\n")


async def serve(gap_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: RawServer(gap_s), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


def measure(args: argparse.Namespace) -> None:
    child = subprocess.Popen(
        [sys.executable, __file__, "--serve", "--gap-ms", str(args.gap_ms)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        spec = BenchSpec(
            url=f"http://127.0.0.1:{port}",
            model="raw",
            workload=Workload(arrivals=Arrivals(concurrency=args.concurrency), mix=parse_mix(f"a=50/{args.tokens}")),
            requests=args.requests,
        )
        with tempfile.TemporaryDirectory() as folder:
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
            summary = uvloop.run(run_bench(spec, out=Path(folder) / "cost.run"))
            after = resource.getrusage(resource.RUSAGE_SELF)
            size = (Path(folder) / "cost.run").stat().st_size
    finally:
        child.terminate()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    events = args.requests * args.tokens
    assert summary.n == args.requests
    assert not summary.errors
    print(
        json.dumps(
            {
                "events": events,
                "wall_s": round(time.monotonic() - began, 2),
                "cpu_s": round(cpu, 2),
                "cpu_s_per_100k_events": round(cpu / events * 1e5, 2),
                "peak_rss_mib": after.ru_maxrss // 1024,
                "run_file_mib": round(size / 2**20, 1),
                "connections": summary.client.connections_opened,
                "loop_lag_p99_ms": summary.client.loop_lag_p99_ms,
                "chunk_gap_p99_ms": summary.metrics["chunk_gap_ms"].p99,
            },
            indent=1,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if args.serve:
        uvloop.run(serve(args.gap_ms / 1000))
    elif args.profile:
        with cProfile.Profile() as profile:
            measure(args)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    else:
        measure(args)


if __name__ == "__main__":
    main()
