"""The gateways under test: how each is started, what version it is, and that all of them end."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

from harness import MOCK, MOCK_PORT, ROOT, Harness

PYTHON_PEERS = ("vllm-router", "sglang-router", "litellm")
SYSTEM_PEERS = ("nginx", "haproxy")
ALL = ("direct", "nginx", "haproxy", "vllm-router", "sglang-router", "litellm", "ref-raw", "tailrace")
TITLES = {
    "direct": "no gateway",
    "ref-raw": "ref-raw (feature-less Python relay)",
    "litellm": "LiteLLM",
    "tailrace": "Tailrace",
}
START_LIMIT_S = 120.0
"""LiteLLM imports for half a minute on a busy machine."""
TAILRACE_PORT, TAILRACE_ADMIN = 18020, 18120


class StartError(Exception):
    """A gateway did not come up."""


def peer_home(name: str) -> Path:
    """The environment that `scripts/bench` makes for a peer from Python's index."""
    return ROOT / ".cache" / "peers" / name


def absent(name: str) -> str:
    """Why a peer cannot run here; nothing where it can."""
    if name in PYTHON_PEERS:
        return "" if (peer_home(name) / "bin" / name).exists() else f"no environment {peer_home(name)}"
    if name in SYSTEM_PEERS:
        return "" if find_program(name) else f"{name} is not installed"
    return ""


def find_program(name: str) -> str | None:
    """A program of the system; Debian keeps servers in sbin, which is not on everybody's path."""
    for folder in [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/usr/local/sbin"]:
        path = Path(folder) / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def listening(port: int) -> bool:
    """Somebody accepts on the loopback address."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class TailraceOptions(NamedTuple):
    """What a Tailrace is started with beside its upstream."""

    config: str = ""
    """The YAML of `-c`; empty: only the options of the command line."""
    port: int = TAILRACE_PORT
    admin: int = TAILRACE_ADMIN


class Stand:
    """The mock and the gateways, for the time of a `with`."""

    def __init__(self, harness: Harness, work: Path, say: Callable[[str], None]) -> None:
        self.harness, self.work, self.say = harness, work, say
        self.mock_pid = 0
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.mock_pid = self._start(
            "mock", [sys.executable, str(self.harness.folder / "mock_upstream.py"), "--port", str(MOCK_PORT)], MOCK_PORT
        )
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._children):
            _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + 10
        for child in self._children:
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(child, signal.SIGKILL)
                child.wait()

    def target(self, name: str) -> dict[str, Any]:
        """Start a gateway by its name; returns what the harness wants to know of it."""
        if name == "tailrace":
            return self.tailrace()
        known = self.harness.known[name]
        target = {"name": name, "url": f"http://127.0.0.1:{known['port']}"}
        target |= {key: known[key] for key in ("key", "header", "model") if key in known}
        if known.get("start"):
            target["pids"] = [self._start(name, self._command(name, known["start"]), known["port"])]
        return target

    def tailrace(self, options: TailraceOptions = TailraceOptions(), name: str = "tailrace") -> dict[str, Any]:  # noqa: B008
        """Our own, started as its user starts it."""
        command = [sys.executable, "-m", "tailrace", "serve", "--upstream", MOCK, "--listen"]
        command += [f"127.0.0.1:{options.port}", "--admin", f"127.0.0.1:{options.admin}"]
        command += ["--data-dir", str(self.work / f"{name}-data")]
        if options.config:
            file = self.work / f"{name}.yaml"
            file.write_text(options.config)
            command += ["--config", str(file)]
        pid = self._start(name, command, options.port)
        url, admin = (f"http://127.0.0.1:{port}" for port in (options.port, options.admin))
        return {"name": name, "url": url, "admin": admin, "pids": [pid]}

    def stop(self, target: dict[str, Any]) -> None:
        """End one gateway before the others."""
        for child in [child for child in self._children if child.pid in target.get("pids", [])]:
            _signal(child, signal.SIGTERM)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                _signal(child, signal.SIGKILL)
                child.wait()
            self._children.remove(child)

    def restart(self, target: dict[str, Any]) -> None:
        """Give a gateway a new process, without a past."""
        if target.get("pids"):
            self.stop(target)
            target |= self.target(target["name"])

    def _command(self, name: str, text: str) -> list[str]:
        for key, value in (
            ("{python}", sys.executable),
            ("{here}", str(self.harness.folder)),
            ("{work}", str(self.work)),
        ):
            text = text.replace(key, shlex.quote(value))
        words = shlex.split(text)
        at = next((index for index, word in enumerate(words) if word == name), None)
        if at is not None and name in PYTHON_PEERS:
            words[at] = str(peer_home(name) / "bin" / name)
        elif at is not None and name in SYSTEM_PEERS:
            words[at] = find_program(name) or name
        return words

    def _start(self, name: str, command: list[str], port: int) -> int:
        if listening(port):
            raise StartError(f"port {port}, which the harness gives to {name}, is taken on this machine")
        (self.work / name).mkdir(exist_ok=True)
        began = time.monotonic()
        path = self.work / f"{name}.log"
        with path.open("wb") as log:
            child = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.work / name
            )
        self._children.append(child)
        while not listening(port):
            if child.poll() is not None or time.monotonic() > began + START_LIMIT_S:
                raise StartError(
                    f"{name} did not start; the end of its log:\n{path.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.1)
        self.say(f"{name} listens on {port} after {time.monotonic() - began:.1f} s")
        return child.pid


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    """To its whole group: routers and LiteLLM have children."""
    if child.poll() is None:
        os.killpg(child.pid, number)


def version(name: str) -> str:
    """What is measured, as it calls itself."""
    if name == "direct":
        return "-"
    if name in PYTHON_PEERS:
        return _installed(str(peer_home(name) / "bin" / "python"), name)
    if name == "ref-raw":
        return f"uvloop {_installed(sys.executable, 'uvloop')}, httptools {_installed(sys.executable, 'httptools')}"
    if name == "tailrace":
        return _output([sys.executable, "-c", "import tailrace; print(tailrace.__version__)"]).strip() + _commit()
    text = _output([find_program(name) or name, "-v"])
    words = text.replace("/", " ").split()
    return next((word.split("-")[0] for word in words if word[:1].isdigit()), "unknown")


def _installed(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return _output([python, "-c", code]).strip() or "unknown"


def _commit() -> str:
    commit = _output(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]).strip()
    changed = _output(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no", "--", "src"]).strip()
    return f" ({commit}{', with changes' if changed else ''})" if commit else ""


def _output(command: list[str]) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return ended.stdout + (ended.stderr if command[-1] == "-v" else "")
