"""OTLP traces as JSON: one export request, or one a line, as collectors write them.

Durations and positions come from the spans' own stamps; what an engine says of its request stands in
`gen_ai.latency.*` (seconds). Stamps of two services are of two clocks: a rule that compares them must say so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from tailrace.diagnose.observed import Clock, Observed, Place, Rows, Understood
from tailrace.diagnose.readers.foreign_json import documents
from tailrace.diagnose.readers.format import Format
from tailrace.engines.spans.assembly import READERS
from tailrace.engines.spans.reader import number
from tailrace.measure.otlp_json import spans_of_json
from tailrace.measure.otlp_value import OtlpError
from tailrace.model.errors import InputError
from tailrace.model.span import Span

__all__ = ["OTLP_TRACES", "spans_table"]

_NAME: Final = "OTLP traces"
_TELLS: Final = re.compile(r'"(?:resourceSpans|scopeSpans)"\s*:')
_EXAMPLES: Final = 3
_MOST: Final = 2_000_000
_LATENCIES: Final = {
    "queue_ms": ("time_in_queue",),
    "ttft_ms": ("time_to_first_token",),
    "e2e_ms": ("e2e",),
    "prefill_ms": ("time_in_model_prefill",),
    "decode_ms": ("time_in_model_decode",),
    "inference_ms": ("time_in_model_inference", "time_in_model_execute", "time_in_model_forward"),
}
_PREFIX: Final = "gen_ai.latency."
_BOT: Final = "turn.user_bot_latency_seconds"


def _matches(head: str, name: str) -> bool:  # noqa: ARG001
    return head.lstrip()[:1] in {"{", "["} and _TELLS.search(head) is not None


def _read(path: Path, name: str) -> Observed:
    spans: list[Span] = []
    lines: list[int] = []
    wrong: list[str] = []
    broken = 0
    for at, document in enumerate(documents(path), start=1):
        line = int(tail) if (tail := document.place.rpartition(":")[2]).isdigit() else at
        try:
            for one in spans_of_json(bytes(document.data)):
                if isinstance(one, Span):
                    spans.append(one)
                    lines.append(line)
                elif one is not None:
                    broken += 1
                    wrong += [f"{line}: {one}"] if len(wrong) < _EXAMPLES else []
                if len(spans) > _MOST:
                    raise InputError(
                        f"has more than {_MOST} spans", place=str(path), remedy="Give the traces of the slow window."
                    )
        except OtlpError as error:
            broken += 1
            wrong += [f"{line}: {error}"] if len(wrong) < _EXAMPLES else []
    if not spans:
        raise InputError(
            f"there is no span in it{': ' + wrong[0] if wrong else ''}",
            place=str(path),
            remedy="Give traces as a collector's file exporter writes them (OTLP JSON).",
        )
    return Observed(
        rows=[spans_table(spans, lines, name), *_turns(spans, lines, name)],
        understood=[
            Understood(
                source=name,
                format=_NAME,
                understood=len(spans),
                total=len(spans) + broken,
                what="spans",
                examples=wrong,
            )
        ],
    )


def spans_table(spans: list[Span], lines: Iterable[int], name: str) -> Rows:
    """One row a span: `trace, span, parent, name, service, scope, kind, start_ms, end_ms, engine` and what engines say.

    `start_ms` and `end_ms` count from the earliest stamp of the file; `engine` is 1 for a span of an inference engine.
    """
    begin = min((span.start_unix_ns for span in spans if span.start_unix_ns), default=0)
    columns: dict[str, Any] = {
        "trace": [span.trace_id for span in spans],
        "span": [span.span_id for span in spans],
        "parent": [span.parent_span_id for span in spans],
        "name": [span.name for span in spans],
        "service": [str(span.resource.get("service.name", "")) for span in spans],
        "scope": [span.scope for span in spans],
    }
    out: dict[str, Any] = {key: np.array(cells, dtype=object) for key, cells in columns.items()}
    out["kind"] = np.array([float(span.kind) for span in spans])
    out["start_ms"] = np.array([_ms(span.start_unix_ns, begin) for span in spans])
    out["end_ms"] = np.array([_ms(span.end_unix_ns, begin) for span in spans])
    out["engine"] = np.array([float(_of_engine(span)) for span in spans])
    out["failed"] = np.array([float(span.status_code == 2) for span in spans])
    for column, keys in _LATENCIES.items():
        cells = np.array([_latency(span, keys) for span in spans])
        if np.isfinite(cells).any():
            out[column] = cells
    return Rows(
        kind="spans", columns=out, clock=Clock.UTC, lines=np.array(list(lines), dtype=np.int64), place=Place(name)
    )


def _ms(unix_ns: int, begin: int) -> float:
    """From the file's first stamp: wall clocks in ns lose digits as floats."""
    return (unix_ns - begin) / 1e6 if unix_ns else math.nan


def _of_engine(span: Span) -> bool:
    if any(key.startswith(_PREFIX) for key in span.attributes):
        return True
    return any(reader.owns(span) for reader in READERS)


def _latency(span: Span, keys: tuple[str, ...]) -> float:
    found = (number(span.attributes, _PREFIX + key) for key in keys)
    value = next((one for one in found if one is not None), None)
    return math.nan if value is None else value * 1e3


def _turns(spans: list[Span], lines: list[int], name: str) -> list[Rows]:
    """Pipecat's spans carry what each turn waited for."""
    found = [
        (value * 1e3, line) for span, line in zip(spans, lines, strict=True) if (value := number(span.attributes, _BOT))
    ]
    if not found:
        return []
    return [
        Rows(
            kind="turns",
            columns={
                "turn": np.array([str(at) for at in range(1, len(found) + 1)], dtype=object),
                "total": np.array([value for value, _ in found]),
            },
            lines=np.array([line for _, line in found], dtype=np.int64),
            place=Place(name),
        )
    ]


OTLP_TRACES: Final = Format(name=_NAME, matches=_matches, read=_read)
