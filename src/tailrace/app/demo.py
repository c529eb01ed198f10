"""The demo: a realistic engine with a bad tail, its diagnosis, the advised change, and the proof.

An engine (simulated, or the real llama.cpp) and a gateway run as child processes; this process is the load. Both arms
have the same arrivals. What is changed between them follows from the diagnosis: a cause for which the demo holds no
remedy, or no cause at all, ends the story there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.analyze.bench_summary import summarise
from tailrace.analyze.compare import compare
from tailrace.analyze.decompose import TailStages, tail_stages
from tailrace.analyze.explanation import Explanation, explain, worst_row
from tailrace.app import llamacpp_engine
from tailrace.app.children import Child
from tailrace.app.diagnose import diagnose_sources
from tailrace.app.http_json import post_json
from tailrace.model.errors import InputError, TailraceError
from tailrace.model.finding import Diagnosis
from tailrace.model.measurement import BenchSummary, Comparison
from tailrace.model.thresholds import Objectives, S
from tailrace.probe.progress import OnProgress
from tailrace.probe.run import Interrupted, run_bench
from tailrace.probe.spec import BenchSpec
from tailrace.store.query import RecordStore
from tailrace.store.run_file import read_run
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload

__all__ = ["DemoInterrupted", "DemoOptions", "DemoResult", "Step", "run_demo"]

SIMULATED: Final = "simulated"
LLAMACPP: Final = "llamacpp"

DEFAULT_ADMIN_PORT: Final = 9480
LLAMACPP_PYTHON: Final = "TAILRACE_LLAMACPP_PYTHON"
"""Environment variable: the interpreter of a virtual environment that has the engine; default: this one."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between the engines on which the story is told."""

    mix: str
    rate: float
    """Requests per second of the open loop."""
    duration_ns: int
    """Length of an arm."""
    document_tokens: int
    """Prompts from this length on go to the lane of long documents."""
    warmup: int
    """Requests before each arm, outside its statistics."""
    budgets: dict[str, str] = {}
    """The gateway's, where its defaults would end what the scene wants to show."""


