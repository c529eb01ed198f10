"""The engines, how each is started for a scenario, and what it counts of what the clients do."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tailrace.app import llamacpp_engine  # noqa: E402
from tailrace.model.record import RequestRecord  # noqa: E402
from tailrace.store.query import RecordStore  # noqa: E402
from tests.children import Child, tailrace_command  # noqa: E402
from tests.conftest import llamacpp_python, triton_python, vllm_python  # noqa: E402

REAL = ROOT / "tests" / "real"
CONFIG = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
backends:
  - {{url: "{url}", engine: {engine}, metrics_url: "{metrics}"}}
budgets: {{queue: 60s, first_token: 120s, idle: 60s, total: 240s, unstreamed_total: 240s}}
records: {{dir: "{folder}", sample: 1.0}}
"""


@dataclass
class Running:
    """An engine with the gateway in front of it."""

    url: str
    metrics: str
    folder: Path
    model: str

    def records(self, count: int) -> list[RequestRecord]:
        """All records at rest, once there are so many."""
        deadline = time.monotonic() + 20
        while True:
            found = RecordStore(self.folder).records()
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


def _chat(model: str, tokens: int) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me about the river."}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


def _whole_words(model: str, tokens: int) -> tuple[str, dict[str, Any]]:
    # The model of random weights would answer with halves of characters, which are no text.
    path, body = _chat(model, tokens)
    return path, {**body, "allowed_token_ids": list(range(400, 500))}


def _triton(_: str, tokens: int) -> tuple[str, dict[str, Any]]:
    return "/v2/models/count/generate_stream", {"text_input": "count", "max_tokens": tokens}


@dataclass
class Engine:
    """One engine."""

    name: str
    adapter: str
    request: Any
    commands: Mapping[str, Sequence[str]]
    """Scenario -> what is added to the command."""
    counters: Mapping[str, Any]
    """What the clients do -> the engine's counters that should tell; empty where none does."""
    slots: int = 2
    queues: bool = True
    """Whether requests beyond `slots` wait; the Triton model answers them all at once."""
    burst: int = 16
    long: int = 300
    python: Any = field(default=lambda: sys.executable)

    @property
    def scenarios(self) -> list[str]:
        return list(self.commands)

    @contextmanager
    def running(self, folder: Path, scenario: str) -> Iterator[Running]:
        """The engine, then the gateway; both ended after the block."""
        python = self.python()
        if python is None:
            sys.exit(f"{self.name} is not installed: scripts/bench counts installs what it needs")
        flags = [word.format(folder=folder) for word in self.commands[scenario]]
        engine = Child([python, *flags])
        try:
            ready = engine.wait_ready(300).ready
            base = f"http://127.0.0.1:{ready['metrics']}" if "metrics" in ready else ready["url"]
            metrics = f"{base}/metrics"
            text = CONFIG.format(url=ready["url"], engine=self.adapter, metrics=metrics, folder=folder / "data")
            (folder / "tailrace.yaml").write_text(text)
            gateway = Child(tailrace_command("serve", "-c", str(folder / "tailrace.yaml"), "--json"))
            try:
                yield Running(gateway.wait_ready(30).url, metrics, folder / "data", ready.get("model", "random"))
            finally:
                gateway.stop()
        finally:
            engine.stop()


_SIMULATED = ("-m", "tailrace", "engine", "--port", "0", "--json", "--max-num-seqs")
_VLLM = (str(REAL / "vllm_server.py"), "{folder}", "middle", "--max-model-len=512")
_VLLM_COUNTERS = {
    "completed": ('vllm:request_success_total{finished_reason="length"}',),
    "left in mid-stream": ('vllm:request_success_total{finished_reason="abort"}',),
    "left while waiting": ('vllm:request_success_total{finished_reason="abort"}',),
    "refused by the engine": (
        "vllm:admission_rejections_total",
        'http_requests_total{handler="/v1/chat/completions",status="5xx"}',
    ),
    "preemptions": "vllm:num_preemptions_total",
}
ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name="llama.cpp",
            adapter="llamacpp",
            request=_chat,
            commands={"leaving": (str(Path(llamacpp_engine.__file__)), "--slots", "2", "--threads", "1")},
            counters={"completed": (), "left in mid-stream": (), "left while waiting": ()},
            python=llamacpp_python,
        ),
        Engine(
            name="Triton",
            adapter="triton",
            request=_triton,
            commands={"leaving": (str(REAL / "triton_server.py"), "{folder}")},
            counters={
                "completed": ("nv_inference_request_success",),
                "left in mid-stream": ('nv_inference_request_failure{reason="CANCELED"}',),
            },
            queues=False,
            python=triton_python,
        ),
        Engine(
            name="vLLM",
            adapter="vllm",
            request=_whole_words,
            commands={
                "leaving": (*_VLLM, "--max-num-seqs=2", "--num-gpu-blocks-override=200"),
                "burst": (*_VLLM, "--max-num-seqs=2", "--max-num-queued-reqs=6", "--num-gpu-blocks-override=200"),
                "preemption": (*_VLLM, "--max-num-seqs=8", "--num-gpu-blocks-override=40"),
            },
            counters=_VLLM_COUNTERS,
            python=vllm_python,
        ),
        Engine(
            name="simulated",
            adapter="simulated",
            request=_chat,
            commands={
                "leaving": (*_SIMULATED, "2"),
                "burst": (*_SIMULATED, "2", "--max-num-queued-reqs", "6", "--reject-in-stream"),
                "preemption": (*_SIMULATED, "8", "--num-gpu-blocks", "60"),
            },
            counters=_VLLM_COUNTERS,
        ),
    )
}
