"""Sweeps at rest: written again after each point, read back as they were, and refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.analyze.sweep import sweep_points
from tailrace.model.errors import RunFileError, StoreError
from tailrace.model.measurement import BenchSummary, ClientHealth, MetricSummary
from tailrace.store.sweep import SWEEP_FILE, Sweep, SweepRun, is_sweep, read_sweep, write_sweep


def summary(**more) -> BenchSummary:
    given = {
        "run": "x", "n": 10, "requests_per_s": 3.0, "tokens_per_s": 30.0, "goodput_per_s": 3.0, "errors": {},
        "client": ClientHealth(), "metrics": {"ttft_ms": MetricSummary(n=10, p50=5.0)},
    }  # fmt: skip
    return BenchSummary(**given | more)


def test_what_was_written_is_read(tmp_path: Path):
    sweep = Sweep(
        target="http://x",
        asked=[2.0, 1.0, 4.0],
        stopped="the queue grew",
        runs=[
            SweepRun(value=2.0, run="rate-2.run", summary=summary()),
            SweepRun(value=1.0, run="rate-1.run", summary=summary(errors={"timed_out": 5}), saturated="why"),
        ],
        found={"value": 1.5},
    )
    write_sweep(tmp_path, sweep)
    assert is_sweep(tmp_path)
    assert read_sweep(tmp_path) == sweep
    assert read_sweep(tmp_path / SWEEP_FILE) == sweep
    assert [one.name for one in tmp_path.iterdir()] == [SWEEP_FILE]
    points = sweep_points(sweep)
    assert [(point.rate, point.concurrency, point.saturated, point.failed_share) for point in points] == [
        (1.0, None, "why", 0.5),
        (2.0, None, "", 0.0),
    ]


def test_latency_leads_with_the_schedule():
    from_send = summary()
    both = summary(from_schedule={"ttft_ms": MetricSummary(n=10, p50=50.0)})
    nothing = summary(metrics={"ttft_ms": MetricSummary(n=0)})
    sweep = Sweep(
        axis="concurrency",
        runs=[SweepRun(value=i, run="", summary=one) for i, one in enumerate((from_send, both, nothing))],
    )
    found = [point.latency() for point in sweep_points(sweep)]
    assert [one and one.p50 for one in found] == [5.0, 50.0, None]
    assert [point.concurrency for point in sweep_points(sweep)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no sweep here"),
        (b"{", "this is no sweep"),
        (b"[]", "tailrace_sweep is None"),
        (b'{"tailrace_sweep": 99}', "tailrace_sweep is 99"),
        (b'{"tailrace_sweep": 1, "runs": 5}', "this is no sweep"),
    ],
)
def test_what_is_no_sweep_is_refused_by_name(content: bytes | None, said: str, tmp_path: Path):
    if content is not None:
        (tmp_path / SWEEP_FILE).write_bytes(content)
    with pytest.raises(RunFileError, match=said) as caught:
        read_sweep(tmp_path)
    assert caught.value.place == str(tmp_path / SWEEP_FILE)
    assert "--sweep" in caught.value.remedy


def test_a_disk_that_refuses_leaves_the_old_sweep(tmp_path: Path):
    write_sweep(tmp_path, Sweep(target="old"))
    (tmp_path / "sweep.json.new").mkdir()  # where the new one would be written first
    with pytest.raises(StoreError, match="cannot write the sweep"):
        write_sweep(tmp_path, Sweep(target="new"))
    assert read_sweep(tmp_path).target == "old"
