import csv
import io
import json

import msgspec

from tailrace.export.csv import CSV_COLUMNS, csv_lines
from tailrace.store.table import FIELDS, RecordTable
from tests.store.samples import realistic


def rows_of(records, **arguments):
    text = "".join(csv_lines(RecordTable.from_records(records), **arguments))
    return list(csv.DictReader(io.StringIO(text)))


def test_durations_are_exact_milliseconds_and_absent_cells_are_empty():
    record = msgspec.structs.replace(
        realistic(1, failing=0)[0],
        ttft_ns=41_250_001,
        queue_ns=5,
        decode_ns=2_000_000,
        sampled=True,
        error='he said "no",\nand left',
        prompt_tokens=12,
        kv_usage_at_admission=0.125,
        stage_sources={"decode": "measured"},
    )
    (row,) = rows_of([record])
    assert row["ttft_ms"] == "41.250001"
    assert row["queue_ms"] == "0.000005"
    assert row["decode_ms"] == "2"
    assert row["encode_ms"] == ""
    assert row["client_blocked_ms"] == "0"
    assert row["sampled"] == "true"
    assert row["grammar"] == "false"
    assert row["connection_reused"] == ""
    assert row["prompt_tokens"] == "12"
    assert row["kv_usage_at_admission"] == "0.125"
    assert row["error"] == 'he said "no",\nand left'
    assert row["outcome"] == "completed"
    assert json.loads(row["stage_sources"]) == {"decode": "measured"}
    assert row["slow"] == ""


def test_every_row_and_column_is_there():
    records = realistic(2500)
    rows = rows_of(records)
    assert [row["request_id"] for row in rows] == [record.request_id for record in records]
    assert len(CSV_COLUMNS) == len(FIELDS) == len(rows[0])
    for row, record in zip(rows, records, strict=True):
        shown = row["ttft_ms"]
        seen = None if not shown else round(float(shown) * 1e6)
        assert seen == record.ttft_ns
        assert int(row["start_unix_ns"]) == record.start_unix_ns


def test_an_empty_table_is_a_header():
    assert "".join(csv_lines(RecordTable.empty())) == ",".join(CSV_COLUMNS) + "\n"
    assert "".join(csv_lines(RecordTable.empty(), header=False)) == ""
