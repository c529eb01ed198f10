"""Under what a run ran: asked of the engine, of this machine and of the spec, before the first request.

Everything is asked at once and has `TOGETHER_S`; what has not been said by then stays unknown. A gateway's data port is
asked nothing: an engine's own paths do not exist there, and each would count as a failure on its dashboards.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tailrace import __version__
from tailrace.engines.base import EngineAdapter
from tailrace.engines.facts import Fact, agreed_facts, merge_facts
from tailrace.engines.nvidia_smi import read_query
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.registry import TELLING_PATHS, adapter, detect, recognise
from tailrace.model.conditions import Conditions
from tailrace.model.thresholds import S
from tailrace.probe.pool import ConnectError, ConnectionPool, ask
from tailrace.probe.spec import BenchSpec
from tailrace.probe.target import Target
from tailrace.workload.arrivals import ArrivalKind
from tailrace.workload.mix import render_mix

TOGETHER_S: Final = 0.6
"""Of the second that lies between the command and its first request."""
_MOST_BYTES: Final = 4 << 20
_MOST_FURTHER: Final = 8
_APART: Final = ("version", "model", "dtype", "quantization")
"""Facts that have a place of their own."""
GATEWAY_HEADER: Final = "x-tailrace-lane"


async def conditions_of(spec: BenchSpec, target: Target) -> Conditions:
    """What is known. Never raises for what a server says or does not say."""
    facts, name, version = await _engine(target)
    gpus = await _gpus(target)
    known = {key: facts[key].value for key in facts}
    return Conditions(
        command=spec.command,
        server=target.server or None,
        engine=name,
        engine_version=_text(known.get("version")) or version or None,
        engine_flags={_own_name(key, fact): fact.value for key, fact in facts.items() if key not in _APART},
        model=target.options.model or _text(known.get("model")),
        dtype=_text(known.get("dtype")),
        quantization=_text(known.get("quantization")),
        gpu=None if gpus is None else [gpu for gpu, _ in gpus],
        gpu_memory_bytes=_total(gpus),
        prompts=prompts_of(spec),
        warmup=warmup_of(spec),
        tool=f"tailrace {__version__}",
        host=host(),
    )


def _text(value: object) -> str | None:
    return str(value) if value is not None and value != "" else None


def _own_name(key: str, fact: Fact) -> str:
    """The engine's own name of a setting stands at the end of the place that says it."""
    return fact.source.rpartition(": ")[2].rpartition(".")[2] or key


def _total(gpus: list[tuple[str, int | None]] | None) -> int | None:
    sizes = [size for _, size in gpus or [] if size is not None]
    return sum(sizes) if gpus and len(sizes) == len(gpus) else None


# -- the spec


def prompts_of(spec: BenchSpec) -> str:
    """What the prompts are, in words; never their text."""
    work = spec.workload
    if spec.prompt is not None:
        return f"one prompt of {len(spec.prompt):,} characters, the same in every request"
    if spec.audio_files:
        return f"recordings: {', '.join(spec.audio_files[:4])}"
    prefix = f", all beginning with the same {spec.shared_prefix} tokens" if spec.shared_prefix else ""
    exact = ", exact by the model's tokenizer" if spec.tokenizer else ""
    if work.conversations:
        return f"{len(work.conversations):,} recorded conversations{exact}"
    if work.trace:
        times = ", at its times" if work.arrivals.kind is ArrivalKind.TRACE else ""
        return f"lengths of a trace of {len(work.trace):,} requests{times}{exact}{prefix}"
    drawn = spec.mix_text or (render_mix(work.mix) if work.mix else "")
    body = ", in a body of the user's own" if spec.template else ""
    return f"made of words, lengths drawn from {drawn}{body}{exact}{prefix}"


def warmup_of(spec: BenchSpec) -> str:
    """How the warm-up was bounded; `none` without one."""
    if spec.warmup_requests:
        return f"{spec.warmup_requests} requests"
    return f"{spec.warmup_ns / S:g} s" if spec.warmup_ns else "none"


# -- this machine


