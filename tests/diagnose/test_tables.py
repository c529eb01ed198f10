"""Tables in any shape become the same arms: headings, units, order, orientation, statistics, and damage between."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.diagnose.observed import Role
from tailrace.diagnose.readers.cells import number_of, read_cell
from tailrace.diagnose.readers.grids import grids_in
from tailrace.diagnose.readers.heading import heading
from tailrace.diagnose.readers.text import MOST_LINES, observed_text


def read(text: str, source: str = "t.md"):
    return observed_text(list(enumerate(text.splitlines(), start=1)), source)


def by_name(text: str):
    return {arm.name: arm for arm in read(text).arms}


@pytest.mark.parametrize(
    ("text", "quantity", "stat", "unit"),
    [
        ("TTFT p99 (ms)", "ttft", "p99", "ms"),
        ("p99 TTFT [s]", "ttft", "p99", "s"),
        ("ttft_p95_ms", "ttft", "p95", "ms"),
        ("mean_ttft_ms", "ttft", "mean", "ms"),
        ("99th percentile of the time to first token, ms", "ttft", "p99", "ms"),
        ("Time to First Token (TTFT) median", "ttft", "p50", ""),
        ("P99.9 TPOT (ms)", "tpot", "p999", "ms"),
        ("ttft_p99_9_ms", "ttft", "p999", "ms"),
        ("Mean E2EL (ms)", "e2e", "mean", "ms"),
        ("avg latency / s", "e2e", "mean", "s"),
        ("latency (p95, ms)", "e2e", "p95", "ms"),
        ("inter-token latency mean (ms)", "itl", "mean", "ms"),
        ("next_token_ms", "itl", "", "ms"),
        ("output tok/s", "output_tok_s", "", ""),
        ("Output token throughput (tok/s)", "output_tok_s", "", "tok/s"),
        ("throughput (tokens/s)", "output_tok_s", "", "tok/s"),
        ("max_output_tokens_per_s", "peak_output_tok_s", "", ""),
        ("Peak output token throughput (tok/s)", "peak_output_tok_s", "", "tok/s"),
        ("prefill tok/s", "prompt_tok_s", "", ""),
        ("req/s", "req_s", "", ""),
        ("tok_s", "output_tok_s", "", ""),
        ("decode_tok_s", "decode_tok_s", "", ""),
        ("prefill_tok_s", "prompt_tok_s", "", ""),
        ("req_s", "req_s", "", ""),
        ("inter-token_latency_ms", "itl", "", "ms"),
        ("errors (%)", "failed_share", "", "%"),
        ("errors", "failed", "", ""),
        ("GPU util 1 s after client disconnect (%)", "gpu_util", "", "%"),
        ("Maximum request concurrency", "concurrency", "", ""),
        ("max_num_seqs", "max_num_seqs", "", ""),
        ("sclk (MHz)", "sm_clock", "", "MHz"),
        ("time per output token", "tpot", "", ""),
        ("latency per output token (ms)", "tpot", "", "ms"),
    ],
)
def test_a_heading_is_three_words_in_any_order(text, quantity, stat, unit):
    found = heading(text)
    assert (found.quantity, found.stat) == (quantity, stat)
    assert found.unit == unit


@pytest.mark.parametrize("text", ["image processor", "weights", "CPU request", "router score", "watermark", ""])
def test_a_heading_of_something_else_names_no_quantity(text):
    assert heading(text).quantity == ""


@pytest.mark.parametrize(
    ("text", "value", "unit", "high"),
    [
        ("1.2 s", 1.2, "s", None),
        ("95%", 95, "%", None),
        ("**25.5**", 25.5, "", None),
        ("`12`", 12, "", None),
        ("25,200", 25200, "", None),
        ("1,234.5", 1234.5, "", None),
        ("1.234,5", 1234.5, "", None),
        ("12,5", 12.5, "", None),
        ("1 234 ms", 1234, "ms", None),
        ("\u22123.5", -3.5, "", None),
        ("~5 ms", 5, "ms", None),
        ("5 to 10", 5, "", 10),
        ("5\u201310 s", 5, "s", 10),
        ("120 ms (-35 %)", 120, "ms", None),
        ("12k", 12000, "", None),
        ("5.8x", 5.8, "x", None),
        ("1e3", 1000, "", None),
        ("12 \u00b1 0.4", 12, "", None),
    ],
)
def test_a_cell_is_a_number_with_its_unit(text, value, unit, high):
    cell = read_cell(text)
    assert (cell.value, cell.unit, cell.high) == (pytest.approx(value), unit, high)


@pytest.mark.parametrize(
    "text", ["1.3.9", "2026-03-02", "10:20:30", "fp8 offline", "10-5", "v0.10.1", "n/a", "\u2014", ""]
)
def test_a_cell_that_is_no_number_stays_text(text):
    assert read_cell(text).value is None


def test_a_comma_is_what_its_column_says():
    arms = by_name("arm;TTFT p99 (ms)\na;1,5\nb;2,250\n")
    assert [arms[name].get("ttft", "p99") for name in "ab"] == [1.5, 2.25]
    arms = by_name("| arm | TTFT p99 (ms) |\n|---|---|\n| a | 1,500 |\n| b | 2,250 |\n")
    assert [arms[name].get("ttft", "p99") for name in "ab"] == [1500, 2250]


ROWS = """| build | TTFT p50 (ms) | TTFT p99 (s) | req/s |
|:--|--:|--:|--:|
| before | 120 | 1.5 | 4 |
| after | **130** | 2,5 | 5 |
"""
COLUMNS = """| metric | before | after |
|---|---|---|
| p50 TTFT | 120 ms | 130 ms |
| p99 TTFT | 1500 ms | 2.5 s |
| req/s | 4 | 5 |
"""
TSV = "build\treq/s\tp99 TTFT [ms]\tttft_p50_s\nbefore\t4\t1500\t0.12\nafter\t5\t2500\t0.13\n"
FRAME = """
+--------+---------------+---------------+-------+
| build  | TTFT p50 (ms) | TTFT p99 (ms) | req/s |
+========+===============+===============+=======+
| before |           120 |          1500 |     4 |
| after  |           130 |          2500 |     5 |
+--------+---------------+---------------+-------+
"""
BOX = """
\u250f\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2533\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2533\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2533\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2513
\u2503 build  \u2503 ttft_p50_s\u2503 TTFT p99 s\u2503 req/s \u2503
\u2521\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2547\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2547\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2547\u2501\u2501\u2501\u2501\u2501\u2501\u2501\u2529
\u2502 before \u2502      0.12 \u2502       1.5 \u2502     4 \u2502
\u2502 after  \u2502      0.13 \u2502       2.5 \u2502     5 \u2502
\u2514\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2534\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2534\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2534\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2518
"""
PRINTED = """         ttft_p50_ms  ttft_p99_ms  req_s
before         120.0       1500.0      4
after          130.0       2500.0      5
"""
TIDY = "build,metric,value,unit\n" + "".join(
    f"{arm},{metric},{value},{unit}\n"
    for arm, numbers in (("before", (120, 1.5, 4)), ("after", (130, 2.5, 5)))
    for metric, value, unit in zip(("TTFT p50", "TTFT p99", "req/s"), numbers, ("ms", "s", "1/s"), strict=True)
)
SECTIONS = """## Before
| metric | value |
|---|---|
| TTFT p50 (ms) | 120 |
| TTFT p99 (ms) | 1500 |
| req/s | 4 |