SCENES: Final[dict[str, Scene]] = {
    # A prompt of 10,000 tokens is one step of about 0.67 s on the A100 preset; with 2 % of the requests such
    # documents, the engine stands still for all others about a sixth of the time, and mean and median hide it.
    SIMULATED: Scene(
        mix="chat=250/40:0.98,document=10000/60:0.02",
        rate=13.0,
        duration_ns=42 * S,
        document_tokens=2000,
        warmup=20,
    ),
    # 169 prompt tokens per CPU-second: a document of 500 tokens stops every stream for about 3 s.
    LLAMACPP: Scene(
        mix="chat=20/16:0.9,document=500/8:0.1",
        rate=0.7,
        duration_ns=60 * S,
        document_tokens=200,
        warmup=2,
        # A document's prefill alone takes most of the default 5 s to the first token, on one CPU thread.
        budgets={"queue": "60s", "first_token": "60s", "idle": "20s", "unstreamed_total": "120s"},
    ),
}


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo changes for a cause: the engine's knobs, then the gateway's lanes."""

    knobs: dict[str, Any]
    llamacpp_batch: int


# The threshold matters as much as chunking itself: without it the document, which came first, fills the whole budget
# of each step, and short prompts behind it still wait for all of it.
_CHUNK: Final = Remedy(
    knobs={"enable_chunked_prefill": True, "max_num_batched_tokens": 1024, "long_prefill_token_threshold": 256},
    llamacpp_batch=64,
)
REMEDIES: Final[dict[str, Remedy]] = {
    "SCHED_PREFILL_STEALS_DECODE": _CHUNK,
    "SCHED_HOL_LONG_PREFILL": _CHUNK,
}
"""Both causes are one long prompt computed in one piece."""


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the story is to be told; `None` takes the engine's own scene."""

    engine: str = SIMULATED
    preset: str = "a100-llama3-8b"
    seed: int = 0
    mix: str | None = None
    rate: float | None = None
    duration_ns: int | None = None
    fault: bool = True
    """False starts the engine as the remedy would leave it: there is nothing to find."""


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace demo --json` prints. `candidate` and `comparison` are null where nothing was changed."""

    schema: int = 1
    engine: str
    simulated: bool
    seed: int
    mix: str
    rate: float
    page: str
    """The gateway's page, open while the demo runs."""
    baseline: BenchSummary
    diagnosis: Diagnosis
    worst: Explanation | None = None
    """Of the chats, the one whose reader waited longest at one time."""
    changes: list[str] = []
    candidate: BenchSummary | None = None
    comparison: Comparison | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the story, for whoever prints it."""

    name: str
    """`starting`, `ready`, `loading`, `measured`, `diagnosed`, `changed`, `compared`."""
    arm: str = ""
    text: str = ""
    page: str = ""
    seconds: float = 0.0
    summary: BenchSummary | None = None
    by_class: dict[str, BenchSummary] = {}
    stages: TailStages | None = None
    diagnosis: Diagnosis | None = None
    worst: Explanation | None = None
    comparison: Comparison | None = None
    changes: list[str] = []


Tell = Callable[[Step], None]


class DemoInterrupted(TailraceError):  # noqa: N818  (named for what happened)
    """Ctrl-C or SIGTERM came before the end of the story."""


async def run_demo(
    options: DemoOptions,
    *,
    tell: Tell,
    stop: asyncio.Event,
    on_progress: OnProgress | None = None,
    until: Callable[[DemoResult], Any] | None = None,
) -> DemoResult:
    """Tell the story once. `until`, if given, is awaited at the end while the gateway's page is still open.

    Raises `InputError` when an engine cannot be started. Setting `stop` ends it early: the arm under way is
    summarised as far as it came, then `DemoInterrupted` is raised.
    """
    scene = _scene(options)
    workload = Workload(
        arrivals=Arrivals(kind=ArrivalKind.POISSON, rate=scene.rate), mix=parse_mix(scene.mix)
    )  # refuses what cannot be sent, before anything is started
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-demo-")))
        tell(Step(name="starting", text=_engine_words(options)))
        engine = _Engine(options, stack)
        gateway = stack.enter_context(_gateway(engine.url, folder, scene.budgets))
        page = str(gateway.ready["admin"]) + "/"
        tell(Step(name="ready", page=page, text=str(gateway.ready["url"])))
        story = _Story(options, scene, workload, engine, gateway, folder, tell, stop, on_progress)
        result = await story.run(page)
        if until is not None:
            await until(result)
        return result


class _Story:
    """The two arms and what happens between them."""

    def __init__(
        self,
        options: DemoOptions,
        scene: Scene,
        workload: Workload,
        engine: _Engine,
        gateway: Child,
        folder: Path,
        tell: Tell,
        stop: asyncio.Event,
        on_progress: OnProgress | None,
    ) -> None:
        self._options = options
        self._scene = scene
        self._workload = workload
        self._engine = engine
        self._gateway = gateway
        self._folder = folder
        self._tell = tell
        self._stop = stop
        self._on_progress = on_progress

    async def run(self, page: str) -> DemoResult:
        baseline = await self._arm("baseline")
        self._go_on()
        diagnosis, worst = await self._diagnose()
        result = DemoResult(
            engine=self._engine.name,
            simulated=self._options.engine == SIMULATED,
            seed=self._options.seed,
            mix=self._scene.mix,
            rate=self._scene.rate,
            page=page,
            baseline=baseline,
            diagnosis=diagnosis,
            worst=worst,
        )
        first = diagnosis.findings[0].code if diagnosis.findings else ""
        remedy = REMEDIES.get(first)
        if remedy is None:
            return result
        self._go_on()
        changes = await self._change(remedy)
        candidate = await self._arm("candidate")
        self._go_on()
        comparison = await asyncio.to_thread(
            compare, read_run(self._run_file("baseline")), read_run(self._run_file("candidate"))
        )
        self._tell(Step(name="compared", comparison=comparison))
        return msgspec.structs.replace(result, changes=changes, candidate=candidate, comparison=comparison)

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise DemoInterrupted("stopped before the story was told")

    def _run_file(self, arm: str) -> Path:
        return self._folder / f"{arm}.run"

    async def _arm(self, arm: str) -> BenchSummary:
        scene = self._scene
        self._tell(Step(name="loading", arm=arm, seconds=scene.duration_ns / S, text=scene.mix))
        spec = BenchSpec(
            url=str(self._gateway.ready["url"]),
            workload=self._workload,
            seed=self._options.seed,
            duration_ns=scene.duration_ns,
            warmup_requests=scene.warmup,
            mix_text=scene.mix,
            objectives=Objectives(),
            notes=[arm],
        )
        try:
            summary = await run_bench(spec, out=self._run_file(arm), on_progress=self._on_progress, stop=self._stop)
        except Interrupted:
            raise DemoInterrupted("stopped before the first request was sent") from None
        stages, by_class = await asyncio.to_thread(self._look, arm)
        self._tell(Step(name="measured", arm=arm, summary=summary, by_class=by_class, stages=stages))
        return summary

    def _look(self, arm: str) -> tuple[TailStages | None, dict[str, BenchSummary]]:
        """Where the time of the tail of short requests went, by the gateway's records; and the arm by class."""
        run = read_run(self._run_file(arm))
        gateway = RecordStore(self._folder / "records").table(since_unix_ns=run.header.started_unix_ns)
        # The documents are slow by nature; the question is what happened to everybody else.
        # And only the measured ones: the warm-up and the look at the target went through the gateway too.
        mine = np.isin(gateway.column("client_request_id").astype(str), [one.request_id for one in run.records])
        gateway = gateway.where(mine & (gateway.column("prompt_tokens") <= self._scene.document_tokens))
        stages = tail_stages(gateway, p=0.99) if len(gateway) else None
        table = run.table()
        classes = [one.name for one in self._workload.mix]
        return stages, {name: summarise(table.where(table.column("lane") == name)) for name in classes}

    async def _diagnose(self) -> tuple[Diagnosis, Explanation | None]:
        # The gateway's records: they know the engine's own stages, the load generator's do not.
        diagnosis = await asyncio.to_thread(diagnose_sources, [str(self._folder / "records")])
        worst = await asyncio.to_thread(self._worst)
        self._tell(Step(name="diagnosed", diagnosis=diagnosis, worst=worst))
        return diagnosis, worst

    def _worst(self) -> Explanation | None:
        """The chat that waited longest, explained; `None` where no chat came through."""
        table = RecordStore(self._folder / "records").table(with_timelines=True)
        chats = np.flatnonzero(table.column("prompt_tokens").astype(float) <= self._scene.document_tokens)
        try:
            return explain(table, int(chats[worst_row(table.where(chats))]))
        except ValueError:
            return None

    async def _change(self, remedy: Remedy) -> list[str]:
        changes = [await self._engine.change(remedy)]
        tokens = self._scene.document_tokens
        lanes = [
            {
                "name": "interactive",
                "match": {"max_prompt_tokens": tokens},
                "running": 64,
                "queued": 128,
                "order": "first_come",
            },
            {
                "name": "long_document",
                "match": {"min_prompt_tokens": tokens + 1},
                "running": 1,
                "queued": 32,
                "order": "first_come",
                # A document may wait: refusing it at the interactive budget would only hide the price.
                "budgets": {"queue": "60s", "first_token": "60s", "idle": "10s"},
            },
        ]
        await post_json(str(self._gateway.ready["admin"]) + "/lanes", {"lanes": lanes})
        changes.append(
            f"gateway: two first-come lanes, interactive (up to {tokens} prompt tokens, 64 at once) and "
            "long_document (1 at once)"
        )
        self._tell(Step(name="changed", changes=changes))
        return changes


class _Engine:
    """The engine under the gateway: simulated, or a real llama.cpp with the small SmolLM2 model."""

    def __init__(self, options: DemoOptions, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._llamacpp = options.engine == LLAMACPP
        if self._llamacpp:
            self._child = stack.enter_context(_llamacpp(batch=512 if options.fault else 64, port=_free_port()))
            self.name = f"llama.cpp {self._child.ready['model']}"
        else:
            flag = "--no-chunked-prefill" if options.fault else "--chunked-prefill"
            arguments = ["--preset", options.preset, "--port", "0", "--seed", str(options.seed), flag]
            if not options.fault:
                for knob in ("max_num_batched_tokens", "long_prefill_token_threshold"):
                    arguments += [f"--{knob.replace('_', '-')}", str(_CHUNK.knobs[knob])]
            self._child = stack.enter_context(Child.tailrace("simulated engine", "engine", *arguments))
            self.name = f"simulated {options.preset}"
        self.url = str(self._child.ready["url"])

    async def change(self, remedy: Remedy) -> str:
        """Set the remedy's knobs; returns what was done, in words."""
        if not self._llamacpp:
            await post_json(self.url + "/knobs", remedy.knobs)
            return "engine: " + ", ".join(f"{name}={value}" for name, value in remedy.knobs.items())
        port = int(self.url.rsplit(":", 1)[1])
        self._child.stop()
        self._child = self._stack.enter_context(_llamacpp(batch=remedy.llamacpp_batch, port=port))
        return f"engine: restarted with n_batch={remedy.llamacpp_batch} (llama.cpp has no such knob at run time)"


def _engine_words(options: DemoOptions) -> str:
    if options.engine == LLAMACPP:
        return "a real llama.cpp server with SmolLM2-135M on one CPU thread"
    return f"a simulated engine ({options.preset})"


def _scene(options: DemoOptions) -> Scene:
    scene = SCENES.get(options.engine)
    if scene is None:
        raise InputError(
            f"there is no demo on {options.engine!r}", place="--engine", remedy=f"Use one of {', '.join(SCENES)}."
        )
    changes = {name: getattr(options, name) for name in ("mix", "rate", "duration_ns")}
    return msgspec.structs.replace(scene, **{name: value for name, value in changes.items() if value is not None})


def _llamacpp(*, batch: int, port: int) -> Child:
    python = os.environ.get(LLAMACPP_PYTHON)
    lack = "" if python else llamacpp_engine.missing()
    if lack:
        raise InputError(lack, place="--engine llamacpp", remedy=llamacpp_engine.REMEDY)
    script = str(Path(llamacpp_engine.__file__))
    options = ["--port", str(port), "--batch", str(batch), "--slots", "8"]
    return Child("llama.cpp", [python or sys.executable, script, *options])


def _gateway(upstream: str, folder: Path, budgets: dict[str, str]) -> Child:
    admin = f"127.0.0.1:{DEFAULT_ADMIN_PORT if _is_free(DEFAULT_ADMIN_PORT) else 0}"
    config = folder / "tailrace.yaml"
    # JSON is YAML.
    config.write_bytes(
        msgspec.json.encode(
            {
                "listen": "127.0.0.1:0",
                "admin": admin,
                "backends": [{"url": upstream}],
                "budgets": budgets,
                "records": {"dir": str(folder / "records")},
            }
        )
    )
    return Child.tailrace("gateway", "serve", "-c", str(config))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
