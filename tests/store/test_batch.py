import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.store.batch import LAYOUT, Constant, decode_batches, encode_batch, table_of
from tailrace.store.parquet_file import connect, copy_to_parquet, register_columns
from tests.store.samples import any_record, realistic


@given(st.lists(st.lists(any_record(), min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_any_records_in_any_batches_come_back(groups):
    blobs = [(len(group), encode_batch(group)) for group in groups]
    records = [record for group in groups for record in group]
    assert list(table_of(decode_batches(blobs), len(records)).records()) == records


def test_equal_columns_are_kept_once():
    records = realistic(256)
    blob = encode_batch(records)
    assert len(blob) < 0.7 * sum(len(msgspec.msgpack.encode(msgspec.structs.astuple(record))) for record in records)
    columns = decode_batches([(256, blob)])
    assert columns["engine"] == Constant("vllm")
    assert isinstance(columns["request_id"], list)


def test_a_column_equal_at_both_ends_is_not_taken_for_a_constant():
    records = realistic(3)
    records = [msgspec.structs.replace(record, lane=lane) for record, lane in zip(records, "aba", strict=True)]
    table = table_of(decode_batches([(3, encode_batch(records))]), 3)
    assert table.column("lane").tolist() == ["a", "b", "a"]


def test_a_file_of_another_version_is_read_by_its_own_layout():
    records = realistic(4)
    columns = msgspec.msgpack.decode(encode_batch(records))
    # An older Tailrace did not know `lane`, and kept a field that is gone since.
    older = [name for name in LAYOUT if name != "lane"]
    blob = msgspec.msgpack.encode([["gone"], *(columns[LAYOUT.index(name)] for name in older)])
    table = table_of(decode_batches([(4, blob)], ["retired", *older]), 4)
    expected = [msgspec.structs.replace(record, lane="default") for record in records]
    assert list(table.records()) == expected


def test_a_value_that_does_not_fit_is_an_error_of_its_batch():
    record = msgspec.structs.replace(realistic(1)[0], e2e_ns=2**70)
    with pytest.raises(OverflowError):
        encode_batch([record])


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, -(2**63)])
def test_the_largest_integers_of_msgpack_make_no_record_unreadable(tmp_path, value):
    records = [msgspec.structs.replace(realistic(1)[0], n=value, max_tokens=value), *realistic(3, seed=2)]
    for group in (records, records[:1]):  # `records[:1]`: every column holds one value
        columns = decode_batches([(len(group), encode_batch(group))])
        assert list(table_of(columns, len(group)).records())[1:] == group[1:]
        with connect(threads=1) as connection:
            select = register_columns(connection, "sealing", columns, len(group))
            path = tmp_path / f"{len(group)}.parquet"
            copy_to_parquet(connection, select, path.with_suffix(".tmp"), path)
            assert connection.execute(f"SELECT count(*) FROM '{path}'").fetchone() == (len(group),)