## After
| metric | value |
|---|---|
| TTFT p50 (ms) | 130 |
| TTFT p99 (ms) | 2500 |
| req/s | 5 |
"""
STATISTICS = """before:
        ttft_ms   req_s
count  1000.000  1000.0
mean    200.000     4.0
50%     120.000     4.0
99%    1500.000     4.0

after:
        ttft_ms   req_s
count  1000.000  1000.0
mean    200.000     5.0
50%     130.000     5.0
99%    2500.000     5.0
"""


@pytest.mark.parametrize(
    "text",
    [ROWS, COLUMNS, TSV, FRAME, BOX, PRINTED, TIDY, SECTIONS, STATISTICS],
    ids=["rows", "columns", "tsv", "frame", "box", "printed", "tidy", "sections", "statistics"],
)
@pytest.mark.parametrize("damage", ["none", "crlf", "quoted"])
def test_one_comparison_in_any_shape_gives_the_same_arms(text, damage):
    if damage == "crlf":
        text = text.replace("\n", "\r\n")
    if damage == "quoted" and "|" in text:
        text = "".join(f"> {line}\n" for line in text.splitlines())
    observed = read(text)
    arms = {arm.role: arm for arm in observed.arms}
    assert set(arms) == {Role.BEFORE, Role.AFTER}
    seen = [
        (arm.get("ttft", "p50"), arm.get("ttft", "p99"), arm.get("req_s", "", "mean", "p50"))
        for arm in (arms[Role.BEFORE], arms[Role.AFTER])
    ]
    assert seen == [(120, 1500, 4), (130, 2500, 5)]
    for one in observed.understood:
        assert one.understood == one.total or one.format.startswith("sentences")


def test_changes_in_percent_are_no_levels():
    (arm,) = read("| metric | change vs baseline (%) |\n|---|---|\n| TTFT p50 | -50 |\n| TTFT p99 | 30 |\n").arms
    assert arm.get("ttft", "p99") is None
    assert arm.quoted("ttft", "p99").relative
    assert arm.quoted("ttft", "p99").value == 30
    arms = by_name("| arm | TTFT p99 (ms) | E2E change (%) |\n|---|---|---|\n| a | 10 | 0 |\n| b | 20 (+100 %) | 4 |\n")
    assert arms["b"].get("ttft", "p99") == 20
    assert [value.value for value in arms["b"].values.values() if value.relative] == [100, 4]


def test_a_table_of_three_columns_with_a_change_keeps_the_levels():
    arms = by_name("| metric | old | new | \u0394 |\n|---|---|---|---|\n| p99 TTFT (ms) | 100 | 150 | +50% |\n")
    assert (arms["old"].get("ttft", "p99"), arms["new"].get("ttft", "p99")) == (100, 150)
    assert arms["\u0394"].quoted("ttft", "p99").relative


def test_a_sweep_has_its_condition_as_key_and_no_roles():
    arms = read("| max_num_seqs | tok/s | TPOT p50 (ms) |\n|---|---|---|\n| 4 | 40 | 92 |\n| 16 | 130 | 105 |\n").arms
    assert [arm.keys["max_num_seqs"] for arm in arms] == [4, 16]
    assert {arm.role for arm in arms} == {Role.NONE}


@pytest.mark.parametrize(
    ("labels", "roles"),
    [
        (("baseline", "candidate"), ("before", "after")),
        (("0.9.2", "0.10.1"), ("before", "after")),
        (("v0.10.1", "v0.9.2"), ("after", "before")),
        (("chunked prefill on", "chunked prefill off"), ("after", "before")),
        (("inline on the event loop", "off-loaded to a pool"), ("", "")),
        (("direct", "through the proxy"), ("", "")),
        (("outlines", "xgrammar"), ("", "")),
    ],
)
def test_roles_come_from_words_and_versions_only(labels, roles):
    rows = "".join(f"| {label} | {n} |\n" for n, label in enumerate(labels, start=1))
    arms = read(f"| build | TTFT p99 (ms) |\n|---|---|\n{rows}").arms
    assert tuple(arm.role for arm in arms) == roles


def test_a_duration_without_unit_is_a_question():
    (arm, _) = read("| arm | TTFT p99 |\n|---|---|\n| a | 10 |\n| b | 20 |\n").arms
    assert arm.quoted("ttft", "p99").unit == ""
    (arm, _) = read("All latencies are in seconds.\n\n| arm | TTFT p99 |\n|---|---|\n| a | 10 |\n| b | 20 |\n").arms
    assert arm.get("ttft", "p99") == 10_000


@pytest.mark.parametrize(
    "text", ["One, two.\nThree, four.\n", "a | b\nc d\n", "x\n", "Process 1: VLLM\nThread 2 (active)\n"]
)
def test_what_is_no_table_makes_no_arm(text):
    assert read(text).arms == []


LONG = "Tell me a story, " * 6000
"""A cell of a hundred thousand letters: somebody's prompt."""


