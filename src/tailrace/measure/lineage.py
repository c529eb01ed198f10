"""Whose amendment it is: late reports are shared out among the records that they speak of.

Three ways lead to a record, the surest first:

1. the amendment names the request (`request_id`); then nothing else counts;
2. its span lies below the record's: the parent is the record's `span_id`, or the span of another amendment of the same
   trace that leads there. A hop between that reported nothing breaks this chain;
3. its chain is broken, and its trace has a single request: it belongs there, and its sources say `by its trace alone`.
   What is known to lie beside or above the record (its parent is the record's own parent, or the trace began before us
   and it has none) is left out: it tells of somebody else's work.

A record of vantage `application` describes the whole around a request; what an engine says is never about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tailrace.model.amendment import Amendment
from tailrace.model.record import RequestRecord

TRACE_ALONE: Final = "by its trace alone"


class Shares(msgspec.Struct, frozen=True):
    """Who gets what."""

    of: dict[int, list[Amendment]]
    """Place of a record -> its amendments, in the order in which they were given."""
    by_trace: dict[str, list[Amendment]]
    """Trace -> those that joined the one record of their trace for want of a chain (they are in `of` as well)."""


def share_out(records: Sequence[RequestRecord], amendments: Iterable[Amendment]) -> Shares:
    """Give each amendment to the record it belongs to; one that belongs to none of them is left out."""
    named: dict[str, int] = {}
    spans: dict[tuple[str, str], int] = {}
    traces: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        if record.vantage == "application":
            continue
        named[record.request_id] = place
        if record.trace_id:
            spans[record.trace_id, record.span_id] = place
            traces.setdefault(record.trace_id, []).append(place)
    given = list(amendments)
    links = {(one.trace_id, one.span_id): one for one in given if one.span_id}
    out: dict[int, list[Amendment]] = {}
    alone: dict[str, list[Amendment]] = {}
    for one in given:
        found: int | None
        top = ""
        if one.request_id:
            found = named.get(one.request_id)
        elif one.trace_id not in traces:
            continue
        else:
            found, top = _climb(one, named, spans, links)
            if found is None and _is_below(one, top, records, traces[one.trace_id]):
                found = traces[one.trace_id][0]
                alone.setdefault(one.trace_id, []).append(one)
                one = _by_trace_alone(one)  # noqa: PLW2901
        if found is not None:
            out.setdefault(found, []).append(one)
    return Shares(out, alone)


def _climb(
    one: Amendment,
    named: dict[str, int],
    spans: dict[tuple[str, str], int],
    links: dict[tuple[str, str], Amendment],
) -> tuple[int | None, str]:
    """(record, last parent that was looked for): up the chain until a record's span, a named request, or its end."""
    seen: set[str] = set()
    parent = one.parent_span_id
    while parent and parent not in seen:
        found = spans.get((one.trace_id, parent))
        if found is not None:
            return found, parent
        seen.add(parent)
        link = links.get((one.trace_id, parent))
        if link is None:
            break
        if link.request_id:
            return named.get(link.request_id), parent
        parent = link.parent_span_id
    return None, parent


def _is_below(one: Amendment, top: str, records: Sequence[RequestRecord], kin: list[int]) -> bool:
    if len(kin) != 1:
        return False
    record = records[kin[0]]
    if not record.parent_id:
        return True
    return bool(top) and record.parent_id not in (top, one.span_id)


def _by_trace_alone(one: Amendment) -> Amendment:
    return msgspec.structs.replace(
        one,
        origin=f"{one.origin}; {TRACE_ALONE}",
        sources={name: with_note(text, TRACE_ALONE) for name, text in one.sources.items()},
    )


def with_note(text: str, note: str) -> str:
    """A source with one thing more to say: `reported(a)` -> `reported(a; note)`."""
    kind, _, detail = text.partition("(")
    detail = detail.removesuffix(")")
    return f"{kind}({detail}; {note})" if detail else f"{kind}({note})"
