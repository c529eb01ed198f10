"""The load generators: how each is started as its users start it, and what it reports, in one shape."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from truth_server import ROOT

HERE = Path(__file__).resolve().parent
PEERS = ROOT / ".cache" / "peers"
PROMPT_TOKENS = 60
MODEL = "truth"
"""A name that the server has no scenario for, so that it plays the one it was started with."""


@dataclass(frozen=True)
class Work:
    """What to send: so many requests for so many tokens of a scenario, at once or at a rate (per second)."""

    scenario: str
    requests: int
    output: int
    concurrency: int | None = None
    rate: float | None = None


@dataclass
class Reported:
    """What a tool says (ms, tokens/s); absent where it says nothing."""

    figures: dict[str, float | None] = field(default_factory=dict)
    completed: int = 0
    failed: int = 0
    limited: str = ""
    """What it said of itself as the limit."""


@dataclass(frozen=True)
class Tool:
    """A load generator: `command` gives its command line, `read` what it reported in the folder it ran in."""

    name: str
    title: str
    command: Callable[[str, Work, Path, Path], list[str]]
    """(url, work, tokenizer, folder) -> command line."""
    read: Callable[[Path], Reported]
    gap: str
    """What stands for the gap between two events in its report."""
    absent: Callable[[], str]
    """Why it cannot run here; empty when it can."""


# -- Tailrace


def _tailrace(url: str, work: Work, tokenizer: Path, folder: Path) -> list[str]:
    del tokenizer
    command = [sys.executable, "-m", "tailrace", "bench", url, "--model", MODEL, "--json", "--out"]
    command += [str(folder / "a.run"), "--requests", str(work.requests)]
    command += ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(work.output)]
    if work.rate:
        return [*command, "--rate", f"{work.rate:g}", "--arrival", "constant"]
    return [*command, "--concurrency", str(work.concurrency)]


def _read_tailrace(folder: Path) -> Reported:
    said = json.loads((folder / "stdout").read_text().splitlines()[-1])
    metrics = said["metrics"]
    figures = {f"ttft_p{p}": metrics["ttft_ms"][f"p{p}"] for p in (50, 90, 99)}
    figures |= {
        "gap_p99": metrics["chunk_gap_ms"]["p99"],
        "tpot_p99": metrics["tpot_ms"]["p99"],
        "e2e_p99": metrics["e2e_last_token_ms"]["p99"],
        "tokens_per_s": said["tokens_per_s"],
    }
    failed = sum(said["errors"].values())
    return Reported(figures, said["n"] - failed, failed, said["client"]["why"] if said["client"]["limited"] else "")


# -- vLLM


def _vllm(url: str, work: Work, tokenizer: Path, folder: Path) -> list[str]:
    del tokenizer
    home = PEERS / "vllm-functions"
    command = [str(home / "bin" / "python"), str(HERE / "vllm_client.py"), str(home), url, MODEL]
    command += [str(work.requests), str(PROMPT_TOKENS), str(work.output), "--out", str(folder / "vllm.json")]
    return [*command, "--rate", str(work.rate)] if work.rate else [*command, "--concurrency", str(work.concurrency)]


def _read_vllm(folder: Path) -> Reported:
    said = json.loads((folder / "vllm.json").read_text())
    figures = {f"ttft_p{p}": said["ttft"][f"p{p}"] for p in (50, 90, 99)}
    figures |= {
        "gap_p99": said["itl"]["p99"],
        "tpot_p99": said["tpot"]["p99"],
        "e2e_p99": said["e2el"]["p99"],
        "tokens_per_s": said["tokens_per_s"],
    }
    return Reported(figures, said["completed"], said["failed"])


# -- GuideLLM


def _guidellm(url: str, work: Work, tokenizer: Path, folder: Path) -> list[str]:
    profile = f"kind=constant,rate={work.rate:g}" if work.rate else f"kind=concurrent,streams={work.concurrency}"
    command = [str(PEERS / "guidellm" / "bin" / "guidellm"), "run", "--disable-console-interactive"]
    command += ["--backend", f"kind=openai_http,target={url},model={MODEL}", "--profile", profile]
    command += ["--constraint", f"kind=max_requests,count={work.requests}"]
    command += ["--tokenizer", f"kind=hf_auto,model={tokenizer}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={work.output}"]
    return [*command, "--output", f"kind=json,path={folder / 'guidellm.json'}"]


def _read_guidellm(folder: Path) -> Reported:
    run = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]
    metrics, totals = run["metrics"], run["metrics"]["request_totals"]

    def percentiles(name: str) -> dict[str, float]:
        return metrics[name]["successful"]["percentiles"]

    figures: dict[str, float | None] = {
        f"ttft_p{p}": percentiles("time_to_first_token_ms")[f"p{p}"] for p in (50, 90, 99)
    }
    figures |= {
        "gap_p99": percentiles("inter_token_latency_ms")["p99"],
        "tpot_p99": percentiles("inter_token_latency_ms")["p99"],
        "e2e_p99": percentiles("request_latency")["p99"] * 1000,
        "tokens_per_s": metrics["output_tokens_per_second"]["successful"]["mean"],
    }
    return Reported(figures, totals["successful"], totals["errored"] + totals["incomplete"], _warnings(folder))


# -- AIPerf


def _aiperf(url: str, work: Work, tokenizer: Path, folder: Path) -> list[str]:
    command = [str(PEERS / "aiperf" / "bin" / "aiperf"), "profile", "--model", MODEL, "--url", url, "--ui", "none"]
    command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", str(tokenizer)]
    command += ["--request-count", str(work.requests), "--isl", str(PROMPT_TOKENS), "--isl-stddev", "0"]
    command += ["--osl", str(work.output), "--extra-inputs", "ignore_eos:true"]
    command += ["--output-artifact-dir", str(folder / "artifacts")]
    if work.rate:
        return [*command, "--request-rate", f"{work.rate:g}", "--arrival-pattern", "constant"]
    return [*command, "--concurrency", str(work.concurrency)]


def _read_aiperf(folder: Path) -> Reported:
    said = json.loads((folder / "artifacts" / "profile_export_aiperf.json").read_text())
    rows = (folder / "artifacts" / "profile_export.jsonl").read_text().splitlines()
    failed = sum(bool(json.loads(row).get("error")) for row in rows)

    def of(name: str, which: str) -> float | None:
        return said.get(name, {}).get(which)

    figures = {f"ttft_p{p}": of("time_to_first_token", f"p{p}") for p in (50, 90, 99)}
    figures |= {
        "gap_p99": of("inter_chunk_latency", "p99"),
        "tpot_p99": of("inter_token_latency", "p99"),
        "e2e_p99": of("request_latency", "p99"),
        "tokens_per_s": of("output_token_throughput", "avg"),
    }
    return Reported(figures, len(rows) - failed, failed, _warnings(folder))


_OWN_LIMIT = re.compile(r"root_late|generation.delay|sched.?lag|degraded|event.?loop|client.?limit", re.IGNORECASE)
_WARNS = re.compile("warn", re.IGNORECASE)


def _warnings(folder: Path) -> str:
    """The first line of its output that warns that it could not keep up."""
    said = (folder / "stdout").read_text(errors="replace") + (folder / "stderr").read_text(errors="replace")
    lines = [line.strip() for line in said.splitlines() if _WARNS.search(line) and _OWN_LIMIT.search(line)]
    return lines[0][:200] if lines else ""


# -- all of them


def _peer(name: str, *files: str) -> Callable[[], str]:
    def absent() -> str:
        missing = [one for one in files if not (PEERS / name / one).exists()]
        return f"no {PEERS / name}; scripts/bench probe makes it" if missing else ""

    return absent


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("tailrace", "Tailrace", _tailrace, _read_tailrace, "`chunk_gap_ms`", lambda: ""),
        Tool(
            "vllm",
            "vLLM's functions",
            _vllm,
            _read_vllm,
            "`itl`",
            _peer("vllm-functions", "bin/python", "serve.py", "endpoint_request_func.py"),
        ),
        Tool(
            "guidellm",
            "GuideLLM",
            _guidellm,
            _read_guidellm,
            "`inter_token_latency_ms`, a mean per request",
            _peer("guidellm", "bin/guidellm"),
        ),
        Tool(
            "aiperf",
            "AIPerf",
            _aiperf,
            _read_aiperf,
            "`inter_chunk_latency` of its JSON",
            _peer("aiperf", "bin/aiperf"),
        ),
    )
}


def environment(name: str, folder: Path) -> dict[str, str]:
    """In which a tool runs: its own home, no colours; Tailrace from this tree."""
    # HF_HUB_OFFLINE makes AIPerf refuse a tokenizer in a local directory; nothing is fetched from one anyway.
    env = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", "HOME": str(folder), "NO_COLOR": "1"}
    env.pop("PYTHONPATH", None)
    if name == "tailrace":
        env["PYTHONPATH"] = str(ROOT / "src")
    return env


def version(name: str) -> str:
    """Of a tool, as it tells."""
    if name == "tailrace":
        git = ["git", "-C", str(ROOT)]
        head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
        dirty = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=False)
        state = ", with changes" if dirty.stdout.strip() else ""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        return f"{project.get('version', '?')} ({head.stdout.strip() or 'no git'}{state})"
    if name == "vllm":
        lock = (ROOT / "requirements" / "peers" / "vllm-wheel.txt").read_text()
        found = re.search(r"==([\w.]+)", lock)
        return found.group(1) if found else "?"
    python = PEERS / name / "bin" / "python"
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip() or "?"
