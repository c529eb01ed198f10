"""vLLM's own benchmark functions as a command: its request function under its semaphore, its schedule, its sums.

    python vllm_client.py FOLDER URL MODEL REQUESTS PROMPT_WORDS OUTPUT (--concurrency C | --rate R)

FOLDER holds `endpoint_request_func.py` and `serve.py` of vLLM's wheel. The command line of `vllm bench serve` needs
the whole engine; these functions need aiohttp, numpy, regex, tqdm and a stub for each import that they do not use here.
No tokenizer is loaded: the server's usage counts the tokens. That spares vLLM the start of `transformers`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

STUBS = {
    "vllm.benchmarks.datasets": ("SampleRequest", "add_dataset_parser", "get_samples"),
    "vllm.benchmarks.lib.ready_checker": ("wait_for_endpoint",),
    "vllm.benchmarks.lib.utils": (
        "convert_to_pytorch_benchmark_format", "redact_sensitive_namespace", "write_to_json",
    ),
    "vllm.tokenizers": ("TokenizerLike", "get_tokenizer"),
    "vllm.utils.argparse_utils": ("FlexibleArgumentParser",),
    "vllm.utils.gc_utils": ("freeze_gc_heap",),
    "vllm.utils.network_utils": ("join_host_port",),
}  # fmt: skip
PERCENTILES = [50.0, 90.0, 99.0]


def load(folder: Path) -> tuple[Any, Any]:
    """The two modules, under the names by which they import each other."""
    for package in ("vllm", "vllm.benchmarks", "vllm.benchmarks.lib", "vllm.utils"):
        sys.modules[package] = ModuleType(package)
    for name, members in STUBS.items():
        stub = sys.modules[name] = ModuleType(name)
        for member in members:
            setattr(stub, member, type(member, (), {}))
    modules = []
    for name, file in (
        ("vllm.benchmarks.lib.endpoint_request_func", "endpoint_request_func.py"),
        ("vllm.benchmarks.serve", "serve.py"),
    ):
        spec = importlib.util.spec_from_file_location(name, folder / file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        modules.append(module)
    return modules[0], modules[1]


async def run(args: argparse.Namespace) -> dict[str, Any]:
    requests, serve = load(Path(args.folder))
    import aiohttp

    prompt = " ".join(["word"] * args.words)
    limit = args.concurrency or 0
    connector = aiohttp.TCPConnector(
        limit=limit, limit_per_host=limit, ttl_dns_cache=300, use_dns_cache=True, keepalive_timeout=60,
        enable_cleanup_closed=False, force_close=False,
    )  # fmt: skip
    turns = asyncio.Semaphore(limit) if limit else None
    # As its command line does before the load.
    gc.collect()
    gc.freeze()
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=6 * 60 * 60)) as session:

        async def one() -> Any:
            asked = requests.RequestFuncInput(
                prompt=prompt,
                api_url=f"{args.url}/v1/chat/completions",
                prompt_len=args.words,
                output_len=args.output,
                model=args.model,
                ignore_eos=True,
            )
            function = requests.async_request_openai_chat_completions
            if turns is None:
                return await function(asked, session)
            async with turns:
                return await function(asked, session)

        began = time.perf_counter()
        rate = args.rate or float("inf")
        schedule = serve.get_request([None] * args.requests, rate, float("inf") if args.rate else 1.0)
        tasks = [asyncio.create_task(one()) async for _ in schedule]
        outputs = await asyncio.gather(*tasks)
        took = time.perf_counter() - began
    sums, _ = serve.calculate_metrics([], outputs, took, None, PERCENTILES, {})
    named = {
        name: {f"p{p:g}": float(value) for p, value in getattr(sums, f"percentiles_{name}_ms")}
        for name in ("ttft", "tpot", "itl", "e2el")
    }
    return {"completed": sums.completed, "failed": sums.failed, "tokens_per_s": sums.output_throughput, **named}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("folder", "url", "model"):
        parser.add_argument(name)
    for name in ("requests", "words", "output"):
        parser.add_argument(name, type=int)
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    Path(args.out).write_text(json.dumps(asyncio.run(run(args))))


if __name__ == "__main__":
    main()
