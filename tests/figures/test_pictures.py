"""Every picture is valid Plotly, says what is to be seen, and treats foreign text as text."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from tailrace.analyze.bench_summary import completed
from tailrace.analyze.buckets import tail_by_length
from tailrace.analyze.failures import failures_by_stage
from tailrace.analyze.stage_groups import stage_groups
from tailrace.figures.decomposition import decomposition_picture
from tailrace.figures.failures import failures_picture
from tailrace.figures.palette import stage_color
from tailrace.figures.picture import Picture
from tailrace.figures.tail_by_length import tail_picture
from tailrace.figures.timeline import timeline_picture
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS
from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.table import RecordTable
from tests.web.traffic import realistic_records

EVIL = '<img src=x onerror="alert(1)"><a href="https://evil.example">x</a>'


@pytest.fixture(scope="module")
def table() -> RecordTable:
    return RecordTable.from_records(realistic_records(2500, now_unix_ns=10**18))


def done(table: RecordTable) -> RecordTable:
    return table.where(completed(table))


def valid(picture: Picture) -> str:
    """The validated figure as JSON; Plotly raises on a property that does not exist."""
    figure = picture.figure()
    assert figure.layout.title.text
    assert bool(picture.alt) == (bool(picture.data) and picture.name != "timeline") or "Too few" in picture.title
    json.loads(msgspec.json.encode(picture))
    return figure.to_json()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("total", ["ttft", "e2e"])
def test_bars_add_up_to_the_analysis_and_have_the_stage_colours(table, total, theme):
    analysis = stage_groups(done(table), total)
    picture = decomposition_picture(analysis, theme)
    valid(picture)
    assert not picture.empty
    assert [group.name for group in analysis.groups] == ["mean", "p50", "p99"]
    for place, group in enumerate(reversed(analysis.groups)):
        assert sum(trace["x"][place] for trace in picture.data) == pytest.approx(group.total_ms, abs=0.02)
    for trace in picture.data:
        assert trace["marker"]["color"] == stage_color(trace["meta"]["stage"], theme)
    tail = analysis.groups[-1]
    leader = max(tail.stages_ms, key=lambda name: tail.stages_ms[name])
    assert f"of it is {leader}" in picture.title
    assert "ms" in picture.layout["xaxis"]["title"]["text"]
    order = [trace["name"] for trace in picture.data]
    assert order.index("queue.gateway") < order.index("queue.engine") < order.index("prefill")


def test_bars_name_the_source_of_each_stage(table):
    picture = decomposition_picture(stage_groups(done(table)))
    prefill = next(trace for trace in picture.data if trace["name"] == "prefill")
    assert "reported(metrics.time_to_first_token_ms)" in prefill["customdata"][0][2]


def test_what_is_left_of_a_split_stage_says_so(table):
    unsplit = [
        msgspec.structs.replace(row, queue_gateway_ns=None, queue_engine_ns=None) for row in list(table.records())[:200]
    ]
    mixed = RecordTable.concat([table, RecordTable.from_records(unsplit)])
    names = [trace["name"] for trace in decomposition_picture(stage_groups(done(mixed))).data]
    assert "queue (not split)" in names
    alone = [
        trace["name"] for trace in decomposition_picture(stage_groups(done(RecordTable.from_records(unsplit)))).data
    ]
    assert "queue" in alone


def test_remarks_about_one_value_are_no_source_of_their_own(table):
    rows = [
        msgspec.structs.replace(row, stage_sources=row.stage_sources | {"prefill": f"reported(x; clamped from {n} ms)"})
        for n, row in enumerate(table.records())
    ]
    assert list(stage_groups(RecordTable.from_records(rows)).sources["prefill"]) == ["reported(x)"]


def test_too_few_requests_for_a_p99_are_called_the_slowest():
    few = RecordTable.from_records(realistic_records(60, now_unix_ns=10**18))
    analysis = stage_groups(done(few))
    assert analysis.groups[-1].name == "slowest"
    picture = decomposition_picture(analysis)
    valid(picture)
    assert picture.title.startswith("The slowest requests")
    assert "p99 needs n ≥ 500" in picture.note


@pytest.mark.parametrize("metric", ["ttft", "tpot", "e2e"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_cells_show_their_n_and_invent_nothing(table, metric, theme):
    cells = tail_by_length(table, metric)
    picture = tail_picture(cells, metric, theme)
    valid(picture)
    ground, heat = picture.data
    colored = [value for row in heat["z"] for value in row if value is not None]
    with_requests = [value for row in ground["z"] for value in row if value is not None]
    assert len(with_requests) == sum(1 for cell in cells if cell.n)
    level = "p99" if "the colour are p99" in picture.note else "p95"
    assert sorted(colored) == sorted(value for cell in cells if (value := getattr(cell, level)) is not None)
    texts = [note["text"] for note in picture.layout["annotations"]]
    assert len(texts) == len(with_requests)
    assert all("n " in text for text in texts)
    if colored:
        assert heat["zmin"] == 0
        assert heat["zmax"] == max(colored)


def test_no_cell_with_enough_requests_is_said_not_coloured():
    few = RecordTable.from_records(realistic_records(40, now_unix_ns=10**18))
    picture = tail_picture(tail_by_length(few))
    valid(picture)
    assert "Too few requests" in picture.title
    assert not picture.data[1]["showscale"]
    assert all(value is None for row in picture.data[1]["z"] for value in row)


def test_lengths_that_are_not_known_are_counted(table):
    picture = tail_picture(tail_by_length(table), unknown=17)
    assert "17 more" in picture.note


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_failures_count_every_request_once(table, theme):
    picture = failures_picture(failures_by_stage(table), len(table), theme)
    valid(picture)
    failed = int((~completed(table)).sum())
    assert sum(sum(trace["x"]) for trace in picture.data) == failed
    assert picture.title.startswith(f"{failed} of 2,500 requests")
    for trace in picture.data:
        assert trace["marker"]["color"] == stage_color(trace["meta"]["stage"], theme)


def test_the_rarest_of_many_reasons_are_told_not_lost():
    reasons = [reason for reason in Reason if reason is not Reason.NONE][:20]
    records = [
        RequestRecord(
            request_id=str(number),
            start_unix_ns=number,
            e2e_ns=1,
            ingress_ns=1,
            outcome=OutcomeKind.FAILED,
            reason=reason,
            died_in="decode",
        )
        for number, reason in enumerate(reasons)
    ]
    picture = failures_picture(failures_by_stage(RecordTable.from_records(records)), 20)
    valid(picture)
    assert "8 rarer reasons are not shown" in picture.note


def test_empty_pictures_say_what_to_do():
    empty = RecordTable.empty()
    pictures = [
        decomposition_picture(stage_groups(empty)),
        decomposition_picture(stage_groups(empty, "ttft")),
        tail_picture(tail_by_length(empty)),
        failures_picture([], 0),
    ]
    for picture in pictures:
        valid(picture)
        assert not picture.data
        assert "longer window" in picture.empty


def test_nothing_failed_is_good_news():
    picture = failures_picture([], 12)
    valid(picture)
    assert picture.title == "All 12 requests completed"


def record(**more) -> RequestRecord:
    fields = {"request_id": "r", "start_unix_ns": 1, "e2e_ns": 1, "outcome": OutcomeKind.COMPLETED}
    return RequestRecord(**fields | more)


def test_a_timeline_shows_each_gap_and_marks_the_long_ones():
    stamps = np.array([100, 120, 140, 400, 420]) * MS
    timeline = Timeline(
        at_ns=[90 * MS, *stamps.tolist(), 421 * MS],
        kind=[EventKind.ROLE, *[EventKind.CONTENT] * 5, EventKind.DONE],
        tokens=[0, 1, 1, 1, 1, 1, 0],
        thinned=3,
    )
    picture = timeline_picture(record(timeline=timeline))
    valid(picture)
    short, long, others = picture.data
    assert [y for y in short["y"] if y] == [20, 20, 20]
    assert [y for y in long["y"] if y] == [260]
    assert others["text"] == ["role", "done"]
    assert picture.title.replace("\u00a0", " ") == (
        "Longest gap between tokens: 260 ms, 81 % of the decode; 1 of 4 gaps over 150 ms"
    )
    assert "3 more were merged" in picture.note


def test_a_request_without_gaps_says_why():
    assert "not kept" in timeline_picture(record()).empty
    assert "No token" in timeline_picture(record(timeline=Timeline())).empty
    one = Timeline(at_ns=[5 * MS], kind=[EventKind.CONTENT], tokens=[1])
    picture = timeline_picture(record(timeline=one))
    valid(picture)
    assert picture.title.startswith("One token")


def test_foreign_text_stays_text():
    evil = [
        msgspec.structs.replace(row, died_in=EVIL, stage_sources=dict.fromkeys(row.stage_sources, EVIL))
        for row in realistic_records(900, now_unix_ns=10**18)
    ]
    table = RecordTable.from_records(evil)
    for picture in (
        decomposition_picture(stage_groups(done(table))),
        failures_picture(failures_by_stage(table), len(table)),
    ):
        for trace in picture.data:
            trace.pop("meta", None)  # names the stage for the page's legend, which writes it as text
        body = valid(picture).replace("\\u003c", "<")
        assert "&lt;img" in body
        assert "<img" not in body
        assert "<a " not in body
