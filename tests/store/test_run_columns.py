"""A run file read as columns is the table of its records, and what is wrong with it is said in the same words."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.model.errors import RunFileError
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import Timeline
from tailrace.store import run_columns, run_streams
from tailrace.store.run_block import decode_records, encode_records
from tailrace.store.run_columns import RunColumns
from tailrace.store.run_file import RunHeader, RunTrailer, RunWriter, read_run
from tailrace.store.table import FIELDS, RecordTable
from tests.store.samples import any_record, realistic

EVENTS = Timeline(at_ns=[5, 9, 40], kind=[0, 0, 9], tokens=[1, -1, 0])
THINNED = Timeline(at_ns=[5, 90], kind=[0, 0], tokens=[1, 4], thinned=3, merged=[0, 3])


def records(count: int = 700) -> list[RequestRecord]:
    out = []
    for number, record in enumerate(realistic(count)):
        lines = (EVENTS, None, THINNED, Timeline(), None)
        one = msgspec.structs.replace(record, timeline=lines[number % 5] if number // 128 != 2 else None)
        if number // 128 == 3:
            one = msgspec.structs.replace(one, tenant="red", ttft_ns=None, timeline=EVENTS)
        out.append(one)
    return out


def written(path: Path, rows: list[RequestRecord]) -> Path:
    writer = RunWriter(path, RunHeader())
    writer.write_all(rows)
    writer.close(RunTrailer(n=len(rows)))
    return path


def alike(found: RecordTable, wanted: RecordTable) -> None:
    for name in FIELDS:
        mine, theirs = found.column(name), wanted.column(name)
        assert mine.dtype == theirs.dtype, name
        if mine.dtype == object:
            assert mine.tolist() == theirs.tolist(), name
        else:
            assert np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f"), name
    assert found.timelines == wanted.timelines


@pytest.mark.parametrize("events", [1, 300, 1 << 16])
@pytest.mark.parametrize("room", [1, 300, 1 << 16])
def test_columns_are_those_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, events: int
) -> None:
    monkeypatch.setattr(run_columns, "_LEAST", room)
    monkeypatch.setattr(run_streams, "_TOGETHER", events)
    path = written(tmp_path / "a.run", records())
    run = read_run(path, columns=True)
    assert run.records == []
    assert run.columns is run.table()
    alike(run.table(), read_run(path).table())


@given(st.lists(any_record(), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_record_holds_is_the_same_in_columns(tmp_path: Path, rows: list[RequestRecord]) -> None:
    payload = encode_records(rows)
    columns = RunColumns()
    columns.take(payload, len(rows))
    alike(columns.table(), RecordTable.from_records(decode_records(payload, len(rows))))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_block_are_refused_as_records_are(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S") as said:
        decode_records(payload, 3)
    with pytest.raises(ValueError, match=r"\S") as again:
        RunColumns().take(payload, 3)
    assert str(again.value) == str(said.value)


def test_a_run_without_requests_is_an_empty_table(tmp_path: Path) -> None:
    assert len(read_run(written(tmp_path / "a.run", []), columns=True).table()) == 0


def test_damage_is_named_in_the_same_words(tmp_path: Path) -> None:
    path = written(tmp_path / "a.run", records())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    said = []
    for columns in (False, True):
        with pytest.raises(RunFileError) as error:
            read_run(path, columns=columns)
        said.append(str(error.value))
    assert said[0] == said[1]
    part, whole = read_run(path, allow_partial=True, columns=True), read_run(path, allow_partial=True)
    assert part.problem == whole.problem
    alike(part.table(), whole.table())


def test_constants_take_no_memory_and_what_is_said_alike_is_one_object(tmp_path: Path) -> None:
    table = read_run(written(tmp_path / "a.run", records()), columns=True).table()
    assert table.column("schema").strides == (0,)
    sources = table.column("stage_sources")
    assert len(set(map(id, sources))) <= len({repr(one) for one in sources})


def test_columns_cost_less_than_records(tmp_path: Path) -> None:
    path = written(tmp_path / "a.run", records(6000))

    def cpu(*, columns: bool) -> float:
        took = []
        for _ in range(3):
            begun = time.process_time()
            read_run(path, columns=columns).table()
            took.append(time.process_time() - begun)
        return min(took)

    assert cpu(columns=True) < cpu(columns=False)


def test_a_block_that_is_decoded_as_records_leaves_the_other_columns_as_they_are(tmp_path: Path) -> None:
    rows = records(384)
    odd = Timeline(at_ns=[1, 2], kind=[0, 300], tokens=[1, 2**40])
    rows[200] = msgspec.structs.replace(rows[200], timeline=odd)
    path = written(tmp_path / "a.run", rows)
    table = read_run(path, columns=True).table()
    alike(table, read_run(path).table())
    assert table.column("schema").strides == (0,)
    assert table.timelines[200] == odd


def test_a_stamp_that_no_column_holds_is_named_and_the_other_blocks_are_read(tmp_path: Path) -> None:
    rows = records(384)
    rows[200] = msgspec.structs.replace(rows[200], timeline=Timeline(at_ns=[2**62, 2**64 - 1], kind=[0, 0]))
    path = written(tmp_path / "a.run", rows)
    with pytest.raises(RunFileError, match="the time of an event"):
        read_run(path, columns=True)
    part = read_run(path, columns=True, allow_partial=True)
    assert part.table().column("request_id").tolist() == [row.request_id for row in rows[:128] + rows[256:]]


def test_labels_that_say_the_same_are_one_object_and_names_are_as_they_are(tmp_path: Path) -> None:
    rows = [
        msgspec.structs.replace(row, request_id=f"r{place}", tenant=("red", "blue")[place % 3 == 0])
        for place, row in enumerate(records(384))
    ]
    table = read_run(written(tmp_path / "a.run", rows), columns=True).table()
    assert len(set(map(id, table.column("tenant")))) == 2
    assert table.column("request_id").tolist() == [row.request_id for row in rows]
