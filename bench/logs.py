"""What reading a log costs: CPU seconds and memory for a gigabyte, by kind of log; and a paste of 10 MB.

    python bench/logs.py [--mb 64] [--json]

A log of `--mb` megabytes is made for each kind and read once; the figure is CPU time of this process scaled to 1 GB.
The budgets: a gigabyte of vLLM's log in 60 s, the first answer to a paste of 10 MB in 2 s.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.readers.logs.log import read_log

GB = 1e9
BUDGET_S = 60.0
PASTE_S = 2.0


def clock(second: int) -> str:
    day, rest = divmod(second, 86400)
    return f"{day // 28 % 12 + 1:02d}-{day % 28 + 1:02d} {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def load_line(index: int) -> str:
    return (
        f"(APIServer pid=434) INFO {clock(index * 10)} [loggers.py:271] Engine 000: Avg prompt throughput: "
        f"{index % 977 * 1.7:.1f} tokens/s, Avg generation throughput: {index % 499 * 2.3:.1f} tokens/s, Running: "
        f"{index % 40} reqs, Waiting: {index % 3} reqs, GPU KV cache usage: {index % 1000 / 10:.1f}%, Prefix cache hit "
        f"rate: {index % 880 / 10:.1f}%\n"
    )


def access_line(index: int) -> str:
    client = f"10.0.{index % 256}.{index % 199}:{20000 + index % 40000}"
    return f'INFO:     {client} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def mixed(index: int) -> str:
    """As a production server writes: mostly access lines, request lines, now and then load, a warning, a traceback."""
    if index % 40 == 0:
        return load_line(index)
    if index % 997 == 0:
        return (
            f"(APIServer pid=434) ERROR {clock(index)} [async_llm.py:906] Traceback (most recent call last):\n"
            f'(APIServer pid=434) ERROR {clock(index)} [async_llm.py:906]   File "async_llm.py", line 849, in handler\n'
        )
    if index % 3 == 0:
        return f"(APIServer pid=434) INFO {clock(index)} [async_llm.py:578] Added request chatcmpl-{index:032x}.\n"
    return access_line(index)


def sglang(index: int) -> str:
    stamp = f"2026-{clock(index)}"
    return (
        f"[{stamp} TP0] Decode batch, #running-req: {index % 40}, #full token: {index % 9999}, full token usage: "
        f"{index % 100 / 100:.2f}, #swa token: 14592, swa token usage: 0.06, cuda graph: True, gen throughput "
        "(token/s): "
        f"{index % 499 * 2.3:.2f}, #queue-req: {index % 3}\n"
    )


def nginx(index: int) -> str:
    took = 0.2 + index % 977 / 50
    return (
        f'10.0.4.7 - - [11/Feb/2026:{index // 3600 % 24:02d}:{index // 60 % 60:02d}:{index % 60:02d} +0000] "POST '
        f'/v1/completions HTTP/2.0" {504 if index % 97 == 0 else 200} 1841 "-" "curl/8.5.0" 912 '
        f"{took:.3f} [llm-gw-80] [] "
        f"10.0.9.{index % 40}:9080 1841 {took - 0.001:.3f} 200 {index:032x}\n"
    )


def envoy(index: int) -> str:
    return json.dumps(
        {
            "start_time": f"2026-02-11T{index // 3600 % 24:02d}:{index // 60 % 60:02d}:{index % 60:02d}.123Z",
            "method": "POST", "path": "/v1/completions", "response_code": 200, "response_flags": "-",
            "bytes_sent": 1841, "duration": 200 + index % 977, "upstream_service_time": "190",
            "upstream_host": f"10.0.9.{index % 40}:8000", "request_id": f"{index:032x}", "user_agent": "curl/8.5.0",
        }
    ) + "\n"  # fmt: skip


KINDS: dict[str, Callable[[int], str]] = {
    "vllm load lines": load_line,
    "vllm production mixture": mixed,
    "sglang decode lines": sglang,
    "nginx ingress": nginx,
    "envoy json": envoy,
}


def write(path: Path, line: Callable[[int], str], size: float) -> int:
    written, index = 0, 0
    with path.open("w") as file:
        while written < size:
            part = "".join(line(number) for number in range(index, index + 5000))
            file.write(part)
            written, index = written + len(part), index + 5000
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=64.0)
    parser.add_argument("--json", action="store_true", help="only the rows")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, line in KINDS.items():
            path = Path(folder) / "a.log"
            size = write(path, line, args.mb * 1e6)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.process_time()
            found = read_log(path, "a.log")
            took = (time.process_time() - start) * GB / size
            grew = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            assert found.understood[0].understood == found.understood[0].total, found.understood
            row = {"name": f"{name}, CPU a GB", "value": round(took, 1), "unit": "s"}
            if name.startswith("vllm"):
                row["budget"] = BUDGET_S
            print(json.dumps(row), flush=True)
            print(json.dumps({"name": f"{name}, memory grew by", "value": round(grew), "unit": "MB"}), flush=True)
        path = Path(folder) / "paste.log"
        size = write(path, mixed, 10e6)
        start = time.process_time()
        diagnose_sources([str(path)])
        row = {"name": "answer to a paste of 10 MB, CPU", "value": time.process_time() - start, "unit": "s"}
        print(json.dumps(row | {"budget": PASTE_S}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
