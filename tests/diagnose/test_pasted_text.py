"""What people paste: printed benchmarks, command lines, sentences, and issues that mix them with logs and fences."""

from __future__ import annotations

import io
import json
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.app.diagnose import diagnose_sources, read_any
from tailrace.cli.diagnose_ask import ask_facts
from tailrace.diagnose.interview import MOST, QUESTIONS, SYMPTOMS, next_question
from tailrace.diagnose.observed import Observed, Role
from tailrace.diagnose.readers.facts import observed_facts
from tailrace.diagnose.readers.given_facts import facts_from, value_of
from tailrace.diagnose.readers.json_numbers import observed_numbers
from tailrace.diagnose.readers.paste import read_paste
from tailrace.diagnose.readers.text import observed_text
from tailrace.model.errors import InputError

BENCH = """============ Serving Benchmark Result ============
Successful requests:                     {n}
Maximum request concurrency:             {limit}
Benchmark duration (s):                  {seconds}
Total generated tokens:                  {tokens}
Request throughput (req/s):              {rate:.2f}
---------------Time to First Token----------------
Mean TTFT (ms):                          {mean}
P99 TTFT (ms):                           {p99}
==================================================
"""
VLLM_LOG = (
    "(APIServer pid=4) INFO 05-11 17:50:24 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg "
    "generation throughput: 0.5 tokens/s, Running: 6 reqs, Waiting: 2 reqs, GPU KV cache usage: 5.4%, Prefix cache hit "
    "rate: 88.3%\n"
)
SCRAPE = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} %d\n'
ISSUE = f"""### Slow first token

We moved to the new build and our users see that the first token is late.

Before:

```
$ vllm bench serve --model m \\
    --request-rate 5 --num-prompts 1000
{BENCH.format(n=1000, limit=50, seconds=200, tokens=1000, rate=5, mean=100, p99=400)}```

After:

```
{BENCH.format(n=1000, limit=50, seconds=200, tokens=1000, rate=5, mean=101, p99=900)}```

| build | TTFT p50 (ms) | TTFT p99 (ms) |
|---|--:|--:|
| 0.9.2 | 80 | 400 |
| 0.10.1 | 79 | 900 |

```text
{VLLM_LOG}```
"""


def lines(text):
    return list(enumerate(text.splitlines(), start=1))


def paste(text, name="issue.md"):
    def decode(*_):
        raise AssertionError("no records are in these pastes")

    return read_paste(text.encode(), name, decode)


def joined(text):
    return Observed.joined(one.observed for one in paste(text) if one.observed is not None)


def test_a_printed_benchmark_is_an_arm_with_its_load():
    (arm,) = observed_text(
        lines(BENCH.format(n=100, limit=30, seconds=80, tokens=600, rate=1.25, mean=18, p99=23)), "b"
    ).arms
    assert (arm.get("n"), arm.get("duration"), arm.keys["concurrency"]) == (100, 80, 30)
    assert (arm.get("ttft", "mean"), arm.get("ttft", "p99")) == (18, 23)
    assert arm.get("output_tokens") == 6
    assert arm.values["ttft.p99"].place.line == 9


def test_several_printed_benchmarks_are_several_arms():
    one = BENCH.format(n=100, limit=8, seconds=80, tokens=600, rate=1.25, mean=18, p99=23)
    two = BENCH.format(n=100, limit=16, seconds=80, tokens=600, rate=1.25, mean=20, p99=30)
    arms = observed_text(lines(one + two), "b.txt").arms
    assert [arm.keys["concurrency"] for arm in arms] == [8, 16]
    assert len({arm.name for arm in arms}) == 2


