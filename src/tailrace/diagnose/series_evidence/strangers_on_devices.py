"""COMPUTE_GPU_SHARED from the table of `nvidia-smi`: a process that is none of the engine's computes on its device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.observed import Event, Observed
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
LEAST_MIB: Final = 500.0
"""A context alone takes some hundred MiB: what monitors a device holds no more."""


def strangers_on_devices(cause: Cause, observed: Observed) -> Finding | None:
    """On a device with an engine's process, another one that holds memory for work of its own."""
    devices: dict[str, list[Event]] = {}
    for event in observed.of_kind("gpu_process"):
        if "C" in str(event.attributes.get("type")) and not _MACHINERY.search(_name(event)):
            devices.setdefault(str(event.attributes.get("gpu")), []).append(event)
    for device, every in devices.items():
        mine = [event for event in every if _ENGINE.search(_name(event))]
        others = [
            event for event in every if event not in mine and float(event.attributes.get("mib", LEAST_MIB)) >= LEAST_MIB
        ]
        if mine and others:
            return _found(cause, device, mine, others)
    return None


def _name(event: Event) -> str:
    return str(event.attributes.get("name", ""))


def _found(cause: Cause, device: str, mine: list[Event], others: list[Event]) -> Finding:
    stranger = max(others, key=lambda event: float(event.attributes.get("mib", 0.0)))
    return cause.finding(
        statement=f"Another process is on the engine's device: {_name(stranger)} beside {_name(mine[0])} on GPU "
        f"{device}.",
        evidence=[
            Evidence(
                f"GPU {device}: {_name(event)} (pid {event.attributes.get('pid')})"
                + (f" holds {event.attributes['mib']:,.0f} MiB" if "mib" in event.attributes else ""),
                str(event.place), "gpu_process",
            )
            for event in (stranger, mine[0])
        ],
        explains_ms=None,
        relation=f"{len(others)} process{'es' if len(others) > 1 else ''} besides the engine's on GPU {device}",
        n=1,
        advice="Move it to a device of its own, or give each a part of the device (MIG, MPS with a limit); two that "
        "compute take turns, and each step of the engine waits for the other's.",
        price="A device more, or less of this one for each.",
        verify="tailrace diagnose after.run --before before.run  # without the other process",
        missing=[
            "TPOT with and without the other process, at equal batch",
            "whether it computes at the same time (nvidia-smi pmon): memory alone slows nobody",
        ],
        disproof_checked=["it is no process of the engine's by its name"],
        action=Action.FIX,
        level=Level.SUSPECTED,
    )  # fmt: skip
