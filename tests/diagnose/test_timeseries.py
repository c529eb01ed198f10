"""Time series and tables of chunks: axis, units, labels, counters that fall."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.diagnose.observed import Clock
from tailrace.diagnose.readers.chunks import read_chunks
from tailrace.diagnose.readers.formats import format_of
from tailrace.diagnose.readers.series_columns import column_of_series
from tailrace.diagnose.readers.timeseries import read_timeseries
from tailrace.model.errors import InputError


def read(tmp_path, text, name="x.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_timeseries(path, name)


@pytest.mark.parametrize(
    ("heading", "name", "labels", "unit"),
    [
        ("engine_running", "running", {}, ""),
        ("gpu_util_pct", "gpu_util", {}, "share"),
        ("gap_ms_stream_a", "chunk_gap", {"stream": "a"}, "ms"),
        ("stream_b_gap_ms", "chunk_gap", {"stream": "b"}, "ms"),
        ("gap_stream_12 (s)", "chunk_gap", {"stream": "12"}, "ms"),
        ("running_engine_0", "running", {"engine": "0"}, ""),
        ("replica1_waiting", "waiting", {"replica": "1"}, ""),
        ("health_rtt_max_s", "health_rtt", {}, "ms"),
        ("event_loop_lag_ms", "loop_lag", {}, "ms"),
        ("in_flight_client", "inflight_client", {}, ""),
        ("cpu_ms_per_step", "cpu_step", {}, "ms"),
        ("ttft_p99_ms", "ttft", {"stat": "p99"}, "ms"),
        ("num_preemptions_total", "preemptions_total", {}, "count"),
        ("something_else", "something_else", {}, ""),
    ],
)
def test_a_column_is_a_quantity_of_somebody(tmp_path, heading, name, labels, unit):
    (series,) = read(tmp_path, f"t_s,{heading}\n0,1\n1,2\n").series
    assert (series.name, series.labels, series.unit) == (name, labels, unit)


def test_units_become_ours_and_percentages_shares(tmp_path):
    found = read(tmp_path, "t_ms,health_rtt_s,kv_usage,gpu_util_pct\n0,0.05,97,100\n500,2.4,40,0\n")
    assert list(found.of_series("health_rtt")[0].values) == [50.0, 2400.0]
    assert list(found.of_series("kv_usage")[0].values) == [0.97, 0.40]
    assert list(found.of_series("gpu_util")[0].values) == [1.0, 0.0]
    assert list(found.of_series("gpu_util")[0].at) == [0.0, 0.5]


def test_long_tables_give_one_series_for_each_thing(tmp_path):
    text = "t_s,stream,gap_ms\n0,a,24\n0,b,25\n1,a,220\n1,b,221\n"
    found = read(tmp_path, text)
    assert [(item.labels, list(item.values)) for item in found.of_series("chunk_gap")] == [
        ({"stream": "a"}, [24, 220]),
        ({"stream": "b"}, [25, 221]),
    ]
    assert list(found.of_series("chunk_gap")[1].lines) == [3, 5]


def test_a_counter_that_falls_is_cut_there(tmp_path):
    found = read(tmp_path, "t_s,iterations_total\n0,100\n10,300\n20,0\n30,50\n40,60\n")
    assert [(item.delta, item.window_s) for item in found.of_counter("iterations")] == [(200, 10), (60, 20)]


@pytest.mark.parametrize(
    ("axis", "name", "clock"),
    [
        ("t_s", "time", Clock.RELATIVE),
        ("session_age_s", "session_age", Clock.RELATIVE),
        ("iteration", "iteration", Clock.NONE),
        ("output_position", "output_position", Clock.NONE),
        ("turn", "turn", Clock.NONE),
    ],
)
def test_every_axis(tmp_path, axis, name, clock):
    text = f"{axis},running\n2,1\n1,5\n"
    (series,) = read(tmp_path, text).series
    assert (series.axis, series.clock, list(series.at), list(series.values)) == (name, clock, [1, 2], [5, 1])
    assert format_of(text, "x").name == "time series"


def test_stamps_of_a_wall_clock(tmp_path):
    (series,) = read(tmp_path, "timestamp;running\n2026-03-02T09:10:05Z;1\n2026-03-02T09:10:15Z;2\n").series
    assert (series.clock, series.at[1] - series.at[0]) == (Clock.UTC, 10.0)
    (series,) = read(tmp_path, "ts,running\n1760000000000,1\n1760000010000,2\n").series
    assert (series.clock, series.at[1] - series.at[0]) == (Clock.UTC, 10.0)


def test_columns_of_text_are_said_and_kept(tmp_path):
    found = read(tmp_path, "t_s,running,note\n0,1,fine\n1,2,slow\n")
    assert found.rows[0].texts("note") == ["fine", "slow"]
    assert found.understood[1].examples == ["note: no numbers"]


def test_a_table_without_an_axis_is_refused(tmp_path):
    with pytest.raises(InputError, match="no axis"):
        read(tmp_path, "arm,running\na,1\n")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_series_or_an_input_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "x"
    path.write_bytes(data)
    for reader in (read_timeseries, read_chunks):
        try:
            found = reader(path, "x")
        except InputError:
            continue
        assert all(series.at.size == series.values.size for series in found.series)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40))
def test_what_a_counter_counted_between_restarts_adds_up(tmp_path_factory, values):
    text = "t_s,steps_total\n" + "\n".join(f"{at},{value}" for at, value in enumerate(values))
    found = read(tmp_path_factory.mktemp("count"), text)
    rises = np.diff(values)
    assert sum(item.delta for item in found.of_counter("iterations")) == rises[rises > 0].sum()


@pytest.mark.parametrize(
    "text",
    [
        "arm,req,chunk,bytes,t_upstream_ms,t_client_ms\nvia,r1,0,247,500,16580\nvia,r1,1,247,750,16580\n",
        "path,request_id,seq,size,sent_s,recv_s\nvia,r1,0,247,0.5,16.58\nvia,r1,1,247,0.75,16.58\n",
        "\n".join(
            f'{{"arm":"via","req":"r1","chunk":{at},"bytes":247,"t_upstream_ms":{500 + 250 * at},"t_client_ms":16580}}'
            for at in (0, 1)
        ),
    ],
)
def test_chunks_under_any_headings(tmp_path, text):
    path = tmp_path / "x"
    path.write_text(text)
    (rows,) = read_chunks(path, "x").rows
    assert (rows.kind, rows.texts("arm"), list(rows.numbers("bytes"))) == ("chunks", ["via", "via"], [247, 247])
    assert list(rows.numbers("t_upstream_ms")) == [500.0, 750.0]
    assert list(rows.numbers("t_client_ms")) == [16580.0, 16580.0]
    assert format_of(text, "x").name == "chunks"


def test_the_upstream_side_may_be_unknown(tmp_path):
    path = tmp_path / "x"
    path.write_text("req,chunk,bytes,t_upstream_ms,t_client_ms\nr,0,10,,5\nr,1,10,,6\n")
    (rows,) = read_chunks(path, "x").rows
    assert not rows.has("t_upstream_ms")
    assert rows.has("t_client_ms")


def test_the_stream_is_a_label_of_its_column_only_where_a_name_says_so():
    assert column_of_series("downstream_active").labels == {}
    assert column_of_series("gap_ms_stream_x").labels == {"stream": "x"}


def test_a_sweep_over_lengths_or_counts_is_no_series():
    for text in ("output_len,ttft_ms,tpot_ms\n64,900,20\n512,700,21\n", "n,ttft_p99_ms\n100,900\n200,800\n"):
        found = format_of(text, "x")
        assert found is None or found.name != "time series"
    assert format_of("output_len,cpu_ms_per_step\n64,4.6\n512,4.9\n", "x").name == "time series"