@pytest.mark.parametrize(
    "text",
    [
        "p99 TTFT: 1.2 s\nmean TTFT: 300 ms\n",
        "- P99 TTFT = 1200 ms\n- Avg TTFT = 0.3 s\n",
        "TTFT: mean=300ms, p99=1200ms\n",
        "  ttft_p99_ms: 1200\n  ttft_mean_ms: 300\n",
        "Avg time to first token: 300000 usec (standard deviation 14 usec)\np99 time to first token: 1200000 usec\n",
    ],
)
def test_rows_of_ones_own_script_are_read(text):
    (arm,) = observed_text(lines(text), "out.txt").arms
    assert (arm.get("ttft", "mean"), arm.get("ttft", "p99")) == (300, 1200)


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (
            "vllm bench serve --request-rate inf --max-concurrency 32 --random-input-len 3100 --random-output-len 128",
            {"request_rate": "inf", "max_concurrency": 32, "prompt_tokens": 3100, "output_tokens": 128},
        ),
        ("python b/benchmark_serving.py --num-prompts=1000 --request-rate 10", {"num_prompts": 1000, "loop": "open"}),
        ("python3 -m sglang.bench_serving \\\n  --gsp-num-groups 1 \\\n  --request-rate 3\n",
         {"gsp_num_groups": 1, "request_rate": 3}),
        ("$ guidellm benchmark --rate-type constant --rate 2 --data 'prompt_tokens=512,output_tokens=64'",
         {"request_rate": 2, "prompt_tokens": 512, "output_tokens": 64}),
        ("genai-perf profile -m m --concurrency 4 --synthetic-input-tokens-mean 200",
         {"max_concurrency": 4, "prompt_tokens": 200}),
        ("HF_HOME=/x vllm bench serve --num-prompts 10", {"num_prompts": 10, "loop": "all at once"}),
        ("vllm bench serve --model m\nNamespace(backend='vllm', request_rate=4.0, max_concurrency=None, num_prompts=7)",
         {"backend": "vllm", "request_rate": 4.0, "num_prompts": 7}),
    ],
)  # fmt: skip
def test_a_benchmark_command_becomes_settings(command, settings):
    observed = observed_text(lines(command), "cli.txt")
    assert {name: observed.setting(name).value for name in settings} == settings
    assert all(one.understood == one.total for one in observed.understood)


def test_a_sentence_about_a_tool_is_no_command():
    observed = observed_text(lines("We ran vllm bench serve and it was slow for our users."), "p.txt")
    assert observed.settings == []
    assert len(observed.notes) == 1


def test_prose_is_context_and_never_evidence():
    observed = observed_text(lines("We see a p99 of 900 ms when our 40 users talk at once."), "p.txt")
    assert observed.arms == []
    assert observed.settings == []
    (one,) = observed.understood
    assert (one.understood, one.total) == (0, 1)


def test_an_issue_is_split_and_every_block_read():
    observed = joined(ISSUE)
    by_name = {arm.name: arm for arm in observed.arms}
    assert by_name["Before"].role is Role.BEFORE
    assert by_name["After"].get("ttft", "p99") == 900
    assert by_name["0.10.1"].role is Role.AFTER
    assert observed.number("request_rate") == 5
    assert any(series.name == "waiting" for series in observed.series)
    assert observed.notes
    missed = [one for one in observed.understood if one.understood < one.total]
    assert all(one.format.startswith("sentences") for one in missed)


def test_the_lines_of_a_paste_are_the_lines_of_the_whole():
    numbered = ISSUE.splitlines()
    for arm in joined(ISSUE).arms:
        for quoted in arm.values.values():
            if quoted.stat == "p99":
                assert f"{quoted.value:g}" in numbered[quoted.place.line - 1]


@pytest.mark.parametrize(
    "change",
    [
        str,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("```", "~~~"),
    ],
)
def test_a_paste_survives_other_line_ends_marks_and_fences(change):
    assert {arm.name for arm in joined(change(ISSUE)).arms} >= {"Before", "After", "0.9.2", "0.10.1"}


def test_two_scrapes_in_one_paste_are_two():
    states = [one for one in paste((SCRAPE % 4) + (SCRAPE % 9)) if one.state is not None]
    assert [one.state.running for one in states] == [4, 9]


def test_a_paste_without_fences_is_told_apart():
    observed = joined(
        "TTFT p99: 900 ms\nTTFT mean: 100 ms\n\n"
        + VLLM_LOG * 3
        + "\nWe think that it is the scheduler of our engine.\n"
    )
    assert observed.arms[0].get("ttft", "p99") == 900
    assert observed.of_series("running")
    assert observed.notes


