import duckdb
import msgspec
import pytest

from tailrace.export.parquet import EVENT_COLUMNS, write_events, write_parquet
from tailrace.model.errors import InputError
from tailrace.model.timeline import Timeline
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


def test_events_are_a_row_each_and_join_their_requests(tmp_path):
    one, two, three = realistic(3, kept=0)
    line = Timeline(at_ns=[5, 9, 12], kind=[4, 0, 10], tokens=[-1, 2, -1])
    records = [
        msgspec.structs.replace(one, timeline=line),
        two,
        msgspec.structs.replace(three, timeline=Timeline(at_ns=[7], kind=[1], tokens=[1])),
    ]
    path = tmp_path / "it's events.parquet"
    assert write_events(RecordTable.from_records(records), path) == 4
    with duckdb.connect() as connection:
        found = connection.execute("SELECT * FROM read_parquet(?)", [str(path)])
        assert tuple(column[0] for column in found.description) == EVENT_COLUMNS
        assert found.fetchall() == [
            (one.request_id, 0, 5, "role", None),
            (one.request_id, 1, 9, "content", 2),
            (one.request_id, 2, 12, "done", None),
            (three.request_id, 0, 7, "reasoning", 1),
        ]


def test_a_run_without_timelines_has_a_file_of_no_events(tmp_path):
    path = tmp_path / "none.parquet"
    assert write_events(RecordTable.from_records(realistic(2, kept=0)), path) == 0
    with duckdb.connect() as connection:
        assert connection.execute("SELECT count(*) FROM read_parquet(?)", [str(path)]).fetchone() == (0,)


def test_the_directory_one_is_in_has_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="Is a directory"):
        write_parquet(RecordTable.from_records(realistic(1)), ".")
