"""Public cases of bad latency: what people pasted, and what a careful engineer would answer."""

import json
import re
from functools import cache

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.cli.diagnose_print import print_diagnosis
from tailrace.model.finding import Diagnosis, Level
from tests.conftest import shared_path
from tests.diagnose.honesty import dishonest, runs, typed

INPUTS = shared_path() / "data" / "cases" / "inputs"
ROWS = [json.loads(line) for line in (INPUTS / "index.jsonl").read_text().splitlines()] if INPUTS.exists() else []
ORDER = [Level.INSUFFICIENT, Level.SUSPECTED, Level.CONSISTENT, Level.PROVEN]


@cache
def diagnosis_of(case: str) -> Diagnosis:
    """Each case is diagnosed once, whatever is asked of the answer."""
    row = next(row for row in ROWS if row["id"] == case)
    return diagnose_sources([str(INPUTS / name) for name in row["files"]])


def answered(row, capsys) -> tuple:
    """(the diagnosis, all that it prints)."""
    result = diagnosis_of(row["id"])
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
    result, text = answered(row, capsys)
    assert problems(row, result, text) == [], text


@pytest.mark.needs("shared")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_every_finding_of_a_public_case_keeps_to_the_rules_of_honesty(row):
    result = diagnosis_of(row["id"])
    for finding in (*result.findings, *result.validity):
        assert dishonest(finding) == [], finding.code
        for line in typed(finding.verify) if finding.verify else ():
            runs(line)


@pytest.mark.needs("shared")
def test_there_are_cases():
    assert ROWS, "an empty index would let every test of it pass"