def test_what_no_reader_knows_is_listed_with_its_line():
    observed = joined("Hello there, this is what we have in our file:\n\n```\nqwe;rty:::\nfoo $$ bar\n```\n")
    (lost,) = [one for one in observed.understood if not one.format.startswith("sentences")]
    assert (lost.understood, lost.total) == (0, 2)
    assert lost.examples[0].startswith("4: ")


def test_ten_megabytes_of_a_log_in_an_issue_are_read_at_once():
    text = "Our log is this one, we see it all the time:\n\n```\n" + VLLM_LOG * (10_000_000 // len(VLLM_LOG)) + "```\n"
    start = time.process_time()
    observed = joined(text)
    # Budget: 2 s; what a shared core adds is allowed for.
    assert time.process_time() - start < 8
    assert len(observed.of_series("running")[0]) > 30_000


PIECES = (
    *("```", "| a | b |", "|---|---|", "| 1 | 2 ms |", "{", "}", '{"a": 1}', "", "x 5", "a,b,c", "1,2,3", "> q", "["),
    *("2026-03-02 10:00:00 INFO x", "# TYPE a counter", "a 5", "We see that it is slow.", "p99 TTFT: 5 ms"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_blocks_in_any_order_end_in_an_answer(parts):
    text = "\n".join(parts)
    if text.strip():
        for source in paste(text):
            for one in source.observed.understood if source.observed else []:
                assert 0 <= one.understood <= one.total


def test_an_empty_paste_says_so():
    with pytest.raises(InputError, match="nothing in it"):
        paste(" \n\n")


def test_standard_input_is_a_paste(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ISSUE.encode())))
    assert len(read_any("-")) > 3


# -- facts


def test_typed_facts_are_the_forms():
    facts = facts_from(
        ["before.ttft_p99_ms=400", "after.ttft_p99_ms=0.9 s", "gap_s=5..7", "changed=a flag", "itl_mean_ms=9"]
    )
    observed = observed_facts(facts, "--facts")
    arms = {arm.name: arm for arm in observed.arms}
    assert (arms["before"].get("ttft", "p99"), arms["after"].get("ttft", "p99")) == (400, 900)
    assert arms["run"].get("itl", "mean") == 9
    assert (observed.setting("gap_s").value, observed.text("changed")) == ([5.0, 7.0], "a flag")


@pytest.mark.parametrize("text", ["ttft", "=5", "a=", ""])
def test_a_fact_without_key_or_value_is_refused(text):
    with pytest.raises(InputError, match="key=value"):
        facts_from([text])


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("5.5", 5.5), ("yes", True), ("[1, 2]", [1, 2]), ("1..2", [1, 2]), ("a b", "a b"), ("{x", "{x")],
)
def test_a_value_is_what_it_looks_like(text, value):
    assert value_of(text) == value


def test_unknown_facts_are_kept():
    observed = observed_facts(
        {"facts": 1, "context": {"colour": "red", "nested": {"a": {"b": 2}}}, "other": 3}, "f.json"
    )
    assert {item.name: item.value for item in observed.settings} == {"colour": "red", "nested.a.b": 2, "other": 3}
    assert observed.understood[0].understood == observed.understood[0].total == 3


def test_facts_alone_are_diagnosed():
    typed = ["before.ttft_p50_ms=100", "after.ttft_p50_ms=90", "before.ttft_p99_ms=400", "after.ttft_p99_ms=900"]
    result = diagnose_sources([], facts=typed)
    assert result.findings[0].code == "AB_TAIL_REGRESSED"


# -- numbers in JSON


