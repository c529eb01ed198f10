"""COMPUTE_JIT from an engine's log: it says that it compiled a kernel, and requests were slow then."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.asked import told
from tailrace.diagnose.observed import Clock, Event, Observed, Rows
from tailrace.diagnose.observed.align import Alignment, Axis, align
from tailrace.diagnose.observed.load import Load, loads
from tailrace.diagnose.readers.logs.jit import COMPILER_FRAME, jit_in_text
from tailrace.model.finding import Action, Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["jit_in_log"]

SLOWER: Final = 3.0
"""Times the median of the others: a request that is slow."""
LEAST_MS: Final = 200.0
DIP: Final = 0.5
"""Of the lines around it: a load line whose throughput fell."""
AGAIN_S: Final = 30.0
"""A line that comes so much later with the same kernel and shape is no first use."""
_FRAME: Final = re.compile(rf"(?:{COMPILER_FRAME})[\w./:]*")
_STACK: Final = re.compile(r"spy|stack|frame|dump|profil|trace")


def _quoted(observed: Observed) -> list[Event]:
    """Lines of a compiler that somebody quotes in a form."""
    out = []
    for item in told(observed):
        found: dict[str, float | str] | None = jit_in_text(item.value) if isinstance(item.value, str) else None
        frame = _FRAME.search(item.value) if isinstance(item.value, str) and found is None else None
        if frame is not None and _STACK.search(item.name.replace("_", " ")):
            found = {"kernel": frame[0]}
        if found is not None:
            out.append(Event(kind="jit", text=item.value, attributes=found, place=item.place))
    return out


class _Slow(NamedTuple):
    rows: Rows
    row: int
    took: float
    usual: float
    n: int
    events: list[Event]
    sure: bool
    what: str


def jit_in_log(cause: Cause, observed: Observed) -> Finding | None:
    """A line of the compiler inside the window of a slow request (proven where the clocks are one), or in a dip of the
    log's own throughput, or alone.
    """
    events = observed.of_kind("jit") or _quoted(observed)
    if not events:
        return None
    clocks = align(observed)
    slow = _slow_requests(observed, events, clocks)
    dip = _dip(observed, events)
    kernels = list(dict.fromkeys(str(event.attributes.get("kernel", "")) for event in events))
    again = _again(events)
    facts = [
        Evidence(
            text=f"{len(events)} lines: the engine compiled {', '.join(kernels[:6])} while it served"
            + (f" (and {len(kernels) - 6} more)" if len(kernels) > 6 else ""),
            source=f"{events[0].place}" + (f" to {events[-1].place.line}" if len(events) > 1 else ""),
            name="jit_lines",
            value=float(len(events)),
        )
    ]
    shapes = list(dict.fromkeys(str(event.attributes["shape"]) for event in events if "shape" in event.attributes))
    if shapes:
        facts.append(Evidence(f"shapes: {'; '.join(shapes[:4])}", str(events[0].place)))
    took = sum(float(event.attributes["took_ms"]) for event in events if "took_ms" in event.attributes)
    if took:
        facts.append(Evidence(f"compiling took {took:,.0f} ms in all", str(events[0].place), "took", took, "ms"))
    missing: list[str] = []
    level = Level.SUSPECTED
    relation = f"{len(events)} JIT lines"
    explains: float | None = None
    if slow:
        worst = max(slow, key=lambda one: one.took)
        explains = worst.took - worst.usual
        facts.append(
            Evidence(
                text=f"{worst.what} {worst.took:,.0f} ms of the request in whose wait {len(worst.events)} of "
                "these lines "
                f"lie; the others take {worst.usual:,.0f} ms (median, n = {worst.n})",
                source=str(worst.rows.line_of(worst.row)),
                name=worst.what,
                value=round(worst.took, 1),
                unit="ms",
            )
        )
        relation = (
            f"{worst.what} {worst.took:,.0f} ms against {worst.usual:,.0f} ms, JIT at "
            + ", ".join(_clock(event) for event in worst.events[:3])
            + " inside its wait"
        )
        # One slow request of several, and the engine's own throughput falls in the same interval: that is no chance.
        certain = worst.sure or dip is not None
        level = Level.PROVEN if certain and not again else Level.CONSISTENT
        if dip is not None:
            facts.append(_of_dip(*dip))
        if not certain:
            missing.append("one clock for requests and log: their stamps were taken for the same zone")
    elif dip is not None:
        facts.append(_of_dip(*dip))
        load, index, usual = dip
        made = float(load.get("output_tok_s")[index])
        relation = f"{made:g} tok/s against {usual:g} tok/s in the interval of the JIT lines"
        level = Level.SUSPECTED if again else Level.CONSISTENT
        missing.append("requests of that time one by one (send, first token, wall clock)")
    else:
        missing.append("when requests were slow: one by one with send, first token and wall clock")
        if any(rows.kind == "requests" for rows in observed.rows):
            missing[-1] += " (the requests given are not slow at these lines, or share no clock with the log)"
    checked = [again] if again else ["no kernel is compiled twice: first use only"]
    head = "the line stands inside the slow window" if slow else "requests wait while it compiles"
    return cause.finding(
        statement=f"The engine compiles kernels while it serves (JIT: {', '.join(kernels[:3])}): {head}"
        + (f", {explains:,.0f} ms of one request." if explains is not None and slow else "."),
        evidence=[
            *facts,
            *(
                [Evidence(f"{explains:,.0f} ms over the usual", facts[0].source, "excess", round(explains, 1), "ms")]
                if explains is not None
                else []
            ),
        ],
        explains_ms=explains,
        relation=relation,
        n=len(events),
        advice="Add these shapes to the engine's warm-up: send one request of each length, with and without "
        "the feature "
        "(images, tools, speculation), after each start and before users come; keep the compile cache across restarts "
        "(VLLM_CACHE_ROOT, TRITON_CACHE_DIR, SGLANG_DG_CACHE_DIR on a volume; SGLang: python3 -m "
        "sglang.compile_deep_gemm). Count the seconds of compiling at the start.",
        price="A longer start.",
        verify=(
            "tailrace diagnose vllm.log  # after a restart with the warm-up: no line of a compiler while it serves"
        ),
        missing=missing,
        rivals=["FE_GC_PAUSE"] if level is Level.SUSPECTED and again else [],
        disproof_checked=checked,
        action=Action.FIX,
        level=level,
        proof=Proof.IN_WINDOW,
    )


def _of_dip(load: Load, index: int, usual: float) -> Evidence:
    made = float(load.get("output_tok_s")[index])
    return Evidence(
        text=f"throughput fell to {made:g} tok/s in the line after, from {usual:g} tok/s around it",
        source=load.where(index),
        name="output_tok_s",
        value=made,
        unit="tok/s",
    )


def _clock(event: Event) -> str:
    """`10:00:16`."""
    if event.at is None:
        return f"line {event.place.line}"
    second = int(event.at) % 86400
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def _again(events: list[Event]) -> str:
    """Its disproof: a shape that was compiled already is compiled again."""
    seen: dict[tuple[str, str], Event] = {}
    for event in events:
        key = (str(event.attributes.get("kernel", "")), str(event.attributes.get("shape", "")))
        first = seen.setdefault(key, event)
        if event.at is not None and first.at is not None and event.at - first.at > AGAIN_S and key[1]:
            return f"{key[0]} ({key[1]}) is compiled again {event.at - first.at:.0f} s later: no first use"
    return ""


def _slow_requests(observed: Observed, events: list[Event], clocks: Alignment) -> list[_Slow]:
    """Requests far slower than the others in whose wait a line lies: by TTFT; where nobody is slow by it, by E2E."""
    out: list[_Slow] = []
    for rows in observed.table("requests"):
        begin, first, last = (rows.numbers(name) / 1e3 for name in ("t_send_ms", "t_first_ms", "t_last_ms"))
        for what, end in (("TTFT", first), ("E2E", last)):
            slow = _slow_by(rows, what, begin, end, events, clocks)
            if slow:
                out += slow
                break
    return out


def _slow_by(
    rows: Rows,
    what: str,
    begin: NDArray[np.float64],
    end: NDArray[np.float64],
    events: list[Event],
    clocks: Alignment,
) -> list[_Slow]:
    mine = Axis(rows.place.source, rows.clock if rows.clock is not Clock.NONE else Clock.RELATIVE)
    took = (end - begin) * 1e3
    out = []
    for index in np.flatnonzero(~np.isnan(took)):
        others = np.delete(took, index)
        others = others[~np.isnan(others)]
        usual = float(np.median(others)) if others.size else float("nan")
        if not (took[index] > SLOWER * usual and took[index] - usual > LEAST_MS):
            continue
        # The log's stamps are cut to whole seconds.
        inside = [
            event
            for event in events
            if (at := _at(event, mine, clocks)) is not None and begin[index] - 1.0 <= at <= end[index] + 0.5
        ]
        if inside:
            sure = clocks.sure(mine, *(Axis(event.place.source, event.clock) for event in inside))
            out.append(_Slow(rows, int(index), float(took[index]), usual, others.size, inside, sure, what))
    return out


def _at(event: Event, axis: Axis, clocks: Alignment) -> float | None:
    """The time of an event on another clock."""
    shift = clocks.between(Axis(event.place.source, event.clock), axis)
    return None if shift is None or event.at is None else event.at + shift


def _dip(observed: Observed, events: list[Event]) -> tuple[Load, int, float] | None:
    """The load line in whose interval a compile line lies, with far less throughput than its neighbours."""
    for load in loads(observed):
        made = load.get("output_tok_s")
        interval = load.interval
        if not load.timed or np.isnan(made).all() or math.isnan(interval):
            continue
        for event in events:
            if event.at is None or event.clock is not load.clock:
                continue
            index = int(np.searchsorted(load.at, event.at))
            if index >= len(load) or load.at[index] - event.at > 1.5 * interval:
                continue
            around = [float(made[i]) for i in (index - 2, index - 1, index + 1, index + 2) if 0 <= i < len(load)]
            usual = float(np.nanmedian(around)) if around else float("nan")
            if made[index] < DIP * usual and load.get("running")[index] > 0:
                return load, index, usual
    return None
