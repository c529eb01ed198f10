"""The comparison harness: where it is, its scripts, its constants.

It lives beside the project, not in it (`TAILRACE_SHARED`, or `../shared`): a mock upstream that stamps every token, a
load generator that reads those stamps, behaviour probes, configurations of known gateways. Nothing of it is copied;
its programs are run, and its numbers are read from it.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
MOCK_PORT = 18000
"""Its configurations name this upstream."""
MOCK = f"http://127.0.0.1:{MOCK_PORT}"


class HarnessAbsentError(Exception):
    """There is no harness on this machine."""


class Harness:
    """One copy of the harness, read only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def find(cls) -> Harness:
        """Raises `HarnessAbsentError` with where it was looked for."""
        shared = Path(os.environ.get("TAILRACE_SHARED") or ROOT.parent / "shared")
        folder = shared / "bench" / "gateway"
        if not (folder / "loadgen.py").is_file():
            raise HarnessAbsentError(
                f"no gateway harness at {folder}. It is kept beside the project, not in it: set TAILRACE_SHARED to the "
                "folder that has bench/gateway/loadgen.py, or put that folder at ../shared."
            )
        return cls(folder)

    @cached_property
    def known(self) -> dict[str, dict[str, Any]]:
        """Gateways by name: port, start command, headers."""
        return json.loads((self.folder / "gateways.json").read_text())

    @cached_property
    def scenarios(self) -> dict[str, tuple[str, int, int, int]]:
        """Name -> (mode, concurrency, tokens, gap in ms)."""
        return runpy.run_path(str(self.folder / "compare.py"))["SCENARIOS"]

    @cached_property
    def probes(self) -> list[str]:
        """Names of its behaviour probes, in its order."""
        return list(runpy.run_path(str(self.folder / "behaviors.py"))["TESTS"])

    @cached_property
    def usage(self) -> Callable[[list[int]], tuple[float, int]]:
        """(CPU seconds, resident bytes) of whole process trees, as its load generator counts them."""
        return runpy.run_path(str(self.folder / "loadgen.py"))["usage"]

    def run(self, script: str, *args: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """One of its programs, to its end."""
        command = [sys.executable, str(self.folder / script), *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    def load(self, target: dict[str, Any], *args: str) -> dict[str, Any]:
        """One run of the load generator against a target; `{"fatal": text}` when it fails."""
        command = ["--url", target["url"], "--name", target["name"], "--model", target.get("model", "mock"), *args]
        for header in target.get("header", []):
            command += ["--header", header]
        if target.get("key"):
            command += ["--api-key", target["key"]]
        if target.get("pids"):
            command += ["--pids", ",".join(map(str, target["pids"]))]
        ended = self.run("loadgen.py", *command)
        try:
            return json.loads(ended.stdout)
        except ValueError:
            return {"name": target["name"], "fatal": (ended.stderr or ended.stdout)[-500:]}


def control(**settings: float) -> None:
    """Set the mock's behaviour; whatever is not named goes back to its default."""
    asked = "&".join(["reset=1", *(f"{name}={value}" for name, value in settings.items())])
    with urllib.request.urlopen(f"{MOCK}/_ctl?{asked}", timeout=10) as answer:
        answer.read()


def mock_stats() -> dict[str, Any]:
    """Its counters: `active` is what it works on now."""
    with urllib.request.urlopen(f"{MOCK}/_stats", timeout=10) as answer:
        return json.loads(answer.read())
