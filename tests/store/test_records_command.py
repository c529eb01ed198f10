"""`tailrace records`, run as a user runs it: a process, its streams, its exit code."""

import csv
import io
import json
import subprocess
import sys

import duckdb
import msgspec
import pytest

from tailrace.export.jsonl import from_public_json
from tailrace.store.run_file import RunHeader, RunTrailer, RunWriter
from tailrace.store.writer import RecordWriter, WriterOptions
from tests.store.processes import child_environment
from tests.store.samples import DAY, realistic

RECORDS = realistic(400, kept=0.1, failing=0.2, step_ns=10_000_000_000)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    where = tmp_path_factory.mktemp("records")
    with RecordWriter(where, WriterOptions(linger_s=0.002)) as writer:
        for record in RECORDS[:300]:
            writer.put(record)
        assert writer.seal_now()
        for record in RECORDS[300:]:
            writer.put(record)
    return where


def tailrace(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "tailrace", "records", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**child_environment(), "COLUMNS": "200"},
        cwd=cwd,
        timeout=18,
        check=False,
    )


def ok(*arguments):
    done = tailrace(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_query_shows_the_newest_and_the_slowest(data):
    found = json.loads(ok("query", "--data-dir", data, "--limit", 5, "--json"))["records"]
    assert [record["request_id"] for record in found] == [record.request_id for record in RECORDS[-5:]]
    slow = sorted((r for r in RECORDS if r.ttft_ns and r.lane == "batch"), key=lambda r: -r.ttft_ns)[:3]
    found = json.loads(ok("query", "--data-dir", data, "--slowest", 3, "--lane", "batch", "--json"))["records"]
    assert [record["request_id"] for record in found] == [record.request_id for record in slow]
    text = ok("query", "--data-dir", data, "--slowest", 3, "--lane", "batch")
    assert all(record.request_id in text for record in slow)
    assert f"{slow[0].ttft_ns / 1e6:,.3f}" in text


def test_query_by_id_and_by_outcome(data):
    record = next(record for record in RECORDS if record.timeline)
    assert from_public_json(ok("query", "--data-dir", data, "--id", record.request_id, "--json")) == record
    failed = [record.request_id for record in RECORDS if record.outcome == "failed"]
    found = json.loads(ok("query", "--data-dir", data, "--outcome", "failed", "--limit", 400, "--json"))["records"]
    assert [record["request_id"] for record in found] == failed


def test_a_table_does_not_steer_the_terminal(tmp_path):
    record = msgspec.structs.replace(RECORDS[0], model="\x1b[2J\x1b]0;title\x07[/bold]")
    with RecordWriter(tmp_path) as writer:
        writer.put(record)
    shown = ok("query", "--data-dir", tmp_path)
    assert not {letter for letter in shown if not letter.isprintable()} - {"\n"}
    assert "[/bold]" in shown


def test_query_in_a_window(data):
    since, until = RECORDS[100].start_unix_ns, RECORDS[350].start_unix_ns
    args = ["query", "--data-dir", data, "--limit", 400, "--json", "--since", since, "--until"]
    found = json.loads(ok(*args, until))["records"]
    assert [record["request_id"] for record in found] == [record.request_id for record in RECORDS[100:350]]
    # The same moment, as a person writes it (records start on whole hundredths of a second).
    import datetime as dt

    written = dt.datetime.fromtimestamp(until / 1e9, tz=dt.UTC).isoformat()
    assert len(json.loads(ok(*args, written))["records"]) == 250
    assert "No records match" in ok("query", "--data-dir", data, "--until", "2020-01-01")


def test_named_questions(data):
    rows = json.loads(ok("query", "--data-dir", data, "--ask", "outcomes_by_lane", "--json"))["rows"]
    assert sum(row["n"] for row in rows) == 400
    assert "p99_ms" in ok("query", "--data-dir", data, "--ask", "quantiles", "--metric", "tpot")
    listed = ok("query", "--ask", "list")
    assert "bound_ms=500" in listed
    (row, *_) = json.loads(
        ok("query", "--data-dir", data, "--ask", "attainment", "--number", "bound_ms=1e9", "--json")
    )["rows"]
    assert row["met"] > 0


def test_export_in_every_format(data, tmp_path):
    lines = ok("export", "--data-dir", data).splitlines()
    assert [from_public_json(line) for line in lines] == RECORDS
    rows = list(csv.DictReader(io.StringIO(ok("export", "--data-dir", data, "--format", "csv", "--lane", "batch"))))
    assert [row["request_id"] for row in rows] == [r.request_id for r in RECORDS if r.lane == "batch"]
    out = tmp_path / "day.parquet"
    done = tailrace("export", "--data-dir", data, "--format", "parquet", "--out", out)
    assert done.returncode == 0
    assert done.stdout == ""
    assert f"400 records written to {out}" in done.stderr
    assert duckdb.execute(f"SELECT count(*), count(timeline_at_ns) FROM read_parquet('{out}')").fetchone() == (
        400,
        sum(record.timeline is not None for record in RECORDS),
    )


def test_export_while_a_gateway_writes(tmp_path):
    with RecordWriter(tmp_path, WriterOptions(linger_s=0.002, seal_rows=100)) as writer:
        for record in RECORDS:
            writer.put(record)
        assert writer.flush()
        lines = ok("export", "--data-dir", tmp_path, "--no-timelines").splitlines()
        assert [json.loads(line)["request_id"] for line in lines] == [record.request_id for record in RECORDS]
        assert not any("timeline" in json.loads(line) for line in lines)


def test_prune(tmp_path):
    import time

    now = time.time_ns()
    old = realistic(30, seed=1, t0=now - 9 * DAY)
    new = realistic(20, seed=2, t0=now - 3600 * 10**9)
    with RecordWriter(tmp_path, WriterOptions(linger_s=0.002)) as writer:
        for part in (old, new):
            for record in part:
                writer.put(record)
            assert writer.seal_now()
    assert json.loads(ok("prune", "--data-dir", tmp_path, "--older-than", "30d", "--json"))["records"] == 0
    assert "30 records in 1 segments deleted" in ok("prune", "--data-dir", tmp_path, "--older-than", "7d")
    found = json.loads(ok("query", "--data-dir", tmp_path, "--json"))["records"]
    assert [record["request_id"] for record in found] == [record.request_id for record in new]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["query", "--data-dir", "nowhere"], "nowhere: there is no such data directory"),
        (["query", "--data-dir", "DATA", "--since", "yesterday"], "--since: 'yesterday' is neither an age nor a time"),
        (["query", "--data-dir", "DATA", "--since", "1h", "--until", "2h"], "the window is empty"),
        (["query", "--data-dir", "DATA", "--outcome", "great"], "there is no outcome 'great'"),
        (["query", "--data-dir", "DATA", "--slowest", "3", "--metric", "mood"], "there is no metric 'mood'"),
        (["query", "--data-dir", "DATA", "--ask", "everything"], "there is no query 'everything'"),
        (
            ["query", "--data-dir", "DATA", "--ask", "quantiles", "--number", "x=y"],
            "--number: 'x=y' is not name=number",
        ),
        (["query", "--data-dir", "DATA", "--ask", "quantiles", "--lane", "x"], "--lane does not go with --ask"),
        (["query", "--data-dir", "DATA", "--id", "nobody"], "there is no record with the id 'nobody'"),
        (["export", "--data-dir", "DATA", "--format", "xml"], "there is no format 'xml'"),
        (["export", "--data-dir", "DATA", "--format", "parquet"], "Parquet cannot be written to the terminal"),
        (["export", "--data-dir", "DATA", "--out", "no/such/file"], "no/such/file: cannot write"),
        (["prune", "--data-dir", "DATA", "--older-than", "forever"], "--older-than: 'forever' is no duration"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(data, arguments, says):
    done = tailrace(*[str(data) if argument == "DATA" else argument for argument in arguments])
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("tailrace records: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_error(data):
    child = subprocess.Popen(
        [sys.executable, "-m", "tailrace", "records", "export", "--data-dir", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
    )
    child.stdout.read(100)
    child.stdout.close()
    assert child.wait(15) == 0
    assert child.stderr.read() == b""
    child.stderr.close()


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "a.run"
    records = realistic(30, kept=1.0, events=4, failing=0)
    with RunWriter(path, RunHeader()) as writer:
        writer.write_all(records)
        writer.close(RunTrailer(n=len(records)))
    return path, records


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_a_run_is_a_source_of_an_export_and_its_events_are_a_second_file(run_file, tmp_path, form):
    path, records = run_file
    out, events = tmp_path / f"a.{form}", tmp_path / "events.parquet"
    ok("export", str(path), "--format", form, "--out", str(out), "--events", str(events))
    reader = {"parquet": "read_parquet", "csv": "read_csv", "jsonl": "read_json_auto"}[form]
    joined = f"SELECT count(DISTINCT request_id), count(*) FROM {reader}('{out}') JOIN '{events}' USING (request_id)"
    assert duckdb.execute(joined).fetchone() == (30, 120)
    first = records[0]
    (stamps,) = duckdb.execute(
        f"SELECT list(at_ns ORDER BY event) FROM '{events}' WHERE request_id = '{first.request_id}'"
    ).fetchone()
    assert stamps == first.timeline.at_ns


def test_a_file_of_events_does_not_take_the_others_name(run_file, tmp_path):
    path, _ = run_file
    out = str(tmp_path / "a.parquet")
    done = tailrace("export", str(path), "--format", "parquet", "--out", out, "--events", out)
    assert done.returncode == 2
    assert "both files have the same name" in done.stderr
