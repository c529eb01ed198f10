"""nvidia-smi's list of processes, as people paste it between their sentences: who computes beside the engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tailrace.diagnose.observed import Place, Setting
from tailrace.diagnose.readers.grids import Line

__all__ = ["is_process_row", "processes_in"]

_PROCESS: Final = re.compile(
    r"^\|\s+(?P<gpu>\d+)\s+(?:\S+\s+\S+\s+)?(?P<pid>\d+)\s+(?P<type>[CG](?:\+G)?)\s+(?P<name>\S.*?)\s+\d+MiB\s*\|"
)
_ENGINES: Final = re.compile(
    r"vllm|sglang|triton(?:server)?|llama[-_. ]?(?:server|cpp)|trtllm|tensorrt|text-generation|ollama|lmdeploy|engine",
    re.IGNORECASE,
)


def is_process_row(text: str) -> bool:
    """Whether a line is a row of the list."""
    return _PROCESS.match(text[:400]) is not None


def processes_in(lines: Sequence[Line], source: str) -> tuple[list[Setting], list[Line]]:
    """(processes that compute on a device beside an engine's, the lines that are no rows of the list)."""
    left: list[Line] = []
    by_gpu: dict[str, list[tuple[str, str, int]]] = {}
    for at, text in lines:
        found = _PROCESS.match(text[:400])
        if found is None:
            left.append((at, text))
        elif "C" in found["type"]:
            by_gpu.setdefault(found["gpu"], []).append((found["pid"], found["name"], at))
    out = []
    for gpu, processes in by_gpu.items():
        engines = [name for _, name, _ in processes if _ENGINES.search(name)]
        others = [item for item in processes if not _ENGINES.search(item[1])]
        out += [
            Setting(
                name="other_process",
                value=f"{name} (pid {pid}) beside {engines[0]}",
                scope=f"gpu {gpu}",
                place=Place(source, at),
            )
            for pid, name, at in (others if engines else [])
        ]
    return out, left
