"""Triton's statistics (`GET /v2/models/MODEL/stats`) as a scrape: the counters of /metrics under their names there.

The statistics count in nanoseconds and requests, /metrics in microseconds. Stages are means over inferences; a model's
executions and the batches that it ran are in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tailrace.engines.prometheus_text import Sample, Scrape
from tailrace.measure.dialect import UNREADABLE
from tailrace.model.errors import InputError

__all__ = ["is_triton_stats", "scrapes_of_stats"]

_decode: Final = msgspec.json.Decoder().decode
_DURATIONS: Final = {
    "queue": "nv_inference_queue_duration_us",
    "compute_input": "nv_inference_compute_input_duration_us",
    "compute_infer": "nv_inference_compute_infer_duration_us",
    "compute_output": "nv_inference_compute_output_duration_us",
    "success": "nv_inference_request_duration_us",
}
_COUNTS: Final = {"inference_count": "nv_inference_count", "execution_count": "nv_inference_exec_count"}


def is_triton_stats(head: bytes) -> bool:
    """Whether a file begins like an answer of the statistics' endpoint, or several of them in a row."""
    start = head.lstrip()[:4096]
    return start[:1] in (b"{", b"[") and b'"model_stats"' in start


def scrapes_of_stats(text: str, name: str) -> list[Scrape]:
    """One scrape an answer. InputError where none can be read."""
    out = []
    for answer in _answers(text, name):
        samples: dict[str, list[Sample]] = {}
        for model in answer.get("model_stats") or ():
            if isinstance(model, dict):
                _model(model, samples)
        if samples:
            out.append(Scrape(samples, dict.fromkeys(samples, "counter")))
    if not out:
        raise InputError(
            "it holds the statistics of no model", place=name, remedy="Save the answer of /v2/models/stats whole."
        )
    return out


def _answers(text: str, name: str) -> Iterator[dict[str, Any]]:
    try:
        whole = _decode(text.encode())
    except UNREADABLE:
        whole = None
    found = whole if isinstance(whole, list) else [whole] if whole is not None else []
    if not found:
        for line in text.splitlines():
            if line.strip():
                try:
                    found.append(_decode(line.encode()))
                except UNREADABLE as error:
                    raise InputError(f"it is no JSON: {error}", place=name, remedy="Save it whole.") from None
    yield from (item for item in found if isinstance(item, dict))


def _model(model: dict[str, Any], samples: dict[str, list[Sample]]) -> None:
    labels = {"model": str(model.get("name", "")), "version": str(model.get("version", ""))}

    def add(metric: str, value: object, scale: float = 1.0) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            samples.setdefault(metric, []).append(Sample(labels, float(value) * scale))

    for key, metric in _COUNTS.items():
        add(metric, model.get(key))
    stages = model.get("inference_stats")
    if not isinstance(stages, dict):
        return
    for key, metric in _DURATIONS.items():
        stage = stages.get(key)
        if isinstance(stage, dict):
            add(metric, stage.get("ns"), 1e-3)
    for key, metric in (("success", "nv_inference_request_success"), ("fail", "nv_inference_request_failure")):
        stage = stages.get(key)
        if isinstance(stage, dict):
            add(metric, stage.get("count"))
