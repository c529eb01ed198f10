import collections
import math
import shutil

import msgspec
import numpy as np
import pytest

from tailrace.model.errors import InputError, StoreError
from tailrace.model.outcome import OutcomeKind
from tailrace.store.layout import DataDirectory
from tailrace.store.queries import LENGTH_BUCKETS, METRICS, OUTPUT_BUCKETS, QUERIES
from tailrace.store.query import RecordStore
from tailrace.store.segment import list_segments
from tailrace.store.table import RecordTable
from tailrace.store.upkeep import compact
from tailrace.store.writer import RecordWriter, WriterOptions
from tests.store.samples import T0, realistic

N = 6000
RECORDS = realistic(N, kept=0.05, failing=0.1, step_ns=2_000_000_000)
"""Over three hours, so that hours and windows differ."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two thirds sealed in several segments (some of them merged), the rest hot in two files."""
    where = tmp_path_factory.mktemp("data")
    with RecordWriter(where, WriterOptions(linger_s=0.002, seal_rows=900)) as writer:
        for record in RECORDS[:2000]:
            writer.put(record)
        assert writer.seal_now()
        compact(DataDirectory(where), merge_files=2)
        for record in RECORDS[2000:4000]:
            writer.put(record)
        assert writer.seal_now()
    for part in (RECORDS[4000:5000], RECORDS[5000:]):
        with RecordWriter(where, WriterOptions(linger_s=0.002, sealing=False)) as writer:
            for record in part:
                writer.put(record)
    size = RecordStore(where).size()
    assert size["hot_records"] == 2000
    assert size["sealed_records"] == 4000
    assert size["segments"] >= 3
    return where


@pytest.fixture(scope="module")
def store(root):
    return RecordStore(root)


TABLE = RecordTable.from_records(RECORDS)


def quantiles(values):
    """What the columns of a quantile query must say, by numpy, over the rows that have the metric."""
    seen = np.sort(values[~np.isnan(values)])
    if not len(seen):
        return None
    found = {"n": len(seen), "mean_ms": seen.mean(), "min_ms": seen[0], "max_ms": seen[-1]}
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
        found[f"{name}_ms"] = np.quantile(seen, q)
    return found


def agree(row, expected):
    if expected is None:
        assert row["n"] == 0
        assert row["p99_ms"] is None
        return
    for name, value in expected.items():
        assert math.isclose(row[name], value, rel_tol=1e-9), (name, row[name], value)


def bucket(values, bounds):
    return np.where(np.isnan(values), -1, np.searchsorted(np.array(bounds), values, side="right"))


# -- records


def test_hot_and_sealed_records_come_back_exactly_with_their_timelines(store):
    assert store.records() == RECORDS


def test_windows_are_half_open_on_the_start(store):
    since, until = RECORDS[1500].start_unix_ns, RECORDS[5200].start_unix_ns
    assert store.records(since, until_unix_ns=until) == RECORDS[1500:5200]
    assert store.records(since_unix_ns=RECORDS[-1].start_unix_ns) == RECORDS[-1:]
    assert store.records(since_unix_ns=RECORDS[-1].start_unix_ns + 1) == []
    assert len(store.table(until_unix_ns=T0)) == 0


@pytest.mark.parametrize("limit", [1, 10, 2500, N + 1])
def test_a_limit_keeps_the_newest(store, limit):
    assert store.records(limit=limit) == RECORDS[-limit:]


def test_filters_and_the_slowest(store):
    batch = [record for record in RECORDS if record.lane == "batch"]
    assert list(store.table(equal={"lane": "batch"}, with_timelines=True).records()) == batch
    assert list(store.table(equal={"lane": "batch"}, limit=7, with_timelines=True).records()) == batch[-7:]
    seen = [record for record in RECORDS if record.ttft_ns is not None]
    slowest = sorted(seen, key=lambda record: -record.ttft_ns)[:20]
    found = store.table(limit=20, slowest_by="ttft_ns", with_timelines=True)
    assert list(found.records()) == slowest
    with pytest.raises(InputError, match="records have no field 'lame'"):
        store.table(equal={"lame": "batch"})


