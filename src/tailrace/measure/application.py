"""A service's spans of one request made into a record of vantage `application`, which adds up like any other.

The service's own clock stamps the whole; its stages are cut so that none overlaps another (`stages.partition`), and
what no span covers is `unattributed`. Its call of the hop behind is the stage `model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tailrace.measure.sampling import keep
from tailrace.model.outcome import REASON_KIND, OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.span import Span
from tailrace.model.stage import STAGES, SourceKind, source
from tailrace.stages.partition import NamedSpan, partition
from tailrace.stages.stage import REPORTABLE

VANTAGE: Final = "application"
REQUEST: Final = "tailrace.request_id"
"""The attribute that makes a span the whole of one request of a service before us."""
STAGE: Final = "tailrace.stage"
COUNT: Final = "tailrace.stages"
"""How many stage spans belong to it; with it a record need not wait for others."""
OVER_BUDGET: Final = "tailrace.over_budget"
_LONGEST: Final = 200
_REPORTED: Final = source(SourceKind.REPORTED, f"span {STAGE}")
_UNSAID: Final = {
    OutcomeKind.COMPLETED: Reason.NONE,
    OutcomeKind.TIMED_OUT: Reason.STAGE_TIMEOUT,
    OutcomeKind.FAILED: Reason.APPLICATION_ERROR,
    OutcomeKind.CANCELLED: Reason.CLIENT_DISCONNECT,
    OutcomeKind.REJECTED: Reason.BAD_REQUEST,
}
"""The reason of an outcome for which none was said, or none that belongs to it."""
_REFUSED: Final = {401: Reason.UNAUTHORIZED, 403: Reason.UNAUTHORIZED, 429: Reason.RATE_LIMITED}
_ERROR: Final = 2


def stage_name(span: Span) -> str:
    """The stage that a span says it is, empty where it says none that a service may report."""
    said = span.attributes.get(STAGE)
    if not isinstance(said, str) or len(said) > _LONGEST or said.partition(".")[0] not in REPORTABLE:
        return ""
    return said if all(said.split(".")) and said.isprintable() else ""


def is_whole(span: Span) -> bool:
    """Whether a span is a service's whole request."""
    said = span.attributes.get(REQUEST)
    return isinstance(said, str) and 0 < len(said) <= _LONGEST and said.isprintable()


def application_record(root: Span, stages: Sequence[Span]) -> RequestRecord:
    """The record of `root` (see `is_whole`) and the stage spans below it, in any order."""
    said = root.attributes
    end = max(root.end_unix_ns, root.start_unix_ns)
    e2e = end - root.start_unix_ns
    values = _stages(root.start_unix_ns, end, stages)
    outcome, reason = _ending(root)
    over = sorted({stage_name(span) for span in stages if span.attributes.get(OVER_BUDGET) is True} - {""})
    stopped = outcome is OutcomeKind.TIMED_OUT
    budget = _text(said, "tailrace.budget") if outcome is not OutcomeKind.COMPLETED else ""
    slow = [name for name in over if not (stopped and name == budget)]
    keep_reason, weight = keep(str(said[REQUEST]), outcome, slow, 0.0)
    tops = {name: value for name, value in values.items() if name in STAGES}
    left = e2e - sum(tops.values())
    sources = dict.fromkeys(values, _REPORTED)
    if left:
        lost = said.get("tailrace.stages_dropped")
        note = f"remainder; {lost} spans of stages were not sent" if isinstance(lost, int) and lost else "remainder"
        sources["unattributed"] = source(SourceKind.INFERRED, note)
    first = said.get("tailrace.first_body_ns")
    status = said.get("http.response.status_code")
    return RequestRecord(
        vantage=VANTAGE,
        request_id=str(said[REQUEST]),
        trace_id=root.trace_id,
        span_id=root.span_id,
        parent_id=root.parent_span_id,
        session_id=_text(said, "tailrace.session_id"),
        service=str(root.resource.get("service.name", ""))[:_LONGEST],
        endpoint=_text(said, "url.path"),
        model=_text(said, "gen_ai.request.model"),
        stream=said.get("tailrace.stream") is True,
        start_unix_ns=root.start_unix_ns,
        queue_ns=tops.get("queue"),
        preprocess_ns=tops.get("preprocess"),
        encode_ns=tops.get("encode"),
        prefill_ns=tops.get("prefill"),
        decode_ns=tops.get("decode"),
        model_ns=tops.get("model"),
        postprocess_ns=tops.get("postprocess"),
        unattributed_ns=left or None,
        parts_ns={name: value for name, value in values.items() if name not in STAGES},
        stage_sources=sources,
        e2e_ns=e2e,
        ttft_ns=first if isinstance(first, int) and not isinstance(first, bool) and 0 <= first <= e2e else None,
        outcome=outcome,
        reason=reason,
        died_in="" if outcome is OutcomeKind.COMPLETED else _died_in(root, stages),
        budget=budget,
        error=root.status_message[:300] if outcome is not OutcomeKind.COMPLETED else "",
        http_status=status if isinstance(status, int) and not isinstance(status, bool) else None,
        keep_reason=keep_reason,
        keep_weight=weight,
        slow=slow,
    )


def _stages(start: int, end: int, stages: Sequence[Span]) -> dict[str, int]:
    """Stage and part -> ns, within the whole."""
    parents = {span.span_id: span.parent_span_id for span in stages}
    spans = []
    for span in stages:
        name = stage_name(span)
        begin, stop = max(span.start_unix_ns, start), min(span.end_unix_ns, end)
        if name and stop >= begin:
            spans.append(NamedSpan(name, begin, stop, _depth(span.span_id, parents)))
    return partition(spans)


def _depth(span_id: str, parents: Mapping[str, str]) -> int:
    depth = 0
    while depth < len(parents) and (span_id := parents.get(span_id, "")):
        depth += 1
    return depth


def _ending(root: Span) -> tuple[OutcomeKind, Reason]:
    said = root.attributes
    try:
        outcome = OutcomeKind(said.get("tailrace.outcome", ""))
    except ValueError:
        outcome, unsaid = _by_status(root)
    else:
        unsaid = _UNSAID[outcome]
    try:
        reason = Reason(said.get("tailrace.reason", ""))
    except ValueError:
        return outcome, unsaid
    return outcome, reason if REASON_KIND[reason] is outcome else unsaid


def _by_status(root: Span) -> tuple[OutcomeKind, Reason]:
    """Of a service that says no outcome: by its HTTP status, and the span's own."""
    status = root.attributes.get("http.response.status_code")
    code = status if isinstance(status, int) else 0
    if code >= 500 or (root.status_code == _ERROR and code < 400):
        return OutcomeKind.FAILED, Reason.APPLICATION_ERROR
    if code >= 400:
        return OutcomeKind.REJECTED, _REFUSED.get(code, Reason.BAD_REQUEST)
    return OutcomeKind.COMPLETED, Reason.NONE


def _died_in(root: Span, stages: Sequence[Span]) -> str:
    """What the service says; else the stage that ended last among those that failed, the innermost of several."""
    said = _text(root.attributes, "tailrace.died_in")
    if said:
        return said
    failed = [span for span in stages if span.status_code == _ERROR and stage_name(span)]
    if not failed:
        return "unattributed"
    # A failure passes from the inner stage to the outer one, which began before it.
    return stage_name(max(failed, key=lambda span: span.start_unix_ns))


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    return value[:_LONGEST] if isinstance(value, str) and value.isprintable() else ""
