"""An incident on a real engine: the engine as it is wanted, a gateway before it, traffic, and the diagnosis."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tailrace.app import llamacpp_engine
from tests.children import Child, run_tailrace, tailrace_command
from tests.conftest import llamacpp_python, nginx_path
from tests.real.stream_client import body, stream

_BUDGETS = {"queue": "60s", "first_token": "60s", "idle": "60s", "total": "120s", "unstreamed_total": "120s"}
_NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; worker_processes 1;
events {{ worker_connections 128; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{inner}; proxy_read_timeout 60s; {extra} }}
  }}
  server {{
    listen 127.0.0.1:{inner};
    location / {{ proxy_pass {url}; proxy_read_timeout 60s; proxy_buffering off; }}
  }}
}}
"""


class Incident:
    """Gateway → (proxy →) llama.cpp."""

    def __init__(self, gateway: Child, folder: Path) -> None:
        self.url, self.admin, self.folder = gateway.url, gateway.admin, folder

    def records(self) -> Path:
        """The gateway's records so far, as a file."""
        out = self.folder / "records.jsonl"
        with urllib.request.urlopen(f"{self.admin}/records?since=0&limit=10000", timeout=30) as answer:
            out.write_bytes(answer.read())
        return out

    def diagnosis(self, *sources: str, before: Path | None = None) -> dict[str, Any]:
        """What `tailrace diagnose` says of the live gateway."""
        args = ["diagnose", self.admin, *sources, "--json"]
        if before is not None:
            args += ["--before", str(before)]
        done = run_tailrace(*args, timeout=60)
        assert done.returncode == 0, done.stderr
        out: dict[str, Any] = json.loads(done.stdout)
        return out


@contextmanager
def incident(folder: Path, *, engine: Sequence[str] = (), proxy: str | None = None) -> Iterator[Incident]:
    """`engine`: options of the engine; `proxy`: directives of an nginx between gateway and engine.

    Two hops, as an ingress and a sidecar are: nginx passes chunks on as they come even where it is told to buffer, and
    holds them back only of an answer without chunks, which is what the second nginx gives to the first one's HTTP/1.0.
    """
    python = llamacpp_python()
    assert python is not None, 'mark this test with needs("llamacpp")'
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        child = Child([python, str(Path(llamacpp_engine.__file__).resolve()), *engine])
        stack.callback(child.stop)
        url = metrics = child.wait_ready(60).url
        if proxy is not None:
            url = stack.enter_context(_nginx(folder, url, proxy))
        config = {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "backends": [{"url": url, "metrics_url": f"{metrics}/metrics"}],
            "budgets": _BUDGETS,
            "records": {"dir": str(folder / "data"), "sample": 1.0},
        }
        (folder / "tailrace.yaml").write_text(json.dumps(config))
        gateway = Child(tailrace_command("serve", "-c", str(folder / "tailrace.yaml"), "--json"))
        stack.callback(gateway.stop)
        yield Incident(gateway.wait_ready(30), folder)


@contextmanager
def _nginx(folder: Path, url: str, extra: str) -> Iterator[str]:
    program = nginx_path()
    assert program is not None, 'mark this test with needs("nginx")'
    with socket.socket() as one, socket.socket() as two:
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
        port, inner = (probe.getsockname()[1] for probe in (one, two))
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, port=port, inner=inner, url=url, extra=extra))
    child = Child([program, "-c", str(config), "-p", str(folder)])
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (folder / "nginx.log").read_text()
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.stop()


def chat(number: int, *, words: int = 8, tokens: int = 24, **more: Any) -> dict[str, Any]:
    """A short question."""
    return body(f"Question {number}: " + "river " * words, tokens, **more)


def document(number: int, *, words: int = 470, tokens: int = 8, **more: Any) -> dict[str, Any]:
    """A long one."""
    return body(f"Text {number}: " + "stone " * words, tokens, **more)


def keep_asking(
    url: str,
    ask: Callable[[int], dict[str, Any]],
    *,
    clients: int,
    requests: int,
    leave: Callable[[int], int | None] | None = None,
    every_s: float = 0.0,
) -> None:
    """So many requests, `clients` at a time, each client one in `every_s` at most; `leave` says after how many tokens
    the client of a request goes away. A count and no time: a diagnosis needs requests, and machines differ.
    """
    numbers, lock, wrong = iter(range(requests)), threading.Lock(), []

    def client() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            begun = time.monotonic()
            after = None if leave is None else leave(number)
            try:
                answered = stream(url, ask(number), leave_after=after)
            except OSError as error:
                wrong.append(error)
                return
            if after is None and not answered["done"]:
                wrong.append(answered)
            time.sleep(max(0.0, every_s - (time.monotonic() - begun)))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]


def read_slowly(url: str, asked: dict[str, Any], *, every_s: float, at_once: int) -> int:
    """A client whose window is small and that reads `at_once` bytes each `every_s`; how many bytes it got."""
    parts = urlsplit(url)
    data = json.dumps(asked).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(100)
        client.connect((parts.hostname or "", parts.port or 80))
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(data), data)
        )
        got = 0
        while piece := client.recv(at_once):
            got += len(piece)
            time.sleep(every_s)
    return got
