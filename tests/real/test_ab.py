"""A real engine with one knob turned, measured in turn."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tailrace.app import llamacpp_engine
from tailrace.app.ab import AbOptions, AbResult, run_ab
from tailrace.model.measurement import Verdict
from tests.children import Child
from tests.conftest import llamacpp_python

BODY = '{"id": "{{request_id}}", "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [{{number}}]}]}'


def measured(folder: Path, urls: tuple[str, str], *bench: str, rounds: int) -> AbResult:
    def say(step):
        if step.summary is not None:
            sys.stderr.write(f"{step.planned.file}: {step.summary.metrics['e2e_ms']}\n")

    options = AbOptions(
        urls=urls, rounds=rounds, folder=folder / "ab", bench=bench, settle_s=1.0, again=3
    )  # fmt: skip
    result = run_ab(options, say)
    assert result.comparison is not None, result.summary
    assert not result.comparison.refused, result.comparison.refused
    return result


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


@pytest.mark.tier("all")
@pytest.mark.needs("llamacpp")
@pytest.mark.long("six rounds of two minutes on two real engines: shorter loads decide nothing", timeout=3000)
def test_llamacpp_with_smaller_prefill_steps_is_a_trade_and_both_sides_are_named(tmp_path):
    """A document's prompt is computed in one step of 512 tokens, or in eight of 64 between which others get on.

    Chat behind a document gets its first token far sooner; the document itself takes longer, and what was one long
    pause of every stream becomes many short ones.
    """
    python = llamacpp_python()
    assert python is not None, 'mark this test with needs("llamacpp")'
    script = str(Path(llamacpp_engine.__file__).resolve())
    with ExitStack() as stack:
        urls = []
        for batch in ("512", "64"):
            child = Child([python, script, "--slots", "8", "--batch", batch])
            stack.callback(child.stop)
            urls.append(child.wait_ready(60).url)
        result = measured(
            tmp_path,
            (urls[0], urls[1]),
            *("--rate", "0.8", "--duration", "120", "--mix", "chat=20/24:0.88,document=480/8:0.12"),
            rounds=6,
        )
    trade = result.comparison.trade_offs
    assert any(" of chat fell from" in text and text.startswith(("TTFT", "longest")) for text in trade), trade
    assert any(" of document (long prompts) rose from" in text for text in trade), trade
    if result.verdict is Verdict.INCONCLUSIVE:
        assert "It is a trade:" in result.comparison.summary
