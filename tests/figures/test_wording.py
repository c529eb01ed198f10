from __future__ import annotations

import html
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.figures.wording import ABSENT, count, duration, percent, plain


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, ABSENT),
        (math.nan, ABSENT),
        (0, "0.00 ms"),
        (0.004, "0.00 ms"),
        (0.424, "0.42 ms"),
        (0.999, "1.0 ms"),
        (9.94, "9.9 ms"),
        (9.96, "10 ms"),
        (999.4, "999 ms"),
        (999.5, "1.00 s"),
        (9994, "9.99 s"),
        (9995, "10.0 s"),
        (119_999, "120.0 s"),
        (125_000, "2 min 5 s"),
        (-81, "-81 ms"),
    ],
)
def test_durations_read_as_a_person_writes_them(ms, text):
    assert duration(ms).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.0 %"), (0.0004, "< 0.1 %"), (0.015, "1.5 %"), (0.0996, "10 %"), (0.5, "50 %"), (1, "100 %")],
)
def test_shares(share, text):
    assert percent(share).replace("\u00a0", " ") == text


def test_counts_are_grouped():
    assert count(1234567) == "1,234,567"


@given(st.text(max_size=80))
def test_plain_text_has_no_markup_left_and_means_the_same(text):
    safe = plain(text, 100)
    assert "<" not in safe
    assert ">" not in safe
    kept = "".join(char if char.isprintable() else " " for char in text)
    assert html.unescape(safe) == html.unescape(html.escape(kept, quote=False))


def test_plain_text_is_shortened_before_it_is_escaped():
    assert plain("<" * 100, 10) == "&lt;" * 9 + "…"