def host() -> dict[str, Any]:
    """The load generator's machine, as far as it tells. No name and no address of it."""
    out: dict[str, Any] = {"os": f"{platform.system()} {platform.release()}", "python": platform.python_version()}
    found = {
        "cpu": _line("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": _cores(),
        "memory_bytes": _memory(),
    }
    return out | {name: value for name, value in found.items() if value}


def _cores() -> int | None:
    """Those that this process may use."""
    with contextlib.suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory() -> int | None:
    with contextlib.suppress(ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _line(path: str, name: str) -> str:
    """The value of the first `name : value` in a file."""
    with contextlib.suppress(OSError), Path(path).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            key, colon, value = line.partition(":")
            if colon and key.strip() == name:
                return value.strip()
    return ""


async def _gpus(target: Target) -> list[tuple[str, int | None]] | None:
    """(name, memory) of this machine's GPUs where the target runs on it; `None`: nobody says."""
    program = shutil.which("nvidia-smi")
    if program is None or not is_local(target):
        return None
    child = None
    try:
        async with asyncio.timeout(TOGETHER_S):
            child = await asyncio.create_subprocess_exec(
                *(program, "--query-gpu=index,name,memory.total", "--format=csv"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            out, _ = await child.communicate()
    except (OSError, TimeoutError):
        return None
    finally:
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    text = out.decode("utf-8", "replace")
    states, _ = read_query(text)
    if not states:
        return [] if "no devices were found" in text.lower() else None
    return [(state.name, state.memory_total_bytes) for state in states]


def is_local(target: Target) -> bool:
    """Whether every address of the target is this machine's loopback."""
    try:
        return bool(target.address.addresses) and all(
            ipaddress.ip_address(numeric.partition("%")[0]).is_loopback for _, numeric in target.address.addresses
        )
    except ValueError:
        return False


# -- the engine


async def _engine(target: Target) -> tuple[Mapping[str, Fact], str | None, str]:
    """(facts, the engine's name, its version as headers tell it)."""
    found = detect(target.headers, target.metric_names)
    name = found.name if found.confidence else None
    if GATEWAY_HEADER in target.headers:
        return {}, name, found.version
    pool = ConnectionPool(target.address, connect_timeout_s=TOGETHER_S)
    asking = _Asking(target, pool)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOGETHER_S):
                await asking.run(None if name is None else adapter(name))
    finally:
        pool.close()
    who = name or (asking.adapter.name if asking.adapter is not None else None)
    return asking.facts(), who, found.version


class _Asking:
    """The engine's pages, all at once; what has come when time is up is what counts."""

    def __init__(self, target: Target, pool: ConnectionPool) -> None:
        self.target = target
        self.pool = pool
        self.adapter: EngineAdapter | None = None
        self.pages: dict[str, bytes] = {}

    async def run(self, known: EngineAdapter | None) -> None:
        self.adapter = known
        if known is None:
            await self.get(*TELLING_PATHS)
            hit = next((hit for path in TELLING_PATHS if (hit := recognise(path, self.pages.get(path, b"")))), None)
            if hit is None:
                return
            self.adapter = adapter(hit.name)
        engine = self.adapter
        assert engine is not None
        metrics = (engine.metrics_path,) if engine.metrics_path is not None and self.target.metric_names else ()
        await self.get(*engine.asked_once(), *metrics)
        further = [path for one in engine.asked_once() for path in engine.further_info(one, self.pages.get(one, b""))]
        await self.get(*further[:_MOST_FURTHER])

    async def get(self, *paths: str) -> None:
        await asyncio.gather(*(self.page(path) for path in dict.fromkeys(paths) if path not in self.pages))

    async def page(self, path: str) -> None:
        with contextlib.suppress(ConnectError):
            request = self.target.envelope.get(path)
            answer = await ask(self.pool, request, timeout_s=TOGETHER_S, limit=_MOST_BYTES)
            if answer.status == 200 and not answer.cut:
                self.pages[path] = answer.body

    def facts(self) -> Mapping[str, Fact]:
        engine = self.adapter
        if engine is None:
            return {}
        said: dict[str, Fact] = {}
        for path in engine.asked_once():
            if path in self.pages:
                page = self.pages[path]
                said = {**engine.read_info(path, page), **engine.read_settings(path, page), **said}
        groups = [
            engine.read_info(path, self.pages[path])
            for one in engine.asked_once()
            for path in engine.further_info(one, self.pages.get(one, b""))
            if path in self.pages
        ]
        metrics: dict[str, Fact] = {}
        if engine.metrics_path is not None and engine.metrics_path in self.pages:
            text = self.pages[engine.metrics_path].decode("utf-8", "replace")
            metrics = engine.read_info_metrics(parse_scrape(text, prefixes=engine.metric_prefixes))
        return merge_facts(metrics, agreed_facts(groups), said).known
