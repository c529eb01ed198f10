"""JSON in a form of somebody's own: lists of objects are tables, groups of numbers arms, the rest facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.readers.formats import format_of
from tailrace.diagnose.readers.heading import heading
from tailrace.diagnose.readers.request_columns import canonical


def read(tmp_path: Path, data: Any) -> Observed:
    path = tmp_path / "given.json"
    path.write_text(json.dumps(data))
    form = format_of(path.read_text(), path.name)
    assert form is not None
    return form.read(path, path.name)


def test_groups_are_arms_and_every_number_is_a_fact(tmp_path: Path) -> None:
    observed = read(
        tmp_path,
        {
            "old": {"ttft": {"mean_s": 1.5}, "users": 4},
            "new": {"ttft": {"mean_s": 2.5}, "users": 4},
            "box": {"cpus": 8},
        },
    )
    assert {arm.name: arm.get("ttft", "mean") for arm in observed.arms} == {"old": 1500.0, "new": 2500.0}
    assert observed.number("box.cpus") == 8


@pytest.mark.parametrize(
    "table",
    [
        [{"second": 0, "running": 3, "waiting": 0}, {"second": 5, "running": 4, "waiting": 9}],
        {"columns": ["second", "running", "waiting"], "rows": [[0, 3, 0], [5, 4, 9]]},
    ],
)
def test_a_list_of_moments_is_a_series(tmp_path: Path, table: Any) -> None:
    observed = read(tmp_path, {"host": "a", "retries": 2, "samples": table})
    assert [list(one.values) for one in observed.of_series("waiting")] == [[0.0, 9.0]]
    assert observed.number("retries") == 2


def test_a_list_of_requests_is_a_table_of_requests(tmp_path: Path) -> None:
    rows = [{"id": n, "sentAt": n, "firstByteAt": n + 0.5, "doneAt": n + 2.5} for n in range(3)]
    (requests,) = read(tmp_path, {"load": 3, "calls": rows}).table("requests")
    assert list(requests.numbers("ttft_ms")) == [500.0] * 3


@pytest.mark.parametrize(
    "histogram",
    [
        [{"le": 1, "count": 4}, {"le": 2, "count": 7}, {"le": 4, "count": 9}, {"le": "+Inf", "count": 12}],
        {"edges_s": [1, 2, 4], "cumulative": [4, 7, 9], "total": 12},
        {"explicitBounds": [1, 2, 4], "bucketCounts": ["4", "3", "2", "3"], "count": "12"},
        [{"max": 1, "n": 4}, {"max": 2, "n": 7}, {"max": 4, "n": 9}, {"max": "inf", "n": 12}],
    ],
)
def test_buckets_are_a_histogram(tmp_path: Path, histogram: Any) -> None:
    (found,) = read(tmp_path, {"shown": 4, "at": 7, "time_to_first_token": histogram}).histograms
    assert (found.name, found.bounds, found.counts) == ("ttft", [1000.0, 2000.0, 4000.0], [4.0, 3.0, 2.0, 3.0])


def test_buckets_of_otlp_are_counted_each_however_they_grow(tmp_path: Path) -> None:
    buckets = {"explicitBounds": [1, 2, 4], "bucketCounts": [1, 2, 3, 9]}
    (found,) = read(tmp_path, {"shown": 4, "at": 7, "time_to_first_token": buckets}).histograms
    assert found.counts == [1.0, 2.0, 3.0, 9.0]


@pytest.mark.parametrize("row", [{"p50": 400, "max": 4, "n": 9}, {"max": 4}])
def test_rows_of_statistics_and_rows_without_a_count_are_no_buckets(tmp_path: Path, row: Any) -> None:
    rows = [{**row, "max": edge, **({"n": n} if "n" in row else {})} for edge, n in ((1, 4), (2, 7), (4, 9))]
    data = {"shown": 4, "at": 7, "time_to_first_token": [*rows, {**rows[-1], "max": "inf"}]}
    assert not read(tmp_path, data).histograms


def test_counts_that_fit_no_edges_are_no_histogram(tmp_path: Path) -> None:
    data = {"shown": 4, "ttft": {"edges_s": [1, 2, 4], "counts": [4, 7]}}
    assert not read(tmp_path, data).histograms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("timeToFirstToken", ("ttft", "", "")),
        ("ttftP99Ms", ("ttft", "p99", "ms")),
        ("latency.ttft.p50", ("ttft", "p50", "")),
        ("latency.p50", ("e2e", "p50", "")),
        ("utilization.gpu [%]", ("gpu_util", "", "%")),
        ("vLLM.version", ("", "", "")),
    ],
)
def test_words_that_stand_together(text: str, expected: tuple[str, str, str]) -> None:
    found = heading(text)
    assert (found.quantity, found.stat, found.unit) == expected


def test_stamps_by_the_words_around_them() -> None:
    names = ["id", "scheduled_at", "wire_send_s", "first_byte_at", "done_ts", "time till first token", "parsed_at"]
    assert list(canonical(names).values()) == [
        "id", "t_intended_ms", "t_send_ms", "t_first_ms", "t_last_ms", "ttft_ms", "parsed_at",
    ]  # fmt: skip
