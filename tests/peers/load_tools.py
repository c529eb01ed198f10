"""GuideLLM, AIPerf and vLLM's request functions as commands; what each reports, in one shape."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import ROOT

HERE = Path(__file__).resolve().parent
PEERS = ROOT / ".cache" / "peers"


class Report(NamedTuple):
    """What a tool says of its run."""

    completed: int
    errors: list[str]
    more: dict[str, Any]


class ToolError(Exception):
    """The tool itself failed; its output is the message."""


def _run(command: list[str], folder: Path, *, may_fail: bool = False) -> str:
    # HF_HUB_OFFLINE makes AIPerf refuse a tokenizer in a local directory; nothing is fetched from one anyway.
    env = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", "HOME": str(folder), "NO_COLOR": "1"}
    env.pop("PYTHONPATH", None)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=folder, env=env, check=False)
    if ended.returncode and not may_fail:
        raise ToolError(f"{command[0]} ended with {ended.returncode}:\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}")
    return ended.stdout


def guidellm(url: str, tokenizer: Path, folder: Path, *, requests: int, streams: int) -> Report:
    """`guidellm run` with synthetic text at a fixed concurrency."""
    out = folder / "guidellm.json"
    command = [str(PEERS / "guidellm" / "bin" / "guidellm"), "run", "--disable-console-interactive"]
    command += ["--backend", f"kind=openai_http,target={url}"]
    command += ["--profile", f"kind=concurrent,streams={streams}"]
    command += ["--constraint", f"kind=max_requests,count={requests}"]
    command += ["--tokenizer", f"kind=hf_auto,model={tokenizer}"]
    command += ["--data", "kind=synthetic_text,prompt_tokens=60,output_tokens=20"]
    command += ["--output", f"kind=json,path={out}"]
    _run(command, folder)
    run = json.loads(out.read_text())["benchmarks"][0]
    totals = run["metrics"]["request_totals"]
    errors = [str(one.get("info", {}).get("error")) for one in (run["requests"]["errored"] or [])]
    errors += ["errored"] * (totals["errored"] - len(errors)) + ["incomplete"] * totals["incomplete"]
    return Report(totals["successful"], errors, {})


def aiperf(url: str, model: str, tokenizer: Path, folder: Path, *, requests: int, streams: int) -> Report:
    """`aiperf profile` of the streamed chat endpoint at a fixed concurrency."""
    command = [str(PEERS / "aiperf" / "bin" / "aiperf"), "profile", "--model", model, "--url", url, "--ui", "none"]
    command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", str(tokenizer)]
    command += ["--concurrency", str(streams), "--request-count", str(requests)]
    command += ["--isl", "60", "--isl-stddev", "0", "--osl", "20", "--extra-inputs", "ignore_eos:true"]
    command += ["--output-artifact-dir", str(folder / "artifacts")]
    # It ends with an error when every request failed, and has told of each before.
    _run(command, folder, may_fail=True)
    lines = (folder / "artifacts" / "profile_export.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    errors = [json.dumps(row["error"]) for row in rows if row.get("error")]
    return Report(len(rows) - len(errors), errors, {})


def vllm(url: str, model: str, kind: str, folder: Path, *, requests: int, streams: int, output: int = 20) -> Report:
    """The functions of `vllm bench serve` for chat or completions."""
    home = PEERS / "vllm-functions"
    command = [str(home / "bin" / "python"), str(HERE / "vllm_client.py"), str(home / "endpoint_request_func.py")]
    command += [url, model, kind, str(requests), str(streams), str(output)]
    report = json.loads(_run(command, folder))
    return Report(report.pop("completed"), report.pop("errors"), report)
