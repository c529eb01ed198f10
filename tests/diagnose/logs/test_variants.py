"""The public cases with logs, in every state in which a log is pasted: the verdict does not change."""

from __future__ import annotations

import random
import re

import pytest

from tailrace.app.diagnose import diagnose_sources
from tests.diagnose.test_cases import INPUTS, ROWS

LOGS = [row for row in ROWS if any(name.endswith(".log") for name in row["files"])]
LEVELS = ["insufficient", "suspected", "consistent", "proven"]
NOISE = (
    "(APIServer pid=412) INFO 05-11 17:50:24 [async_llm.py:578] Added request chatcmpl-abc.",
    'INFO:     10.0.0.9:40110 - "GET /metrics HTTP/1.1" 200 OK',
    "(APIServer pid=412) WARNING 05-11 17:50:25 [hf.py:1] something else entirely",
)


def noisy(text):
    draw = random.Random(7)
    return "\n".join(part for line in text.splitlines() for part in (line, draw.choice(NOISE)))


def later(text):
    """Three hours later, so that no rule knows a time."""
    return re.sub(r"\b(\d\d):(\d\d:\d\d)", lambda found: f"{(int(found[1]) + 3) % 24:02d}:{found[2]}", text)


STATES = {
    "compose": lambda text: "\n".join(f"vllm-1  | {line}" for line in text.splitlines()),
    "runtime": lambda text: "\n".join(f"2026-05-11T10:50:24.123456Z stdout F {line}" for line in text.splitlines()),
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "noise": noisy,
    "broken": lambda text: "\n".join(
        line[at : at + 90] for line in text.splitlines() for at in range(0, len(line), 90)
    ),
    "glued": lambda text: text.replace("\n", ""),
}


STATED = [
    (row, state)
    for row in LOGS
    for state in STATES
    # A line of nginx begins like any other text: where its lines were glued, nothing says where one ends.
    if not ("nginx_access" in row["format"] and state in ("broken", "glued"))
]


def codes(row, tmp_path, state, *, leave_out=None):
    paths = []
    for name in row["files"]:
        if name == leave_out:
            continue
        text = (INPUTS / name).read_text()
        (tmp_path / name).write_text(state(text) if name.endswith(".log") else text)
        paths.append(str(tmp_path / name))
    return diagnose_sources(paths).findings


@pytest.mark.needs("shared")
@pytest.mark.parametrize(("row", "state"), STATED, ids=lambda value: value if isinstance(value, str) else value["id"])
def test_the_state_of_a_log_changes_nothing(row, state, tmp_path):
    first = codes(row, tmp_path, STATES[state])[0]
    assert first.code in row["acceptable_codes"]
    assert LEVELS.index(first.level) <= LEVELS.index(row.get("level_at_most", "proven"))


@pytest.mark.needs("shared")
@pytest.mark.parametrize("row", LOGS, ids=lambda row: row["id"])
def test_the_hour_changes_nothing(row, tmp_path):
    for name in row["files"]:
        (tmp_path / name).write_text(later((INPUTS / name).read_text()))
    first = diagnose_sources([str(tmp_path / name) for name in row["files"]]).findings[0]
    assert first.code in row["acceptable_codes"]


@pytest.mark.needs("shared")
@pytest.mark.parametrize(
    ("row", "name"),
    [(row, name) for row in LOGS for name in row["files"] if len(row["files"]) > 1],
    ids=lambda value: value if isinstance(value, str) else value["id"],
)
def test_without_a_file_the_level_does_not_rise(row, name, tmp_path):
    whole = codes(row, tmp_path, str)[0]
    rest = codes(row, tmp_path, str, leave_out=name)[0]
    assert LEVELS.index(rest.level) <= LEVELS.index(whole.level)
    if rest.level != "consistent":
        assert rest.missing
