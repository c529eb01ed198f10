"""PREPROCESS_SLOW, POSTPROCESS_SLOW: the user's own service is slow, and the model behind it is not."""

import msgspec
import numpy as np
import pytest

from tailrace.analyze.vantage import one_vantage
from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.gather import gather
from tailrace.diagnose.readers.source import read_source
from tailrace.export.jsonl import encode_lines, from_public_json
from tailrace.measure.application import application_record
from tailrace.model.finding import Action, Layer, Level
from tailrace.model.record import broken_invariants
from tailrace.store.table import RecordTable
from tests.diagnose.simulated import answer, as_gateway, codes, evidence, found, served
from tests.measure.test_application import stage, whole

PREPROCESS = "PREPROCESS_SLOW"
POSTPROCESS = "POSTPROCESS_SLOW"


def of_service(n=60, slow=12, *, died="preprocess.retrieval", budget="preprocess.retrieval", usual_ms=35, over=False):
    """Requests of a service, of which the first `slow` have a stage whose 800 ms are over."""
    rng = np.random.default_rng(0)
    out = []
    for number in range(n):
        late = number < slow
        ended = late and not over
        retrieval = int(rng.uniform(0.8, 1.2) * usual_ms)
        safety = 20
        model = int(rng.uniform(300, 500))
        flag = {"tailrace.over_budget": True}
        if late and died.startswith("preprocess"):
            retrieval = 801
        spans = [
            stage("preprocess.intent", 0, 4),
            stage(died if late and died.startswith("preprocess") else "preprocess.retrieval", 4, 4 + retrieval),
        ]
        at = 4 + retrieval
        if late and died.startswith("preprocess"):
            spans[-1] = msgspec.structs.replace(spans[-1], attributes={**spans[-1].attributes, **flag})
        if not ended or not died.startswith("preprocess"):
            if late and died == "model":
                model = 20_000
            spans.append(stage("model", at, at + model))
            at += model
        if not ended or died.startswith("postprocess"):
            if late and died.startswith("postprocess"):
                safety = 900
            spans.append(stage("postprocess.safety", at, at + safety))
            at += safety
        said = {"tailrace.request_id": f"a{number}", "tailrace.outcome": "completed"}
        if ended:
            said |= {"tailrace.outcome": "timed_out", "tailrace.died_in": died, "tailrace.budget": budget}
        record = application_record(whole(at + 1, **said), spans)
        assert broken_invariants(record) == []
        out.append(msgspec.structs.replace(record, start_unix_ns=record.start_unix_ns + number * 10**9))
    return out


def calm():
    return as_gateway(served(rate=4.0, long_share=0.0))


def test_timeouts_in_retrieval_are_the_services_own():
    result = answer([*calm(), *of_service()])
    first = result.findings[0]
    assert (first.code, first.layer, first.level) == (PREPROCESS, Layer.GATEWAY, Level.CONSISTENT)
    assert first.stage == "preprocess.retrieval"
    assert result.action is Action.FIX
    assert 700 < first.explains_ms < 800
    assert "12 of 60 requests of the service time out in preprocess.retrieval" in result.summary
    numbers = " ".join(item.text for item in first.evidence)
    for word in first.statement.replace(",", " ").replace(":", " ").split():
        if word.strip(".").isdigit():
            assert word.strip(".") in numbers


def test_the_gateways_records_are_not_needed_for_it():
    result = answer(of_service())
    assert codes(result) == [PREPROCESS]
    assert result.triage == []


def test_they_change_nothing_that_is_said_of_the_gateways_own_requests():
    alone, together = answer(calm()), answer([*calm(), *of_service(slow=0)])
    assert alone.findings == together.findings == []
    assert together.summary == alone.summary
    assert len(evidence([*calm(), *of_service()]).now.every) == len(calm())


def test_what_a_service_overran_without_being_stopped_counts_too():
    first = answer(of_service(over=True)).findings[0]
    assert (first.code, first.stage) == (PREPROCESS, "preprocess.retrieval")
    assert "overrun the budget of preprocess.retrieval" in first.statement


def test_the_requests_own_deadline_that_ends_there_counts_too():
    records = [
        msgspec.structs.replace(record, outcome="cancelled", reason="deadline", budget="deadline")
        if record.died_in
        else record
        for record in of_service()
    ]
    records = [msgspec.convert(msgspec.to_builtins(record), type(record)) for record in records]
    assert codes(answer(records)) == [PREPROCESS]


def test_timeouts_after_the_answer_are_the_other_code():
    first = answer(of_service(died="postprocess.safety", budget="postprocess.safety")).findings[0]
    assert (first.code, first.stage, first.level) == (POSTPROCESS, "postprocess.safety", Level.CONSISTENT)


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(of_service(died="model", budget="model"), id="the model is what is late"),
        pytest.param(of_service(n=300, slow=2), id="too few"),
        pytest.param(of_service(slow=0), id="none"),
        pytest.param(
            [*of_service(n=40, slow=6), *of_service(n=40, slow=20, died="model", budget="model")],
            id="most are late in the model",
        ),
    ],
)
def test_near_misses(records):
    assert not {PREPROCESS, POSTPROCESS} & set(codes(answer(records)))


def test_what_ends_in_the_model_is_said_to():
    result = answer(of_service(died="model", budget="model"))
    assert result.findings == []
    assert "12 of 60 requests of the service did not complete, 12 of them ended in model" in result.summary


