"""One fixed prompt, asked alone and then many times at once: two load tests and what they say of each other."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tailrace.analyze.repeatability import Repeatability, repeatability
from tailrace.app.bench import bench
from tailrace.model.errors import InputError
from tailrace.model.measurement import BenchSummary
from tailrace.probe.progress import OnProgress
from tailrace.probe.spec import BenchSpec
from tailrace.store.run_file import read_run
from tailrace.workload.arrivals import ArrivalKind, Arrivals

PROMPT: Final = "Count from one to one hundred in words, one number after the other, and then start again."
"""What is asked where the user names nothing: an answer of any length follows from it."""
_WARM_UP: Final = 2
"""Requests before each phase: the first alone would find an empty prefix cache, all others a full one."""


class RepeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `tailrace bench --repeat --json` prints."""

    schema: int = 1
    alone: BenchSummary
    together: BenchSummary | None = None
    """`None` where the run was interrupted before."""
    repeatability: Repeatability | None = None


def phases(spec: BenchSpec) -> tuple[BenchSpec, BenchSpec]:
    """The two load tests: at concurrency 1, and at that of `spec`. InputError for an open loop."""
    arrivals = spec.workload.arrivals
    if arrivals.kind is not ArrivalKind.CLOSED or arrivals.concurrency is None:
        raise InputError(
            "repeats one request with a number of others beside it",
            place="--repeat",
            remedy="Give --concurrency instead of --rate or --trace",
        )
    whole = msgspec.structs.replace(
        spec,
        prompt=spec.prompt if spec.prompt is not None else PROMPT,
        extra_body={"temperature": 0, "seed": spec.seed} | spec.extra_body,
        hash_answers=True,
        warmup_requests=spec.warmup_requests or (0 if spec.warmup_ns else _WARM_UP),
    )
    single = msgspec.structs.replace(spec.workload, arrivals=Arrivals(concurrency=1))
    return msgspec.structs.replace(whole, workload=single), whole


def paths(out: Path) -> tuple[Path, Path]:
    """The run files of the two phases, beside `out`: `a.run` -> `a-alone.run`, `a-together.run`."""
    return out.with_name(f"{out.stem}-alone{out.suffix}"), out.with_name(f"{out.stem}-together{out.suffix}")


def repeat(spec: BenchSpec, *, out: Path, on_progress: OnProgress | None = None) -> tuple[RepeatResult, bool]:
    """Run both phases. Returns the result, and whether it was interrupted. Raises what `bench` raises."""
    first, second = phases(spec)
    alone_path, together_path = paths(out)
    alone = bench(first, out=alone_path, on_progress=on_progress)
    if alone.interrupted:
        return RepeatResult(alone=alone.summary), True
    together = bench(second, out=together_path, on_progress=on_progress)
    found = repeatability(
        read_run(alone_path).table(),
        read_run(together_path).table(),
        concurrency=spec.workload.arrivals.concurrency or 1,
        rng=np.random.default_rng(spec.seed),
    )
    result = RepeatResult(alone=alone.summary, together=together.summary, repeatability=found)
    return result, together.interrupted