def test_without_timelines_the_columns_are_the_same(store):
    lean = store.table()
    assert lean.timelines == [None] * N
    assert [r.request_id for r in RECORDS] == lean.column("request_id").tolist()
    np.testing.assert_array_equal(lean.column("ttft_ns"), TABLE.column("ttft_ns"))
    assert lean.column("sampled").dtype == np.float64


@pytest.mark.parametrize("place", [0, 1999, 2000, 3999, 4000, 5999])
def test_one_record_by_its_id_hot_or_sealed(store, place):
    assert store.get(RECORDS[place].request_id) == RECORDS[place]


def test_an_id_that_is_not_there(store):
    known = RECORDS[-1].request_id
    for absent in ("nobody", "", "'; drop table records; --", known[:-1], "\0", known + "\0"):
        assert store.get(absent) is None


def test_the_clients_own_id_finds_the_newest(tmp_path):
    one, two = (msgspec.structs.replace(record, client_request_id="mine") for record in realistic(2))
    with RecordWriter(tmp_path, WriterOptions(linger_s=0.002)) as writer:
        writer.put(one)
        writer.put(two)
        writer.flush()
        assert RecordStore(tmp_path).get("mine") == two
        assert writer.seal_now()
        assert RecordStore(tmp_path).get("mine") == two


# -- the named queries, each against numpy


@pytest.mark.parametrize("metric", ["ttft", "e2e", "queue_gateway", "encode"])
def test_quantiles(store, metric):
    (row,) = store.ask("quantiles", metric=metric).dicts()
    assert row["requests"] == N
    agree(row, quantiles(TABLE.ms(METRICS[metric])))


def test_quantiles_in_a_window(store):
    since, until = RECORDS[3000].start_unix_ns, RECORDS[4500].start_unix_ns
    (row,) = store.ask("quantiles", since_unix_ns=since, until_unix_ns=until).dicts()
    assert row["requests"] == 1500
    agree(row, quantiles(TABLE.where(np.arange(3000, 4500)).ms("ttft")))


def test_quantiles_by_length(store):
    of = bucket(TABLE.column("prompt_tokens"), LENGTH_BUCKETS)
    rows = store.ask("quantiles_by_length").dicts()
    assert [row["prompt_bucket"] for row in rows] == sorted(set(of.tolist()))
    for row in rows:
        part = TABLE.where(of == row["prompt_bucket"])
        assert row["requests"] == len(part)
        agree(row, quantiles(part.ms("ttft")))


def test_quantiles_by_both_lengths(store):
    of = bucket(TABLE.column("prompt_tokens"), LENGTH_BUCKETS)
    out = bucket(TABLE.column("output_tokens"), OUTPUT_BUCKETS)
    rows = store.ask("quantiles_by_lengths", metric="tpot").dicts()
    assert len(rows) == len(set(zip(of.tolist(), out.tolist(), strict=True)))
    for row in rows:
        agree(row, quantiles(TABLE.where((of == row["prompt_bucket"]) & (out == row["output_bucket"])).ms("tpot")))


def test_stage_p99_by_lane(store):
    for row in store.ask("stage_p99_by_lane").dicts():
        part = TABLE.where((TABLE.column("lane") == row["lane"]) & (TABLE.column("model") == row["model"]))
        assert row["requests"] == len(part)
        for stage in ("ingress", "queue", "prefill", "decode", "unattributed"):
            assert row[f"{stage}_n"] == len(part)
            assert math.isclose(row[f"{stage}_p99_ms"], np.quantile(part.ms(stage), 0.99), rel_tol=1e-9)
        assert row["encode_n"] == 0
        assert row["encode_p99_ms"] is None


