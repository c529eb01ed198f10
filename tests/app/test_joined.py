"""`diagnose RUN --records`: a real gateway before the simulated engine, a real load, three ways to the records."""

from __future__ import annotations

import json

import pytest

from tailrace.store.run_file import read_run
from tests.children import health_code, run_tailrace


@pytest.fixture
def stand(start_tailrace, tmp_path):
    engine = start_tailrace("engine", "--port", "0", "--json", "--time-scale", "20")
    folder = tmp_path / "records"
    gateway = start_tailrace(
        *("serve", "--upstream", engine.ready["url"], "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        *("--data-dir", str(folder), "--json"),
    )
    return gateway, folder


@pytest.mark.long("a gateway, an engine and six commands, each a process", timeout=60)
def test_a_run_and_its_gateways_records_are_one_story(stand, tmp_path):
    gateway, folder = stand
    run = tmp_path / "a.run"
    done = run_tailrace(
        *("bench", gateway.ready["url"], "--concurrency", "4", "--requests", "60", "--warmup", "4"),
        *("--prompt-tokens", "50", "--output-tokens", "5", "--out", str(run), "--json"),
    )
    assert done.returncode == health_code(run), done.stderr
    assert len(read_run(run).records) == 60
    exported = tmp_path / "records.jsonl"
    for source in (gateway.ready["admin"], "export", str(folder)):
        if source == "export":
            run_tailrace("records", "export", "--data-dir", str(folder), "--out", str(exported))
        where = str(exported) if source == "export" else source
        told = run_tailrace("diagnose", str(run), "--records", where, "--json")
        assert told.returncode == 0, told.stderr
        both = json.loads(told.stdout)["joined"]
        assert both["matched"] == both["in_run"] == 60
        assert both["only_in_run"] == {}
        # What the client saw holds what the gateway saw: nothing negative but the drain of a last byte.
        outside = both["spreads"]["outside_e2e"]
        assert outside["n"] == 60
        assert -5 < outside["p50"] < 250
        assert both["spreads"]["outside_ttft"]["p50"] > -1
        assert both["spreads"]["gateway_e2e"]["p50"] <= both["spreads"]["client_e2e"]["p50"] + 5
        assert "stage.decode" in both["spreads"]
        others = both["only_in_records"]
        assert others.get("of the warm-up") == 4
        assert others.get("of the look before the run", 0) >= 1
    told = run_tailrace("diagnose", str(run), "--records", str(folder))
    assert "Joined with the gateway's records" in told.stdout
    assert "60 of 60 requests found" in told.stdout


def test_what_cannot_be_joined_is_said(tmp_path):
    lines = tmp_path / "a.jsonl"
    lines.write_text("")
    done = run_tailrace("diagnose", str(lines), "--records", str(tmp_path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
