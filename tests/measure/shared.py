"""Where captured data and the truth scenarios lie beside the repository, and how to read them."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("TAILRACE_SHARED") or _ROOT.parent / "shared")


def need_shared() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"no shared data at {SHARED}; set TAILRACE_SHARED")


def truth_module(name: str) -> ModuleType:
    """`scenario` or `truth` of the truth server."""
    need_shared()
    key = f"benchtruth_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, SHARED / "bench" / "truth" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


def sample_text(path: str) -> str:
    need_shared()
    return (SHARED / "data" / "engine_samples" / path).read_text()


def vllm_case(name: str) -> dict[str, Any]:
    """One capture: status, headers, header_s, chunks `[{t, data}]`."""
    return json.loads(sample_text("vllm/responses.json"))[name]


def llamacpp_case(title: str) -> bytes:
    """The body of one `###` section of the llama.cpp capture, response head removed."""
    sections = sample_text("llamacpp/sse_and_errors.txt").split("### ")
    body = next(section for section in sections if section.startswith(title)).partition("\n")[2]
    if body.startswith("HTTP/"):
        body = body.partition("\n\n")[2]
    return body.rstrip("\n").encode() + b"\n\n"
