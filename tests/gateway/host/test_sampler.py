import os
import threading
import time

import pytest

from tailrace.gateway.host.files import KernelFiles
from tailrace.gateway.host.sampler import NothingToReadError, Sampler


def until(condition, within_s=5.0):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


@pytest.fixture
def start():
    running = []

    def begin(read, **more):
        sampler = Sampler("test", read, **{"period_s": 0.02, "keep": 5, **more})
        sampler.start()
        running.append(sampler)
        return sampler

    yield begin
    for sampler in running:
        sampler.close()


def test_it_keeps_the_last_ones(start):
    numbers = iter(range(10_000))
    sampler = start(lambda: next(numbers))
    until(lambda: sampler.samples > 8)
    kept = sampler.kept()
    assert len(kept) == 5
    assert kept == list(range(kept[0], kept[0] + 5))
    assert sampler.latest(10**9) >= kept[-1]


def test_a_read_that_fails_is_counted_and_the_next_one_is_made(start):
    turns = iter([OSError("the driver is gone"), 7, 7, 7])

    def read():
        turn = next(turns, 7)
        if isinstance(turn, Exception):
            raise turn
        return turn

    sampler = start(read)
    until(sampler.kept)
    assert sampler.failures == 1
    assert sampler.error == ""


def test_the_error_of_the_last_read_is_there_to_be_read(start):
    def read():
        raise RuntimeError("no device")

    sampler = start(read)
    until(lambda: sampler.failures > 1)
    assert sampler.error == "no device"
    assert sampler.latest(10**9) is None


def test_a_read_that_hangs_makes_the_sample_absent_and_does_not_hold_the_end():
    release = threading.Event()
    turns = iter([1])

    def read():
        turn = next(turns, None)
        if turn is None:
            release.wait(30)
        return turn

    sampler = Sampler("test", read, period_s=0.02, keep=5)
    sampler.start()
    until(sampler.kept)
    until(lambda: sampler.latest(50_000_000) is None)
    assert sampler.kept() == [1]
    began = time.monotonic()
    sampler.close()
    assert time.monotonic() - began < 5
    release.set()


def test_a_slow_read_does_not_leave_a_backlog_of_reads(start):
    def read():
        time.sleep(0.05)
        return 1

    sampler = start(read, period_s=0.01)
    time.sleep(0.4)
    assert sampler.samples <= 8


def test_a_file_that_is_gone_forbidden_or_has_no_writer_gives_nothing_at_once(tmp_path):
    os.mkfifo(tmp_path / "stat")
    (tmp_path / "folder").mkdir()
    files = KernelFiles(str(tmp_path))
    began = time.monotonic()
    assert files.text("stat") == ""  # opening it would wait for a writer
    assert files.text("absent") == ""
    assert files.text("folder") == ""
    assert time.monotonic() - began < 2
    assert "No such file" in files.problems[f"{tmp_path}/absent"]
    assert files.names("absent") == []
    assert files.link("absent") == ""


def test_no_file_is_read_without_end(tmp_path):
    (tmp_path / "long").write_bytes(b"x" * 1_000_000)
    assert len(KernelFiles(str(tmp_path)).text("long")) == 256 * 1024


def test_where_nothing_can_be_read_the_thread_ends_and_says_why():
    ended = threading.Event()

    def read():
        raise NothingToReadError("there is no device")

    sampler = Sampler("test", read, period_s=0.02, keep=5, at_end=ended.set)
    sampler.start()
    assert ended.wait(5)
    sampler.close()
    assert (sampler.error, sampler.failures, sampler.kept()) == ("there is no device", 0, [])


def test_a_driver_that_hangs_when_it_is_let_go_holds_nobody():
    release = threading.Event()
    sampler = Sampler("test", lambda: 1, period_s=0.02, keep=5, at_end=lambda: release.wait(30))
    sampler.start()
    until(sampler.kept)
    began = time.monotonic()
    sampler.close()
    assert time.monotonic() - began < 5
    release.set()


def test_paths_that_come_and_go_are_not_remembered_for_ever(tmp_path):
    files = KernelFiles(str(tmp_path))
    for number in range(2000):
        files.text(f"{number}/stat")
    assert len(files.problems) <= 256
