import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from tailrace.model.errors import InputError
from tailrace.store.hot import HotFile
from tailrace.store.query import RecordStore
from tailrace.store.writer import RecordWriter, WriterOptions
from tests.store.processes import child_environment
from tests.store.samples import realistic

QUICK = WriterOptions(linger_s=0.002, sealing=False)


@contextlib.contextmanager
def writing(root, options=QUICK, **arguments):
    writer = RecordWriter(root, options, **arguments)
    try:
        yield writer
    finally:
        writer.close()


def by_start(records):
    return sorted(records, key=lambda record: record.start_unix_ns)


def eventually(check, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_acknowledged_records_are_there_for_another_reader_at_once(tmp_path):
    records, committed = realistic(700), []
    with writing(tmp_path, on_commit=committed.extend) as writer:
        for record in records:
            assert writer.put(record)
        assert writer.flush()
        assert writer.acknowledged == 700
        assert by_start(committed) == records
        assert RecordStore(tmp_path).records() == records


def test_closing_commits_what_waits_and_the_next_start_seals_it(tmp_path):
    records = realistic(500)
    writer = RecordWriter(tmp_path, WriterOptions(linger_s=5.0, sealing=False))
    for record in records:
        writer.put(record)
    writer.close()
    assert writer.dropped == {}
    assert RecordStore(tmp_path).records() == records
    assert not writer.put(records[0]), "a closed writer takes nothing"
    assert writer.dropped == {"normal": 1}
    with writing(tmp_path, WriterOptions(linger_s=0.002)):
        eventually(lambda: RecordStore(tmp_path).size()["sealed_records"] == 500)
        assert RecordStore(tmp_path).records() == records
        eventually(lambda: len(list((tmp_path / "hot").glob("*.sqlite"))) == 1)


def test_sealing_moves_records_into_a_segment_and_every_reader_still_sees_each_once(tmp_path):
    records = realistic(3000, kept=0.2)
    with writing(tmp_path, WriterOptions(linger_s=0.002, seal_rows=1000)) as writer:
        for record in records:
            writer.put(record)
        eventually(lambda: writer.sealed >= 2000)
        assert RecordStore(tmp_path).records() == records
        assert writer.seal_now()
        assert RecordStore(tmp_path).size()["hot_records"] == 0
        assert RecordStore(tmp_path).records() == records
        assert writer.seal_error == ""


def test_few_records_are_sealed_by_age(tmp_path):
    options = WriterOptions(linger_s=0.002, seal_after_s=0.05, seal_min_rows=5)
    with writing(tmp_path, options) as writer:
        for record in realistic(10):
            writer.put(record)
        eventually(lambda: writer.sealed == 10)


def test_a_writer_that_wrote_nothing_leaves_nothing(tmp_path):
    with writing(tmp_path):
        pass
    assert list((tmp_path / "hot").iterdir()) == []


def test_closing_leaves_no_child_process(tmp_path):
    writer = RecordWriter(tmp_path, WriterOptions(linger_s=0.002, seal_rows=100))
    for record in realistic(200):
        writer.put(record)
    eventually(lambda: writer.sealed >= 100)
    child = writer._sealing._child
    began = time.monotonic()
    writer.close()
    assert time.monotonic() - began < 2.5
    assert child.poll() is not None


def test_a_record_that_cannot_be_encoded_takes_no_neighbour_along(tmp_path):
    good = realistic(20)
    bad = msgspec.structs.replace(good[0], request_id="bad", e2e_ns=2**70)
    with writing(tmp_path) as writer:
        for record in (*good[:10], bad, *good[10:]):
            writer.put(record)
        assert writer.flush()
        assert writer.dropped == {"unencodable": 1}
        assert RecordStore(tmp_path).records() == good


class SlowDisk(HotFile):
    """Every commit takes half a second."""

    def append(self, batches, counters, amendments=()):
        time.sleep(0.5)
        super().append(batches, counters, amendments)


def test_a_slow_disk_never_blocks_put_and_drops_are_counted_by_class(tmp_path):
    records = realistic(4000, kept=0.1, failing=0)
    options = WriterOptions(linger_s=0.002, capacity=1000, sealing=False)
    writer = RecordWriter(tmp_path, options, open_hot=SlowDisk)
    longest = 0
    for number, record in enumerate(records):
        began = time.thread_time_ns()
        wall = time.perf_counter_ns()
        writer.put(record)
        # A wait shows as wall time without CPU time; being preempted by other work on the machine does as well, so
        # what is bounded is far below one commit and far above a busy scheduler's slice.
        longest = max(longest, time.perf_counter_ns() - wall - (time.thread_time_ns() - began))
        if number % 100 == 0:
            time.sleep(0.001)
    assert longest < 250e6, f"put waited {longest / 1e6:.1f} ms"
    assert writer.flush(10)
    writer.close()
    dropped = writer.dropped
    assert dropped["normal"] > 0
    assert "slow" not in dropped, "400 slow records fit a backlog of 1000: only normal ones may go"
    assert writer.acknowledged + sum(dropped.values()) == 4000
    store = RecordStore(tmp_path)
    assert len(store.table()) == writer.acknowledged
    assert store.counters() == {f"dropped.{kind}": n for kind, n in dropped.items()}
    assert sum(record.slow == ["ttft"] for record in store.records()) == sum(r.slow == ["ttft"] for r in records)


class HangingDisk(HotFile):
    """The disk stops answering."""

    gate = threading.Event()

    def append(self, batches, counters, amendments=()):
        self.gate.wait(8)
        super().append(batches, counters, amendments)


def test_closing_before_a_hanging_disk_ends_in_time_and_counts(tmp_path):
    HangingDisk.gate.clear()
    writer = RecordWriter(tmp_path, QUICK, open_hot=HangingDisk)
    for record in realistic(50, failing=0):
        writer.put(record)
    began = time.monotonic()
    writer.close(timeout_s=0.3)
    assert time.monotonic() - began < 2.0
    assert sum(writer.dropped.values()) == 50
    HangingDisk.gate.set()
    writer._thread.join(5)


def test_a_directory_that_cannot_be_written_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"file/data: records cannot be written there: Not a directory.*--data-dir"):
        RecordWriter(tmp_path / "file" / "data")
    with pytest.raises(InputError, match="records cannot be written there"):
        RecordWriter("/proc/tailrace-data")


