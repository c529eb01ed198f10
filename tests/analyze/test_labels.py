import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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
