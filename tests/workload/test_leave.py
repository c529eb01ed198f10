"""Leaving and spans of time: what their texts mean, and that shares come out as asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS, S
from tailrace.workload.leave import Leave, check_leaves, leave_at, parse_leave
from tailrace.workload.length import Fixed, LogNormal, Uniform
from tailrace.workload.span import parse_spans, read_span, render_spans


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("after 5 tokens:0.2", Leave(share=0.2, tokens=5)),
        ("after 1 token", Leave(tokens=1)),
        ("after 2s:0.1", Leave(share=0.1, after_ns=2 * S)),
        (" after 250ms : 0.5 ", Leave(share=0.5, after_ns=250 * MS)),
        ("after 3:1", Leave(after_ns=3 * S)),
    ],
)
def test_what_a_rule_means(text: str, meant: Leave):
    assert parse_leave(text) == meant


@given(st.builds(Leave, share=st.floats(0.01, 1), tokens=st.integers(1, 10_000)))
def test_a_rule_reads_what_it_writes(rule: Leave):
    assert parse_leave(str(rule)).tokens == rule.tokens
    assert parse_leave(str(rule)).share == pytest.approx(rule.share, rel=1e-5)


NO_RULES = ["", "5 tokens", "after", "after 0 tokens", "after 0s", "after 5 words", "after 2s:0", "after 2s:1.1",
            "after 2s:nan", "after 2s:x", "after -1s", "after 9999h"]  # fmt: skip


@pytest.mark.parametrize("text", NO_RULES)
def test_what_is_no_rule(text: str):
    with pytest.raises(InputError) as caught:
        parse_leave(text, place="here")
    assert caught.value.place == "here"
    assert "after 5 tokens:0.2" in str(caught.value.remedy)


@given(st.text(max_size=30))
def test_any_text_is_a_rule_or_one_error(text: str):
    try:
        rule = parse_leave(text)
    except InputError:
        return
    assert (rule.tokens is None) != (rule.after_ns is None)
    assert 0 < rule.share <= 1


def test_shares_are_what_was_asked():
    rules = [Leave(share=0.2, tokens=5), Leave(share=0.3, after_ns=S)]
    drawn = [leave_at(rules, i / 1000) for i in range(1000)]
    assert [drawn.count(rule) for rule in (*rules, None)] == [200, 300, 500]
    check_leaves(rules)
    with pytest.raises(InputError, match=r"add up to 1.1"):
        check_leaves([*rules, Leave(share=0.6, tokens=1)])


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("5s", Fixed(5000)),
        ("0s", Fixed(0)),
        ("2", Fixed(2000)),
        ("2s-10s", Uniform(2000, 10_000)),
        ("500ms-1s", Uniform(500, 1000)),
        ("1.5s-2s", Uniform(1500, 2000)),
        ("5s~0.8", LogNormal(5000, 0.8, 0, 24 * 3600 * 1000)),
    ],
)
def test_what_a_span_means(text: str, meant):
    assert parse_spans(text) == meant
    assert parse_spans(render_spans(meant)) == meant


@pytest.mark.parametrize("text", ["", "s", "5x", "10s-2s", "5s~", "5s~x", "~1", "-", "25h", "5s-"])
def test_what_is_no_span(text: str):
    with pytest.raises(InputError, match="no span of time"):
        parse_spans(text, place="--think")


def test_nothing_is_a_pause_but_no_recording():
    assert parse_spans("0") == Fixed(0)
    with pytest.raises(InputError):
        parse_spans("0", zero=False)


@given(st.text(max_size=20))
def test_any_text_is_a_span_or_none(text: str):
    found = read_span(text)
    assert found is None or found >= 0
