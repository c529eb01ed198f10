"""Tables of requests: whatever the script called its columns, in whatever unit, the rows are the same."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.app.diagnose import read_any
from tailrace.cli.diagnose import _columns
from tailrace.diagnose.observed import Clock
from tailrace.diagnose.readers.formats import format_of
from tailrace.diagnose.readers.headings import heading, number
from tailrace.diagnose.readers.request_table import table_of_requests
from tailrace.diagnose.readers.requests import read_requests
from tailrace.model.errors import InputError

NAMES = ["id", "t_send_ms", "t_first_ms", "t_last_ms", "prompt_tokens", "output_tokens", "status"]
ROWS = [
    # Name, stamps of send, first and last token (ms), prompt and output tokens, how it ended.
    ("a", 0.0, 140.5, 3020.0, 128, 32, "ok"),
    ("b", 500.0, 3900.0, 6500.0, 4096, 16, "ok"),
    ("c", 900.25, None, None, 64, 0, "timeout"),
]


def read(tmp_path, text, name="x.csv", **options):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (rows,) = read_requests(path, name, **options).table("requests")
    return rows


def same(rows):
    assert rows.texts("id") == ["a", "b", "c"]
    assert rows.numbers("ttft_ms")[:2] == pytest.approx([140.5, 3400.0])
    assert rows.numbers("e2e_ms")[:2] == pytest.approx([3020.0, 6000.0])
    assert np.isnan(rows.numbers("ttft_ms")[2])
    assert rows.texts("status") == ["ok", "ok", "timeout"]
    assert list(rows.numbers("prompt_tokens")) == [128, 4096, 64]


def jsonl(names, scale=1.0):
    keys = names.split()
    return "\n".join(
        json.dumps(
            {
                key: value * scale if 0 < at < 4 and value is not None else value
                for at, (key, value) in enumerate(zip(keys, row, strict=True))
            }
        )
        for row in ROWS
    )


@pytest.mark.parametrize(
    ("names", "scale"),
    [
        ("id t_send_ms t_first_ms t_last_ms prompt_tokens output_tokens status", 1.0),
        ("request_id sent_ms first_token_ms finished_ms input_tokens completion_tokens outcome", 1.0),
        ("rid start_s first_chunk_s end_s prompt_len output_len result", 1e-3),
        ("req ts_send_us ts_first_us ts_last_us isl osl state", 1e3),
        ("id startTimeMs firstTokenMs endTimeMs promptTokens outputTokens status", 1.0),
    ],
)
def test_headings_and_units_of_all_kinds(tmp_path, names, scale):
    text = jsonl(names, scale)
    same(read(tmp_path, text, "x.jsonl"))
    assert format_of(text, "x").name == "requests"
    array = "[" + ",".join(text.splitlines()) + "]"
    same(read(tmp_path, array, "x.json"))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_with_any_delimiter_mark_and_line_end(tmp_path, delimiter):
    head = delimiter.join(NAMES)
    lines = [delimiter.join("" if cell is None else str(cell) for cell in row) for row in ROWS]
    text = "\r\n".join([head, *lines]) + "\r\n"
    rows = read(tmp_path, b"\xef\xbb\xbf" + text.encode())
    same(rows)
    assert list(rows.lines) == [2, 3, 4]
    assert format_of(text, "x").name == "requests"


def test_decimal_commas_where_semicolons_part_the_cells(tmp_path):
    text = "id;send (ms);first (ms);last (ms)\na;0,5;141,0;3020,5\nb;500;3.900,0;6500\n"
    rows = read(tmp_path, text)
    assert list(rows.numbers("ttft_ms")) == pytest.approx([140.5, 3400.0])


def test_thousands_separators(tmp_path):
    rows = read(tmp_path, 'id,send_ms,first_ms,last_ms\na,0,"25,200","31,000"\n')
    assert list(rows.numbers("ttft_ms")) == [25_200.0]


def test_a_map_of_columns_goes_before_the_common_names(tmp_path):
    text = "who,begin_it,got,fin,send\nx,10,30,90,999\n"
    rows = read(tmp_path, text, columns={"send": "begin_it", "t_first_ms": "got", "last": "fin", "id": "who"})
    assert (rows.numbers("ttft_ms")[0], rows.numbers("e2e_ms")[0], rows.texts("id")) == (20.0, 80.0, ["x"])
    with pytest.raises(InputError, match="no column 'gone'; there are who"):
        read(tmp_path, text, columns={"send": "gone"})


def test_epoch_stamps_tell_their_unit_and_iso_stamps_their_zone(tmp_path):
    rows = read(tmp_path, "id,start,first,end\na,1760000000.5,1760000001.0,1760000003.5\n")
    assert (rows.clock, rows.numbers("ttft_ms")[0]) == (Clock.UTC, pytest.approx(500.0))
    stamps = (
        "id,start,first,end\na,2026-03-02T09:10:05.000+02:00,2026-03-02T09:10:05.250+02:00,2026-03-02T09:10:07+02:00\n"
    )
    rows = read(tmp_path, stamps)
    assert (rows.clock, rows.numbers("ttft_ms")[0]) == (Clock.UTC, pytest.approx(250.0))


def test_stamps_without_a_unit_are_read_by_the_requests_own_length_and_it_is_said(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("id,send,first,last\na,0.0,0.14,3.02\nb,0.5,3.9,6.5\n")
    found = read_requests(path, "x.csv")
    assert found.rows[0].numbers("ttft_ms")[0] == pytest.approx(140.0)
    assert any("no unit is written, taken as s" in text for item in found.understood for text in item.examples)


def test_durations_make_stamps_and_failures_are_told_apart(tmp_path):
    rows = ["a,0,50,900,200,", "b,10,,60001,504,upstream", "c,20,,5,499,", "d,30,,7,500,boom"]
    text = "\n".join(["id,send_ms,ttft_ms,e2e_ms,status_code,error", *rows])
    rows = read(tmp_path, text)
    assert list(rows.numbers("t_last_ms")[:2]) == [900.0, 60_011.0]
    assert rows.texts("status") == ["ok", "timeout", "cancelled", "error"]


def test_damaged_lines_are_counted_and_glued_ones_parted(tmp_path):
    good = '{"id":"a","t_send_ms":0,"t_last_ms":5}'
    path = tmp_path / "x.jsonl"
    path.write_bytes(f"{good}{good}\n{{oops\nplain\n\n{good}\n".encode() + b'\xff\xfe{"id"')
    found = read_requests(path, "x.jsonl")
    assert len(found.rows[0]) == 3
    assert (found.understood[0].understood, found.understood[0].total) == (3, 6)
    assert found.understood[0].examples[0] == "2: {oops"


def test_what_is_no_table_of_requests_is_left_to_others():
    for head in (
        '{"request_time":1,"status":200,"uri":"/v1"}',
        '{"stream_id":"s","utt_id":"u","t_recv":0.0,"kind":"audio"}',
        "concurrency,ttft_p50_ms,e2e_p99_ms\n1,2,3\n",
        "t_s,engine_running\n0,1\n",
        "plain words, and a comma\n",
        "",
    ):
        found = format_of(head, "x")
        assert found is None or found.name != "requests"


def test_enough_rows_are_records_and_two_arms_are_none(tmp_path):
    lines = [f"r{at},{at * 100},{at * 100 + 50},{at * 100 + 950},100,10,a" for at in range(30)]
    head = "id,t_send_ms,t_first_ms,t_last_ms,prompt_tokens,output_tokens,arm"
    path = tmp_path / "x.csv"
    path.write_text("\n".join([head, *lines]))
    table = table_of_requests(read_requests(path, "x"))
    assert len(table) == 30
    assert set(table.ms("ttft")) == {50.0}
    assert set(table.ms("tpot")) == {100.0}
    assert set(table.ms("decode") + table.ms("unattributed")) == {950.0}
    assert next(table.records()).outcome == "completed"
    path.write_text("\n".join([head, *lines[:19]]))
    assert table_of_requests(read_requests(path, "x")) is None
    path.write_text("\n".join([head, *lines[:-1], lines[-1][:-1] + "b"]))
    assert table_of_requests(read_requests(path, "x")) is None


def test_told_stages_add_up_to_the_whole(tmp_path):
    row = {"id": "a", "t_send_ms": 0, "t_first_ms": 60, "t_last_ms": 200, "stage_ms": {"queue": 40, "prefill": 20}}
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps(row) for _ in range(20)))
    table = table_of_requests(read_requests(path, "x"))
    assert (table.ms("queue_engine")[0], table.ms("prefill")[0], table.ms("unattributed")[0]) == (40.0, 20.0, 140.0)


@pytest.mark.parametrize(
    ("text", "name", "unit"),
    [
        ("t_first_ms", "t_first", "ms"),
        ("First token (s)", "first_token", "s"),
        ("sendTimeMs", "send_time", "ms"),
        ("decode_tok_s", "decode_tok_s", ""),
        ("cpu_ms_per_step", "cpu_ms_per_step", "ms"),
        ("utilization.gpu [%]", "utilization_gpu", "%"),
        ("wait [µs]", "wait", "us"),
    ],
)
def test_a_heading_is_words_and_a_unit(text, name, unit):
    assert heading(text) == (name, unit)


@given(st.text(max_size=40), st.text(max_size=6))
def test_no_cell_and_no_heading_breaks_it(cell, unit):
    value = number(cell, unit, "ms")
    assert value is None or isinstance(value, float)
    assert isinstance(heading(cell).name, str)


@given(st.floats(-1e12, 1e12))
def test_a_number_is_read_as_it_was_written(value):
    assert number(repr(value)) == value
    assert number(value, "s", "ms") == value * 1e3


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_rows_or_an_input_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "x"
    path.write_bytes(data)
    try:
        found = read_requests(path, "x")
    except InputError:
        return
    assert all(len(column) == len(found.rows[0]) for column in found.rows[0].columns.values())


@settings(max_examples=40, deadline=None)
@given(
    st.permutations(NAMES),
    st.sampled_from([",", ";", "\t"]),
)
def test_the_order_of_columns_is_of_no_consequence(tmp_path_factory, order, delimiter):
    lines = [delimiter.join(order)]
    for row in ROWS:
        cells = dict(zip(NAMES, row, strict=True))
        lines.append(delimiter.join("" if cells[name] is None else str(cells[name]) for name in order))
    same(read(tmp_path_factory.mktemp("order"), "\n".join(lines)))


def test_ten_megabytes_on_one_line_are_read_or_refused(tmp_path):
    rows = read(tmp_path, "[" + ",".join(['{"id":"a","t_send_ms":0,"t_last_ms":5}'] * 100_000) + "]", "x.json")
    assert len(rows) == 100_000
    path = tmp_path / "y"
    path.write_text('{"id":"' + "x" * 10_000_000)
    with pytest.raises(InputError):
        read_requests(path, "y")


def test_a_map_of_columns_reaches_the_reader_from_the_command(tmp_path):
    path = tmp_path / "own.csv"
    rows = "".join(f"r{at};{at * 10};{at * 10 + 5};{at * 10 + 9}\n" for at in range(4))
    path.write_text("who;begin_it_ms;got_ms;fin_ms\n" + rows)
    (source,) = read_any(str(path), columns={"send": "begin_it_ms", "first": "got_ms", "last": "fin_ms"})
    assert list(source.observed.rows[0].numbers("ttft_ms")) == [5.0] * 4
    assert _columns(["send=begin_it_ms"]) == {"send": "begin_it_ms"}
    with pytest.raises(InputError, match="NAME=HEADING"):
        _columns(["send"])
