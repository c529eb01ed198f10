"""Traces in their public schemas, from text."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS, S
from tailrace.workload.trace import read_trace, tick_ns

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:59.9999999,374,44
2023-11-16 18:16:00.0000001,396,109
2023-11-16 18:16:02.5,879,0
2023-11-16 18:16:03,91,16
"""


def test_azure_stamps_keep_seven_digits():
    rows = read_trace(AZURE.splitlines())
    assert [(r.at_ns, r.prompt_tokens, r.output_tokens) for r in rows] == [
        (0, 374, 44),
        (200, 396, 109),
        (3_000_000_100, 91, 16),
    ]


def test_speed_divides_the_times():
    fast = read_trace(AZURE.splitlines(), speed=2)
    assert [r.at_ns for r in fast] == [0, 100, 1_500_000_050]


def mooncake(stamps: list[int]) -> list[str]:
    return [
        json.dumps({"timestamp": t, "input_length": 10 + i, "output_length": 5, "hash_ids": [0, i]})
        for i, t in enumerate(stamps)
    ]


def test_mooncake_ticks_are_spread_inside_the_tick():
    stamps = [3000 * (i // 10) for i in range(400)]
    rows = read_trace(mooncake(stamps), rng=np.random.default_rng(1))
    at = np.array([r.at_ns for r in rows])
    assert (np.diff(at) >= 0).all()
    assert len(np.unique(at)) == 400
    for row in rows:
        tick = stamps[row.prompt_tokens - 10] * MS
        assert tick <= row.at_ns < tick + 3 * S
    assert rows[0].blocks[0] == 0


def test_without_a_generator_ticks_stay():
    rows = read_trace(mooncake([0, 0, 3000, 3000, 6000, 6000]))
    assert [r.at_ns // S for r in rows] == [0, 0, 3, 3, 6, 6]


def test_continuous_stamps_have_no_tick():
    assert tick_ns(np.array([0, 100 * MS + 1, 250 * MS, 260 * MS])) == 0


def test_burstgpt_and_multimodal_columns():
    rows = read_trace(
        [
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "5,ChatGPT,472,18,490,log",
            "45,GPT-4,10,0,10,log",
            "47.5,GPT-4,20,3,23,log",
        ]
    )
    assert [(r.at_ns, r.prompt_tokens, r.output_tokens) for r in rows] == [(0, 472, 18), (42_500 * MS, 20, 3)]
    mixed = read_trace(["t_s,input_tokens,image_tokens,output_tokens", "0,10,600,7"])
    assert mixed[0].prompt_tokens == 610


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "trace"),
        ("\n\n", "trace"),
        ("a,b,c\n1,2,3", "trace:1"),
        ("t_s,input_tokens,output_tokens\n0,1,1\n1,x,1", "trace:3"),
        ("t_s,input_tokens,output_tokens\n0,1", "trace:2"),
        ('{"timestamp": 0, "input_length": 1}', "trace:1"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 2}\n{"timest', "trace:2"),
        ("t_s,input_tokens,output_tokens\n0,0,0", "trace"),
    ],
)
def test_a_bad_trace_names_the_line(text: str, place: str):
    with pytest.raises(InputError) as caught:
        read_trace(text.splitlines())
    assert caught.value.place == place


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_rows_come_in_order_and_start_at_zero(stamps):
    rows = read_trace(["t_s,input_tokens,output_tokens", *(f"{t},1,1" for t in stamps)])
    assert [r.at_ns for r in rows] == sorted((t - min(stamps)) * S for t in stamps)


@pytest.mark.needs("shared")
@pytest.mark.parametrize(
    ("name", "n", "seconds"),
    [
        ("AzureLLMInferenceTrace_code.csv", 8819, 3436),
        ("AzureLLMInferenceTrace_conv.csv", 19_366, 3502),
        ("mooncake_conversation_trace.jsonl", 12_031, 3537),
        ("mooncake_synthetic_trace.jsonl", 3993, 1022),
    ],
)
def test_the_public_traces_read_whole(name: str, n: int, seconds: int):
    shared = Path(os.environ.get("TAILRACE_SHARED", Path(__file__).parents[2].parent / "shared"))
    with (shared / "data/traces" / name).open() as lines:
        rows = read_trace(lines, rng=np.random.default_rng(0))
    assert len(rows) == n
    assert rows[-1].at_ns / S == pytest.approx(seconds, abs=4)
