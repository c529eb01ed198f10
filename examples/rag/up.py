"""Start the whole example: simulated engine, gateway, search index, service. Ctrl-C ends it.

    python examples/rag/up.py

`--free-ports` picks ports that are free instead of the usual ones; the first line with `--json` says where all are.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60.0


class Started:
    """Child processes, ended together."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[str]] = []

    def run(self, command: Sequence[str], *, says: bool = True, **env: str) -> dict[str, Any]:
        """Start one; where it says so, its first line is JSON that tells where it is."""
        child = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE if says else subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **env},
        )
        self.children.append(child)
        if not says:
            return {}
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            ended = f"{' '.join(command)} ended with exit code {child.wait()} before it was ready"
            raise SystemExit(f"{ended}; where a port is in use, start this with --free-ports")
        ready: dict[str, Any] = json.loads(line)
        return ready

    def stop(self) -> None:
        """End all, the one started last first."""
        for child in reversed(self.children):
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    """Until somebody listens there. No request is sent: it would be one of the service's own."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"nobody answers on port {port}")


def start(started: Started, options: argparse.Namespace, folder: str) -> Mapping[str, str]:
    """Start everything in order; where each is."""
    ports = [0, 0, 0, free_port()] if options.free_ports else [8080, 9480, 7001, 7000]
    engine = started.run(["-m", "tailrace", "engine", "--port", "0" if options.free_ports else "8000", "--json"])
    gateway = started.run(
        [
            *("-m", "tailrace", "serve", "--json", "--upstream", engine["url"], "--data-dir", folder),
            *("--listen", f"127.0.0.1:{ports[0]}", "--admin", f"127.0.0.1:{ports[1]}"),
        ]
    )
    index = started.run([str(HERE / "index.py"), str(ports[2])])
    command = [
        "-m",
        "uvicorn",
        "--app-dir",
        str(HERE),
        "--log-level",
        "warning",
        "--port",
        str(ports[3]),
        "service:app",
    ]
    report = f"{gateway['admin']}/v1/traces"
    started.run(command, says=False, INDEX=index["url"], GATEWAY=gateway["url"], REPORT=report)
    wait_for(ports[3])
    return {
        "service": f"http://127.0.0.1:{ports[3]}",
        "gateway": gateway["url"],
        "admin": gateway["admin"],
        "index": index["url"],
    }


def main() -> None:
    """Start, say where, wait for the end."""
    parser = argparse.ArgumentParser(description="The retrieval example: engine, gateway, index and service.")
    parser.add_argument("--free-ports", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = Started()
    with tempfile.TemporaryDirectory(prefix="tailrace-rag-") as folder:
        try:
            where = start(started, options, folder)
            if options.json:
                sys.stdout.write(json.dumps({"ready": True, **where}) + "\n")
            else:
                sys.stdout.write("".join(f"{name:8} {url}\n" for name, url in where.items()) + "Ctrl-C ends it.\n")
            sys.stdout.flush()
            signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            started.stop()


if __name__ == "__main__":
    main()
