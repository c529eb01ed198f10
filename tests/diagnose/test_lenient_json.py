"""What Python writes for no number is an absent number, in requests, summaries, facts and events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.app.diagnose import diagnose_sources, read_any
from tailrace.diagnose.readers.lenient_json import decode_json
from tailrace.measure.dialect import UNREADABLE


def test_what_is_no_number_is_absent_and_what_is_no_json_stays_none():
    assert decode_json('{"a": NaN, "b": [-Infinity, 1, Infinity], "c": "NaN"}') == {
        "a": None, "b": [None, 1, None], "c": "NaN",
    }  # fmt: skip
    for text in (b"NaN of it", b'{"a": NaN', b""):
        with pytest.raises(UNREADABLE):
            decode_json(text)


def request(number: int, **more: float) -> dict[str, float | str]:
    at = number * 50.0
    return {
        "request_id": f"r{number}", "t_send_ms": at, "t_first_ms": at + 100, "t_last_ms": at + 900,
        "output_tokens": 100, "status": 200, **more,
    }  # fmt: skip


def test_requests_whose_first_line_has_none(tmp_path: Path):
    rows = [
        request(n, **({"output_tokens": float("inf"), "queue_ms": float("nan")} if n < 3 else {})) for n in range(60)
    ]
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (read,) = read_any(str(path))
    assert read.table is not None
    assert len(read.table) == 60
    path.write_text(json.dumps(rows))
    (read,) = read_any(str(path))
    assert read.table is not None
    assert len(read.table) == 60


def test_a_summary_and_facts_with_none(tmp_path: Path):
    path = tmp_path / "facts.json"
    arms = {
        name: {"ttft_p50_ms": 100, "ttft_p99_ms": p99, "n": 5000, "itl_p99_ms": float("nan")}
        for name, p99 in (("before", 400), ("after", 1900))
    }
    path.write_text(json.dumps({"facts": 1, "arms": arms}))
    assert diagnose_sources([str(path)]).findings[0].code == "AB_TAIL_REGRESSED"
