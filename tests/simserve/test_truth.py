"""The judge of records: a true record passes, each known mistake is found."""

import msgspec
import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS
from tailrace.model.timeline import EventKind, Timeline
from tailrace.simserve.scenarios import SCENARIOS, TOKEN_STEPS, Ask, StepKind, plan
from tailrace.simserve.truth import CUT, ERROR, REJECTED, SentEvent, Truth, judge


def truth_of(name, index=0):
    """The truth of a server that is never late."""
    made = plan(Ask(index=index, model=name))
    events = [
        SentEvent(step.kind, step.tokens, step.at_ns, step.at_ns + step.pause_ns)
        for step in made.steps
        if step.kind is not StepKind.CUT
    ]
    fate = SCENARIOS[name].odd_requests if index % 2 else ""
    ending = {"": "complete", "reject": REJECTED, "cut": CUT, "error": ERROR}[fate]
    return Truth(index=index, status=made.status, ending=ending, said_tokens=made.said_tokens, events=events)


def record_of(truth, **changes):
    """The record that an honest tool makes of it."""
    if truth.status != 200:
        fields = {"outcome": OutcomeKind.REJECTED, "reason": Reason.RATE_LIMITED, "e2e_ns": 5, "ingress_ns": 5}
        fields["stage_sources"] = {"ingress": "measured"}
    else:
        outcome, reason = OutcomeKind.COMPLETED, Reason.NONE
        if truth.ending == CUT:
            outcome, reason = OutcomeKind.FAILED, Reason.STREAM_CUT
        elif truth.ending == ERROR:
            outcome, reason = OutcomeKind.FAILED, Reason.ENGINE_CRASH
        stamps = [event.sent_ns for event in truth.token_events()]
        usage = truth.said_tokens is not None
        fields = {
            "outcome": outcome,
            "reason": reason,
            "e2e_ns": truth.last_byte_ns,
            "unattributed_ns": truth.last_byte_ns,
            "stage_sources": {"unattributed": "measured"},
            "ttft_ns": truth.ttft_ns,
            "ttft_content_ns": truth.ttft_content_ns,
            "e2e_last_token_ns": truth.last_token_ns,
            "output_tokens": truth.said_tokens if usage else len(stamps),
            "output_tokens_source": "usage" if usage else "chunks",
            "chunk_gap_count": len(stamps) - 1,
            "tpot_ns": None if truth.tpot_ns is None else round(truth.tpot_ns),
            "timeline": Timeline(at_ns=stamps, kind=[0] * len(stamps), tokens=[-1] * len(stamps)),
        }
    fields |= changes
    return RequestRecord(request_id="r", start_unix_ns=1, http_status=truth.status, **fields)


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_honest_record_passes(name):
    truths = [truth_of(name, index) for index in range(8)]
    judged = judge(name, [(record_of(truth), truth) for truth in truths], vantage="client")
    assert judged.ok, (judged.wrong, judged.late)
    assert judged.n == 8


def first_any(truth):
    return next(event.sent_ns for event in truth.events)


