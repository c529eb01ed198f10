"""The table that vLLM's and SGLang's load generators print, as people paste it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.model.errors import InputError
from tests.conftest import shared_path
from tests.diagnose.foreign_results import aggregate_of, read, write

RULE = "=" * 50


def table(*rows: str) -> str:
    return "\n".join([f"{RULE[:12]} Serving Benchmark Result {RULE[:12]}", *rows, RULE, ""])


def test_vllm_words_its_end_as_e2el(tmp_path: Path) -> None:
    made = aggregate_of(
        write(
            tmp_path,
            table(
                "Successful requests:                     768       ",
                "Failed requests:                         3         ",
                "Maximum request concurrency:             30        ",
                "---------------Time to First Token----------------",
                "P99 TTFT (ms):                           23907.83  ",
                "Median TPOT (ms):                        582.24    ",
                "P99.9 E2EL (ms):                         14120.00  ",
            ),
        )
    )
    metrics = made.summary.metrics
    assert (made.header.source, made.summary.n, made.header.arrival.concurrency) == ("vllm", 771, 30)
    assert (metrics["ttft_ms"].p99, metrics["tpot_ms"].p50, metrics["e2e_last_token_ms"].p999) == (
        23907.83, 582.24, 14120.0,
    )  # fmt: skip


def test_sglang_has_its_tpot_and_its_shared_gaps_as_theirs(tmp_path: Path) -> None:
    rows = ("Backend: sglang", "Traffic request rate: inf", "Mean E2E Latency (ms): 2410.20", "Mean TPOT (ms): 9.0")
    made = aggregate_of(write(tmp_path, table(*rows, "Accept length: 4.10", "P95 ITL (ms): 10.40")))
    assert made.header.source == "sglang"
    assert made.summary.metrics["e2e_ms"].mean == 2410.2
    assert made.theirs == {"itl": {"p95": 10.4}, "tpot": {"mean": 9.0}}
    assert {"tpot_ms", "chunk_gap_ms"} <= set(made.header.absent)


def test_where_no_word_tells_whose_it_is_only_what_both_share_is_ours(tmp_path: Path) -> None:
    made = aggregate_of(
        write(tmp_path, table("Successful requests: 100", "Mean TPOT (ms): 875.24", "P99 ITL (ms): 8133"))
    )
    assert made.summary.metrics["chunk_gap_ms"].p99 == 8133.0
    assert made.summary.metrics["tpot_ms"].n == 0
    assert made.theirs == {"tpot": {"mean": 875.24}}


def test_several_tables_are_several_runs_and_none_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, table("Successful requests: 1") + table("Successful requests: 2"))
    assert aggregate_of(f"{path}#2").summary.n == 2
    with pytest.raises(InputError, match="no row"):
        read(write(tmp_path, table()))


@pytest.mark.needs("shared")
@pytest.mark.parametrize(
    ("name", "n", "metric", "statistic", "value"),
    [
        ("bench_samples/vllm/bench_serve_real.console.txt", 40, "ttft_ms", "p99", 273.95),
        ("cases/inputs/SC-04.bench.txt", 100, "ttft_ms", "p99", 23907.83),
        ("cases/inputs/MT-04.bench.txt", 40, "e2e_ms", "mean", 2410.2),
        ("cases/inputs/GW-05.bench.txt", 768, "e2e_last_token_ms", "p99", 14120.0),
    ],
)
def test_what_people_paste(name: str, n: int, metric: str, statistic: str, value: float) -> None:
    made = aggregate_of(shared_path() / "data" / name)
    assert made.summary.n == n
    assert getattr(made.summary.metrics[metric], statistic) == value
