"""What came from the response cache is in no figure that speaks of an engine."""

from __future__ import annotations

from tailrace.analyze.vantage import without_cached
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.export.prometheus import GatewayMetrics
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.store.table import RecordTable
from tailrace.web.selection import Selection
from tailrace.web.view import build_view


def record(number: int, cache: str) -> RequestRecord:
    quick = cache in ("hit", "shared", "semantic")
    e2e = 1_000_000 if quick else 900_000_000
    return RequestRecord(
        request_id=f"r{number}",
        start_unix_ns=1_000_000_000_000 + number,
        cache=cache,
        ingress_ns=e2e,
        stage_sources={"ingress": "measured"},
        e2e_ns=e2e,
        ttft_ns=e2e,
        output_tokens=10,
        outcome=OutcomeKind.COMPLETED,
        model="m",
    )


RECORDS = [record(at, cache) for at, cache in enumerate(["", "miss", "hit", "shared", "semantic", "hit"])]


def test_tables_for_engines_have_only_what_engines_worked_for():
    table = RecordTable.from_records(RECORDS)
    assert without_cached(table).column("request_id").tolist() == ["r0", "r1"]
    assert len(EvidenceSet(table).table) == 2
    bare = RecordTable.from_records(RECORDS[:2])
    assert without_cached(bare) is bare


def test_the_page_s_percentiles_are_the_engine_s():
    view = build_view(RecordTable.from_records(RECORDS), Selection(), now_unix_ns=1_001_000_000_000, limit=1000)
    assert view.summary.n == 2
    assert view.summary.metrics["e2e_ms"].max == 900.0


def test_the_histograms_are_the_engine_s_and_the_count_is_everybody_s():
    metrics = GatewayMetrics()
    for one in RECORDS:
        metrics.observe(one)
    text = metrics.render()[0].decode()
    counted = {line.split("{")[0]: line.rsplit(" ", 1)[1] for line in text.splitlines() if not line.startswith("#")}
    assert counted["tailrace_ttft_seconds_count"] == "2.0"
    assert counted["tailrace_e2e_seconds_count"] == "2.0"
    assert counted["tailrace_output_tokens_total"] == "20.0"
    assert counted["tailrace_requests_total"] == "6.0"
