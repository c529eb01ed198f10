"""What became known later, read into a record: the rules hold for any record and any amendments."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.measure.amend import AMENDABLE, NEEDED, amend
from tailrace.measure.engine_timings import EngineTimings
from tailrace.measure.stage_account import Passage, Stamps, account_for
from tailrace.model.amendment import Amendment
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.model.thresholds import MS

WAIT = ("queue", "preprocess", "encode", "prefill", "decode")
SOURCES = ("measured", "reported(meta_info)", "inferred(regression)", "")
SPOKEN = st.none() | st.integers(-3, 40)
PARTS = st.dictionaries(
    st.sampled_from(
        [
            "preprocess.tokenize",
            "preprocess.retrieval",
            "prefill.kv",
            "decode.x",
            "postprocess.safety",
            "queue.router",
            "queue.engine",
            "queue.gateway",
            "unattributed.x",
            "model.call",
            "nonsense",
        ]
    ),
    st.integers(-2, 60),
    max_size=4,
)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    """Sound records: the account of any stamps, whoever knew the stages."""
    at = sorted(draw(st.lists(st.integers(0, 100), min_size=7, max_size=7)))
    named = dict(zip(("queued", "admitted", "sent", "first_token", "last_token", "upstream_end"), at, strict=False))
    gone = draw(st.sets(st.sampled_from(sorted(named))))
    stamps = Stamps(received=0, end=at[-1], **{name: value for name, value in named.items() if name not in gone})
    timings = EngineTimings(
        **{f"{stage}_ns": draw(SPOKEN) for stage in WAIT},
        sources={stage: text for stage in WAIT if (text := draw(st.sampled_from(SOURCES)))},
    )
    passages = draw(st.lists(st.builds(Passage, st.sampled_from(WAIT[:4]), st.integers(0, 100)), max_size=2))
    account = account_for(stamps, timings=timings, passages=passages)
    values = {name.replace(".", "_") + "_ns": value for name, value in account.values.items()}
    record = RequestRecord(
        request_id="a",
        start_unix_ns=0,
        e2e_ns=at[-1],
        outcome=OutcomeKind.COMPLETED,
        stage_sources={str(name): text for name, text in account.sources.items()},
        ttft_upstream_ns=0 if stamps.first_token is not None and stamps.sent is not None else None,
        cached_tokens=draw(st.none() | st.integers(0, 9)),
        finish_reason=draw(st.sampled_from(["", "stop"])),
        **values,
    )
    parts = {}
    for name in ("preprocess.tokenize", "prefill.kv"):
        whole = record.stage_ns(name.partition(".")[0])
        if whole is not None and draw(st.booleans()):
            parts[name] = draw(st.integers(0, whole))
    return msgspec.structs.replace(record, parts_ns=parts)


AMENDMENTS = st.lists(
    st.builds(
        Amendment,
        received_unix_ns=st.integers(0, 3),
        origin=st.sampled_from(["vllm span llm_request", "triton trace"]),
        span_id=st.sampled_from(["", "s1", "s2"]),
        queue_ns=SPOKEN,
        preprocess_ns=SPOKEN,
        encode_ns=SPOKEN,
        prefill_ns=SPOKEN,
        decode_ns=SPOKEN,
        postprocess_ns=SPOKEN,
        parts_ns=PARTS,
        sources=st.dictionaries(
            st.sampled_from(["queue", "queue.engine", "prefill", "preprocess.tokenize", "postprocess"]),
            st.sampled_from([text for text in SOURCES if text]),
        ),
        cached_tokens=st.none() | st.integers(-1, 9),
        preemptions=st.none() | st.integers(0, 2),
        finish_reason=st.sampled_from(["", "abort"]),
        cancel_slot_ns=st.none() | st.integers(0, 9),
    ),
    max_size=4,
)


@settings(max_examples=150)
@given(record=records(), late=AMENDMENTS, data=st.data())
def test_of_any_record_and_any_amendments_the_invariants_hold(
    record: RequestRecord, late: list[Amendment], data: st.DataObject
) -> None:
    assert not broken_invariants(record)
    amended = amend(record, late)
    assert not broken_invariants(amended)
    # In any order, and repeated later as exporters do: the same.
    repeated = [
        msgspec.structs.replace(one, received_unix_ns=one.received_unix_ns + data.draw(st.integers(0, 5)))
        for one in data.draw(st.lists(st.sampled_from(late), max_size=3) if late else st.just([]))
    ]
    assert amend(record, data.draw(st.permutations([*late, *repeated]))) == amended
    # Nothing but the amendable changed; nothing measured, and nothing that the answer reported, changed.
    for name in record.__struct_fields__:
        if name not in AMENDABLE:
            assert getattr(amended, name) == getattr(record, name)
    for stage in record.stages():
        if stage in ("queue", "unattributed"):
            continue
        if not record.stage_sources[stage].startswith("inferred") and not any(
            text.startswith("measured") for one in late for text in one.sources.values()
        ):
            assert amended.stage_ns(stage) == record.stage_ns(stage)
    for name in ("cached_tokens", "finish_reason"):
        if getattr(record, name):
            assert getattr(amended, name) == getattr(record, name)
    assert amend(record, []) is record


@given(record=records(), late=AMENDMENTS)
def test_a_record_of_only_the_needed_fields_is_amended_alike(record: RequestRecord, late: list[Amendment]) -> None:
    light = RequestRecord(**{name: getattr(record, name) for name in NEEDED})
    whole, few = amend(record, late), amend(light, late)
    assert [getattr(whole, name) for name in AMENDABLE] == [getattr(few, name) for name in AMENDABLE]


def streamed(**more: object) -> RequestRecord:
    """A wait of 100 ms of which nobody said anything."""
    fields: dict[str, object] = {
        "ingress_ns": 1 * MS,
        "queue_ns": 5 * MS,
        "queue_gateway_ns": 4 * MS,
        "unattributed_ns": 100 * MS,
        "decode_ns": 50 * MS,
        "postprocess_ns": 10 * MS,
        "stage_sources": dict.fromkeys(("ingress", "queue", "queue.gateway", "decode", "postprocess"), "measured")
        | {"unattributed": "inferred(remainder)"},
        "ttft_upstream_ns": 100 * MS,
        **more,
    }
    stages = ("ingress", "queue", "preprocess", "encode", "prefill", "decode", "postprocess", "unattributed")
    e2e = sum(int(fields.get(f"{stage}_ns") or 0) for stage in stages)  # type: ignore[call-overload]
    return RequestRecord(request_id="a", start_unix_ns=0, e2e_ns=e2e, outcome=OutcomeKind.COMPLETED, **fields)


def said(origin: str = "vllm span llm_request", **what: object) -> Amendment:
    return Amendment(received_unix_ns=0, origin=origin, **what)  # type: ignore[arg-type]


def test_a_span_splits_the_wait_and_says_whence() -> None:
    amended = amend(streamed(), [said(queue_ns=30 * MS, prefill_ns=60 * MS, decode_ns=7 * MS)])
    assert (amended.queue_ns, amended.queue_engine_ns, amended.prefill_ns) == (35 * MS, 30 * MS, 60 * MS)
    assert (amended.unattributed_ns, amended.decode_ns) == (10 * MS, 50 * MS)
    assert amended.stage_sources["prefill"] == "reported(vllm span llm_request)"
    assert amended.stage_sources["queue"] == "reported(vllm span llm_request)"
    assert amended.stage_sources["queue.gateway"] == "measured"


def test_what_does_not_fit_is_cut_and_the_cut_is_said() -> None:
    amended = amend(streamed(), [said(queue_ns=80 * MS, prefill_ns=60 * MS)])
    assert (amended.queue_engine_ns, amended.prefill_ns, amended.unattributed_ns) == (80 * MS, 20 * MS, None)
    assert amended.stage_sources["prefill"] == "reported(vllm span llm_request; clamped from 60.000 ms)"
    assert "unattributed" not in amended.stage_sources


def test_measured_stays_before_reported_and_late_replaces_inferred() -> None:
    known = {"prefill": "measured(status line)", "preprocess": "inferred(regression)"}
    record = streamed(prefill_ns=70 * MS, preprocess_ns=20 * MS, unattributed_ns=10 * MS)
    record = msgspec.structs.replace(record, stage_sources={**record.stage_sources, **known})
    amended = amend(record, [said(queue_ns=25 * MS, preprocess_ns=1 * MS, prefill_ns=90 * MS)])
    assert (amended.prefill_ns, amended.stage_sources["prefill"]) == (70 * MS, "measured(status line)")
    assert (amended.queue_engine_ns, amended.preprocess_ns, amended.unattributed_ns) == (25 * MS, 1 * MS, 4 * MS)
    assert amended.stage_sources["preprocess"] == "reported(vllm span llm_request)"


def test_an_answer_without_tokens_has_its_decode_from_the_engine() -> None:
    sources = {"queue": "measured", "queue.gateway": "measured", "response": "measured", "unattributed": "inferred"}
    record = RequestRecord(
        request_id="a",
        start_unix_ns=0,
        e2e_ns=110,
        outcome=OutcomeKind.COMPLETED,
        queue_ns=5,
        queue_gateway_ns=5,
        unattributed_ns=100,
        response_ns=5,
        stage_sources=sources,
    )
    amended = amend(record, [said("sglang span", prefill_ns=20, decode_ns=70)])
    assert (amended.prefill_ns, amended.decode_ns, amended.unattributed_ns) == (20, 70, 10)


def test_parts_stay_within_their_stage_and_a_service_behind_us_splits_postprocess() -> None:
    late = said(
        "service:retriever span",
        preprocess_ns=10 * MS,
        parts_ns={"preprocess.retrieval": 12 * MS, "decode.guard": 2 * MS, "encode.image": 4 * MS},
        postprocess_ns=6 * MS,
    )
    amended = amend(streamed(), [late])
    # Of `encode` nobody knows more than a part: it lasted at least as long.
    assert amended.parts_ns == {
        "decode.guard": 2 * MS,
        "encode.image": 4 * MS,
        "postprocess.upstream": 6 * MS,
        "preprocess.retrieval": 10 * MS,
    }
    assert amended.stage_sources["preprocess.retrieval"] == "reported(service:retriever span; clamped from 12.000 ms)"
    assert amended.stage_sources["encode"] == "reported(service:retriever span; its longest part)"
    assert (amended.encode_ns, amended.postprocess_ns, amended.decode_ns) == (4 * MS, 10 * MS, 50 * MS)


def test_facts_come_only_where_they_were_absent() -> None:
    late = said(cached_tokens=64, preemptions=1, finish_reason="abort", cancel_slot_ns=9)
    amended = amend(streamed(finish_reason="stop"), [late])
    assert (amended.cached_tokens, amended.preemptions, amended.finish_reason) == (64, 1, "stop")
    assert amended.cancel_slot_ns == 9
    assert set(amended.fact_sources) == {"cached_tokens", "preemptions", "cancel_slot_ns"}


def test_the_first_of_equal_reports_counts() -> None:
    first, second = said(queue_ns=3 * MS, span_id="1"), Amendment(received_unix_ns=9, origin="other", queue_ns=8 * MS)
    assert amend(streamed(), [second, first]).queue_engine_ns == 3 * MS
