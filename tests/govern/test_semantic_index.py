from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.semantic_index import SemanticIndex


def vector(*values: float):
    return np.array(values, dtype=np.float32)


def test_the_nearest_above_the_threshold_is_found_whatever_its_length():
    index = SemanticIndex()
    index.add(b"p", b"east", vector(5, 0))
    index.add(b"p", b"north", vector(0, 0.1))
    found = index.nearest(b"p", vector(0.9, 0.1), 0.9)
    assert found is not None
    assert found.key == b"east"
    assert abs(found.similarity - 0.9 / np.hypot(0.9, 0.1)) < 1e-6
    assert index.nearest(b"p", vector(1, 1), 0.9) is None


def test_partitions_never_see_each_other():
    index = SemanticIndex()
    index.add(b"mine", b"k", vector(1, 0))
    assert index.nearest(b"yours", vector(1, 0), 0.0) is None


def test_vectors_without_direction_or_of_other_dimensions_are_no_questions():
    index = SemanticIndex()
    assert not index.add(b"p", b"zero", vector(0, 0))
    assert not index.add(b"p", b"nan", vector(float("nan"), 1))
    assert not index.add(b"p", b"none", vector())
    assert index.add(b"p", b"k", vector(1, 0))
    assert not index.add(b"p", b"three", vector(1, 0, 0))
    assert index.nearest(b"p", vector(1, 0, 0), 0.0) is None
    assert index.nearest(b"p", vector(0, 0), -1.0) is None


def test_a_full_partition_gives_one_up():
    index = SemanticIndex(largest=2)
    for at, key in enumerate((b"a", b"b", b"c")):
        index.add(b"p", key, vector(1, at))
    assert len(index) == 2
    assert index.nearest(b"p", vector(1, 2), 0.999) is not None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_it_agrees_with_a_plain_table(steps):
    index = SemanticIndex()
    table: dict[bytes, np.ndarray] = {}
    for adds, number in steps:
        key = b"%d" % number
        angle = number / 5
        if adds:
            table[key] = vector(float(np.cos(angle)), float(np.sin(angle)))
            assert index.add(b"p", key, table[key])
        else:
            table.pop(key, None)
            index.drop(key)
    assert len(index) == len(table)
    asked = vector(0.3, 0.8)
    found = index.nearest(b"p", asked, -1.0)
    if not table:
        assert found is None
        assert index.vector_bytes == 0
    else:
        assert found is not None
        best = max(table, key=lambda key: float(table[key] @ asked))
        assert found.key == best
