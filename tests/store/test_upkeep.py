import os
import subprocess
import sys
import time

import pytest

from tailrace.store.layout import DataDirectory
from tailrace.store.query import RecordStore
from tailrace.store.segment import SegmentName, list_segments
from tailrace.store.upkeep import compact, prune
from tailrace.store.writer import RecordWriter, WriterOptions
from tests.store.processes import child_environment
from tests.store.samples import DAY, T0, realistic


def filled(root, parts):
    """Seal each part as one segment."""
    with RecordWriter(root, WriterOptions(linger_s=0.002)) as writer:
        for part in parts:
            for record in part:
                writer.put(record)
            assert writer.seal_now()
    return DataDirectory(root)


def parquet(directory):
    return sorted(directory.segments.glob("*/*.parquet"))


def five_parts():
    records = realistic(500, kept=0.2)
    return records, [records[at : at + 100] for at in range(0, 500, 100)]


def test_names_carry_what_a_reader_must_know():
    name = SegmentName(min_ns=T0, max_ns=T0 + 5, rows=3, writer="12xab", lo=7, hi=9)
    assert SegmentName.parse(name.text) == name
    assert name.day == "2026-09-21"
    for wrong in ("readme", "1-2-3", "a-b-c-d-e-f", ""):
        with pytest.raises(ValueError, match=r".*"):
            SegmentName.parse(wrong)


def test_compaction_merges_and_readers_see_each_record_once_before_and_after_the_grace_period(tmp_path):
    records, parts = five_parts()
    directory = filled(tmp_path, parts)
    assert len(parquet(directory)) == 5
    assert compact(directory, merge_files=6) == 0
    assert compact(directory, merge_files=5) == 1
    assert len(parquet(directory)) == 6, "a reader may hold the old list: old files stay for the grace period"
    store = RecordStore(tmp_path)
    assert store.records() == records
    assert store.size()["segments"] == 1
    merged = list_segments(directory.segments).names[0].path(directory.segments)
    hour_ago = time.time() - 3600
    os.utime(merged, (hour_ago, hour_ago))
    compact(directory)
    assert parquet(directory) == [merged]
    assert store.records() == records


def test_merged_segments_are_merged_again(tmp_path):
    records, parts = five_parts()
    directory = filled(tmp_path, parts[:3])
    compact(directory, merge_files=2)
    filled(tmp_path, parts[3:])
    compact(directory, merge_files=2)
    assert RecordStore(tmp_path).records() == records
    assert RecordStore(tmp_path).size()["segments"] == 1
    assert len(list_segments(directory.segments).replaced) == 6


CRASH = """
import os, signal, sys
from tailrace.store.layout import DataDirectory
from tailrace.store.upkeep import compact
compact(DataDirectory(sys.argv[1]), merge_files=2,
        on_step=lambda step: os.kill(os.getpid(), signal.SIGKILL) if step == sys.argv[2] else None)
"""


@pytest.mark.parametrize("step", ["before_write", "after_write", "before_rename", "after_rename", "after_fsync"])
def test_compaction_killed_at_any_step_loses_and_doubles_nothing(tmp_path, step):
    records, parts = five_parts()
    directory = filled(tmp_path, parts)
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path), step], env=child_environment(), timeout=15, check=False
    )
    assert done.returncode == -9
    assert RecordStore(tmp_path).records() == records
    compact(directory, merge_files=2)
    assert RecordStore(tmp_path).records() == records
    assert RecordStore(tmp_path).size()["segments"] == 1


def test_a_seal_left_pending_is_not_repeated_when_its_segment_was_merged_meanwhile(tmp_path):
    from tailrace.store.hot import HotFile
    from tailrace.store.sealer import seal_range
    from tailrace.store.writer import _packed

    records = realistic(300)
    directory = filled(tmp_path, [records[:100], records[100:200]])
    # A writer that was killed between the rename and the end of its seal.
    path = directory.hot_file("dead")
    hot = HotFile(path, "dead")
    hot.append([_packed(records[200:])], {})
    name = hot.begin_seal(1000)
    assert seal_range(path, name, directory.segments)
    hot.close()
    compact(directory, merge_files=2, grace_s=-1.0)
    assert not name.path(directory.segments).exists()
    with RecordWriter(tmp_path, WriterOptions(linger_s=0.002)):
        deadline = time.monotonic() + 10
        while path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert not path.exists()
    assert RecordStore(tmp_path).records() == records


def test_pruning_goes_by_age_and_leaves_the_rest(tmp_path):
    old, middle, new = (realistic(50, seed=n, t0=T0 + n * DAY) for n in range(3))
    directory = filled(tmp_path, [old, middle, new])
    now = T0 + 2 * DAY + DAY // 2
    assert prune(directory, older_than_s=10 * 86_400, now_unix_ns=now).segments == 0
    gone = prune(directory, older_than_s=86_400, now_unix_ns=now)
    assert (gone.segments, gone.records) == (2, 100)
    assert gone.bytes > 1000
    assert RecordStore(tmp_path).records() == new
    assert len(list(directory.segments.iterdir())) == 1, "empty day directories go"


def test_pruning_a_merged_segment_does_not_bring_back_what_it_replaced(tmp_path):
    _records, parts = five_parts()
    directory = filled(tmp_path, parts)
    compact(directory, merge_files=2)
    gone = prune(directory, older_than_s=86_400, now_unix_ns=T0 + 30 * DAY)
    assert (gone.segments, gone.records) == (6, 500)
    assert RecordStore(tmp_path).records() == []
    assert list(directory.segments.iterdir()) == []


def test_the_litter_of_crashes_is_cleared_after_an_hour(tmp_path):
    records, parts = five_parts()
    directory = filled(tmp_path, parts)
    day = parquet(directory)[0].parent
    litter = [
        day / "x.parquet.tmp",
        day / "y.replaces.json",
        directory.hot / "1x2.lock",
        directory.hot / "1x2.sqlite-wal",
    ]
    for path in litter:
        path.write_bytes(b"")
    compact(directory)
    assert all(path.exists() for path in litter)
    for path in litter:
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    compact(directory)
    assert not any(path.exists() for path in litter)
    assert RecordStore(tmp_path).records() == records


def test_only_one_process_tidies_at_a_time(tmp_path):
    from tailrace.store.layout import FileLock

    _records, parts = five_parts()
    directory = filled(tmp_path, parts)
    with FileLock(tmp_path / "upkeep.lock"):
        assert compact(directory, merge_files=2) == 0
    assert compact(directory, merge_files=2) == 1
