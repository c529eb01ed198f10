"""The forms of other load generators that a run can be written in, by the name that `--format` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace.export.aiperf import export_aiperf
from tailrace.export.genai_perf import export_genai_perf
from tailrace.export.guidellm import export_guidellm
from tailrace.export.load_tool import Exported
from tailrace.export.sglang import export_sglang
from tailrace.export.vllm import export_vllm
from tailrace.store.run_file import Run

__all__ = ["EXPORTERS"]

EXPORTERS: Final[dict[str, Callable[[Run], Exported]]] = {
    "vllm": export_vllm,
    "sglang": export_sglang,
    "guidellm": export_guidellm,
    "aiperf": export_aiperf,
    "genai-perf": export_genai_perf,
}
"""Name -> writer; each gives the bytes, and what the form cannot hold."""
