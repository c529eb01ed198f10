import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.analyze import labels
from tailrace.analyze.labels import among, codes_of, known_by


def texts(values):
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


@given(st.lists(st.sampled_from(["", "a", "b", "ä", "a "]), max_size=40))
def test_codes_are_the_texts_in_alphabetical_order(values):
    codes, names = codes_of(texts(values))
    assert names == sorted(set(values))
    assert [names[code] for code in codes] == values
    assert among(texts(values), {"a", "nowhere"}).tolist() == [value == "a" for value in values]


def test_a_constant_is_seen_without_looking_at_its_rows():
    column = np.broadcast_to(np.array(["fp8"], dtype=object), (1_000_000_000,))[:3]
    codes, names = codes_of(column)
    assert (codes.tolist(), names) == ([0, 0, 0], ["fp8"])


@given(st.lists(st.sampled_from(["reported(x)", "measured", "inferred(y)", ""]), max_size=20), st.booleans())
def test_sources_are_read_whether_records_share_their_dicts_or_not(kinds, shared):
    one = {kind: {"queue": kind} if kind else {} for kind in kinds}
    rows = texts([one[kind] if shared else dict(one[kind]) for kind in kinds])
    assert known_by(rows, "queue", "reported").tolist() == [kind.startswith("reported") for kind in kinds]


def test_what_is_known_of_a_large_column_is_remembered_while_it_lives(monkeypatch):
    monkeypatch.setattr(labels, "_MANY", 3)
    monkeypatch.setattr(labels, "_known", {})
    column = texts(["b", "a", "b"])
    codes, names = codes_of(column)
    names.append("changed by a caller")
    again, same = codes_of(column)
    assert again is codes
    assert same == ["a", "b"]
    with pytest.raises(ValueError, match="read-only"):
        codes[0] = 7
    shared = {"queue": "measured"}
    sources = texts([shared, {"queue": "reported(x)"}, shared])
    assert known_by(sources, "queue", "reported").tolist() == [False, True, False]
    assert known_by(sources, "queue", "measured").tolist() == [True, False, True]
    assert len(labels._known) == 2
    del column, sources
    assert not labels._known
    few = texts(["x", "y"])
    codes_of(few)
    assert not labels._known


def test_a_source_that_all_rows_share_is_looked_at_once():
    column = np.broadcast_to(texts([{"queue": "reported(x)"}]), (3,))
    assert known_by(column, "queue", "reported").tolist() == [True, True, True]
    assert known_by(column, "prefill", "reported").tolist() == [False, False, False]
