import duckdb
import pytest

from tailrace.export.parquet import write_parquet
from tailrace.model.errors import InputError
from tailrace.store.table import RecordTable
from tests.store.samples import realistic


def test_another_reader_finds_every_record_and_event(tmp_path):
    records = realistic(300, kept=0.3)
    path = tmp_path / "it's.parquet"
    write_parquet(RecordTable.from_records(records), path)
    quoted = str(path).replace("'", "''")
    found = duckdb.execute(
        f"SELECT request_id, ttft_ns, outcome, timeline_at_ns FROM read_parquet('{quoted}') ORDER BY start_unix_ns"
    ).fetchall()
    expected = [(r.request_id, r.ttft_ns, r.outcome.value, r.timeline and r.timeline.at_ns) for r in records]
    assert found == expected
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path):
    table = RecordTable.from_records(realistic(1))
    with pytest.raises(InputError, match=r"cannot write the Parquet file: No such directory.*--out"):
        write_parquet(table, tmp_path / "no" / "a.parquet")
    with pytest.raises(InputError, match="Is a directory"):
        write_parquet(table, tmp_path)
    with pytest.raises(InputError, match="cannot write the Parquet file"):
        write_parquet(table, "/proc/a.parquet")
