"""Real engines with one knob turned, measured in turn: the verdict names both sides of the trade."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.app import llamacpp_engine
from tailrace.app.ab import AbOptions, AbResult, run_ab
from tailrace.model.measurement import Verdict
from tests.children import Child
from tests.conftest import llamacpp_python

MIXED = "chat=20/24:0.88,document=480/8:0.12"
"""Reading a document of 480 tokens takes this engine about 3 s."""
BODY = '{"id": "{{request_id}}", "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [{{number}}]}]}'


def measured(folder: Path, urls: tuple[str, str], *bench: str, rounds: int, seed: int = 0) -> AbResult:
    def say(step):
        if step.summary is not None:
            sys.stderr.write(f"{step.planned.file}: {step.summary.metrics['e2e_ms']}\n")

    options = AbOptions(
        urls=urls, rounds=rounds, folder=folder / "ab", bench=bench, settle_s=1.0, again=3, seed=seed
    )  # fmt: skip
    result = run_ab(options, say)
    assert result.comparison is not None, result.summary
    assert not result.comparison.refused, result.comparison.refused
    return result


@contextmanager
def llamacpp(batch: int):
    python = llamacpp_python()
    assert python is not None
    script = str(Path(llamacpp_engine.__file__).resolve())
    child = Child([python, script, "--slots", "8", "--batch", str(batch), "--threads", "1"])
    try:
        yield child.wait_ready(60).url
    finally:
        child.stop()


@pytest.mark.tier("all")
@pytest.mark.needs("llamacpp")
@pytest.mark.long("two loads of 90 s on a real engine", timeout=600)
def test_llamacpp_reads_documents_in_one_piece_or_in_eight(tmp_path):
    """With n_batch 512 a document is one step, and whoever is being answered stands still; with 64 nobody does, and
    every token beside a document takes longer.
    """
    load = ("--rate", "0.7", "--duration", "90", "--mix", MIXED, "--timeout", "120")
    with llamacpp(512) as whole, llamacpp(64) as pieces:
        result = measured(tmp_path, (whole, pieces), *load, rounds=1, seed=5)
    comparison = result.comparison
    assert result.verdict is Verdict.IMPROVED, result.summary
    assert comparison.headline[0].startswith("chat/longest_wait"), "readers of chats are who gains"
    gaps = comparison.metrics["chat/longest_gap_ms.p90"]
    assert gaps.b < gaps.a / 2, "the stall is gone"
    # The other side: the same work in more steps, each of them shared with whoever is being answered.
    told = " ".join([*comparison.trade_offs, comparison.summary, comparison.in_short])
    assert "document" in told or "chunk gap" in told, told


@pytest.mark.tier("ci")
@pytest.mark.needs("triton")
@pytest.mark.long("six short loads on a real engine", timeout=180)
def test_triton_with_dynamic_batching_and_without(triton, tmp_path):
    """A batch takes 15 ms whatever its size: alone, 50 requests a second are three quarters of what it can do."""
    template = tmp_path / "infer.json"
    template.write_text(BODY)
    urls = tuple(f"{triton.url}/v2/models/{model}/infer" for model in ("double_alone", "double"))
    result = measured(
        tmp_path, urls, "--template", str(template), "--no-stream", "--rate", "50", "--duration", "12", rounds=3
    )  # fmt: skip
    assert result.verdict is Verdict.IMPROVED, result.summary
    # From the intended time, where being late matters.
    name = next(name for name in result.comparison.headline if "e2e" in name and name.endswith(".p99"))
    delta = result.comparison.metrics[name]
    assert result.rounds.n >= 1, "every run was client limited"
    assert delta.n_a > 500 * result.rounds.n, "an open loop sends what it was told to"
    assert delta.b < 0.7 * delta.a
    assert result.rounds.effects["e2e_ms.p95"].better == result.rounds.n
    # Nothing streams here: what cannot be known is absent, and never 0.
    assert not any(name.startswith(("ttft_ms", "chunk_gap_ms", "tpot_ms")) for name in result.comparison.metrics)
