"""A trace from what Tailrace itself recorded: a run file, exported records, a data directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.app.trace_source import read_trace_source
from tailrace.cli.simulate import app as simulate
from tailrace.export.jsonl import encode_public
from tailrace.model.errors import InputError
from tailrace.model.thresholds import S
from tailrace.store.run_file import read_run


def test_a_run_plays_again_at_the_times_and_lengths_that_it_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first, second = tmp_path / "a.run", tmp_path / "b.run"
    simulate(["--rate", "5 for 4s, 20 for 2s", "--mix", "short", "--out", str(first)], standalone_mode=False)
    simulate(["--trace", str(first), "--out", str(second)], standalone_mode=False)
    capsys.readouterr()

    def work(path: Path, shift: int = 0) -> list[tuple[int, int | None, int | None]]:
        records = read_run(path).records
        begin = min(record.run_offset_ns or 0 for record in records)
        return sorted(((r.run_offset_ns or 0) - begin + shift, r.prompt_tokens, r.output_tokens) for r in records)

    assert work(first) == work(second)
    trace = read_trace_source(str(first), speed=2.0)
    assert trace.format == "Tailrace's records"
    assert trace.rows[-1].at_ns < 3 * S


def test_exported_records_play_as_the_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "a.run"
    simulate(["--rate", "9", "--requests", "30", "--mix", "short", "--out", str(run)], standalone_mode=False)
    capsys.readouterr()
    lines = tmp_path / "records.jsonl"
    lines.write_bytes(b"".join(encode_public(record) + b"\n" for record in read_run(run).records))
    a, b = read_trace_source(str(run)), read_trace_source(str(lines))
    assert [(r.prompt_tokens, r.output_tokens) for r in a.rows] == [(r.prompt_tokens, r.output_tokens) for r in b.rows]
    assert max(abs(x.at_ns - y.at_ns) for x, y in zip(a.rows, b.rows, strict=True)) < 1000  # through milliseconds


def test_what_is_no_trace_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read"):
        read_trace_source(str(tmp_path / "missing.csv"))
    with pytest.raises(InputError, match="not a data directory"):
        read_trace_source(str(tmp_path))
    binary = tmp_path / "x.bin"
    binary.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(InputError):
        read_trace_source(str(binary))
