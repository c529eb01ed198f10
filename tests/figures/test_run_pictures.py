"""The pictures of a run over time and of its tail: valid Plotly, exact, and foreign text as text."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from tailrace.figures.log_tail import Curve, log_tail_picture
from tailrace.figures.over_time import Crosses, Dots, over_time_picture
from tailrace.figures.palette import CLASS_STAGES, GROUND, class_color, luminance
from tailrace.figures.picture import Picture
from tailrace.figures.run_lines import Line, errors_picture, lines_picture

EVIL = '<img src=x onerror="alert(1)"><a href="https://evil.example">x</a>'
RNG = np.random.default_rng(2)


def valid(picture: Picture) -> str:
    """The validated figure as JSON; Plotly raises on a property that does not exist."""
    assert picture.figure().layout.title.text
    assert bool(picture.alt) == bool(picture.data)
    json.loads(msgspec.json.encode(picture))
    text: str = picture.figure().to_json()
    assert "<img" not in text
    assert "<a href" not in text
    return text


def test_each_point_of_a_tail_is_an_exact_quantile():
    values = RNG.exponential(100.0, 5000)
    picture = log_tail_picture([Curve("chat", values), Curve(EVIL, values[:40])], "tail", "time to first token")
    valid(picture)
    (line, _) = picture.data
    assert len(line["x"]) <= 400
    for latency, share in zip(line["x"], line["y"], strict=True):
        # As many took longer or as long as the share says.
        assert (values >= latency - 0.0006).sum() == pytest.approx(share * values.size, abs=1.1)
    assert line["x"][-1] == pytest.approx(values.max(), abs=0.001)
    assert line["x"] == sorted(line["x"])
    assert "p99" in picture.alt
    assert "p99.9 " in picture.alt.partition(".  ")[0]


def test_no_values_are_said():
    assert log_tail_picture([Curve("chat", np.empty(0))], "tail", "chunk gap", what="gaps", empty="none kept").empty
    assert over_time_picture([], Crosses(np.empty(0), np.empty(0), [], 0), "time", "TTFT").empty
    assert lines_picture([Line("x", np.empty(0), np.empty(0))], "x", "X", "ms").empty
    assert errors_picture(np.arange(3.0), {}, 10).empty


def test_failures_are_crosses_of_their_own_and_their_age_is_told():
    at, ms = np.arange(50.0), RNG.uniform(10, 100, 50)
    lost = Crosses(np.array([3.0, 4.0]), np.array([2.0, 5000.0]), ["queue_full", EVIL], 7)
    picture = over_time_picture(
        [Dots("chat", at, ms, 900), Dots(EVIL, at, ms, 50)], lost, "time", "time to first token"
    )
    valid(picture)
    crosses = picture.data[-1]
    assert crosses["marker"]["symbol"] == "x"
    # Sooner than any answer: on the lower edge, with its true age in the words.
    assert crosses["y"][0] == pytest.approx(ms.min() * 0.8, abs=0.01)
    assert crosses["text"][0].startswith("queue full after 2.0")
    assert crosses["y"][1] == 5000.0
    assert "Of 950 completed requests 100 are drawn" in picture.note
    assert "Of 7 failed ones 2 are drawn" in picture.note
    assert picture.title.endswith("7 did not complete")


def test_lines_keep_their_holes_and_their_own_axis():
    at = np.arange(4.0)
    picture = lines_picture(
        [Line("running", at, np.array([1.0, np.nan, 3.0, 4.0])), Line(EVIL, at, at / 4, right=True)],
        "engine",
        "The engine",
        "requests",
        right="KV",
        right_format=".0%",
    )
    valid(picture)
    assert picture.data[0]["y"] == [1.0, None, 3.0, 4.0]
    assert picture.data[1]["yaxis"] == "y2"


def test_errors_are_counted_by_reason_where_they_ended():
    picture = errors_picture(
        np.arange(0.5, 3), {"queue_full": np.array([0.0, 5.0, 1.0]), EVIL: np.array([1.0, 0, 0])}, 90
    )
    valid(picture)
    assert picture.title == "7 of 90 requests failed, most of them around 1.5 s"
    assert sum(sum(trace["y"]) for trace in picture.data) == 7
    assert len({trace["marker"]["pattern"]["shape"] for trace in picture.data}) == 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colours_of_classes_differ_and_stand_out(theme):
    colors = [class_color(place, theme) for place in range(len(CLASS_STAGES))]
    assert len(set(colors)) == len(colors)
    for color in colors:
        low, high = sorted((luminance(color), luminance(GROUND[theme]["paper"])))
        assert (high + 0.05) / (low + 0.05) >= 3.0
    assert class_color(len(colors), theme) == colors[0]


def test_the_median_of_one_class_does_not_read_as_that_of_all():
    values = np.arange(1.0, 101.0)
    one = log_tail_picture([Curve("chat", values)], "tail", "time to first token")
    assert "half within" in one.title
    two = log_tail_picture([Curve("chat", values), Curve("document", values * 100)], "tail", "time to first token")
    assert two.title.startswith("Time to first token: the longest, ")
    assert "is of class document; half of that class within" in two.title


def test_numbers_read_aloud_have_no_exponent():
    line = Line("tokens/s", np.arange(3.0), np.array([0.0012, 1780.0, 12345.0]))
    assert lines_picture([line], "x", "X", "tokens/s").alt == "tokens/s: mean 4,708, highest 12,345"
