"""One measurement over several columns, and lists that are tables in other clothes."""

from __future__ import annotations

import pytest

from tailrace.diagnose.readers import listed_rows
from tailrace.diagnose.readers.listed_rows import with_listed_rows
from tailrace.diagnose.readers.spread_columns import told_quantity
from tailrace.diagnose.readers.text import observed_text
from tailrace.model.finding import Level
from tests.diagnose.foreign_words import asked, everything, of, table


def arms(text: str):
    return observed_text(list(enumerate(text.splitlines(), start=1)), "t.md").arms


def told(text: str, quantity: str) -> list[tuple[str, float]]:
    found = [(arm.label, arm.values.get(quantity) or arm.values.get(f"{quantity}.p50")) for arm in arms(text)]
    return [(label, item.value) for label, item in found if item is not None]


@pytest.mark.parametrize(
    ("text", "quantity", "stat"),
    [
        ("TTFT by number of clients", "ttft", ""),
        ("time to first byte, same body, streaming", "ttft", ""),
        ("p50 end to end, 200 output tokens", "e2e", "p50"),
        ("latency to the first token", "ttft", ""),
        ("TTFT and TPOT of both", "", ""),
        ("what we saw last week", "", ""),
    ],
)
def test_a_line_above_a_table_names_its_numbers(text, quantity, stat):
    assert told_quantity(text) == (quantity, stat)


RUNS = {
    "columns": "time to first byte (s)\n\n"
    + table("path | run 1 (s) | run 2 (s) | run 3 (s)", "direct | 0.4 | 0.41 | 0.42", "via proxy | 0.5 | 6.1 | 6.0"),
    "numbered": "TTFT\n\n"
    + table("path | 1 (s) | 2 (s) | 3 (s)", "direct | 0.4 | 0.41 | 0.42", "via proxy | 0.5 | 6.1 | 6.0"),
    "headed": table("path | TTFT run 1 (s) | TTFT run 2 (s) | TTFT run 3 (s)",
                    "direct | 0.4 | 0.41 | 0.42", "via proxy | 0.5 | 6.1 | 6.0"),
    "cells": table("path | TTFT of each (s)", "direct | 0.4, 0.41, 0.42", "via proxy | 0.5, 6.1, 6.0"),
    "rows": "TTFT in seconds\n\n"
    + table("# | direct | via proxy", "1 | 0.4 | 0.5", "2 | 0.41 | 6.1", "3 | 0.42 | 6.0"),
    "lines": "first byte, one after the other\n\ndirect: 0.4 0.41 0.42 s\nvia proxy: 0.5 6.1 6.0 s\n",
}  # fmt: skip


@pytest.mark.parametrize("form", RUNS)
def test_repeated_runs_are_a_row_each(form):
    seen = told(RUNS[form], "ttft")
    by = {label: sorted(value if value > 100 else value * 1e3 for name, value in seen if name == label)
          for label in dict(seen)}  # fmt: skip
    assert by == {"direct": [400, 410, 420], "via proxy": [500, 6000, 6100]}


def test_a_table_of_metrics_by_run_keeps_its_runs():
    read = arms(table("metric | run 1 | run 2 | run 3", "TTFT mean (s) | 1.0 | 1.1 | 4.0", "ITL mean (ms) | 9 | 9 | 9"))
    assert [arm.get("ttft", "mean") for arm in read] == [1000, 1100, 4000]


@pytest.mark.parametrize("cell", ["1 234 567", "1,00,000", "1.000,0", "5 to 10", "120 / 900"])
def test_one_number_is_no_list(cell):
    read = arms(table("path | TTFT p50 (ms)", f"direct | {cell}", f"via proxy | {cell}"))
    assert [arm.name for arm in read] == ["direct", "via proxy"]


def test_two_paths_side_by_side_are_rows():
    text = "p50 end to end\n\n" + table("RPS | direct p50 (s) | via litellm p50 (s)", "5 | 1.4 | 1.5", "30 | 1.5 | 9.9")
    read = arms(text)
    assert [(arm.label, arm.keys["offered_rps"], arm.get("e2e", "p50")) for arm in read] == [
        ("direct", 5, 1400), ("via litellm", 5, 1500), ("direct", 30, 1500), ("via litellm", 30, 9900),
    ]  # fmt: skip


