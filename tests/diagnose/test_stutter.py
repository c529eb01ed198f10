"""Streams that stand still are seen where only their longest gap was kept; where nothing was, nothing is claimed."""

from __future__ import annotations

from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.store.table import RecordTable

MS = 1_000_000


def streams(*, longest_ms: float | None, every: int = 20) -> RecordTable:
    """A thousand streams of 20 ms a token; every so many-th stood still for `longest_ms` at one time."""
    rows = []
    for number in range(1000):
        gap = None if longest_ms is None else longest_ms if number % every == 0 else 25.0
        rows.append(
            RequestRecord(
                request_id=f"r{number}", start_unix_ns=10**18 + number * 100 * MS, e2e_ns=1100 * MS, ttft_ns=100 * MS,
                decode_ns=1000 * MS, unattributed_ns=100 * MS, outcome=OutcomeKind.COMPLETED, tpot_ns=20 * MS,
                output_tokens=51, prompt_tokens=200, stream=True,
                chunk_gap_max_ns=None if gap is None else round(gap * MS),
            )
        )  # fmt: skip
    return RecordTable.from_records(rows)


def test_the_longest_gap_and_the_pace_are_enough():
    found = diagnose(EvidenceSet(streams(longest_ms=800)))
    assert "50 of 1000 streams stop for more than 500 ms (usual gap 20 ms)" in found.summary
    found = diagnose(EvidenceSet(streams(longest_ms=25)))
    assert "no stream stutters" in found.summary


def test_without_any_gap_nothing_is_claimed_of_them():
    found = diagnose(EvidenceSet(streams(longest_ms=None)))
    assert "no stream stutters" not in found.summary
    assert "whether streams stutter is not told" in found.summary
