"""Evidence under names of somebody's own: objects in JSON, camel case, gauges of replicas, classes of requests."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.diagnose.arms.of_requests import classes_of
from tailrace.diagnose.causes.gateway.stage_slow import PreprocessSlow
from tailrace.diagnose.causes.mix.structured_output import StructuredOutput
from tailrace.diagnose.causes.scheduler.prefill_steals_decode import PrefillStealsDecode
from tailrace.diagnose.observed import Arm, Observed, Place, Quoted, Series
from tailrace.diagnose.readers.fact_groups import arms_in_groups
from tailrace.diagnose.readers.heading import heading
from tailrace.diagnose.readers.headings import heading as column
from tailrace.diagnose.readers.json_groups import group_in
from tailrace.diagnose.readers.json_numbers import observed_numbers
from tailrace.diagnose.readers.requests import read_requests
from tailrace.diagnose.readers.series_columns import axis_of, column_of_series
from tailrace.diagnose.readers.timeseries import TIMESERIES
from tailrace.diagnose.readers.unnamed_latencies import with_latencies
from tailrace.diagnose.series_evidence.grammar_in_series import grammar_in_series
from tailrace.model.finding import Level


def test_objects_side_by_side_are_arms_and_sections_are_none() -> None:
    sides = {"left": {"ttft_ms": 1}, "right": {"ttft_ms": 2}}
    assert [name for name, _ in group_in({"site": "x", "now": {**sides, "note": "n"}})] == ["left", "right"]
    assert group_in({"host": {"cpus": 4}, "engine": {"batch": 8}}) == []
    assert group_in({"ttft": {"p50": 1, "p99": 2}, "itl": {"p50": 3, "p99": 4}}) == []
    rows = group_in({"steps": [{"depth": 1, "itl_ms": 2}, {"depth": 9, "itl_ms": 3}]})
    assert [name for name, _ in rows] == ["depth 1", "depth 9"]
    assert group_in({"steps": [{"depth": 1}, 5]}) == []


@pytest.mark.parametrize(("names", "moments"), [
    (["at_5min", "at_10min", "at_20min"], [300.0, 600.0, 1200.0]),
    (["minute_1", "minute_2", "minute_3"], [60.0, 120.0, 180.0]),
    (["at_8", "at_16", "at_32"], [None] * 3),
])  # fmt: skip
def test_groups_that_are_named_after_moments_have_the_time(names: list[str], moments: list[float | None]) -> None:
    groups = {name: {"ttft_ms": 400 + n} for n, name in enumerate(names)}
    assert [arm.keys.get("time_s") for arm in arms_in_groups(groups, Place("form.json"))] == moments


def test_numbers_of_no_known_name_stay_with_their_arm() -> None:
    data: Any = {"sides": {"old": {"hitRate": 0.8, "odd": 3}, "new": {"hitRate": 0.1, "odd": 4}}}
    arms = observed_numbers(data, "own.json").arms
    assert [arm.get("prefix_hit") for arm in arms] == [0.8, 0.1]
    assert [arm.get("odd") for arm in arms] == [3, 4]


def test_camel_case_is_read() -> None:
    assert (heading("ttftP95Ms").quantity, heading("ttftP95Ms").stat, heading("ttftP95Ms").unit) == (
        "ttft",
        "p95",
        "ms",
    )
    assert heading("avgPromptTokens").quantity == "prompt_tokens"


def test_a_rate_per_second_is_no_duration() -> None:
    assert column("tokens_per_s").unit == ""
    assert column("wait_s").unit == "s"
    assert column_of_series("tokens_per_s").name == "output_tok_s"


@pytest.mark.parametrize(("text", "name", "replica"), [
    ("running_r0", "running", "r0"), ("waiting_2", "waiting", "2"), ("desired_replicas", "desired_replicas", None),
    ("replicas_ready", "ready_endpoints", None), ("ttft_p99", "ttft", None),
])  # fmt: skip
def test_a_gauge_of_each_replica_has_its_label(text: str, name: str, replica: str | None) -> None:
    found = column_of_series(text)
    assert found.name == name
    assert found.labels.get("replica") == replica


@pytest.mark.parametrize(("text", "axis"), [
    ("seconds_after_disconnect", "time"), ("t_since_start", "time"), ("time_in_queue_s", None),
    ("time_since_last_token_s", None),
])  # fmt: skip
def test_a_time_since_the_start_is_an_axis_and_a_duration_is_none(text: str, axis: str | None) -> None:
    found = axis_of(text)
    assert (None if found is None else found.name) == axis


def test_a_unit_behind_a_name_is_no_part_of_it_and_a_plural_is() -> None:
    stats = {
        f"{label}.{stat}": Quoted(quantity="other", stat=stat, value=9.0, unit="ms", label=label, place=Place("t.md"))
        for label in ("desk clients", "phones ms") for stat in ("p50", "p99")
    }  # fmt: skip
    arms = with_latencies([Arm(name="all", label="all", values=stats)], "")
    assert [arm.name for arm in arms] == ["desk clients", "phones"]


def _requests(folder: Path, rows: list[dict[str, Any]]) -> Observed:
    path = folder / "r.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return read_requests(path, path.name)


def _row(number: int, kind: str, preprocess: float, **more: Any) -> dict[str, Any]:
    send = number * 1000
    first = send + preprocess + 200
    stages = {"preprocess": preprocess, "queue": 3, "prefill": 190}
    return {"id": f"q{number}", "group": kind, "t_send_ms": send, "t_first_ms": first, "t_last_ms": first + 700,
            "prompt_tokens": 500 + number, "output_tokens": 20, "status": "ok", "stage_ms": stages, **more}  # fmt: skip


def test_the_class_whose_stage_is_slow_is_named(tmp_path: Path) -> None:
    slow = [_row(n, "scan" if n % 2 else "plain", 1500 if n % 2 else 5) for n in range(12)]
    found = PreprocessSlow().observe(_requests(tmp_path, slow))
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert "group plain and group scan" in found.statement
    assert "100%" in found.relation


def test_a_stage_that_is_as_short_in_every_class_is_no_cause(tmp_path: Path) -> None:
    even = [_row(n, "scan" if n % 2 else "plain", 6) for n in range(12)]
    assert PreprocessSlow().observe(_requests(tmp_path, even)) is None


def test_without_stages_nothing_is_said_of_them(tmp_path: Path) -> None:
    rows = [_row(n, "scan" if n % 2 else "plain", 1500 if n % 2 else 5) for n in range(12)]
    for row in rows:
        del row["stage_ms"]
    assert PreprocessSlow().observe(_requests(tmp_path, rows)) is None


def test_columns_that_sort_requests_have_few_values_of_several_rows_each(tmp_path: Path) -> None:
    rows = [_row(n, "a" if n < 6 else "b", 5, pages=n % 3, rare="x" if n else "y") for n in range(12)]
    names = {name: sorted(masks) for name, masks in classes_of(_requests(tmp_path, rows).rows[0])}
    assert names["group"] == ["a", "b"]
    assert names["pages"] == ["0", "1", "2"]
    assert "rare" not in names
    assert "prompt_tokens" not in names


def _guided(util: list[float], made: list[float]) -> Observed:
    columns = {"grammar_requests": [0.0, 0.0, 3.0, 3.0, 3.0], "gpu_util": util, "output_tok_s": made}
    at = np.arange(5.0)
    series = [
        Series(name=name, axis="time", at=at, values=np.array(values), unit="", place=Place("s.csv"))
        for name, values in columns.items()
    ]
    return Observed(series=series)


@pytest.mark.parametrize(("util", "made", "found"), [
    ([0.95, 0.96, 0.05, 0.04, 0.04], [900, 900, 90, 90, 80], True),
    ([0.95, 0.96, 0.05, nan, 0.04], [900, nan, 90, 90, nan], True),
    ([0.95, 0.96, nan, nan, nan], [900, 900, 90, 90, 80], False),
    ([0.95, 0.96, 0.05, 0.04, 0.04], [0, 0, 0, 0, 0], False),
    ([0.95, 0.96, 0.05, 0.04, 0.04], [900, 900, 880, 890, 880], False),
])  # fmt: skip
def test_a_device_that_idles_while_grammars_are_there(util: list[float], made: list[float], found: bool) -> None:
    assert (grammar_in_series(StructuredOutput(), _guided(util, made)) is not None) is found


_PROMPTS = [(3000, 4400, 12_000), (9000, 12_100, 26_500)]


def _streams(folder: Path, stops: list[tuple[float, float]]) -> Observed:
    lines = ["t_s,gap_ms_stream_a,gap_ms_stream_b"]
    for n in range(32):
        at = 0.5 * n
        gap = next((length for when, length in stops if when == at), 14)
        lines.append(f"{at},{gap},{gap + 1}")
    path = folder / "s.csv"
    path.write_text("\n".join(lines))
    return TIMESERIES.read(path, path.name)


def _prefills(folder: Path) -> Observed:
    return _requests(folder, [
        {"id": f"p{n}", "t_send_ms": send, "t_first_ms": first, "t_last_ms": first + 500, "prompt_tokens": tokens,
         "output_tokens": 9, "status": "ok"} for n, (send, first, tokens) in enumerate(_PROMPTS)
    ])  # fmt: skip


def test_stops_that_fill_the_prefills_of_other_requests(tmp_path: Path) -> None:
    both = Observed.joined([_streams(tmp_path, [(4.5, 1390), (12.5, 3080)]), _prefills(tmp_path)])
    found = PrefillStealsDecode().observe(both)
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "26500 tokens / 3.100 s" in found.relation


@pytest.mark.parametrize("stops", [[(1.5, 1390), (7.5, 3080)], [(4.5, 300), (12.5, 310)], [(4.5, 1390), (7.0, 900), (15.5, 900)]])  # fmt: skip  # noqa: E501
def test_stops_at_other_times_or_of_other_lengths_are_no_prefills(
    stops: list[tuple[float, float]], tmp_path: Path
) -> None:
    both = Observed.joined([_streams(tmp_path, stops), _prefills(tmp_path)])
    assert PrefillStealsDecode().observe(both) is None


def test_without_the_requests_stops_alone_are_no_prefills(tmp_path: Path) -> None:
    assert PrefillStealsDecode().observe(_streams(tmp_path, [(4.5, 1390), (12.5, 3080)])) is None