def test_client_and_server_of_one_row_stay_in_it():
    read = arms(table("version | client TTFT p50 (ms) | server TTFT p50 (ms)", "1.0 | 140 | 20", "1.1 | 150 | 140"))
    assert len(read) == 2


def test_a_statistic_alone_is_of_what_the_line_above_says():
    read = arms("TTFT by clients\n\n" + table("clients | p50 (ms) | p99 (ms)", "1 | 100 | 200", "8 | 120 | 900"))
    assert [(arm.get("ttft", "p50"), arm.get("ttft", "p99")) for arm in read] == [(100, 200), (120, 900)]


LISTS = {
    "bullets": ("- 1 client: 0.31 s\n- 4 clients: 1.25 s\n- 8 clients: 2.49 s, unusable\n", [1, 4, 8]),
    "dashes": ("* 1 client - 310 ms per chunk\n* 8 clients - 2490 ms per chunk\n", [1, 8]),
    "keys": ("c=1: TTFT 110 ms, TPOT 9 ms, 108 tok/s\nc=8: TTFT 190 ms, TPOT 10 ms, 801 tok/s\n", [1, 8]),
    "at": ("at 1 user: p99 TTFT 0.2 s\nat 8 users: p99 TTFT 1.9 s\n", [1, 8]),
}


@pytest.mark.parametrize("form", LISTS)
def test_a_list_along_the_load_is_a_sweep(form):
    text, places = LISTS[form]
    assert [arm.keys.get("concurrency") for arm in arms(text)] == places


def test_lines_of_pairs_are_arms():
    read = arms("direct: TTFT 0.27 s, mean ITL 24 ms, total 1.42 s\nproxy: TTFT 1.74 s, mean ITL 0 ms, total 1.74 s\n")
    assert [(arm.name, arm.get("ttft"), arm.get("itl", "mean"), arm.get("e2e")) for arm in read] == [
        ("direct", 270, 24, 1420), ("proxy", 1740, 0, 1740),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "- TTFT p50: 120 ms\n- TTFT p99: 900 ms\n",
        "- model: llama 70B\n- gpus: 8\n",
        "max_num_seqs: 256\nmax_model_len: 8192\n",
        "We saw: it is slow since 4 weeks\nThey said: wait 5 minutes please\n",
        "2026-05-01 10:00:00: took 5 s\n2026-05-01 10:00:10: took 6 s\n",
    ],
)
def test_printed_rows_settings_and_sentences_are_no_list(text):
    lines = list(enumerate(text.splitlines(), start=1))
    assert with_listed_rows(lines) == lines


def test_a_hop_that_holds_some_first_events(tmp_path):
    text = "time to first byte\n\n" + table(
        "path | run 1 (s) | run 2 (s) | run 3 (s) | run 4 (s)", "direct | 0.40 | 0.41 | 0.42 | 0.44",
        "via proxy | 0.45 | 6.11 | 0.46 | 6.02",
    )  # fmt: skip
    found = of(asked(tmp_path, text), "GW_HOLDS_FIRST_EVENT")
    assert found is not None
    assert "6065 ms" in everything(found)
    even = text.replace("6.11", "0.47").replace("6.02", "0.44")
    assert of(asked(tmp_path, even), "GW_HOLDS_FIRST_EVENT") is None


def one_by_one(gpu="31", last="4.97") -> str:
    return table("clients | call time p50 (s) | GPU util (%)", f"1 | 0.62 | {gpu}", f"2 | 1.24 | {gpu}",
                 f"8 | {last} | {gpu}")  # fmt: skip


def test_calls_that_take_turns_while_the_device_idles(tmp_path):
    found = of(asked(tmp_path, one_by_one()), "LOCK_CONTENTION")
    assert found is not None
    assert found.level is Level.SUSPECTED
    assert found.rivals == ["FE_EVENTLOOP_BLOCK"]
    assert "x 8.02 at x 8" in found.statement


