"""Spans of services before the gateway become records, in whatever order and posts they come."""

from itertools import permutations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tailrace.gateway.applications import HOLD_NS, MOST_SPANS, SETTLE_NS, ApplicationRecords, ApplicationSpans
from tests.measure.test_application import START, TRACE, stage, whole

NOW = START + 10**9


class Sink(list):
    room = 10**9

    def put(self, record):
        if len(self) >= self.room:
            return False
        self.append(record)
        return True


def taker():
    sink = Sink()
    return ApplicationSpans(ApplicationRecords(sink)), sink


def spans():
    return [
        whole(**{"tailrace.stages": 3}),
        stage("preprocess", 0, 40, "a"),
        stage("preprocess.retrieval", 5, 30, "b", "a"),
        stage("model", 40, 90, "c"),
    ]


def test_in_any_order_and_any_number_of_posts_the_record_is_the_same():
    records = set()
    for order in permutations(spans()):
        for cut in range(4):
            application, sink = taker()
            application.take(order[:cut], NOW)
            application.take(order[cut:], NOW + 10)
            (record,) = sink
            records.add(msgspec.json.encode(record))
    assert len(records) == 1


def test_only_whole_requests_are_counted_as_understood_here():
    application, _ = taker()
    assert application.take(spans()[1:], NOW) == 0
    assert application.take(spans()[:1], NOW) == 1


def test_who_does_not_say_how_many_stages_there_are_is_waited_for():
    application, sink = taker()
    application.take([whole(), stage("model", 0, 50)], NOW)
    application.tick(NOW + SETTLE_NS - 1)
    assert sink == []
    application.take([stage("preprocess", 60, 70)], NOW + 100)
    application.tick(NOW + SETTLE_NS)
    (record,) = sink
    assert set(record.stages()) == {"model", "preprocess", "unattributed"}
    # What comes later still belongs there, and makes no second record.
    application.take([stage("postprocess", 80, 90)], NOW + SETTLE_NS + 5)
    application.tick(NOW + 3 * SETTLE_NS)
    assert len(sink) == 1


def test_stages_lie_below_what_other_instrumentation_put_between():
    application, sink = taker()
    middle = msgspec.structs.replace(stage("x", 0, 60, "m"), attributes={})
    application.take([whole(**{"tailrace.stages": 1}), middle, stage("model", 10, 50, "s", "m")], NOW)
    assert sink[0].model_ns == 40_000_000


def test_a_service_behind_another_has_a_record_of_its_own():
    application, sink = taker()
    outer = whole(**{"tailrace.stages": 1})
    inner = msgspec.structs.replace(
        whole(50, **{"tailrace.request_id": "r2", "tailrace.stages": 1}), span_id="inner", parent_span_id="call"
    )
    application.take([stage("preprocess.a", 1, 2, "p", "inner"), inner, outer, stage("model", 0, 60, "call")], NOW)
    by_id = {record.request_id: record for record in sink}
    assert by_id["r1"].model_ns == 60_000_000
    assert by_id["r1"].preprocess_ns is None
    assert by_id["r2"].parts_ns == {"preprocess.a": 1_000_000}


def test_what_never_finds_its_request_is_let_go():
    application, sink = taker()
    application.take([stage("model", 0, 50)], NOW)
    application.tick(NOW + HOLD_NS)
    assert application.view()["waiting"] == 0
    application.take([whole()], NOW + HOLD_NS + 1)
    application.close()
    assert [record.stages() for record in sink] == [{"unattributed": 100_000_000}]


def test_memory_is_bounded():
    application, sink = taker()
    for number in range(MOST_SPANS // 1000 + 3):
        application.take(
            [
                msgspec.structs.replace(stage("model", 0, 1, f"{number}-{at}"), trace_id=f"{number}")
                for at in range(1000)
            ],
            NOW,
        )
    assert application.view()["waiting"] <= MOST_SPANS
    assert sink == []


def test_a_sink_without_room_is_counted_and_losses_of_the_service_are_shown():
    application, sink = taker()
    sink.room = 0
    root = msgspec.structs.replace(whole(), resource={"service.name": "rag", "tailrace.reports_dropped": 7})
    application.take([root], NOW)
    application.close()
    view = application.view()
    assert (view["records"], view["records_dropped"], view["reports_lost"]) == (1, 1, {"rag": 7})


@given(st.lists(st.sampled_from(spans()), max_size=12))
def test_repeated_spans_change_nothing_that_is_due(given):
    application, sink = taker()
    for span in given:
        application.take([span], NOW)
    application.close()
    assert [record.trace_id for record in sink] == [TRACE] * any(span.span_id == "root" for span in given)
