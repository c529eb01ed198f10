"""Streams whose every frame and stamp is known: the truth server's plans, without the server."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from tests.conftest import shared_path


def truth_module(name: str) -> ModuleType:
    """A module of the truth server."""
    full = f"truth_server_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, shared_path() / "bench/truth" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


def planned(scenario: str, tokens: int, *, index: int = 0) -> list[Any]:
    """The frames of one stream: `at` (s), `kind`, `tokens`, `data`."""
    module = truth_module("scenario")
    chosen = module.parse(scenario, module.SCENARIOS["plain"])
    plan = module.plan(
        chosen, 0, index, chat=True, max_tokens=tokens, prompt_tokens=20, want_usage=True, model=scenario
    )
    return list(plan.events)


def plan_record(plan: list[Any]) -> dict[str, Any]:
    """The plan as the truth server's own log has a stream, for its `stream_metrics`."""
    return {
        "sent_us": [round(event.at * 1e9) / 1e3 for event in plan],
        "n": [event.tokens for event in plan],
        "kinds": [event.kind for event in plan],
        "body_ns": 0,
    }
