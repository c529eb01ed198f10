# ruff: noqa: E501  (lines of logs are as long as they are)
"""Lines of logs as engines and proxies write them, for tests to vary."""

from __future__ import annotations


def clock(second: float, *, month: int = 5, day: int = 11, hour: int = 17) -> str:
    """`05-11 17:00:10`."""
    whole = int(second)
    return f"{month:02d}-{day:02d} {hour + whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def v1(
    second: float,
    *,
    prompt: float = 0.0,
    made: float = 30.0,
    running: int = 1,
    waiting: int = 0,
    kv: float = 5.0,
    engine: int = 0,
    head: str = "(APIServer pid=412) ",
    extra: str = "",
    label: str = "GPU",
    **stamp: int,
) -> str:
    """vLLM V1's load line."""
    return (
        f"{head}INFO {clock(second, **stamp)} [loggers.py:271] Engine {engine:03d}: Avg prompt throughput: {prompt:.1f} "
        f"tokens/s, Avg generation throughput: {made:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs"
        f"{extra}, {label} KV cache usage: {kv:.1f}%, Prefix cache hit rate: 20.0%"
    )


def v0(
    second: float,
    *,
    prompt: float = 0.0,
    made: float = 30.0,
    running: int = 1,
    swapped: int = 0,
    pending: int = 0,
    kv: float = 5.0,
    cpu: float = 0.0,
    bracket: str = "",
) -> str:
    """vLLM V0's load line, whose bracket got lost."""
    return (
        f"INFO {clock(second)} {bracket}metrics.py:349] Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation "
        f"throughput: {made:.1f} tokens/s, Running: {running} reqs, Swapped: {swapped} reqs, Pending: {pending} reqs, "
        f"GPU KV cache usage: {kv:.1f}%, CPU KV cache usage: {cpu:.1f}%."
    )


def decode(
    second: float,
    *,
    made: float = 84.0,
    running: int = 1,
    waiting: int = 0,
    usage: float = 0.1,
    graph: bool = True,
    rank: str = " TP0",
    old: bool = False,
) -> str:
    """SGLang's decode line, in its newer or older form."""
    stamp = f"[2026-{clock(second)}{rank}]"
    if old:
        return (
            f"{stamp} Decode batch. #running-req: {running}, #token: 137, token usage: {usage:.2f}, cuda graph: {graph}, "
            f"gen throughput (token/s): {made:.2f}, #queue-req: {waiting}, "
        )
    return (
        f"{stamp} Decode batch, #running-req: {running}, #full token: 2642, full token usage: {usage:.2f}, #swa token: 14, "
        f"swa token usage: 0.06, cuda graph: {graph}, gen throughput (token/s): {made:.2f}, #queue-req: {waiting}"
    )


def prefill(second: float, *, running: int = 0, tokens: int = 97, rank: str = " TP0") -> str:
    """SGLang's prefill line."""
    return (
        f"[2026-{clock(second)}{rank}] Prefill batch. #new-seq: 1, #new-token: {tokens}, #cached-token: 0, token usage: "
        f"0.00, #running-req: {running}, #queue-req: 0, "
    )


def ingress(second: int, *, status: int = 200, took: str = "1.200", upstream: str = "1.199", size: str = "1841",
            last: str | None = None, addresses: str = "10.0.9.21:9080") -> str:  # fmt: skip
    """nginx ingress; `upstream`, `size` and `last` may be lists with one value an attempt."""
    stamp = f"11/Feb/2026:09:{second // 60:02d}:{second % 60:02d} +0000"
    return (
        f'10.0.4.7 - - [{stamp}] "POST /v1/completions HTTP/2.0" {status} 160 "-" "curl/8.5.0" 1236 {took} [llm-80] [] '
        f"{addresses} {size} {upstream} {last or status} b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2"
    )


def uvicorn(client: str = "10.0.0.3:53214", path: str = "/v1/chat/completions", status: str = "200 OK") -> str:
    """An access line of the engine's API server."""
    method = "GET" if "health" in path else "POST"
    return f'INFO:     {client} - "{method} {path} HTTP/1.1" {status}'


def jit(second: float, kernel: str = "_causal_conv1d_fwd_kernel", **stamp: int) -> str:
    """The line of vLLM's monitor."""
    return (
        f"(EngineCore_0 pid=733) WARNING {clock(second, **stamp)} [jit_monitor.py:88] Triton kernel JIT compilation during "
        f"inference: {kernel}. This causes a latency spike; consider adding the shape to warm-up."
    )
