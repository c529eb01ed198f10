"""Three groups of requests whose stages add up, on a table of known content."""

from __future__ import annotations

import pytest

from tailrace.analyze.stage_groups import stage_groups
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS
from tailrace.store.table import RecordTable


def record(number: int, gateway: int, engine: int, rest: int, prefill: int, decode: int) -> RequestRecord:
    queue = gateway + engine + rest
    return RequestRecord(
        request_id=str(number),
        start_unix_ns=number,
        queue_ns=queue * MS,
        queue_gateway_ns=gateway * MS if gateway else None,
        queue_engine_ns=engine * MS if engine else None,
        prefill_ns=prefill * MS,
        decode_ns=decode * MS,
        e2e_ns=(queue + prefill + decode) * MS,
        ttft_ns=(queue + prefill) * MS,
        stage_sources={"queue": "measured", "prefill": "reported(a)" if number % 4 else "inferred(b)"},
        outcome=OutcomeKind.COMPLETED,
    )


def table(n: int) -> RecordTable:
    """All alike, but the last hundredth waits 900 ms in the engine's queue."""
    return RecordTable.from_records(
        record(number, 1, 900 if number >= n - n // 100 else 2, 3, 10, 100) for number in range(n)
    )


@pytest.mark.parametrize("total", ["e2e", "ttft"])
def test_each_group_adds_up_and_the_queue_is_split(total):
    groups = {group.name: group for group in stage_groups(table(1000), total).groups}
    assert list(groups) == ["mean", "p50", "p99"]
    decode = {"decode": 100.0} if total == "e2e" else {}
    assert groups["p50"].stages_ms == pytest.approx(
        {"queue.gateway": 1, "queue.engine": 2, "queue": 3, "prefill": 10, **decode}
    )
    assert groups["mean"].stages_ms["queue.engine"] == pytest.approx(2 + 898 / 100)
    assert groups["p99"].stages_ms["queue.engine"] > 300
    for group in groups.values():
        assert sum(group.stages_ms.values()) == pytest.approx(group.total_ms)
    assert list(groups["mean"].stages_ms)[:3] == ["queue.gateway", "queue.engine", "queue"]


def test_a_queue_that_is_wholly_split_leaves_no_rest():
    rows = RecordTable.from_records(record(n, 1, 2, 0, 10, 100) for n in range(20))
    assert "queue" not in stage_groups(rows).groups[0].stages_ms


def test_a_small_table_has_its_slowest_instead_of_a_p99():
    analysis = stage_groups(table(100))
    assert [group.name for group in analysis.groups] == ["mean", "p50", "slowest"]
    assert analysis.groups[-1].rows < 20


def test_rows_without_the_total_are_left_out():
    rows = RecordTable.from_records(
        [
            record(1, 0, 0, 1, 1, 1),
            RequestRecord(request_id="x", start_unix_ns=1, e2e_ns=1, outcome=OutcomeKind.COMPLETED),
        ]
    )
    assert stage_groups(rows, "ttft").n == 1
    assert stage_groups(RecordTable.empty()).groups == []


def test_sources_are_shares_of_an_even_sample():
    seen = stage_groups(table(20_000)).sources
    assert sum(seen["queue"].values()) == pytest.approx(2000, abs=10)
    assert seen["prefill"]["inferred(b)"] > 0
