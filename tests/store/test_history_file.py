from pathlib import Path

import pytest

from tailrace.model.errors import InputError
from tailrace.store.history_file import HistoryPoint, append_history, read_history


def point(i):
    return HistoryPoint(run=f"{i}.run", started_unix_ns=i, work="w", n=10 + i, values={"ttft_ms.p50": 1.5 * i})


def test_what_was_appended_is_read_and_nothing_twice(tmp_path):
    file = tmp_path / "history.jsonl"
    assert append_history(file, [point(1), point(2)]) == 2
    assert append_history(file, [point(2), point(3)]) == 1
    assert append_history(file, [point(3)]) == 0
    assert read_history(file) == [point(1), point(2), point(3)]


def test_a_cut_last_line_is_left_out_and_mended(tmp_path):
    file = tmp_path / "history.jsonl"
    append_history(file, [point(1), point(2)])
    file.write_bytes(file.read_bytes()[:-20])
    assert read_history(file) == [point(1)]
    assert append_history(file, [point(2), point(3)]) == 2
    assert read_history(file) == [point(1), point(2), point(3)]


@pytest.mark.parametrize(
    "line", [b"nonsense", b'{"run": 3}', b"\xff\xfe", b'{"schema":2,"run":"a","started_unix_ns":1,"work":"w","n":1}']
)
def test_a_line_that_does_not_fit_is_named(tmp_path, line):
    file = tmp_path / "history.jsonl"
    append_history(file, [point(1)])
    file.write_bytes(file.read_bytes() + line + b"\n")
    with pytest.raises(InputError) as caught:
        read_history(file)
    assert caught.value.place == f"{file}:2"
    assert caught.value.remedy
    with pytest.raises(InputError):
        append_history(file, [point(5)])


def test_a_place_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="history"):
        read_history(tmp_path / "none.jsonl")


@pytest.mark.parametrize("content", [b'{"name": "somebody\'s"}', b"# Notes", b"\x00\x01"])
def test_what_is_no_history_is_left_as_it_is(tmp_path, content):
    file = tmp_path / "notes"
    file.write_bytes(content)
    with pytest.raises(InputError, match="no run of a history"):
        append_history(file, [point(1)])
    assert file.read_bytes() == content


def test_a_device_is_no_history():
    with pytest.raises(InputError, match="regular file"):
        read_history(Path("/dev/zero"))
