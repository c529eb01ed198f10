# ruff: noqa: E501  (lines of logs are as long as they are)
"""What logs show that no cause explains: said first among what is wanted; and a hit rate that falls."""

from __future__ import annotations

import pytest

from tests.diagnose.evidence_texts import asked, found
from tests.diagnose.logs.lines import v1

DEATH = """(EngineCore_DP0 pid=77) ERROR 05-11 17:00:41 [core.py:710] EngineCore encountered a fatal error.
(EngineCore_DP0 pid=77) ERROR 05-11 17:00:41 [core.py:710] torch.OutOfMemoryError: CUDA out of memory.
"""


def load(hits: list[float], prompts: list[float], *, running: list[int] | None = None) -> str:
    lines = [
        v1(
            at * 10,
            prompt=prompt,
            made=800.0 if prompt < 5000 else 300.0,
            running=24 if running is None else running[at],
        ).replace("hit rate: 20.0%", f"hit rate: {hit:.1f}%")
        for at, (hit, prompt) in enumerate(zip(hits, prompts, strict=True))
    ]
    return "\n".join(lines) + "\n"


def test_an_engine_that_died_is_asked_for_first(tmp_path):
    diagnosis = asked(tmp_path, vllm_log=load([20.0] * 4, [500.0] * 4) + DEATH)
    assert diagnosis.findings[0].code == "INSUFFICIENT_EVIDENCE"
    assert "why the engine died" in diagnosis.needs[0]
    assert "fatal error" in diagnosis.needs[0]
    assert not any("died" in need for need in asked(tmp_path, vllm_log=load([20.0] * 4, [500.0] * 4)).needs)


def test_a_hit_rate_that_falls_while_more_is_computed(tmp_path):
    falling = [82.0] * 8 + [76.0, 70.0, 64.0, 58.0, 50.0, 44.0, 40.0, 34.0]
    finding = found(tmp_path, "MIX_CACHE_MISS", vllm_log=load(falling, [2000.0] * 8 + [11_000.0] * 8))
    assert finding.level == "suspected"
    assert "82.0%" in finding.statement
    assert "counters" in finding.missing[0]


@pytest.mark.parametrize(
    ("hits", "prompts", "running"),
    [
        ([82.0] * 16, [2000.0] * 8 + [11_000.0] * 8, None),  # the rate stands
        ([82.0] * 8 + [40.0] * 8, [2000.0] * 16, None),  # no more is computed
        ([82.0] * 8 + [40.0] * 8, [2000.0] * 8 + [11_000.0] * 8, [24] * 8 + [96] * 8),  # more requests run
        ([82.0] * 3 + [40.0] * 3, [2000.0] * 3 + [11_000.0] * 3, None),  # too few lines
    ],
)
def test_a_hit_rate_that_tells_no_miss(tmp_path, hits, prompts, running):
    finding = found(tmp_path, "MIX_CACHE_MISS", vllm_log=load(hits, prompts, running=running))
    assert finding is None


def spoken(accepted: list[float]) -> str:
    return "\n".join(
        f"[2026-05-03 10:00:{at * 4:02d} TP0] Decode batch, #running-req: 40, #token: 200000, token usage: 0.31, accept len: {length:.2f}, accept rate: 0.50, cuda graph: True, gen throughput (token/s): {1000 * length:.2f}, #queue-req: 0, "
        for at, length in enumerate(accepted)
    )


def test_drafts_that_are_accepted_less_are_asked_about(tmp_path):
    needs = asked(tmp_path, sglang_log=spoken([3.1] * 6 + [1.05] * 6)).needs
    assert any("fell from 3.10 to 1.05 tokens" in need for need in needs)
    assert not any("accepted length" in need for need in asked(tmp_path, sglang_log=spoken([3.1] * 12)).needs)
