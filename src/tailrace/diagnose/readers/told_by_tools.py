"""Lines of tools that people paste between sentences: `kubectl get events`, and nvidia-smi's list of processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tailrace.diagnose.observed import Event, Observed, Place, Setting
from tailrace.diagnose.readers.grids import Line

__all__ = ["is_told", "told_by_tools"]

_PROBE: Final = re.compile(r"\b(Liveness|Startup) probe failed:\s*(.{0,200})", re.IGNORECASE)
_KILL: Final = re.compile(
    r"failed (liveness|startup) probe, will be restarted|Container \S+ failed (liveness|startup) probe"
)
_DIED: Final = re.compile(
    r"\bOOMKill(?:ed|ing)\b|Exit Code:\s*137|Back-?off restarting failed container", re.IGNORECASE
)
_PROCESS: Final = re.compile(
    r"^\|\s+(?P<gpu>\d+)\s+(?:\S+\s+\S+\s+)?(?P<pid>\d+)\s+(?P<type>[CG](?:\+G)?)\s+(?P<name>\S.*?)\s+(?P<mib>\d+)MiB\s*\|"
)
_ENGINES: Final = re.compile(
    r"vllm|sglang|triton(?:server)?|llama[-_. ]?(?:server|cpp)|trtllm|tensorrt|text-generation|ollama|lmdeploy|engine",
    re.IGNORECASE,
)


def is_told(text: str) -> bool:
    """Whether a line is one of those."""
    short = text[:600]
    return any(mark.search(short) for mark in (_PROBE, _KILL)) or _PROCESS.match(short) is not None


def told_by_tools(lines: Sequence[Line], source: str) -> tuple[Observed, list[Line]]:
    """(what these lines say, the lines that are none of them)."""
    out, left = Observed(), list[Line]()
    processes: dict[str, list[tuple[str, str, int]]] = {}
    for at, text in lines:
        short = text[:600]
        probe, kill, died = _PROBE.search(short), _KILL.search(short), _DIED.search(short)
        process = _PROCESS.match(short)
        if kill is not None:
            kind = (kill[1] or kill[2]).lower()
            out.events.append(_event("restart", short, at, source, {"by": f"{kind} probe"}))
        elif probe is not None:
            out.events.append(_event("probe_failed", short, at, source, {"probe": probe[1].lower(), "why": probe[2]}))
        elif died is not None:
            out.events.append(_event("died", short, at, source, {}))
        elif process is not None and "C" in process["type"]:
            processes.setdefault(process["gpu"], []).append((process["pid"], process["name"], at))
        else:
            left.append((at, text))
    for gpu, found in processes.items():
        out.settings += _strangers(gpu, found, source)
    return out, left


def _event(kind: str, text: str, at: int, source: str, attributes: dict[str, float | str]) -> Event:
    return Event(kind=kind, text=" ".join(text.split())[:240], attributes=attributes, place=Place(source, at))


def _strangers(gpu: str, found: list[tuple[str, str, int]], source: str) -> list[Setting]:
    """Of the processes that compute on one device, those that are no engine's, where an engine is among them."""
    engines = [item for item in found if _ENGINES.search(item[1])]
    others = [item for item in found if not _ENGINES.search(item[1])]
    if not engines or not others:
        return []
    return [
        Setting(
            name="other_process",
            value=f"{name} (pid {pid}) beside {engines[0][1]}",
            scope=f"gpu {gpu}",
            place=Place(source, at),
        )
        for pid, name, at in others
    ]
