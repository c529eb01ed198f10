import os
import signal
import subprocess
import sys

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.model.errors import InputError, RunFileError, StoreError
from tailrace.model.measurement import ClientHealth
from tailrace.store.run_file import Arrival, RunHeader, RunTrailer, RunWriter, read_run
from tests.store.processes import child_environment
from tests.store.samples import any_record, realistic

HEADER = RunHeader(
    version="0.1.0",
    target="http://127.0.0.1:8000",
    arrival=Arrival(kind="poisson", rate=5.0, seed=3),
    mix="short:0.9,long:0.1",
    knobs={"max_num_seqs": 64, "enable_chunked_prefill": False},
    started_unix_ns=1_790_000_000_123_456_789,
    notes=["warm-up of 10 s left out"],
)
TRAILER = RunTrailer(n=0, client=ClientHealth(loop_lag_p99_ms=1.5), duration_s=60.25, counters={"late": 2})


def write(path, records, trailer=TRAILER):
    with RunWriter(path, HEADER) as writer:
        writer.write_all(records)
        if trailer is not None:
            writer.close(msgspec.structs.replace(trailer, n=len(records)))
    return path


@given(st.lists(any_record(), max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(tmp_path, records):
    run = read_run(write(tmp_path / "a.run", records))
    assert run.records == records
    assert run.header == HEADER
    assert run.trailer == msgspec.structs.replace(TRAILER, n=len(records))
    assert not run.problem
    assert list(run.table().records()) == records


def test_objectives_survive_with_their_numeric_quantiles(tmp_path):
    run = read_run(write(tmp_path / "a.run", []))
    assert run.header.objectives.bounds["ttft"] == {0.99: 500_000_000}


def test_a_file_cut_at_any_byte_is_refused_and_its_whole_lines_are_read_when_asked(tmp_path):
    records = realistic(6, kept=0.5, events=3)
    whole = write(tmp_path / "whole.run", records).read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == 10]
    cut = tmp_path / "cut.run"
    # Every cut that is not inside the same line as its neighbours is tried, and a few inside each line.
    for at in sorted({*ends, *(end + 1 for end in ends), *range(0, len(whole), 97)} - {len(whole), len(whole) - 1}):
        cut.write_bytes(whole[:at])
        with pytest.raises(RunFileError) as caught:
            read_run(cut)
        assert str(cut) in str(caught.value)
        assert caught.value.place.rpartition(":")[2].isdigit()
        if at <= ends[0]:
            continue
        assert "--partial" in caught.value.remedy
        run = read_run(cut, allow_partial=True)
        complete = sum(end <= at for end in ends) - 1
        # A cut just before a newline leaves the line itself whole.
        assert run.records == records[: min(complete, 6)]
        assert run.problem
        assert run.trailer is None


def test_the_error_names_the_line_and_the_remedy(tmp_path):
    path = write(tmp_path / "a.run", realistic(3))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    with pytest.raises(RunFileError, match=r"a\.run:4: the line is cut.*--partial to use the 2 requests"):
        read_run(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "this is not a run file; it begins with"),
        (b"hello world\n", "this is not a run file; it begins with 'hello world'"),
        (b'{"model": "x", "ttft": 1}\n', "this is not a run file"),
        (b"[1, 2]\n", "this is not a run file"),
        (b'{"tailrace_run": 1, "kind": "be', "the header is cut"),
        (b'{"tailrace_run": 7, "version": "9.0"}\n', "tailrace_run is 7, this Tailrace reads 1.*version 9.0"),
        (b'{"tailrace_run": 1, "record_schema": 4}\n', "record_schema is 4"),
        (b'{"tailrace_run": 1, "kind": 5}\n', "the header does not fit: .*kind"),
        (b"x" * 300_000, "this is not a run file"),
    ],
)
def test_a_wrong_file_says_what_it_is(tmp_path, content, says):
    path = tmp_path / "wrong.run"
    path.write_bytes(content)
    for partial in (False, True):
        with pytest.raises(RunFileError, match=rf"wrong\.run:1: {says}"):
            read_run(path, allow_partial=partial)


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(RunFileError, match=r"nowhere\.run: there is no such file.*tailrace bench"):
        read_run(tmp_path / "nowhere.run")
    with pytest.raises(RunFileError, match=r"this is a directory.*tailrace records"):
        read_run(tmp_path)


def damaged(tmp_path, change):
    path = write(tmp_path / "a.run", realistic(4))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(change(lines)))
    return path


@pytest.mark.parametrize(
    ("change", "says", "kept"),
    [
        (lambda lines: [*lines, *lines], r":7: a second run begins after the end", 4),
        (lambda lines: [*lines[:3], *lines], r":4: a second run begins here: two files were joined", 2),
        (lambda lines: [*lines, b"some text\n"], r":7: something follows the end of the run: 'some text'", 4),
        (lambda lines: [*lines[:2], b"\x00\xff\xfe garbage\n", *lines[2:]], r":3: this is no record", 1),
        (
            lambda lines: [*lines[:2], b'{"request_id": 5}\n', *lines[2:]],
            r":3: the record does not fit: .*request_id",
            1,
        ),
        (lambda lines: [*lines[:2], b"\n", *lines[2:]], r":3: this is no record", 1),
        (lambda lines: [*lines[:2], *lines[3:]], r":5: the trailer says 4 requests, but the file holds 3", 3),
        (lambda lines: lines[:-1], r":5: the file ends without its trailer", 4),
    ],
)
def test_foreign_lines_are_named_and_what_came_before_them_can_be_read(tmp_path, change, says, kept):
    path = damaged(tmp_path, change)
    with pytest.raises(RunFileError, match=r"a\.run" + says):
        read_run(path)
    run = read_run(path, allow_partial=True)
    assert len(run.records) == kept
    assert run.problem.startswith("line ")


def test_where_nothing_can_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot write the run file: No such file or directory"):
        RunWriter(tmp_path / "no" / "a.run", HEADER)
    with pytest.raises(StoreError, match="No space left on device"):
        # The kernel's own full disk.
        RunWriter("/dev/full", HEADER)


def test_a_trailer_that_miscounts_is_a_bug_of_the_writer(tmp_path):
    writer = RunWriter(tmp_path / "a.run", HEADER)
    writer.write(realistic(1)[0])
    with pytest.raises(ValueError, match="the trailer says 2 records, 1 were written"):
        writer.close(RunTrailer(n=2))


def test_records_reach_the_disk_in_bounded_batches(tmp_path):
    path = tmp_path / "a.run"
    writer = RunWriter(path, HEADER)
    for record in realistic(200):
        writer.write(record)
        unseen = writer.count - (path.read_bytes().count(b"\n") - 1)
        assert unseen < 64
    writer.close()


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    path = tmp_path / "a.run"
    code = (
        "import sys, time\n"
        "from tailrace.store.run_file import RunHeader, RunWriter\n"
        "from tests.store.samples import realistic\n"
        "with RunWriter(sys.argv[1], RunHeader()) as writer:\n"
        "    for n, record in enumerate(realistic(10_000)):\n"
        "        writer.write(record)\n"
        "        if n == 130: print('now', flush=True)\n"
        "        if n >= 130: time.sleep(0.001)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
    ) as child:
        assert child.stdout.readline() == b"now\n"
        os.kill(child.pid, signal.SIGINT)
        child.communicate(timeout=10)
    assert child.returncode != 0
    run = read_run(path, allow_partial=True)
    assert len(run.records) > 130
    assert run.problem.endswith("the run was interrupted, or the file was cut")