@pytest.mark.parametrize(
    "text",
    [
        "| run | TTFT p99 (ms) | prompt |\n|---|---|---|\n| before | 400 | {0} |\n| after | 1900 | {0} |\n",
        'run,TTFT p99 (ms),prompt\nbefore,400,"{0}"\nafter,1900,"{0}"\n',
        (
            "<table><tr><th>run</th><th>TTFT p99 (ms)</th><th>prompt</th></tr>\n"
            "<tr><td>before</td><td>400</td><td>{0}</td></tr>\n<tr><td>after</td><td>1900</td><td>{0}</td></tr></table>\n"
        ),
    ],
)
def test_a_line_of_a_table_may_hold_a_whole_prompt(text):
    arms = by_name(text.format(LONG))
    assert {name: arm.get("ttft", "p99") for name, arm in arms.items()} == {"before": 400.0, "after": 1900.0}
    # Ten times as long is no line of a table any more, and nothing is made of it.
    assert not by_name(text.format(LONG * 11))


def test_a_comma_in_two_long_sentences_is_no_table():
    words = "and so we have seen that it was slow again for most of the users on the second day of the trial"
    assert not read(f"run,TTFT p99 (ms)\n{words},400\n{words},1900\n").arms
    assert read(f'run,TTFT p99 (ms)\n"{words}",400\n"{words} too",1900\n').arms
    # The first of several lines of headings names groups of columns: what stands below it is not read by it.
    assert not read(f'TTFT p99 (ms),TTFT p99 (ms)\n"{words}",400\n"{words} too",1900\n').arms


