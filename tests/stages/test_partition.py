"""Overlapping spans made into stages that never overlap."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.stages.partition import NamedSpan, partition

NAMES = st.sampled_from(["preprocess", "preprocess.retrieval", "preprocess.retrieval.index", "model", "postprocess.a"])
SPANS = st.lists(st.builds(NamedSpan, NAMES, st.integers(0, 50), st.integers(0, 50), st.integers(0, 5)), max_size=12)


def covered(spans):
    """Instants in which some span runs."""
    return len({at for span in spans for at in range(span.start, span.end)})


@given(SPANS)
def test_stages_add_up_to_the_time_in_which_anything_ran_and_parts_stay_inside(spans):
    out = partition(spans)
    assert sum(value for name, value in out.items() if "." not in name) == covered(spans)
    for name, value in out.items():
        assert value >= 0
        parent = name.rpartition(".")[0]
        assert not parent or value <= out[parent]
    assert set(out) >= {span.name for span in spans}


@given(SPANS, st.randoms())
def test_the_order_in_which_spans_are_told_does_not_matter(spans, random):
    unique = [span._replace(depth=place) for place, span in enumerate(spans)]
    shuffled = unique.copy()
    random.shuffle(shuffled)
    assert partition(shuffled) == partition(unique)


def test_of_two_beside_each_other_the_newer_has_the_time():
    assert partition([NamedSpan("preprocess", 0, 10), NamedSpan("postprocess", 4, 20)]) == {
        "preprocess": 4,
        "postprocess": 16,
    }


def test_of_two_that_begin_together_the_shorter_is_the_inner():
    assert partition([NamedSpan("preprocess", 0, 10), NamedSpan("model", 0, 4)]) == {"preprocess": 6, "model": 4}


def test_parallel_parts_overlap_and_their_stage_counts_once():
    assert partition([NamedSpan("preprocess.a", 0, 10), NamedSpan("preprocess.b", 2, 8)]) == {
        "preprocess": 10,
        "preprocess.a": 10,
        "preprocess.b": 6,
    }
