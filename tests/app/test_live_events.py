"""What a gateway remembers of its own changes reaches the diagnosis: its own of every minute, and one from outside."""

from __future__ import annotations

import json

import pytest

from tailrace.app.diagnose import diagnose_sources
from tailrace.app.diagnosis_child import Question, answer
from tailrace.export.jsonl import encode_lines
from tailrace.model.finding import Diagnosis
from tailrace.model.thresholds import Objectives
from tailrace.store.writer import RecordWriter, WriterOptions
from tests.analyze.attribution.test_where import changing
from tests.probe.raw_server import serving
from tests.probe.test_evidence import Admin

WORDS = "the configuration changed: lanes.chat.running 64 -> 4"
HALF_S = 180.0


def slower():
    """Ten requests a second for five minutes; from the third on the first token takes three times as long."""
    return list(changing().records())


def moments_of(found: Diagnosis) -> list[str]:
    return [one.text for one in found.attribution if one.kind == "moment"]


def test_the_gateways_own_diagnosis_says_what_changed_then(tmp_path):
    records = slower()
    writer = RecordWriter(tmp_path, WriterOptions(linger_s=0.002, sealing=False))
    for record in records:
        writer.put(record)
    writer.close()
    begin_s = min(record.start_unix_ns for record in records) / 1e9
    question = Question(
        records=str(tmp_path),
        requests=100_000,
        objectives=Objectives({"ttft": {0.99: 150_000_000}}),
        events=[(begin_s + HALF_S, WORDS), (begin_s + 20.0, "backend a: an operator keeps new requests away")],
    )
    (told,) = moments_of(answer(question))
    assert WORDS in told
    assert "operator" not in told


@pytest.mark.parametrize("happened", [True, False])
def test_a_diagnosis_of_an_admin_url_fetches_it(happened):
    records = slower()
    begin_s = min(record.start_unix_ns for record in records) / 1e9
    said = [{"at_unix_ms": (begin_s + HALF_S) * 1e3, "at_monotonic_ms": 1.0, "kind": "configuration", "text": WORDS}]
    pages = {"records": b"".join(encode_lines(records, timeline=False)).decode()}
    if happened:
        pages["happenings"] = json.dumps({"happenings": said})
    with serving(Admin(**pages)) as server:
        found = diagnose_sources([server.url], objectives=Objectives({"ttft": {0.99: 150_000_000}}))
    (told,) = moments_of(found)
    assert (WORDS in told) is happened


def test_an_answer_that_is_none_ends_no_diagnosis():
    pages = {"records": b"".join(encode_lines(slower(), timeline=False)).decode(), "happenings": "<html>"}
    with serving(Admin(**pages)) as server:
        found = diagnose_sources([server.url])
    assert any("/happenings" in note for note in found.not_understood)
