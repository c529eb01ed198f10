"""Codes of a column are the same whether its rows share their texts or each has its own copy."""

from __future__ import annotations

import numpy as np

from tailrace.analyze.labels import codes_of, known_by


def _column(values: list[object]) -> np.ndarray:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def test_texts_that_rows_share_have_the_codes_of_equal_texts() -> None:
    draw = np.random.default_rng(1)
    names = ["red", "green", "blue"]
    said = [names[place] for place in draw.integers(0, 3, 3000)]
    # Two objects of one text are one label.
    twice = [name if place % 2 else "".join(list(name)) for place, name in enumerate(said)]
    own = ["".join(list(name)) for name in said]
    shared, mixed, copied = (codes_of(_column(list(values))) for values in (said, twice, own))
    assert shared[1] == mixed[1] == copied[1] == ["blue", "green", "red"]
    assert shared[0].tolist() == mixed[0].tolist() == copied[0].tolist()
    assert [shared[1][code] for code in shared[0]] == said


def test_a_choice_of_rows_has_codes_of_its_own() -> None:
    column = _column(["b", "a", "c", "a"] * 10)
    codes, names = codes_of(column[::2])  # not contiguous
    assert [names[code] for code in codes] == ["b", "c"] * 10


def test_sources_that_rows_share_are_asked_once_each() -> None:
    first, second = {"queue": "reported(metrics)"}, {"queue": "measured"}
    column = _column([first, second, first, dict(first)])
    assert known_by(column, "queue", "reported").tolist() == [True, False, True, True]
