"""No command writes over what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.app.outputs import refuse_to_replace
from tailrace.cli import main
from tailrace.model.errors import InputError


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    path = tmp_path / "evidence.jsonl"
    path.write_text('{"request_id": "a", "start_unix_ns": 1, "e2e_ns": 2, "outcome": "completed"}\n')
    return path


@pytest.mark.parametrize(
    "args",
    [
        ("replay", "worst", "http://127.0.0.1:1", "--records", "IN", "--out", "IN"),
        ("diagnose", "IN", "--html", "IN"),
        ("diagnose", "IN", "--facts", "n=1", "--facts-out", "IN"),
        ("diagnose", "OTHER", "--before", "IN", "--html", "IN"),
        ("bench", "http://127.0.0.1:1", "--trace", "IN", "--out", "IN"),
        ("simulate", "--trace", "IN", "--out", "IN"),
        ("report", "IN", "--out", "IN"),
    ],
)
def test_evidence_outlives_the_command_that_reads_it(args, evidence, capsys):
    other = evidence.with_name("other.jsonl")
    other.write_bytes(evidence.read_bytes())
    before = evidence.read_bytes()
    names = {"IN": str(evidence), "OTHER": str(other)}
    with pytest.raises(SystemExit) as end:
        main([names.get(arg, arg) for arg in args])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "it would replace what is read here" in said
    assert "another name" in said
    assert evidence.read_bytes() == before


def test_it_is_known_by_any_path(evidence):
    link = evidence.with_name("link")
    link.symlink_to(evidence)
    for source in (str(link), f"{evidence}#2", str(evidence.parent / ".." / evidence.parent.name / evidence.name)):
        with pytest.raises(InputError, match="replace"):
            refuse_to_replace(evidence, [source], option="--out")
    refuse_to_replace(evidence, ["-", "http://127.0.0.1:1", None, "no such file"], option="--out")
    refuse_to_replace(evidence.with_name("new"), [str(evidence)], option="--out")
