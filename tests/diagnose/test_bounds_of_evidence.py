"""However much of one kind is given, an answer is bounded work, and what was left out is said."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.arms import pairs as pairs_module
from tailrace.diagnose.bounds import MOST_EVENTS, MOST_OF_A_NAME, MOST_SETTINGS, bounded
from tailrace.diagnose.observed import Arm, Event, Observed, Place, Series, Setting
from tailrace.diagnose.readers import table_text
from tailrace.diagnose.readers.printed import runs_in
from tailrace.diagnose.readers.source import MOST_DEVICES
from tailrace.diagnose.readers.table_text import read_table
from tailrace.diagnose.readers.timeseries import MOST_GROUPS, read_timeseries


def series(name: str, owner: int) -> Series:
    return Series(name=name, labels={"replica": f"r{owner}"}, at=np.arange(3.0), values=np.ones(3), place=Place("s", 7))


def test_the_first_owners_of_each_name_are_kept_and_the_rest_is_counted():
    given = Observed(series=[series(name, n) for n in range(MOST_OF_A_NAME + 50) for name in ("running", "app_x")])
    found = bounded(given)
    assert len(found.series) == 2 * MOST_OF_A_NAME
    assert {item.labels["replica"] for item in found.series} == {f"r{n}" for n in range(MOST_OF_A_NAME)}
    (said,) = found.understood
    assert (said.understood, said.total, said.what) == (2 * MOST_OF_A_NAME, 2 * MOST_OF_A_NAME + 100, "series")
    assert said.examples == [f"7: running replica r{MOST_OF_A_NAME}"]
    assert given.understood == []


def test_what_a_fleet_reports_is_kept_as_it_is():
    given = Observed(
        series=[series("running", n) for n in range(MOST_OF_A_NAME)], settings=[Setting(name="a", value=1)]
    )
    found = bounded(given)
    assert found.series == given.series
    assert found.understood == []


def test_of_events_both_ends_are_kept():
    given = Observed(
        events=[Event(kind="stop", at=float(n)) for n in range(MOST_EVENTS + 10)],
        settings=[Setting(name=f"s{n}", value=n, place=Place("f", n)) for n in range(MOST_SETTINGS + 1)],
    )
    found = bounded(given)
    assert (found.events[0].at, found.events[-1].at, len(found.events)) == (0.0, MOST_EVENTS + 9.0, MOST_EVENTS)
    assert [item.name for item in found.settings] == [f"s{n}" for n in range(MOST_SETTINGS)]
    assert [(item.what, item.total) for item in found.understood] == [
        ("settings", MOST_SETTINGS + 1), ("events", MOST_EVENTS + 10)
    ]  # fmt: skip


def test_rows_that_have_each_a_key_of_their_own_take_memory_by_their_number(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(table_text, "MOST_COLUMNS", 20)
    path = tmp_path / "own.jsonl"

    def peak(rows: int) -> int:
        path.write_text("".join(json.dumps({"id": n, "ttft_ms": 5, f"k{n}": n}) + "\n" for n in range(rows)))
        tracemalloc.start()
        table = read_table(path)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (len(table), len(table.columns), len(table.left)) == (rows, 20, 20)
        (said,) = table.cut("own.jsonl", "requests")
        assert (said.understood, said.total, said.examples[0]) == (20, 40, "19: k18")
        return used

    assert peak(4000) < 6 * peak(1000)  # by the square: sixteen times


def test_no_heading_is_added_where_its_holes_would_be_the_table(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(table_text, "MOST_CELLS", 30)
    path = tmp_path / "late.jsonl"
    path.write_text(
        "".join(json.dumps({"id": n, "ttft_ms": 5} | ({"late": 1} if n > 20 else {})) + "\n" for n in range(30))
    )
    assert list(read_table(path).columns) == ["id", "ttft_ms"]


def test_a_series_of_as_many_streams_as_rows_is_cut(tmp_path: Path):
    path = tmp_path / "streams.csv"
    path.write_text("t_s,stream,running\n" + "".join(f"{n},s{n},1\n" for n in range(MOST_GROUPS + 30)))
    found = read_timeseries(path, path.name)
    assert len(found.series) == MOST_GROUPS
    said = found.understood[-1]
    assert (said.understood, said.total, said.what) == (MOST_GROUPS, MOST_GROUPS + 30, "streams, replicas or devices")
    assert said.examples == [f"{MOST_GROUPS + 2}: s{MOST_GROUPS}"]


def test_each_arm_is_asked_once_for_its_load(monkeypatch):
    asked = []
    real = pairs_module.loads
    monkeypatch.setattr(pairs_module, "loads", lambda arm: asked.append(arm.name) or real(arm))
    arms = [Arm(name=f"a{n}", label="", keys={"concurrency": float(n % 3)}) for n in range(30)]
    found = list(pairs_module.pairs(arms))
    assert len(found) == 3 * 45
    assert len(asked) == 30


def test_labelled_engines_of_a_scrape_are_cut_and_said(tmp_path: Path):
    path = tmp_path / "metrics.txt"
    rows = [f'vllm:num_requests_running{{engine="{n}"}} {n % 40}' for n in range(MOST_OF_A_NAME + 20)]
    path.write_text("# TYPE vllm:num_requests_running gauge\n" + "\n".join(rows) + "\n")
    found = diagnose_sources([str(path)])
    assert any(f"parsed {MOST_OF_A_NAME} of {MOST_OF_A_NAME + 20} series" in line for line in found.not_understood)


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of the best of several."""
    took = []
    for _ in range(3):
        begun = time.process_time()
        work()
        took.append(time.process_time() - begun)
    return min(took)


@pytest.mark.parametrize("title", ["", "Some words before\n"])
def test_printed_runs_are_read_in_time_that_grows_with_them(title: str):
    def lines(runs: int) -> list[tuple[int, str]]:
        one = f"{title}===== Serving Benchmark Result =====\nMean TTFT (ms): 5\nP99 TTFT (ms): 9\n"
        return list(enumerate((one * runs).split("\n"), start=1))

    few, many = lines(400), lines(1600)
    assert len(runs_in(many, "a.txt")[0]) == 1600
    # Four times as many; by the square sixteen times.
    assert cpu(lambda: runs_in(many, "a.txt")) < 9 * cpu(lambda: runs_in(few, "a.txt"))


def test_a_command_line_longer_than_any_is_cut_and_said(tmp_path: Path):
    path = tmp_path / "command.txt"
    path.write_text("vllm serve m --max-num-seqs 256" + "".join(f" --opt-{n} {n}" for n in range(1500)))
    found = diagnose_sources([str(path)])
    assert any("parsed 1000 of 3005 words" in line for line in found.not_understood)


def test_devices_beyond_a_thousand_are_counted(tmp_path: Path):
    path = tmp_path / "smi.csv"
    rows = "".join(f"2026/01/01 00:00:00.000, {n}, 50 %, 1500 MHz\n" for n in range(MOST_DEVICES + 3))
    path.write_text("timestamp, index, utilization.gpu [%], clocks.current.sm [MHz]\n" + rows)
    found = diagnose_sources([str(path)])
    assert any("1,000 of 1,003 devices" in line for line in found.not_understood)
