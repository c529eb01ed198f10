"""First questions on tables and forms."""

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.export.jsonl import encode_lines
from tests.diagnose.altered import calm
from tests.diagnose.foreign_words import asked, facts, table

NEAR = "build | TTFT p50 (ms) | TTFT p99 (ms) | GPU util (%)"
FIRES = [
    ("R1", facts({"now": {"queue_p99_ms": 900, "ttft_p99_ms": 1100}})),
    ("R2", facts({"now": {"ttft_p99_ms": 1900, "tpot_p50_ms": 30}})),
    ("R3", facts({"now": {"ttft_p99_ms": 300, "e2e_p99_s": 60, "output_tokens": 200}})),
    ("R4", table("build | E2E p50 (s) | E2E p99 (s)", "before | 2.0 | 6.0", "after | 2.02 | 9.0")),
    ("R5", facts({"now": {"ttft_p50_ms": 120, "ttft_p99_ms": 1500}})),
    (
        "R6",
        table(
            "build | TTFT p50 (ms) | TTFT p99 (ms) | GPU util (%)", "before | 200 | 900 | 80", "after | 400 | 2100 | 97"
        ),
    ),
    ("R7", table("build | E2E p50 (s) | errors (%)", "before | 2.0 | 0.1", "after | 2.02 | 4.0")),
    ("R8", table("GPUs | req/s offered | TTFT p99 (s)", "2 | 8 | 9.1", "4 | 8 | 9.0")),
    ("R11", facts({"now": {"ttft_p95_s": 3.1}})),
    ("R12", facts({"now": {"gpu_util_pct": 4, "ttft_p99_ms": 4000}})),
    ("R12", facts({"now": {"gpu_util_pct": 22, "ttft_p99_ms": 4000}})),
    ("R12", facts({"now": {"gpu_util_pct": 98, "queue_p99_ms": 3000, "ttft_p99_ms": 4000}})),
]
SILENT = [
    ("R1", facts({"now": {"queue_p99_ms": 20, "ttft_p99_ms": 400}})),
    ("R2", facts({"now": {"ttft_p99_ms": 1900, "tpot_p50_ms": 130}})),
    ("R4", table("build | E2E p50 (s) | E2E p99 (s)", "before | 2.0 | 6.0", "after | 3.0 | 9.0")),
    (
        "R6",
        table(
            "build | TTFT p50 (ms) | TTFT p99 (ms) | GPU util (%)", "before | 200 | 900 | 30", "after | 400 | 2100 | 40"
        ),
    ),
    ("R7", table("build | E2E p50 (s) | errors (%)", "before | 2.0 | 0.1", "after | 2.02 | 0.1")),
    ("R8", table("GPUs | req/s offered | TTFT p99 (s)", "2 | 8 | 9.1", "4 | 16 | 9.0")),
    ("R8", table("GPUs | req/s offered | TTFT p99 (s)", "2 | 8 | 9.1", "3 | 8 | 9.0")),
    ("R12", facts({"now": {"gpu_util_pct": 98, "ttft_p99_ms": 300}})),
    ("R12", facts({"now": {"gpu_util_pct": 45, "ttft_p99_ms": 4000}})),
]


@pytest.mark.parametrize(("rule", "text"), FIRES, ids=lambda value: value[:3])
def test_a_rule_that_fires(tmp_path, rule, text):
    assert rule in asked(tmp_path, text).triage


@pytest.mark.parametrize(("rule", "text"), SILENT, ids=lambda value: value[:3])
def test_a_rule_that_does_not(tmp_path, rule, text):
    assert rule not in asked(tmp_path, text).triage


def test_targets_may_be_stated(tmp_path):
    assert (
        "R2"
        not in asked(tmp_path, facts({"now": {"ttft_p99_ms": 1900, "tpot_p50_ms": 30}}, ttft_target_ms=2500)).triage
    )


def test_arms_beside_records_fire_their_rules_too(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"".join(encode_lines(calm(n=60))))
    rows = tmp_path / "replicas.md"
    rows.write_text(table("replicas | offered req/s | TTFT p99 (s)", "2 | 8 | 9.1", "4 | 8 | 8.9"))
    alone = diagnose_sources([str(path)])
    both = diagnose_sources([str(path), str(rows)])
    assert "R8" not in alone.triage
    assert {"R8", "R11"} <= set(both.triage)
    assert set(alone.triage) <= set(both.triage)
