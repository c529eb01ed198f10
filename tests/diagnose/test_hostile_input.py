"""What a file may be that is no evidence: every reader says so soon and in words, and nothing is computed from it."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.app.explain import find_request
from tailrace.diagnose.arms.as_written import shown
from tailrace.diagnose.causes import CAUSES
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.readers.foreign import HEAD_BYTES, foreign_of
from tailrace.diagnose.readers.formats import FORMATS
from tailrace.model.errors import InputError
from tailrace.model.finding import Level

TABLE = "| metric | before | after |\n|---|---|---|\n| TTFT p99 (ms) | 100 | 900 |\n"
REPEATED = ("x", "1", " ", '"', "|", "`", "{", "[", "(", "a-", "1.", "=,:", "1 ", "TTFT p99 ", "INFO 06-01 12:00:00 ",
            "10.0.0.1 - - [", "vllm serve --a ", "\n", "x\n", "\\", "'", "<", "a=", "STT", "#1 ")  # fmt: skip


@pytest.mark.parametrize("piece", REPEATED)
def test_every_format_looks_at_a_head_in_time_that_grows_with_it(piece: str) -> None:
    head = (piece * HEAD_BYTES)[:HEAD_BYTES]
    begun = time.process_time()
    foreign_of(head.encode())
    for form in FORMATS:
        form.matches(head, "some.log")
    assert time.process_time() - begun < 5.0  # what looks again from every byte takes half a minute


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["table.md", "table.txt", "table.csv", "table.log", "table"])
def test_what_only_begins_like_text_in_another_encoding_is_no_text(tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes("\ufeff".encode(encoding)[:4] + bytes(range(256)) * 400)
    with pytest.raises(InputError) as raised:
        diagnose_sources([str(path)])
    assert raised.value.place == str(path)


def test_a_sparse_file_of_zeros_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "sparse.log"
    with path.open("wb") as file:
        file.truncate(10 << 30)
    begun = time.process_time()
    with pytest.raises(InputError, match="NUL"):
        diagnose_sources([str(path)])
    assert time.process_time() - begun < 5.0


def test_a_name_that_no_file_can_have_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too long"):
        diagnose_sources([str(tmp_path / ("x" * 5000))])


def test_python_nested_beyond_the_parser_is_said(tmp_path: Path) -> None:
    path = tmp_path / "client.py"
    path.write_text("import openai\nopenai.OpenAI(timeout=" + "-" * 50_000 + "1)")
    with pytest.raises(InputError, match=r"no Python: \w"):
        diagnose_sources([str(path)])


def test_numbers_beyond_reading_are_short() -> None:
    assert shown(1e300, "ms") == "1e+300 ms"
    assert shown(-1e300) == "-1e+300"
    assert shown(25_510.0, "ms") == "25510 ms"


def test_a_number_at_the_edge_of_a_float_ends_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(
        "INFO 06-01 12:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation "
        f"throughput: 1.0 tokens/s, Running: {'9' * 308} reqs, Waiting: 0 reqs, GPU KV cache usage: 99.0%\n"
    )
    assert diagnose_sources([str(path)]).findings[0].level is Level.INSUFFICIENT


def test_a_cause_whose_arithmetic_fails_is_named_and_the_others_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.md"
    path.write_text(TABLE + "| TTFT p50 (ms) | 50 | 50 |\n")
    sound = diagnose_sources([str(path)])

    def fails(self: object, observed: Observed) -> None:
        raise ZeroDivisionError("float division by zero")

    broken = next(one for one in CAUSES if one.code == "LB_SKEW")
    monkeypatch.setattr(type(broken), "observe", fails)
    found = diagnose_sources([str(path)])
    assert [item.code for item in found.findings] == [item.code for item in sound.findings]
    assert any(note.startswith("LB_SKEW") for note in found.not_understood)


def test_the_same_file_twice_and_a_copy_of_it_are_one_sample(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    with path.open("wb") as file:
        for number in range(60):
            file.write(
                msgspec.json.encode(
                    {"request_id": f"r{number}", "t_send_ms": number * 100, "t_first_ms": number * 100 + 40,
                     "t_last_ms": number * 100 + 900, "output_tokens": 40, "status": 200}
                ) + b"\n"
            )  # fmt: skip
    alone = diagnose_sources([str(path)])
    twice = diagnose_sources([str(path), os.path.relpath(path)])
    assert "n = 60" in alone.summary
    assert twice.summary == alone.summary
    assert any("twice" in note for note in twice.not_understood)
    copy = tmp_path / "copy.jsonl"
    shutil.copy(path, copy)
    assert diagnose_sources([str(path), str(copy)]).summary == alone.summary


def test_an_empty_file_is_answered_in_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.touch()
    with pytest.raises(InputError) as said:
        diagnose_sources([str(path)])
    assert len(str(said.value)) < len(str(path)) + 100


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_id_explains_nobody(name: str) -> None:
    with pytest.raises(InputError, match="empty id"):
        find_request(name, "whatever.run")
