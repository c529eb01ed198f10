import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.store.table import FIELDS, KINDS, ColumnKind, RecordTable, build_column, column_of, default_of
from tests.store.processes import child_environment
from tests.store.samples import any_record, realistic


@given(st.lists(any_record(), max_size=5))
@settings(max_examples=100, deadline=None)
def test_a_table_gives_back_the_records_it_was_made_of(records):
    assert list(RecordTable.from_records(records).records()) == records


def test_absent_is_nan_and_zero_is_zero():
    first, second = realistic(2)
    table = RecordTable.from_records([first, second])
    assert np.isnan(table.column("encode_ns")).all()
    assert table.column("encode_ns").dtype == np.float64
    assert (table.column("client_blocked_ns") == 0).all()
    assert table.column("start_unix_ns").tolist() == [first.start_unix_ns, second.start_unix_ns]
    assert table.column("outcome").tolist() == [first.outcome.value, second.outcome.value]
    assert type(table.column("outcome")[0]) is str


def test_every_field_of_the_record_has_a_column_of_the_promised_type():
    for table in (RecordTable.empty(), RecordTable.from_records(realistic(3))):
        for name in FIELDS:
            kind = KINDS[name]
            expected = {
                ColumnKind.INTEGER: np.int64,
                ColumnKind.FLOAT: np.float64,
                ColumnKind.BOOLEAN: np.bool_,
                ColumnKind.MAYBE_INTEGER: np.float64,
                ColumnKind.MAYBE_FLOAT: np.float64,
                ColumnKind.MAYBE_BOOLEAN: np.float64,
            }.get(kind, object)
            assert table.column(name).dtype == expected, name


def test_rows_are_chosen_by_mask_or_position_and_timelines_go_with_them():
    records = realistic(200, kept=0.5)
    table = RecordTable.from_records(records)
    batch = table.where(table.column("lane") == "batch")
    assert list(batch.records()) == [record for record in records if record.lane == "batch"]
    assert list(table.where([5, 1]).records()) == [records[5], records[1]]
    assert len(table.where(np.zeros(200, dtype=bool))) == 0
    assert len(table.where([])) == 0
    with pytest.raises(ValueError, match="a mask of 3 for 200 rows"):
        table.where([True, False, True])


def test_tables_stack_and_an_empty_one_changes_nothing():
    records = realistic(30)
    parts = [RecordTable.from_records(records[:10]), RecordTable.empty(), RecordTable.from_records(records[10:])]
    assert list(RecordTable.concat(parts).records()) == records
    assert len(RecordTable.concat([])) == 0


def test_sorting_puts_absent_values_last_in_both_directions():
    table = RecordTable.from_records(realistic(100, failing=0.5))
    for descending in (False, True):
        values = table.sorted_by("ttft_ns", descending=descending).column("ttft_ns")
        seen = values[~np.isnan(values)]
        assert 0 < len(seen) < 100
        assert not np.isnan(values[: len(seen)]).any()
        assert (np.diff(seen) <= 0).all() if descending else (np.diff(seen) >= 0).all()


def test_milliseconds_by_any_spelling():
    table = RecordTable.from_records(realistic(4))
    expected = table.column("queue_gateway_ns") / 1e6
    for spelling in ("queue_gateway_ns", "queue_gateway", "queue.gateway"):
        assert (table.ms(spelling) == expected).all()
    with pytest.raises(KeyError, match="no column 'ttfb_ns'"):
        table.ms("ttfb")


def test_columns_must_be_complete_and_even():
    columns = dict(RecordTable.from_records(realistic(2)).columns)
    with pytest.raises(ValueError, match="2 rows, but"):
        RecordTable({**columns, "lane": np.array(["a"], dtype=object)})
    del columns["lane"]
    with pytest.raises(ValueError, match="missing: lane"):
        RecordTable(columns)


def test_importing_the_table_loads_neither_duckdb_nor_scipy():
    code = "import sys, tailrace.store.table; print([m for m in ('duckdb', 'scipy', 'pandas') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=15, env=child_environment()
    )
    assert done.stdout.strip() == "[]"


def test_a_choice_of_rows_takes_a_column_when_it_is_asked_for():
    table = RecordTable.from_records(realistic(6))
    some = table.where([4, 2, 0]).where([2, 0])
    assert some.column("request_id").tolist() == [table.column("request_id")[i] for i in (0, 4)]
    assert list(some.columns) == list(table.columns)
    assert some.where([-1]).column("request_id").tolist() == [table.column("request_id")[4]]
    with pytest.raises(IndexError, match="none of 2"):
        some.where([2])


def test_a_column_set_in_a_choice_stays_there_and_in_what_is_chosen_from_it():
    table = RecordTable.from_records(realistic(6))
    some = table.where([1, 3, 5])
    some.columns["mark"] = np.array([10, 30, 50])
    assert some.where([2, 0]).column("mark").tolist() == [50, 10]
    assert some.column("request_id").tolist() == [table.column("request_id")[i] for i in (1, 3, 5)]
    assert "mark" not in table.columns
    del some.columns["mark"]
    assert "mark" not in some.columns


def test_a_column_of_one_value_stays_one_value():
    table = RecordTable.from_records(realistic(6))
    table.columns["dtype"] = np.broadcast_to(np.array(["fp8"], dtype=object), (6,))
    assert table.where([0, 5]).column("dtype").strides == (0,)
    assert table.where([0, 5]).column("dtype").tolist() == ["fp8", "fp8"]


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_column_of_one_value_is_the_column_of_a_list_of_it(n):
    for name in FIELDS:
        value = default_of(name)
        if value is None and KINDS[name] in (ColumnKind.INTEGER, ColumnKind.FLOAT, ColumnKind.BOOLEAN):
            value = 1
        one, listed = column_of(name, value, n), build_column(name, [value] * n)
        assert one.dtype == listed.dtype
        np.testing.assert_array_equal(one, listed)