DISK_FULL = """
import resource, signal, sys, time
from tailrace.store.writer import RecordWriter, WriterOptions
from tests.store.samples import realistic
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = RecordWriter(sys.argv[1], WriterOptions(linger_s=0.002, capacity=500, sealing=False))
records = realistic(6000)
for record in records[:1000]:
    while writer.waiting > 200: time.sleep(0.001)
    writer.put(record)
assert writer.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
for n, record in enumerate(records[1000:]):
    writer.put(record)
    if n % 100 == 0: time.sleep(0.01)
deadline = time.monotonic() + 5
while not writer.error and time.monotonic() < deadline: time.sleep(0.01)
assert writer.error, "the disk was full and nobody noticed"
print(writer.error, flush=True)
assert sum(writer.dropped.values()) > 0
full = writer.acknowledged
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert writer.flush(5), "the disk has room again, and what waited is written"
assert writer.error == ""
assert writer.acknowledged > full
writer.close()
assert writer.acknowledged + sum(writer.dropped.values()) == 6000, writer.counters()
print(writer.acknowledged)
"""


def test_a_full_disk_is_said_counted_and_survived(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", DISK_FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=18,
        env=child_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, acknowledged = done.stdout.splitlines()
    assert "cannot write records" in said
    assert len(RecordStore(tmp_path).table()) == int(acknowledged)


def test_a_sealing_process_that_dies_is_replaced_and_nothing_is_lost(tmp_path):
    records = realistic(900)
    with writing(tmp_path, WriterOptions(linger_s=0.002, seal_rows=300)) as writer:
        for record in records[:300]:
            writer.put(record)
        eventually(lambda: writer.sealed > 0)
        writer._sealing._child.kill()
        writer._sealing._child.wait()
        for record in records[300:]:
            writer.put(record)
        eventually(lambda: writer.seal_error)
        writer._seal_not_before = 0.0
        assert writer.seal_now(15), (writer.seal_error, writer.counters())
        assert RecordStore(tmp_path).records() == records


def test_several_writers_share_a_directory_and_do_not_adopt_each_other(tmp_path):
    parts = [realistic(400, seed=seed) for seed in (1, 2)]
    with (
        writing(tmp_path, WriterOptions(linger_s=0.002, seal_rows=200)) as one,
        writing(tmp_path, WriterOptions(linger_s=0.002, seal_rows=200)) as two,
    ):
        for first, second in zip(*parts, strict=True):
            one.put(first)
            two.put(second)
        assert one.flush()
        assert two.flush()
        eventually(lambda: one.sealed and two.sealed)
        time.sleep(0.2)
        assert {path.stem for path in (tmp_path / "hot").glob("*.sqlite")} == {one.name, two.name}
        found = [record.request_id for record in RecordStore(tmp_path).records()]
        assert sorted(found) == sorted(record.request_id for part in parts for record in part)


READER = """
import sys, time
from tailrace.store.query import RecordStore
store, reads, least, end = RecordStore(sys.argv[1]), 0, 0, time.monotonic() + 4
while time.monotonic() < end:
    table = store.table(with_timelines=True)
    ids = table.column("request_id").tolist()
    assert len(ids) == len(set(ids)), "a record was seen twice"
    assert len(ids) >= least, f"{least} records were there, now {len(ids)}"
    least = len(ids)
    store.ask("quantiles_by_length")
    reads += 1
print(reads, least)
"""


def test_two_reader_processes_meet_no_error_while_records_are_written_sealed_and_compacted(tmp_path):
    from tailrace.store.layout import DataDirectory
    from tailrace.store.upkeep import compact

    with writing(tmp_path, WriterOptions(linger_s=0.002, seal_rows=250)) as writer:
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READER, str(tmp_path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=child_environment(),
            )
            for _ in range(2)
        ]
        put = 0
        while any(reader.poll() is None for reader in readers):
            for record in realistic(10, seed=put + 1, kept=0.1, events=5):
                assert writer.put(record)
                put += 1
            time.sleep(0.005)
            if put % 500 == 0:
                compact(DataDirectory(tmp_path), merge_files=2)
        for reader in readers:
            out, err = reader.communicate(timeout=10)
            assert reader.returncode == 0, err
            reads, least = map(int, out.split())
            assert reads >= 2
            assert least > 0
        assert writer.flush()
        assert writer.dropped == {}
        assert len(RecordStore(tmp_path).table()) == put


def test_a_sealer_at_work_when_its_parent_closes_is_ended_and_leaves_no_visible_half(tmp_path):
    writer = RecordWriter(tmp_path, WriterOptions(linger_s=0.002, seal_rows=20_000, capacity=50_000))
    records = realistic(20_000, kept=0)
    for record in records:
        writer.put(record)
    eventually(lambda: writer._sealing.busy)
    writer.close(timeout_s=0.5)
    assert len(RecordStore(tmp_path).table()) + sum(writer.dropped.values()) == 20_000
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    for pid in pids:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            assert not (b"tailrace.store.sealer" in command and int(status[1]) == os.getpid())
