"""COMPUTE_GPU_SHARED from the table of `nvidia-smi`: a process that is none of the engine's computes on its device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arms.asked import condition, figure, named, worded
from tailrace.diagnose.arms.pairs import unlike
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.observed import Arm, Event, Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["strangers_on_devices"]

_ENGINE: Final = re.compile(
    r"vllm|sglang|llama|triton|tritonserver|text-generation|tgi|trtllm|tensorrt|lmdeploy|ollama|ray::|tailrace",
    re.IGNORECASE,
)
_MACHINERY: Final = re.compile(
    r"dcgm|nvidia-cuda-mps-server|Xorg|gnome|nv-hostengine|nvidia-persistenced", re.IGNORECASE
)
SLOWER: Final = 0.1
_DEVICE: Final = r"^gpu(?:[ _]|\b)(?!.*(?:util|mem|clock|temp|load|power|busy))|^index\b"
LEAST_MIB: Final = 500.0
"""A context alone takes some hundred MiB: what monitors a device holds no more."""


def strangers_on_devices(cause: Cause, observed: Observed) -> Finding | None:
    """On a device with an engine's process, another one that holds memory for work of its own."""
    devices: dict[str, list[Event]] = {}
    for event in [*observed.of_kind("gpu_process"), *_in_tables(observed)]:
        if "C" in str(event.attributes.get("type")) and not _MACHINERY.search(_name(event)):
            devices.setdefault(str(event.attributes.get("gpu")), []).append(event)
    for device, every in devices.items():
        mine = [event for event in every if _ENGINE.search(_name(event))]
        others = [
            event for event in every if event not in mine and float(event.attributes.get("mib", LEAST_MIB)) >= LEAST_MIB
        ]
        if mine and others:
            return _found(cause, device, mine, others, _slower(observed, device))
    return None


def _in_tables(observed: Observed) -> list[Event]:
    """Rows of a table of processes (`nvidia-smi --query-compute-apps`, or one by hand): pid, name, memory."""
    out = []
    for arm in observed.arms:
        name = named(arm, r"process|command|\bname\b")
        pid = worded(arm, r"^pid\b") or worded(arm, r"\bpid\b")
        if name is None or pid is None or not isinstance(name[1], str):
            continue
        device = condition(arm, _DEVICE)
        held = worded(arm, r"mem") or None
        told = named(arm, r"mem")
        mib = re.search(r"[\d.]+", str(told[1])) if told is not None else None
        amount = held.value if held is not None else float(mib[0]) if mib is not None else None
        attributes: dict[str, float | str] = {
            "type": "C", "gpu": "0" if device is None else f"{device:g}", "name": name[1], "pid": f"{pid.value:.0f}",
        }  # fmt: skip
        if amount is not None:
            attributes["mib"] = amount
        out.append(Event(kind="gpu_process", text=name[1], attributes=attributes, place=arm.place))
    return out


class _Pace(NamedTuple):
    good: Arm
    fast: Quoted
    bad: Arm
    slow: Quoted
    elsewhere: tuple[Arm, Quoted, Arm, Quoted] | None
    """The same two moments on another device."""


def _slower(observed: Observed, device: str) -> _Pace | None:
    """Two rows of that device (or of no device) at equal work, of which one is slower."""
    by_device: dict[str, list[tuple[Arm, Quoted]]] = {}
    for arm in observed.arms:
        pace = figure(arm, "tpot", "itl", stats=("p50", "mean", "", "p99"))
        if pace is not None and pace.value > 0:
            at = condition(arm, _DEVICE)
            by_device.setdefault("" if at is None else f"{at:g}", []).append((arm, pace))
    rows = by_device.get(device) or by_device.get("") or []
    if len(rows) != 2 or rows[0][1].key != rows[1][1].key:
        return None
    (good, fast), (bad, slow) = sorted(rows, key=lambda row: row[1].value)
    if slow.value < (1 + SLOWER) * fast.value or unlike(good, bad) or not _same_batch(good, bad):
        return None
    rest = next((items for name, items in by_device.items() if name not in ("", device) and len(items) == 2), None)
    other = None if rest is None else (*rest[0], *rest[1])
    return _Pace(good, fast, bad, slow, other)


def _same_batch(one: Arm, two: Arm) -> bool:
    ran = [figure(arm, "running") for arm in (one, two)]
    return ran[0] is None or ran[1] is None or abs(ran[0].value - ran[1].value) <= SLOWER * max(ran[0].value, 1.0)


def _name(event: Event) -> str:
    return str(event.attributes.get("name", ""))


def _found(cause: Cause, device: str, mine: list[Event], others: list[Event], pace: _Pace | None) -> Finding:
    stranger = max(others, key=lambda event: float(event.attributes.get("mib", 0.0)))
    words, shown, checked = "", [], ["it is no process of the engine's by its name"]
    missing = [] if pace is not None else ["TPOT with and without the other process, at equal batch"]
    if pace is not None:
        ratio = pace.slow.value / pace.fast.value
        words = (
            f" {quantity(pace.slow)} goes {number(pace.fast.value, 'ms')} -> {number(pace.slow.value, 'ms')} "
            f"(x {ratio:.3g})."
        )
        shown = [evidence_of(pace.good, pace.fast), evidence_of(pace.bad, pace.slow)]
        if pace.elsewhere is not None:
            one, first, two, second = pace.elsewhere
            shown += [evidence_of(one, first), evidence_of(two, second)]
            checked.append(f"another device: {number(first.value, 'ms')} and {number(second.value, 'ms')}")
        clocks = [figure(arm, "sm_clock") for arm in (pace.good, pace.bad)]
        if clocks[0] is not None and clocks[1] is not None:
            checked.append(f"SM clock {number(clocks[0].value, 'MHz')} and {number(clocks[1].value, 'MHz')}")
    return cause.finding(
        statement=f"Another process is on the engine's device: {_name(stranger)} beside {_name(mine[0])} on GPU "
        f"{device}.{words}",
        evidence=[
            Evidence(
                f"GPU {device}: {_name(event)} (pid {event.attributes.get('pid')})"
                + (f" holds {event.attributes['mib']:,.0f} MiB" if "mib" in event.attributes else ""),
                str(event.place), "gpu_process",
            )
            for event in (stranger, mine[0])
        ]
        + shown,
        explains_ms=None if pace is None else pace.slow.value - pace.fast.value,
        relation=(
            f"{number(pace.slow.value)} / {number(pace.fast.value)} = {pace.slow.value / pace.fast.value:.3g}; "
            if pace is not None
            else ""
        )
        + f"{len(others)} process{'es' if len(others) > 1 else ''} besides the engine's on GPU {device}",
        n=1 if pace is None else 2,
        advice="Move it to a device of its own, or give each a part of the device (MIG, MPS with a limit); two that "
        "compute take turns, and each step of the engine waits for the other's.",
        price="A device more, or less of this one for each.",
        verify="tailrace diagnose after.run --before before.run  # without the other process",
        missing=[
            *missing,
            "whether it computes at the same time (nvidia-smi pmon): memory alone slows nobody",
        ],
        disproof_checked=checked,
        action=Action.FIX,
        level=Level.SUSPECTED,
    )  # fmt: skip