def test_stages_of_the_tail(store):
    everything, tail = store.ask("stages_of_tail", quantile=0.95).dicts()
    edge = np.quantile(TABLE.column("e2e_ns"), 0.95)
    slow = TABLE.where(TABLE.column("e2e_ns") >= edge)
    assert (everything["part"], everything["n"], tail["part"], tail["n"]) == ("all", N, "tail", len(slow))
    for stage in ("queue", "decode"):
        assert math.isclose(everything[f"{stage}_ms"], TABLE.ms(stage).mean(), rel_tol=1e-9)
        assert math.isclose(tail[f"{stage}_ms"], slow.ms(stage).mean(), rel_tol=1e-9)
    assert tail["encode_ms"] == 0


def test_failures_by_reason_and_stage(store):
    expected = collections.Counter(
        (r.outcome.value, r.reason.value, r.died_in) for r in RECORDS if r.outcome is not OutcomeKind.COMPLETED
    )
    answer = store.ask("failures")
    assert {row[:3]: row[3] for row in answer.rows} == expected
    assert math.isclose(sum(answer.column("share")), sum(expected.values()) / N)
    assert answer.column("n") == sorted(answer.column("n"), reverse=True)


def test_outcomes_by_lane(store):
    expected = collections.Counter((record.lane, record.outcome.value) for record in RECORDS)
    assert {row[:2]: row[2] for row in store.ask("outcomes_by_lane").rows} == expected


def test_slowest(store):
    rows = store.ask("slowest", metric="tpot", n=15).dicts()
    seen = sorted((r for r in RECORDS if r.tpot_ns is not None), key=lambda r: (-r.tpot_ns, r.request_id))[:15]
    assert [row["request_id"] for row in rows] == [record.request_id for record in seen]
    assert [row["value_ms"] for row in rows] == [record.tpot_ns / 1e6 for record in seen]
    assert [row["has_timeline"] for row in rows] == [record.timeline is not None for record in seen]


