"""Numbers as people of all countries write them; files with holes; two files that say the opposite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.app.diagnose import diagnose_sources, read_any
from tailrace.diagnose.readers.cells import number_of
from tailrace.model.finding import Action, Level


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1_000", 1000.0), ("19_000.5", 19000.5), ("1,00,000", 100000.0), ("12,34,567", 1234567.0),
        ("1,000,00", None), ("-1,23,456", -123456.0),
    ],
)  # fmt: skip
def test_groups_of_digits(text: str, value: float | None) -> None:
    assert number_of(text) == value


def test_a_comma_that_is_decimal_makes_dots_thousands() -> None:
    assert number_of("5.000", comma=True) == 5000.0
    assert number_of("5.000") == 5.0
    assert number_of("0.125", comma=True) == 0.125
    assert number_of("5.25", comma=True) == 5.25


def table(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    rows = [("version", "TTFT p50 (ms)", "TTFT p99 (ms)", "n"), ("---",) * 4, ("before", *before), ("after", *after)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("1_000", "4_000", "5_000"), ("1_010", "19_000", "5_000")),
        (("1,00,000", "4,00,000", "5,000"), ("1,01,000", "19,00,000", "5,000")),
        (("1.000,0", "4.000,0", "5.000"), ("1.010,0", "19.000,0", "5.000")),
    ],
)
def test_one_table_in_all_styles(tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    path = tmp_path / "table.md"
    path.write_text(table(before, after))
    found = diagnose_sources([str(path)]).findings[0]
    assert (found.code, found.level, found.n) == ("AB_TAIL_REGRESSED", Level.CONSISTENT, 5000)


def test_a_hole_in_a_file_takes_no_column_away(tmp_path: Path) -> None:
    rows = [f"r{n},{n * 50},{n * 50 + 100},{n * 50 + 900},100" for n in range(60)]
    rows[30] = rows[30][:8] + "\0" * 50 + rows[30][8:]
    path = tmp_path / "requests.csv"
    path.write_text("request_id,t_send_ms,t_first_ms,t_last_ms,output_tokens\n" + "\n".join(rows) + "\n")
    (read,) = read_any(str(path))
    assert read.table is not None
    assert len(read.table) == 60
    text = tmp_path / "table.md"
    text.write_text(table(("100", "400", "5000"), ("101", "19" + "\0" * 6 + "00", "5000")))
    assert diagnose_sources([str(text)]).findings[0].code == "AB_TAIL_REGRESSED"


def test_two_files_that_say_the_opposite_give_no_verdict(tmp_path: Path) -> None:
    one, two = tmp_path / "one.md", tmp_path / "two.md"
    one.write_text(table(("100", "400", "5000"), ("101", "1900", "5000")))
    two.write_text(table(("101", "1900", "5000"), ("100", "400", "5000")))
    found = diagnose_sources([str(one), str(two)])
    assert {item.level for item in found.findings} == {Level.SUSPECTED}
    assert found.action is Action.COLLECT
    said = "which of one.md and two.md holds: they say the opposite of each other"
    assert said in " ".join(found.findings[0].missing)
    assert any("the opposite: TTFT p99 -78.9 %" in item.text for item in found.findings[0].evidence)
    two.write_text(table(("100", "500", "5000"), ("101", "1900", "5000")))
    assert diagnose_sources([str(one), str(two)]).findings[0].level is Level.CONSISTENT