@pytest.mark.parametrize("mark", ["|", " ", "-", "|-", "| -", ",", ";\t", "--|", "> "])
def test_a_line_of_marks_costs_what_its_length_costs(mark):
    head = "| run | TTFT p99 (ms) |\n|---|---|\n| before | 400 |\n"
    line = (mark * (1 << 20))[: (1 << 20) - 20]
    begun = time.process_time()
    found = by_name(f"{head}{line}x\n|{line}|\n\n{line}x\n{line}x\n")
    assert "before" in found
    assert time.process_time() - begun < 5.0  # what tries every blank with every other takes minutes


def test_more_lines_than_anybody_writes_are_counted_not_read():
    text = "| a | TTFT p99 (ms) |\n|---|---|\n" + "| x | 5 |\n" * (MOST_LINES + 500)
    (one,) = read(text).understood
    assert one.understood < one.total == MOST_LINES + 502


@given(st.text(alphabet="|-:+ab1,;\t \n\r.%\u2502\u2501(\"'", max_size=300))
def test_any_text_is_read_without_an_error(text):
    observed = read(text)
    assert sum(one.understood for one in observed.understood) <= sum(one.total for one in observed.understood)
    grids, left = grids_in(list(enumerate(text.splitlines(), start=1)))
    assert all(len(row) == len(grid.header) for grid in grids for row in grid.rows)
    assert len(left) <= len(text.splitlines())


@given(st.integers(min_value=-(10**12), max_value=10**12), st.integers(min_value=0, max_value=99))
def test_thousands_and_decimals_survive_either_way_of_writing(whole, cents):
    number = whole + cents / 100 if whole >= 0 else whole - cents / 100
    english = f"{number:,.2f}"
    german = english.replace(",", "_").replace(".", ",").replace("_", ".")
    assert number_of(english) == pytest.approx(number)
    assert number_of(german) == pytest.approx(number)
    assert number_of(english.replace(",", " ")) == pytest.approx(number)


@given(st.text(max_size=200))
def test_any_heading_and_cell_is_read(text):
    assert heading(text).label is not None
    assert read_cell(text).text is not None
