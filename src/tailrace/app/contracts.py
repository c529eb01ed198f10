"""The JSON Schemas of what commands print with `--json`: the contracts on which other programs rely."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.app.repeat import RepeatResult
from tailrace.model.check import CheckReport
from tailrace.model.finding import Diagnosis
from tailrace.model.measurement import BenchSummary, Comparison, ComparisonSet, EngineView

PUBLISHED: dict[str, type] = {
    "bench": BenchSummary,
    "bench-repeat": RepeatResult,
    "check": CheckReport,
    "compare": Comparison,
    "compare-set": ComparisonSet,
    "engine-view": EngineView,
    "diagnose": Diagnosis,
}
"""Command (or what it prints with other arguments) -> the struct; `demo` adds its own, which holds these."""


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one of the published structs."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)}