MISTAKES = [
    # what a tool gets wrong, in which scenario, the field, and what the judge says of it
    ("role chunk taken as first token", "role_early", lambda t: {"ttft_ns": first_any(t)}, "ttft is 300.0 ms shorter"),
    (
        "empty chunk taken as first token",
        "empty_first",
        lambda t: {"ttft_ns": first_any(t)},
        "ttft is 290.0 ms",
    ),
    ("an empty chunk makes a gap", "empty_first", lambda _: {"chunk_gap_count": 40}, "chunk_gap_count is 40, truth 39"),
    ("stamp of the first half", "split", lambda t: {"ttft_ns": t.ttft_ns - 10 * MS}, "ttft is 10.0 ms shorter"),
    ("TPOT counts events", "spec", lambda t: {"tpot_ns": 40 * MS}, "tpot: median error"),
    ("TPOT to [DONE]", "late_done", lambda t: {"tpot_ns": (t.last_byte_ns - t.ttft_ns) // 39}, "tpot: median error"),
    (
        "usage is the last token",
        "late_usage",
        lambda t: {"e2e_last_token_ns": t.last_byte_ns},
        "e2e_last_token",
    ),
    ("running usage is summed", "cont_usage", lambda _: {"output_tokens": 820}, "output_tokens is 820, truth 40"),
    ("requested length as output", "no_usage", lambda _: {"output_tokens_source": "usage"}, "output_tokens_source"),
    ("reasoning is no token", "reasoning", lambda t: {"ttft_ns": t.ttft_content_ns}, "ttft: median error 600"),
    (
        "first content is reasoning",
        "reasoning",
        lambda t: {"ttft_content_ns": t.ttft_ns},
        "ttft_content is 600.0",
    ),
    ("TPOT of one token", "one_token", lambda _: {"tpot_ns": 0}, "tpot_ns is 0, truth None"),
]


@pytest.mark.parametrize(("name", "change", "said"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_each_known_mistake_is_found(name, change, said):
    truths = [truth_of(name, index) for index in range(4)]
    judged = judge(name, [(record_of(truth, **change(truth)), truth) for truth in truths], vantage="client")
    assert not judged.ok
    assert any(said in line for line in (*judged.wrong, *judged.late)), (judged.wrong, judged.late)


@pytest.mark.parametrize("name", ["drop", "error_event"])
def test_a_failure_reported_as_success_is_found(name):
    truth = truth_of(name, 1)
    lie = record_of(truth, outcome=OutcomeKind.COMPLETED, reason=Reason.NONE)
    assert any(
        "outcome is 'completed', truth 'failed'" in line for line in judge(name, [(lie, truth)], vantage="x").wrong
    )


def test_a_client_behind_a_gateway_may_hear_of_a_cut_in_an_error_event():
    truth = truth_of("drop", 1)
    told = record_of(truth, reason=Reason.ENGINE_CRASH)
    assert judge("drop", [(told, truth)], vantage="relay", behind_gateway=True).ok
    assert not judge("drop", [(told, truth)], vantage="gateway").ok


def test_late_is_not_wrong():
    truths = [truth_of("plain", index) for index in range(4)]
    judged = judge("plain", [(record_of(t, ttft_ns=t.ttft_ns + 9 * MS), t) for t in truths], vantage="client")
    assert judged.wrong == []
    assert judged.late == ["ttft: median error 9.0 ms > 5 ms"]


def test_a_rejection_with_a_latency_is_found():
    truth = truth_of("reject", 1)
    lie = record_of(truth, ttft_ns=3)
    assert judge("reject", [(lie, truth)], vantage="client").wrong == ["request 1: ttft_ns is 3, truth None"]


def test_hidden_stalls_are_found():
    truths = [truth_of("mixed", index) for index in range(8)]
    pairs = []
    for truth in truths:
        smooth = [truth.ttft_ns + number * round(truth.tpot_ns) for number in range(40)]
        timeline = Timeline(at_ns=smooth, kind=[int(EventKind.CONTENT)] * 40, tokens=[1] * 40)
        pairs.append((record_of(truth, timeline=timeline), truth))
    assert any("p99 gap is" in line for line in judge("mixed", pairs, vantage="client").wrong)


def test_stages_that_do_not_add_up_are_found():
    truth = truth_of("plain")
    lie = msgspec.structs.replace(record_of(truth), unattributed_ns=1)
    assert "stages add up to 1 ns" in judge("plain", [(lie, truth)], vantage="client").wrong[0]


def test_missing_records_are_found():
    assert not judge("plain", [], vantage="gateway").ok
    assert judge("plain", [], vantage="gateway", missing=2).wrong == ["2 requests left no record"]


def test_token_steps_are_the_token_kinds():
    assert {kind.value for kind in TOKEN_STEPS} == {"content", "reasoning"}
