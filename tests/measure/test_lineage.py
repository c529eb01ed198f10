"""Whose amendment it is: by its request, by its chain of spans, by its trace alone, or nobody's."""

from __future__ import annotations

from tailrace.measure.lineage import share_out
from tailrace.model.amendment import Amendment
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord


def record(name: str, trace: str = "t", span: str = "", parent: str = "", vantage: str = "gateway") -> RequestRecord:
    return RequestRecord(
        request_id=name,
        trace_id=trace,
        span_id=span or f"span-{name}",
        parent_id=parent,
        vantage=vantage,
        start_unix_ns=0,
        e2e_ns=0,
        outcome=OutcomeKind.COMPLETED,
    )


def late(span: str, parent: str = "", request: str = "", trace: str = "t") -> Amendment:
    return Amendment(
        received_unix_ns=0,
        origin="engine",
        request_id=request,
        trace_id=trace,
        span_id=span,
        parent_span_id=parent,
        sources={"queue": "reported(x)"},
    )


def owners(records: list[RequestRecord], amendments: list[Amendment]) -> dict[str, str]:
    shares = share_out(records, amendments).of
    return {one.span_id: records[place].request_id for place, some in shares.items() for one in some}


def test_the_request_that_is_named_decides() -> None:
    records = [record("a"), record("b", trace="u")]
    assert owners(records, [late("s", parent="span-a", request="b")]) == {"s": "b"}
    # A name that nobody here has is not overruled by a trace.
    assert owners(records, [late("s", parent="span-a", request="elsewhere")]) == {}


def test_a_chain_of_spans_leads_to_the_record_below_which_it_hangs() -> None:
    records = [record("a"), record("b")]
    chain = [late("leaf", "mid"), late("mid", "top"), late("top", "span-b"), late("other", "span-a")]
    for order in (chain, chain[::-1]):
        assert owners(records, order) == {"leaf": "b", "mid": "b", "top": "b", "other": "a"}
    # Through a span that names its request.
    assert owners(records, [late("top", "gone", request="a"), late("leaf", "top")]) == {"top": "a", "leaf": "a"}


def test_a_broken_chain_goes_to_the_only_request_of_its_trace_and_says_so() -> None:
    records = [record("a"), record("whole", vantage="application")]
    shares = share_out(records, [late("s", "a hop that reported nothing")])
    (one,) = shares.of[0]
    assert one.origin == "engine; by its trace alone"
    assert one.sources == {"queue": "reported(x; by its trace alone)"}
    assert list(shares.by_trace) == ["t"]
    # Two requests in the trace: it could be either's, so it is neither's.
    assert owners([record("a"), record("b")], [late("s", "gone")]) == {}


def test_what_lies_beside_or_above_the_record_is_not_about_it() -> None:
    records = [record("a", parent="caller")]
    others = [late("sibling", "caller"), late("caller", "root"), late("root"), late("cousin", "sibling")]
    assert owners(records, others) == {}
    assert owners([record("a")], [late("no parent is known")]) == {"no parent is known": "a"}


def test_chains_that_bite_their_tail_end() -> None:
    assert owners([record("a"), record("b")], [late("x", "y"), late("y", "x"), late("z", "z")]) == {}