def test_time_that_was_spent_elsewhere_is_not_the_stages_fault():
    """The request's deadline passed in a short retrieval, after a long wait for the model."""
    records = []
    for number, normal in enumerate(of_service()):
        record = normal
        if record.died_in:
            spans = [stage("model", 0, 900), stage("preprocess.retrieval", 900, 930)]
            said = {
                "tailrace.request_id": f"a{number}",
                "tailrace.outcome": "cancelled",
                "tailrace.reason": "deadline",
                "tailrace.died_in": "preprocess.retrieval",
            }
            record = application_record(whole(930, **said), spans)
        records.append(record)
    assert PREPROCESS not in codes(answer(records))


def test_without_stage_times_it_is_suspected():
    records = [msgspec.structs.replace(record, parts_ns={}) for record in of_service()]
    finding = found(answer(records), PREPROCESS)
    assert finding.level is Level.SUSPECTED
    assert len(finding.missing) == 2


def test_without_any_request_in_time_it_is_suspected():
    finding = found(answer(of_service(n=40, slow=40)), PREPROCESS)
    assert finding.level is Level.SUSPECTED
    assert finding.explains_ms is None


def test_without_reports_the_diagnosis_says_what_it_would_take():
    result = answer(as_gateway(served(rate=25.0, long_share=0.0, max_num_seqs=32)))
    assert any(need.startswith(f"{PREPROCESS}: preprocess times") for need in result.needs)


def behind(records, ms, share=0.05):
    """A service between gateway and engine that reports its retrieval, which is slow for some."""
    rng = np.random.default_rng(0)
    out = []
    for record in records:
        spent = int((rng.uniform(0.5, 1.5) * ms if rng.random() < share else rng.uniform(5, 9)) * 1e6)
        line = record.timeline
        out.append(
            msgspec.structs.replace(
                record,
                preprocess_ns=spent,
                parts_ns={"preprocess.retrieval": spent},
                stage_sources={**record.stage_sources, "preprocess": "reported(server-timing)"},
                e2e_ns=record.e2e_ns + spent,
                ttft_ns=record.ttft_ns + spent,
                e2e_last_token_ns=record.e2e_last_token_ns + spent,
                timeline=msgspec.structs.replace(line, at_ns=[at + spent for at in line.at_ns]),
            )
        )
    return out


def test_a_service_behind_the_gateway_that_makes_the_tail():
    finding = found(answer(behind(calm(), 3000)), PREPROCESS)
    assert (finding.stage, finding.level) == ("preprocess.retrieval", Level.CONSISTENT)
    assert "reported(server-timing)" in finding.evidence[0].source


def test_a_service_behind_the_gateway_that_is_always_slow():
    finding = found(answer(behind(calm(), 3000, share=1.0)), PREPROCESS)
    assert finding.stage == "preprocess.retrieval"
    assert "most of their" in finding.statement


def test_a_service_behind_the_gateway_that_is_always_fast():
    assert answer(behind(calm(), 8, share=1.0)).findings == []
    # An overloaded engine is not its fault either.
    slow = as_gateway(served(rate=25.0, long_share=0.0, max_num_seqs=32))
    assert PREPROCESS not in codes(answer(behind(slow, 40, share=1.0)))


def in_the_lane(records, *, waits_ms, holds_ms):
    """Requests wait for a place in the gateway's lane, which those before them hold while their answers are checked."""
    out = []
    for number, record in enumerate(records):
        wait, spent = int(number % 4 * waits_ms / 3 * 1e6), int(holds_ms * 1e6)
        line = record.timeline
        out.append(
            msgspec.structs.replace(
                record,
                queue_ns=record.queue_ns + wait,
                queue_gateway_ns=wait,
                postprocess_ns=spent,
                parts_ns={"postprocess.safety": spent},
                stage_sources={
                    **record.stage_sources,
                    "queue_gateway": "measured",
                    "postprocess": "reported(server-timing)",
                },
                e2e_ns=record.e2e_ns + wait + spent,
                ttft_ns=record.ttft_ns + wait,
                e2e_last_token_ns=record.e2e_last_token_ns + wait,
                timeline=msgspec.structs.replace(line, at_ns=[at + wait for at in line.at_ns]),
            )
        )
    return out


def test_what_holds_the_places_of_a_lane_is_named_beside_its_queue():
    finding = found(answer(in_the_lane(calm(), waits_ms=9000, holds_ms=20_000)), POSTPROCESS)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "hold their places in the gateway's lane" in finding.statement
    assert POSTPROCESS not in codes(answer(in_the_lane(calm(), waits_ms=9000, holds_ms=200)))
    assert POSTPROCESS not in codes(answer(in_the_lane(calm(), waits_ms=0, holds_ms=20_000)))


def test_a_file_with_both_is_counted_by_the_gateways_records_alone(tmp_path):
    lines = list(encode_lines([*calm(), *of_service()]))
    table = RecordTable.from_records([from_public_json(line) for line in lines])
    own, reported = one_vantage(table)
    assert (len(own), len(reported)) == (len(calm()), 60)
    alone, nothing = one_vantage(RecordTable.from_records(of_service()))
    assert (len(alone), nothing) == (60, None)
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"".join(lines))
    source = read_source(str(path), lambda line, place: from_public_json(line, place=place))
    assert (len(source.table), len(source.applications)) == (len(calm()), 60)
    assert codes(diagnose(gather([source]))) == [PREPROCESS]
