"""Spans of a service between the gateway and the engine: those that name our stages by `tailrace.stage`.

`tailrace.stage = "preprocess.retrieval"` is a part of that stage, `"preprocess"` the stage itself. A service *before*
the gateway says `tailrace.request_id` at the root of its spans: those make a record of their own and are not read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace.engines.spans.reader import SpanFacts, covered_ns
from tailrace.model.span import Span
from tailrace.model.stage import STAGES

STAGE: Final = "tailrace.stage"
REQUEST: Final = "tailrace.request_id"
_LONGEST: Final = 200
"""Of a stage's name, as `tailrace.stages` has it."""
_INSIDE: Final = frozenset(str(stage) for stage in STAGES) - {"ingress", "response", "unattributed"}
"""Stages that happen behind the gateway."""


def stage_of(span: Span) -> str:
    """The stage that a span names, or nothing where it names none that can be behind the gateway."""
    said = span.attributes.get(STAGE)
    if not isinstance(said, str) or len(said) > _LONGEST or said.partition(".")[0] not in _INSIDE:
        return ""
    return said


def read_stages(spans: Iterable[Span]) -> SpanFacts:
    """The stages of one request. A stage is what its spans cover, once; a part that comes twice is added up."""
    out = SpanFacts()
    by_stage: dict[str, list[Span]] = {}
    for span in spans:
        name = stage_of(span)
        # `model` is a stage of services before us alone: what is behind us is the model.
        if name and not name.startswith("model"):
            by_stage.setdefault(name, []).append(span)
    for name, named in by_stage.items():
        if "." in name:
            out.say(name, sum(span.end_unix_ns - span.start_unix_ns for span in named), f"span.{STAGE}")
    for stage in {name.partition(".")[0] for name in by_stage}:
        within = [
            (span.start_unix_ns, span.end_unix_ns)
            for name, named in by_stage.items()
            if name.partition(".")[0] == stage
            for span in named
        ]
        out.say(stage, covered_ns(within), f"span.{STAGE}")
    return out
