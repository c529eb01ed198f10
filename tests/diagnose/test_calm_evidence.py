"""A healthy log is told as such; tables in HTML; Little's law and a change of definition on scrapes."""

import json

import pytest

from tailrace.diagnose.readers.html_tables import with_pipes
from tailrace.model.finding import Action, Level
from tests.diagnose.test_carrying_checks import JIT, log
from tests.diagnose.test_metric_observations import histogram
from tests.diagnose.test_validity_causes import diagnosed, found, table

E2E, TTFT = "vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds"


def test_a_calm_log_is_no_failure(tmp_path):
    result = diagnosed(tmp_path, vllm_log=log([200] * 40))
    assert (result.findings[0].code, result.action) == ("INSUFFICIENT_EVIDENCE", Action.COLLECT)
    assert result.summary.startswith("Nothing in this shows a slow tail: no request waits in 40 readings")
    assert "To judge what users felt, give: " in result.summary
    assert result.paragraph == result.summary


@pytest.mark.parametrize("change", [lambda text: text.replace("Waiting: 0", "Waiting: 9"), lambda text: text + JIT])
def test_a_log_with_trouble_is_not_called_calm(tmp_path, change):
    assert not diagnosed(tmp_path, vllm_log=change(log([200] * 40))).summary.startswith("Nothing in this")


def test_calm_scrapes(tmp_path):
    fast = [count * 10 for count in (30, 40, 40, 40, 40, 40)]
    result = diagnosed(tmp_path, a_prom=histogram(TTFT, [0] * 6), b_prom=histogram(TTFT, fast, total=40))
    assert "TTFT p99" in result.summary
    assert result.summary.startswith("Nothing in this shows a slow tail")


ROWS = "<table><tr><th>run</th><th>TTFT p50 (ms)</th><th>TTFT p99 (ms)</th></tr>{}</table>"


def test_a_table_in_html_is_a_table():
    rows = (
        "<tr><td>before</td><td><b>90</b></td><td>400</td></tr>\n<tr>\n<td>after</td>\n<td>80</td>\n<td>900</td></tr>"
    )
    arms = table("We saw this:\n" + ROWS.format(rows) + "\nafter the change.").arms
    assert [(arm.name, arm.get("ttft", "p50"), arm.get("ttft", "p99")) for arm in arms] == [
        ("before", 90, 400),
        ("after", 80, 900),
    ]
    assert [arm.place.line for arm in arms] == [2, 3]


@pytest.mark.parametrize("text", ["<tr", "<tr><td>", "<table>\n<tr></tr>", "no table", "<td>5</td>", "<TR><TD>1<TR>"])
def test_broken_html_raises_nothing(text):
    lines = list(enumerate(text.split("\n"), start=1))
    assert all(1 <= number <= len(lines) for number, _ in with_pipes(lines))


def scrape(at, counts, running, total):
    return f"# t={at}\n{histogram(E2E, counts, total=total)}vllm:num_requests_running {running}\n"


def little(running):
    return "".join(scrape(100 * i, [20 * i] * 6, running, 20 * i) for i in range(1, 7))


def test_an_engine_that_holds_more_than_it_finishes():
    from tailrace.diagnose.readers.metric_observations import observations_of
    from tailrace.diagnose.readers.metric_readings import read_readings

    finding = found("METRIC_GAP", observations_of(read_readings(little(30), "s.prom")))
    assert finding.level is Level.SUSPECTED
    assert "seen 30.0" in finding.relation
    assert found("METRIC_GAP", observations_of(read_readings(little(2), "s.prom"))) is None
    assert found("METRIC_GAP", observations_of(read_readings(little(30)[:200], "s.prom"))) is None


def windows(factor):
    totals = [0, 100, 100 + factor * 100]
    return {
        f"t{i}_prom": histogram(TTFT, [0, 0, *[100 * i] * 4], total=total) if total else histogram(TTFT, [0] * 6)
        for i, total in enumerate(totals)
    }


CHANGE = "METRIC_DEFINITION_CHANGE"


def changed(tmp_path, factor, note):
    facts = json.dumps({"facts": 1, "context": {"changed": note}})
    result = diagnosed(tmp_path, facts_json=facts, **windows(factor))
    return [item for item in result.findings if item.code == CHANGE]


def test_a_jump_with_a_version_is_a_suspicion_without_the_client(tmp_path):
    (finding,) = changed(tmp_path, 2, "upgraded vLLM from version 0.8.5 to 0.9.1")
    assert finding.level is Level.SUSPECTED
    assert finding.missing == ["the client's TTFT in both versions"]
    assert "server x 2.00" in finding.relation
    assert changed(tmp_path, 1, "upgraded vLLM from version 0.8.5 to 0.9.1") == []
    assert changed(tmp_path, 2, "more replicas") == []