@pytest.mark.parametrize("text", [one_by_one(gpu="97"), one_by_one(last="2.1")], ids=["full", "batched"])
def test_a_full_device_or_a_batch_is_no_lock(tmp_path, text):
    assert of(asked(tmp_path, text), "LOCK_CONTENTION") is None


def test_without_the_device_nothing_is_said_of_a_lock(tmp_path):
    text = table("clients | call time p50 (s)", "1 | 0.62", "2 | 1.24", "8 | 4.97")
    assert of(asked(tmp_path, text), "LOCK_CONTENTION") is None


def test_a_whole_answer_that_is_held(tmp_path):
    head = "path | TTFT (ms) | mean ITL (ms) | chunks | total (ms)"
    text = table(head, "engine direct | 272 | 24 | 49 | 1424", "through the proxy | 1740 | 0 | 49 | 1741")
    found = of(asked(tmp_path, text), "GW_PROXY_BUFFERING")
    assert found is not None
    assert found.level is Level.CONSISTENT
    assert "272 + 48 x 24 = 1424 < 1740 ms" in found.relation
    near = table(head, "engine direct | 272 | 24 | 49 | 1424", "through the proxy | 310 | 24 | 49 | 1462")
    assert of(asked(tmp_path, near), "GW_PROXY_BUFFERING") is None


def test_a_better_tail_says_what_became_of_the_errors(tmp_path):
    head = "arm | n | TTFT p50 (ms) | TTFT p99 (ms) | output tok/s | errors (%)"
    text = table(head, "baseline | 2011 | 402 | 4210 | 5120 | 1.1", "candidate | 2004 | 409 | 2890 | 5015 | 0.8")
    found = of(asked(tmp_path, text), "AB_TAIL_IMPROVED")
    assert found is not None
    assert "errors 1.1 % -> 0.8 %" in everything(found)


def test_a_grammar_that_slows_every_step_says_by_how_much(tmp_path):
    head = "output mode | running | GPU util (%) | TPOT p50 (ms) | output tok/s"
    found = of(asked(tmp_path, table(head, "plain | 10 | 94 | 20 | 492", "guided_json | 10 | 17 | 160 | 62")),
               "MIX_STRUCTURED_OUTPUT")  # fmt: skip
    assert found is not None
    assert "TPOT p50 160 / 20 = 8 x" in found.relation


def test_columns_of_replicas_are_no_repeated_runs():
    rows = ("path | {} | {} | {}", "direct | 0.4 | 0.41 | 0.42", "via proxy | 0.5 | 6.1 | 6.0")

    def seen(*names: str) -> int:
        return len(told("time to first byte (s)\n\n" + table(rows[0].format(*names), *rows[1:]), "ttft"))

    assert seen("run 0", "run 1", "run 2") == 6
    assert seen("r0", "r1", "r2") < 6


@pytest.mark.parametrize(
    ("line", "ends"),
    [("TTFT p99 of {}: 5 ms", ""), ("foo {}: 5 things", ""), ("foo {}: 1 2 3", "ttft over runs: 1 2 3")],
)
def test_a_list_that_is_no_table_is_judged_once_however_long(line, ends, monkeypatch):
    judged = listed_rows._measured
    asked = []
    monkeypatch.setattr(listed_rows, "_measured", lambda *of: asked.append(of) or judged(*of))
    lines = list(enumerate([*(line.format(n) for n in range(400)), ends], start=1))
    assert with_listed_rows(lines) == lines
    assert len(asked) <= 3


def test_what_is_behind_a_line_without_a_unit_is_still_a_table():
    lines = [(1, "a: foo 3"), (2, "b: foo 4"), (3, "c: foo 5 ms"), (4, "d: foo 6 ms")]
    made = with_listed_rows(lines)
    assert made[:2] == lines[:2]
    assert [text for _, text in made[2:]] == ["| arm | foo |", "|---|---|", "| c | 5 ms |", "| d | 6 ms |"]