@pytest.mark.parametrize("interval_s", [60, 3600, 0.5])
def test_series(store, interval_s):
    rows = store.ask("series", interval_s=interval_s).dicts()
    width = int(interval_s * 1e9)
    of = TABLE.column("start_unix_ns") // width * width
    assert [row["from_unix_ns"] for row in rows] == np.unique(of).tolist()
    for row in rows[:: max(1, len(rows) // 20)]:
        part = TABLE.where(of == row["from_unix_ns"])
        values = part.ms("ttft")
        seen = values[~np.isnan(values)]
        assert (row["requests"], row["n"]) == (len(part), len(seen))
        assert row["output_tokens"] == part.column("output_tokens").sum()
        assert row["not_completed"] == (part.column("outcome") != "completed").sum()
        if len(seen):
            assert math.isclose(row["p99_ms"], np.quantile(seen, 0.99), rel_tol=1e-9)


def test_hour_by_length(store):
    of = bucket(TABLE.column("prompt_tokens"), LENGTH_BUCKETS)
    hour = TABLE.column("start_unix_ns") // 3_600_000_000_000
    rows = store.ask("hourly_by_length").dicts()
    assert len({row["hour"] for row in rows}) >= 4
    for row in rows:
        values = TABLE.where((of == row["prompt_bucket"]) & (hour == row["hour"])).ms("ttft")
        assert math.isclose(row["p99_ms"], np.nanquantile(values, 0.99), rel_tol=1e-9)


def test_attainment_counts_what_did_not_complete_as_missed(store):
    for row in store.ask("attainment", bound_ms=700).dicts():
        lane = TABLE.where(TABLE.column("lane") == row["lane"])
        met = (lane.column("outcome") == "completed") & (lane.ms("ttft") <= 700)
        assert (row["n"], row["met"]) == (len(lane), met.sum())
        assert math.isclose(row["share"], met.mean())


def test_two_windows(store):
    split = RECORDS[2500].start_unix_ns
    answer = store.ask("two_windows", split_unix_ns=split)
    assert answer.column("arm") == ["a"] * 2500 + ["b"] * (N - 2500)
    assert answer.column("value_ms") == [None if r.ttft_ns is None else r.ttft_ns / 1e6 for r in RECORDS]
    assert answer.column("prompt_tokens") == [record.prompt_tokens for record in RECORDS]


def test_keep_reasons(store):
    kept = sum(record.timeline is not None for record in RECORDS)
    assert store.ask("keep_reasons").rows == [("", N - kept, float(N - kept), 0), ("slow", kept, float(kept), kept)]


def test_missing_stamps(tmp_path):
    seen, blind = realistic(2, failing=0)
    blind = msgspec.structs.replace(blind, ttft_ns=None)
    with RecordWriter(tmp_path, WriterOptions(linger_s=0.002, sealing=False)) as writer:
        writer.put(seen)
        writer.put(blind)
    assert RecordStore(tmp_path).ask("missing_stamps").rows == [("vllm", "/v1/chat/completions", 2, 1, 0)]


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_answers_an_empty_window_and_an_empty_directory(store, tmp_path, name):
    assert all(not row.get("n") for row in store.ask(name, until_unix_ns=1).dicts())
    DataDirectory(tmp_path).prepare()
    RecordStore(tmp_path).ask(name)


def test_unknown_names_are_input_errors(store):
    with pytest.raises(InputError, match=r"there is no query 'p99'.*Known: quantiles,"):
        store.ask("p99")
    with pytest.raises(InputError, match="there is no metric 'latency'"):
        store.ask("quantiles", metric="latency")
    with pytest.raises(InputError, match=r"takes no 'bound'.*It takes: bound_ms"):
        store.ask("attainment", bound=5)
    with pytest.raises(InputError, match="takes no metric"):
        store.ask("failures", metric="ttft")


# -- directories that are not what they should be


def test_a_directory_that_is_none(tmp_path):
    with pytest.raises(InputError, match=r"there is no such data directory.*tailrace serve --data-dir"):
        RecordStore(tmp_path / "none")
    with pytest.raises(InputError, match="neither `hot` nor `segments`"):
        RecordStore(tmp_path)


def test_foreign_and_unfinished_files_are_passed_over(root, tmp_path):
    copy = tmp_path / "data"
    shutil.copytree(root, copy)
    day = next((copy / "segments").iterdir())
    (day / "notes.parquet").write_text("not ours")
    (day / "readme.txt").write_text("not ours")
    (day / "1-2-3-1x2-4-5.parquet.tmp").write_bytes(b"PAR1 half")
    (copy / "hot" / "1x2.sqlite").write_bytes(b"")
    assert RecordStore(copy).records() == RECORDS


def test_a_damaged_file_is_one_clear_error(root, tmp_path):
    copy = tmp_path / "data"
    shutil.copytree(root, copy)
    victim = list_segments(copy / "segments").names[-1].path(copy / "segments")
    victim.write_bytes(victim.read_bytes()[:1000])
    with pytest.raises(StoreError, match=r"cannot read records: .*parquet"):
        RecordStore(copy).records()
    victim.unlink()
    for hot in (copy / "hot").glob("*.sqlite"):
        hot.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match="cannot read the hot tier: file is not a database"):
        RecordStore(copy).records()


def test_segments_written_before_a_field_was_added_give_its_default(root, tmp_path):
    import duckdb

    copy = tmp_path / "data"
    shutil.copytree(root, copy)
    old = list_segments(copy / "segments").names[-1].path(copy / "segments")
    older = old.with_suffix(".new")
    columns = "lane, tpot_ns, stall_count"
    duckdb.execute(f"COPY (SELECT * EXCLUDE ({columns}) FROM read_parquet('{old}')) TO '{older}' (FORMAT parquet)")
    assert older.stat().st_size > 1000
    ids = {row[0] for row in duckdb.execute(f"SELECT request_id FROM read_parquet('{older}')").fetchall()}
    assert 0 < len(ids) < N
    older.rename(old)
    expected = [
        msgspec.structs.replace(record, lane="default", tpot_ns=None, stall_count=0)
        if record.request_id in ids
        else record
        for record in RECORDS
    ]
    assert RecordStore(copy).records() == expected
    lanes = {lane for lane, _outcome, _n in RecordStore(copy).ask("outcomes_by_lane").rows}
    assert lanes == {"default", "interactive", "long_document", "batch"}
