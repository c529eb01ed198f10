"""A compiler on the stack while the accelerator idles: kernels are built while requests wait."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Event, Observed, Series
from tailrace.model.finding import Action, Evidence, Finding, Level, Proof

__all__ = ["idle_in", "jit_in_stacks", "taken_in_the_stall"]

IDLE: Final = 0.05
BUSY: Final = 0.3


def taken_in_the_stall(observed: Observed) -> tuple[bool | None, str]:
    """(whether somebody says that the dump was taken while it was slow, where); `None` where nobody says."""
    for name in ("pyspy_taken_in_stall", "taken_in_stall", "dump_taken_in_stall", "stack_in_stall"):
        found = observed.setting(name)
        if found is not None:
            return str(found.value).lower() in ("true", "1", "1.0", "yes"), str(found.place)
    return None, ""


def idle_in(observed: Observed) -> tuple[float, Series, int, int] | None:
    """(lowest use, its series, readings that idle, readings) of the device that idled the longest."""
    best = None
    for series in observed.of_series("gpu_util"):
        values = series.values[np.isfinite(series.values)]
        if not values.size:
            continue
        idle = int((values <= IDLE).sum())
        if best is None or idle > best[2]:
            best = float(values.min()), series, idle, int(values.size)
    return best


def jit_in_stacks(cause: Cause, observed: Observed) -> Finding | None:
    """Active threads of the engine stand in a compiler."""
    stacks = observed.of_kind("stack")
    active = [event for event in stacks if event.attributes.get("state") == "active"]
    compiling = [event for event in active if event.attributes.get("class") == "jit"]
    if not compiling:
        return None
    inside, where = taken_in_the_stall(observed)
    if inside is False:
        return None
    idle = idle_in(observed)
    if idle is not None and idle[0] > BUSY and idle[2] == 0:
        return None  # the device worked all the time: nothing waited for the compiler
    return _found(cause, observed, compiling, idle, inside=inside, where=where)


def _found(
    cause: Cause,
    observed: Observed,
    compiling: list[Event],
    idle: tuple[float, Series, int, int] | None,
    *,
    inside: bool | None,
    where: str,
) -> Finding:
    stall = observed.number("stall_s", "gap_s")
    running = _running(observed)
    frame = str(compiling[0].attributes.get("frame") or compiling[0].text)
    processes = sorted({str(event.attributes.get("process")) for event in compiling})
    missing, evidence = [], []
    evidence.append(
        Evidence(
            text=f"{len(compiling)} active thread(s) of {len(processes)} process(es) compile: {compiling[0].text}",
            source=str(compiling[0].place),
            name="stack",
            value=float(len(compiling)),
        )
    )
    if inside is None:
        missing.append("when the stack was taken: a dump outside the slow window proves nothing")
    else:
        evidence.append(Evidence(text="the stack was taken in the stall", source=where))
    power = ""
    if idle is None:
        missing.append("use of the accelerator in the stall (0 % while requests run)")
    elif idle[2]:
        low = f"{idle[0] * 100:.0f} %"
        power = _power_words(observed, idle[1])
        evidence.append(
            Evidence(
                text=f"GPU {idle[1].labels.get('gpu', '')} is at {low} in {idle[2]} of {idle[3]} readings{power}",
                source=str(idle[1].place),
                name="gpu_util",
                value=idle[0],
                unit="share",
            )
        )
    else:
        missing.append("a reading of the accelerator inside the stall: none here is idle")
    if running is None:
        missing.append("running requests in the stall")
    else:
        evidence.append(
            Evidence(
                text=f"{running[0]:.0f} requests were running", source=running[1], name="running", value=running[0]
            )
        )
    length = f" of about {stall:g} s" if stall else ""
    if stall:
        found = observed.setting("stall_s", "gap_s")
        evidence.append(
            Evidence(
                text=f"the stall lasted about {stall:g} s",
                source=str(found.place) if found else "",
                name="stall",
                value=stall,
                unit="s",
            )
        )
    idles = f" while the GPU idles at {idle[0] * 100:.0f} %" if idle is not None and idle[2] else ""
    level = Level.SUSPECTED
    if inside:
        level = Level.PROVEN if not missing else Level.CONSISTENT
    return cause.finding(
        statement="The engine compiles a kernel (JIT) in the middle of serving: its workers stand in "
        f"{_short(frame)}{idles}; a "
        f"stall{length} for every request. It is no deadlock and no lack of capacity.",
        evidence=evidence,
        explains_ms=stall * 1e3 if stall else None,
        relation="a compiler's frame on the stack"
        + (f" x GPU at {idle[0] * 100:.0f} %" if idle is not None and idle[2] else "")
        + (f" x running {running[0]:.0f} > 0" if running is not None else ""),
        n=len(compiling),
        advice="Compile before traffic comes: add the shapes that production sends (batch sizes, prompt lengths, LoRA, "
        "grammar) to the warm-up, send warm-up requests of them after every start, keep the compile cache on a disk "
        "that "
        "survives restarts (TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, VLLM_CACHE_ROOT), and count compile seconds "
        "at the "
        "start.",
        price="A longer start: plan it into rollouts and scale-outs.",
        verify=(
            "tailrace bench http://localhost:8000 --concurrency 4 --duration 60  # after a restart "
            "and one request of the shape: no stall comes on a shape that was used before"
        ),
        missing=missing,
        disproof_checked=["whether it comes again on a shape that was used already is to be seen"],
        action=Action.FIX,
        level=level,
        proof=Proof.IN_WINDOW,
    )


def _short(frame: str) -> str:
    return frame.split(":", maxsplit=1)[0].rstrip(")") + ")" if "(" in frame else frame


def _running(observed: Observed) -> tuple[float, str] | None:
    """(requests that ran, who says so)."""
    stated = observed.number("running")
    if stated is not None:
        return stated, observed.source_of("running")
    found = [item for item in observed.of_series("running") if len(item) and np.isfinite(item.values).any()]
    most = [(float(np.nanmax(item.values)), str(item.place)) for item in found]
    return max(most) if most else None


def _power_words(observed: Observed, util: Series) -> str:
    for series in observed.of_series("power"):
        if series.labels == util.labels and len(series) == len(util):
            idle = util.values <= IDLE
            if idle.any() and (~idle).any():
                return (
                    f", {float(np.median(series.values[~idle])):.0f} -> {float(np.median(series.values[idle])):.0f} W"
                )
    return ""
