"""Public cases of bad latency: what people pasted, and what a careful engineer would answer."""

import json
import re
from pathlib import Path

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.cli.diagnose_print import print_diagnosis
from tailrace.model.finding import Level
from tests.conftest import shared_path
from tests.diagnose.honesty import dishonest, runs, typed

INPUTS = shared_path() / "data" / "cases" / "inputs"
ROWS = [json.loads(line) for line in (INPUTS / "index.jsonl").read_text().splitlines()] if INPUTS.exists() else []
ORDER = [Level.INSUFFICIENT, Level.SUSPECTED, Level.CONSISTENT, Level.PROVEN]

NOT_YET: set[str] = set()
"""Cases whose rule or reader is still to be written."""


def answered(row, capsys) -> tuple:
    """(the diagnosis, all that it prints)."""
    result = diagnose_sources([str(INPUTS / name) for name in row["files"]])
    capsys.readouterr()
    print_diagnosis(result)
    return result, capsys.readouterr().out


def problems(row, result, text) -> list[str]:
    """What is wrong with an answer."""
    if not result.findings:
        return [f"no finding: {result.summary}"]
    first, out = result.findings[0], []
    if first.code not in row["acceptable_codes"]:
        out.append(f"{first.code} {first.level} is none of {row['acceptable_codes']}")
    if ORDER.index(first.level) < ORDER.index(row["expected_level_at_least"]):
        out.append(f"{first.level} is below {row['expected_level_at_least']}")
    if ORDER.index(first.level) > ORDER.index(row.get("level_at_most", "proven")):
        out.append(f"{first.level} is above {row['level_at_most']}")
    silent = [pattern for pattern in row["must_mention"] if not re.search(pattern, text, re.IGNORECASE)]
    return out + [f"nothing says {pattern!r}" for pattern in silent]


@pytest.mark.needs("shared")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_public_case_is_answered(row, capsys):
    if row["id"] in NOT_YET:
        try:
            found = problems(row, *answered(row, capsys))
        except Exception as error:  # noqa: BLE001  (what a missing reader raises is what it lacks)
            found = [repr(error)]
        if found:
            pytest.xfail(f"not yet: {found}")
        return
    result, text = answered(row, capsys)
    assert problems(row, result, text) == [], text


@pytest.mark.needs("shared")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_every_finding_of_a_public_case_keeps_to_the_rules_of_honesty(row, capsys):
    if row["id"] in NOT_YET:
        pytest.skip("not yet")
    result, _ = answered(row, capsys)
    for finding in (*result.findings, *result.validity):
        assert dishonest(finding) == [], finding.code
        for line in typed(finding.verify) if finding.verify else ():
            runs(line)


def test_every_case_that_waits_is_a_case():
    if ROWS:
        assert {row["id"] for row in ROWS} >= NOT_YET
    assert Path(INPUTS).exists() == bool(ROWS)
