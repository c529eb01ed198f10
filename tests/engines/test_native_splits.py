"""The engines' own streams: any split of their bytes gives the same measurement."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.engines.registry import adapter
from tailrace.measure.meter import StreamMeter
from tailrace.measure.summary import StreamSummary
from tests.engines.read_in_source import tgi


def frames(*objects: dict[str, Any]) -> list[bytes]:
    return [b"data: %b\n\n" % json.dumps(each).encode() for each in objects]


def cumulative(text: str, count: int, finish: str | None = None) -> dict[str, Any]:
    reason = {"type": finish} if finish else None
    return {
        "text": text,
        "meta_info": {"id": "r", "prompt_tokens": 5, "completion_tokens": count, "finish_reason": reason},
    }


STREAMS: dict[str, tuple[str, str, list[bytes]]] = {
    "tgi": ("tgi", "/generate_stream", tgi.GENERATE_STREAM),
    "tgi before it is recognised": ("openai_compatible", "/generate_stream", tgi.GENERATE_STREAM),
    "sglang": (
        "sglang",
        "/generate",
        [*frames(cumulative("a", 1), cumulative("ab", 2), cumulative("ab", 2, "stop")), b"data: [DONE]\n\n"],
    ),
    "triton": (
        "triton",
        "/v2/models/{model}/generate_stream",
        frames(*({"model_name": "m", "text_output": text} for text in ("a", "b", "c"))),
    ),
    "llamacpp": (
        "llamacpp",
        "/completion",
        frames(
            {"content": "a", "stop": False},
            {"content": "b", "stop": False},
            {"content": "", "stop": True, "stop_type": "eos", "tokens_evaluated": 4, "tokens_predicted": 2,
             "timings": {"prompt_ms": 2.0, "predicted_ms": 1.0}},
        ),
    ),
}  # fmt: skip


def measured(name: str, path: str, pieces: list[bytes]) -> StreamSummary:
    meter = StreamMeter(adapter(name).dialect(path), origin_ns=0)
    for piece in pieces:
        meter.feed(piece, 7)
    meter.end(9, clean=True)
    return meter.summary()


@pytest.mark.parametrize("stream", STREAMS)
@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 600), max_size=8))
def test_any_split_of_the_bytes_gives_the_same_record(stream: str, cuts: list[int]) -> None:
    name, path, events = STREAMS[stream]
    whole = b"".join(events)
    at = sorted({0, *(cut for cut in cuts if cut < len(whole)), len(whole)})
    pieces = [whole[start:stop] for start, stop in itertools.pairwise(at)]
    once = measured(name, path, [whole])
    assert measured(name, path, pieces) == once
    assert once.finished
    assert once.output_tokens is not None