@pytest.mark.parametrize(
    "data",
    [
        {"mean_ttft_ms": 300, "p99_ttft_ms": 1200, "completed": 50},
        {"metrics": {"time_to_first_token_ms": {"successful": {"mean": 300, "percentiles": {"p99": 1200}, "count": 50},
                                                "errored": {"mean": 9}}}},
        {"time_to_first_token": {"unit": "s", "avg": 0.3, "p99": 1.2}, "request_count": 50},
        {"benchmarks": [{"ttft": {"unit": "ms", "mean": 300, "p99": 1200}, "n": 50}]},
    ],
)  # fmt: skip
def test_numbers_in_json_are_found_where_they_are_named(data):
    (arm,) = observed_numbers(json.loads(json.dumps(data)), "r.json").arms
    assert (arm.get("ttft", "mean"), arm.get("ttft", "p99"), arm.get("n")) == (300, 1200, 50)


def test_parts_of_json_are_arms():
    arms = observed_numbers({"before": {"ttft_p99_ms": 4}, "after": {"ttft_p99_ms": 9}}, "r.json").arms
    assert [(arm.name, arm.role) for arm in arms] == [("before", Role.BEFORE), ("after", Role.AFTER)]


# -- the interview


def asked(monkeypatch, answers, facts=()):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{answer}\n" for answer in answers)))
    return ask_facts(list(facts), lambda known: diagnose_sources([], facts=known) if known else None)


def test_the_interview_makes_facts_of_answers(monkeypatch, capsys):
    said = asked(monkeypatch, ["1", "yes", "a flag", "100", "90", "400", "900", "2000", "2000"])
    assert said == [
        "changed=a flag", "before.ttft_p50_ms=100", "after.ttft_p50_ms=90", "before.ttft_p99_ms=400",
        "after.ttft_p99_ms=900", "before.n=2000", "after.n=2000",
    ]  # fmt: skip
    assert diagnose_sources([], facts=said).findings[0].code == "AB_TAIL_REGRESSED"
    questions = capsys.readouterr()
    assert "TTFT p99, ms\n   why: what the slowest one in a hundred waits" in questions.err
    assert "   not known: AB_TAIL_IMPROVED, AB_TAIL_REGRESSED" in questions.err
    assert "   before, a number, ms: 400\n   now, a number, ms: 900\n" in questions.err
    assert questions.out == ""


def test_answers_come_in_the_unit_of_the_question(monkeypatch, capsys):
    said = asked(monkeypatch, ["1", "no", "0.4 s", "a lot", "5 s"])
    assert said == ["ttft_p50_ms=400", "ttft_p99_ms=5000"]
    assert "'a lot' is not understood: a number, such as 850 or 0.85 s" in capsys.readouterr().err
    assert asked(monkeypatch, ["stream", "maybe", "n", "", "", "", "", "", "", "", "5 to 7"])[-1] == "gap_s=5..7"


def test_ctrl_c_ends_the_questions_and_keeps_the_answers(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def readline(self, *_):
            line = super().readline()
            if not line:
                raise KeyboardInterrupt
            return line

    monkeypatch.setattr(sys, "stdin", Terminal("1\nno\n400\n"))
    said = ask_facts([], lambda known: diagnose_sources([], facts=known) if known else None)
    assert said == ["ttft_p50_ms=400"]
    assert "The questions end here; 1 answer is kept." in capsys.readouterr().err


def test_each_question_says_why():
    for question in QUESTIONS:
        assert question.why
        assert question.text[-1] not in ".:"


def test_the_interview_ends_with_its_input_and_asks_nothing_twice(monkeypatch):
    assert asked(monkeypatch, []) == []
    said = asked(monkeypatch, ["stream", *[""] * 40], facts=["gap_s=5..7"])
    assert said == ["gap_s=5..7"]


def test_a_settled_cause_ends_the_interview():
    result = diagnose_sources([], facts=["tok_s=292.29", "itl_p50_ms=8.72", "concurrency=1"])
    assert result.findings[0].code == "METRIC_UNIT"
    assert next_question(set(), {}, "all", result) is None


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_the_interview_is_bounded(symptom):
    done: set[str] = set()
    while (question := next_question(done, {"compared": "yes", "gap_s": "5"}, symptom, None)) is not None:
        assert question.key not in done
        done.add(question.key)
    assert 0 < len(done) <= MOST
