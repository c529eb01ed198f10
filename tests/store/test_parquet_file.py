import duckdb
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.model.timeline import Timeline
from tailrace.store.batch import decode_batches, encode_batch
from tailrace.store.fetch import fetch_table
from tailrace.store.parquet_file import SQL_TYPES, connect, copy_to_parquet, register_columns, register_table
from tailrace.store.parquet_file import select_segments as select
from tailrace.store.table import RecordTable
from tests.store.samples import any_record, realistic


def through_parquet(records, path, *, as_table):
    with connect(threads=1) as connection:
        if as_table:
            chosen = register_table(connection, "given", RecordTable.from_records(records))
        else:
            half = len(records) // 2
            groups = [group for group in (records[:half], records[half:]) if group]
            columns = decode_batches([(len(group), encode_batch(group)) for group in groups])
            chosen = register_columns(connection, "given", columns, len(records))
        copy_to_parquet(connection, chosen, path.with_suffix(".tmp"), path)
    with connect(threads=1) as connection:
        connection.execute(f"CREATE TEMP TABLE chosen AS {select(connection, [path])}")
        return list(fetch_table(connection, "chosen", with_timelines=True).records())


@pytest.mark.parametrize("as_table", [False, True])
@given(st.lists(any_record(), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_record_survives_parquet(tmp_path, as_table, records):
    found = through_parquet(records, tmp_path / "a.parquet", as_table=as_table)
    # In SQL a relation has no order unless it is asked for.
    assert sorted(found, key=repr) == sorted(records, key=repr)


def test_many_rows_are_fetched_by_code_and_are_the_same(tmp_path):
    records = realistic(6000, kept=0.02)
    records[17] = msgspec.structs.replace(records[17], lane='it\'s "odd"', error="a\nb", keep_reason="x" * 300)
    records[18] = msgspec.structs.replace(records[18], timeline=Timeline())
    found = through_parquet(records, tmp_path / "a.parquet", as_table=False)
    assert sorted(found, key=lambda record: record.start_unix_ns) == records


def test_whole_numbers_are_exact_over_their_range_where_none_is_absent(tmp_path):
    big = [msgspec.structs.replace(record, decode_ns=2**62 + n) for n, record in enumerate(realistic(3))]
    path = tmp_path / "a.parquet"
    through_parquet(big, path, as_table=False)
    found = duckdb.execute(f"SELECT decode_ns FROM read_parquet('{path}') ORDER BY 1").fetchall()
    assert found == [(2**62,), (2**62 + 1,), (2**62 + 2,)]


def test_other_readers_find_typed_columns_and_null_for_absent(tmp_path):
    path = tmp_path / "a.parquet"
    through_parquet(realistic(50, kept=0.5), path, as_table=True)
    described = dict(row[:2] for row in duckdb.execute(f"DESCRIBE SELECT * FROM read_parquet('{path}')").fetchall())
    assert described["timeline_at_ns"] == "BIGINT[]"
    assert {name: described[name] for name in SQL_TYPES} == SQL_TYPES
    assert duckdb.execute(f"SELECT count(encode_ns), count(*) FROM read_parquet('{path}')").fetchall() == [(0, 50)]
    assert not np.isnan(duckdb.execute(f"SELECT max(ttft_ns) FROM read_parquet('{path}')").fetchone()[0])


def test_a_failed_write_leaves_the_final_name_free(tmp_path):
    path = tmp_path / "a.parquet"

    def full(step):
        if step == "before_rename":
            raise OSError(28, "No space left on device")

    with connect(threads=1) as connection:
        chosen = register_table(connection, "given", RecordTable.from_records(realistic(3)))
        with pytest.raises(OSError, match="No space left"):
            copy_to_parquet(connection, chosen, path.with_suffix(".tmp"), path, on_step=full)
    assert not path.exists()
