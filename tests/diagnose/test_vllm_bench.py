"""Results of vLLM's own load generator: read, and set right where their names mislead."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tailrace.diagnose.readers.source import Kind, kind_of, read_source
from tailrace.diagnose.readers.vllm_bench import read_vllm_bench
from tailrace.export.jsonl import from_public_json
from tailrace.model.errors import InputError
from tests.conftest import shared_path

CAPTURED = "data/engine_samples/vllm/bench_serve_0.32.0.json"


def made(tmp_path: Path, **changed: object) -> Path:
    saved = {
        "date": "20261129-113503",
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "model_id": "m",
        "duration": 2.0,
        "request_goodput": 1.0,
        "input_lens": [10, 20],
        "output_lens": [3, 1],
        "ttfts": [0.1, 0.0],
        "itls": [[0.00001, 0.02, 0.00002, 0.2], []],
        "latencies": [0.4, 0.05],
        "start_times": [100.5, 100.0],
        "errors": ["", "boom"],
    }
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**saved, **changed}))
    return path


@pytest.mark.needs("shared")
def test_bench_import_drops_fake_zero_itl() -> None:
    path = shared_path() / CAPTURED
    assert kind_of(path) is Kind.VLLM_BENCH
    table, notes = read_vllm_bench(path)
    assert len(table) == 40
    assert notes[0].startswith("42 of 1275 inter-token times are below 0.1 ms and were dropped")
    saved = json.loads(path.read_text())
    # 42 are no gaps; of the others, those from the role frame to the first token belong to the TTFT.
    held_back = sum(itls[0] >= 1e-4 for itls in saved["itls"])
    assert int(table.column("chunk_gap_count").sum()) == 1275 - 42 - held_back
    assert table.ms("chunk_gap_p50").min() > 0.1
    assert np.allclose(
        table.ms("ttft"),
        [(t + itls[0]) * 1e3 for t, itls in zip(saved["ttfts"], saved["itls"], strict=True)],
        atol=1e-5,
    )


def test_what_a_request_looks_like(tmp_path: Path) -> None:
    source = read_source(str(made(tmp_path)), lambda line, place: from_public_json(line, place=place))
    assert source.kind is Kind.VLLM_BENCH
    assert source.table is not None
    first, failed = source.table.records()
    assert (first.ttft_ns, first.chunk_gap_count, first.chunk_gap_max_ns) == (100_010_000, 2, 200_000_000)
    assert first.e2e_ns == 400_000_000 == sum(first.stages().values())
    assert first.tpot_ns == 110_010_000
    assert (failed.outcome, failed.error, failed.died_in, failed.ttft_ns) == ("failed", "boom", "prefill", None)
    assert first.start_unix_ns - failed.start_unix_ns == 500_000_000
    assert any("2 of 4" in note for note in source.notes)


def test_without_roles_the_first_token_is_the_first(tmp_path: Path) -> None:
    table, notes = read_vllm_bench(made(tmp_path, endpoint_type="openai", backend="openai"))
    assert table.ms("ttft")[0] == 100
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"ttfts": []}, "only their summary"),
        ({"itls": [[]]}, "itls: not as many entries"),
        ({"itls": 7}, "is no result of vllm bench"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, changed: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_vllm_bench(made(tmp_path, **changed))
