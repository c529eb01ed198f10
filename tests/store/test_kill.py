"""kill -9 between every two steps of the protocol: no acknowledged record is lost, none is there twice."""

import subprocess
import sys
import time

import duckdb
import pytest

from tailrace.store.query import RecordStore
from tailrace.store.writer import RecordWriter, WriterOptions
from tests.store.processes import child_environment

WRITER_STEPS = ["before_begin", "after_begin", "before_finish", "after_finish"]
SEALER_STEPS = ["before_write", "after_write", "before_rename", "after_rename", "after_fsync"]
ADOPTION_STEPS = [*WRITER_STEPS, *SEALER_STEPS, "before_remove", "after_remove"]

pytestmark = [pytest.mark.long("up to four Python processes start one after the other"), pytest.mark.timeout(60)]


def run_until_killed(root, step="none", where="writer", *, seconds=None):
    """Run a writing process until it kills itself, or is killed after so many seconds; its acknowledged ids."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.store.processes", "write", str(root), step, where],
        stdout=subprocess.PIPE,
        env=child_environment(),
    )
    try:
        if seconds is not None:
            first = child.stdout.readline()
            time.sleep(seconds)
            child.kill()
            out = first + child.communicate(timeout=20)[0]
        else:
            out = child.communicate(timeout=40)[0]
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -9, "the process was to be killed, and ended by itself"
    return out.decode().split()


def check(root, acknowledged):
    ids = RecordStore(root).table().column("request_id").tolist()
    assert len(ids) == len(set(ids)), "a record is there twice"
    missing = set(acknowledged) - set(ids)
    assert not missing, f"{len(missing)} of {len(acknowledged)} acknowledged records are lost"
    return ids


def restart(root, **arguments):
    """A new start seals away everything that dead writers left; then only segments are there."""
    writer = RecordWriter(root, WriterOptions(linger_s=0.002), **arguments)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and {path.stem for path in (root / "hot").glob("*.sqlite")} - {writer.name}:
            time.sleep(0.02)
    finally:
        writer.close()


def check_sealed(root, acknowledged):
    ids = check(root, acknowledged)
    assert list((root / "hot").glob("*.sqlite")) == []
    # Not even hidden by a reader's eye for duplicates: the files themselves hold each record once.
    raw = duckdb.execute(f"SELECT request_id FROM read_parquet('{root}/segments/*/*.parquet')").fetchall()
    assert sorted(request_id for (request_id,) in raw) == sorted(ids)


@pytest.mark.parametrize("step", WRITER_STEPS)
def test_the_writer_is_killed_at(step, tmp_path):
    acknowledged = run_until_killed(tmp_path, step, "writer")
    assert len(acknowledged) >= 300
    check(tmp_path, acknowledged)
    restart(tmp_path)
    check_sealed(tmp_path, acknowledged)


@pytest.mark.parametrize("step", SEALER_STEPS)
def test_writer_and_sealer_are_killed_at(step, tmp_path):
    acknowledged = run_until_killed(tmp_path, step, "sealer")
    assert len(acknowledged) >= 300
    check(tmp_path, acknowledged)
    restart(tmp_path)
    check_sealed(tmp_path, acknowledged)


@pytest.mark.parametrize("step", ["before_write", "before_rename"])
def test_a_sealer_that_outlives_its_writer_and_the_next_start_do_not_both_seal(step, tmp_path):
    acknowledged = run_until_killed(tmp_path, step, "orphan")
    restart(tmp_path)
    time.sleep(0.8)
    check_sealed(tmp_path, acknowledged)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("step", ADOPTION_STEPS)
def test_the_adopting_process_is_killed_at(step, tmp_path):
    acknowledged = run_until_killed(tmp_path, "after_begin", "writer")
    adopter = subprocess.Popen(
        [sys.executable, "-m", "tests.store.processes", "write", str(tmp_path), step, "sealer"],
        stdout=subprocess.PIPE,
        env=child_environment(),
    )
    acknowledged += adopter.communicate(timeout=40)[0].decode().split()
    assert adopter.returncode == -9
    check(tmp_path, acknowledged)
    restart(tmp_path)
    check_sealed(tmp_path, acknowledged)


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.7])
def test_a_writer_killed_at_any_moment(seconds, tmp_path):
    acknowledged = []
    for _ in range(2):
        acknowledged += run_until_killed(tmp_path, seconds=seconds)
        check(tmp_path, acknowledged)
    restart(tmp_path)
    check_sealed(tmp_path, acknowledged)
