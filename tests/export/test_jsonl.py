import json

import msgspec
import pytest
from hypothesis import given, settings

from tailrace.export.jsonl import encode_lines, encode_public, from_public_json, to_public
from tailrace.model.errors import InputError
from tailrace.model.record import RequestRecord
from tests.store.samples import any_record, realistic


@given(any_record())
@settings(max_examples=200, deadline=None)
def test_the_public_form_gives_back_the_record_to_the_nanosecond(record):
    assert from_public_json(encode_public(record)) == record
    assert json.loads(encode_public(record)) == to_public(record), "another JSON reader sees the same"


def test_realistic_records_round_trip_as_lines():
    records = realistic(500, kept=0.3)
    lines = b"".join(encode_lines(records)).splitlines()
    assert [from_public_json(line) for line in lines] == records


def test_units_are_in_the_names_and_stages_are_an_object():
    record = msgspec.structs.replace(
        realistic(1, kept=1.0, events=2, failing=0)[0], ttft_ns=41_250_001, queue_engine_ns=7, start_unix_ns=10**18 + 5
    )
    public = to_public(record)
    assert public["ttft_ms"] == 41.250001
    assert public["stages_ms"] == {str(name): value / 1e6 for name, value in record.stages().items()}
    assert public["parts_ms"] == {"queue.gateway": record.queue_gateway_ns / 1e6, "queue.engine": 0.000007}
    assert public["start_unix_ns"] == 10**18 + 5
    assert public["start"] == "2001-09-09T01:46:40.000Z"
    assert public["timeline"]["kind"] == ["content", "content"]
    assert public["timeline"]["at_ms"] == [at / 1e6 for at in record.timeline.at_ns]
    assert "encode_ms" not in public, "absent is left out, never 0"
    assert public["client_blocked_ms"] == 0, "a 0 that was measured is said"
    assert not [name for name in public if name.endswith("_ns") and name != "start_unix_ns"]


def test_every_field_of_the_record_is_in_the_public_form_once():
    names = []
    for name in RequestRecord.__struct_fields__:
        whole = {"int": 7, "str": "x", "float": 0.5, "bool": True}
        kind = RequestRecord.__annotations__[name].partition(" | ")[0]
        if kind in whole:
            names.append((name, whole[kind]))
    names += [("parts_ns", {"decode.first": 7}), ("fact_sources", {"dtype": "configuration"})]
    record = msgspec.structs.replace(realistic(1, kept=1.0, failing=1.0)[0], **dict(names))
    text = encode_public(record)
    assert from_public_json(text) == record
    public = to_public(record)
    size = sum(len(value) if name in ("stages_ms", "parts_ms") else 1 for name, value in public.items())
    assert size == len(RequestRecord.__struct_fields__) + 1, "all fields, and `start` for people"


def test_the_timeline_can_be_left_out():
    record = realistic(1, kept=1.0)[0]
    assert from_public_json(encode_public(record, timeline=False)) == msgspec.structs.replace(record, timeline=None)


def test_unknown_keys_of_a_newer_tailrace_are_ignored():
    record = realistic(1)[0]
    public = {**to_public(record), "moon_phase": 0.3}
    assert from_public_json(json.dumps(public)) == record


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "this line is not JSON"),
        (b"\xff\xfe", "this line is not JSON"),
        (b"[]", "a record is a JSON object"),
        (b'{"request_id": "a"}', "missing required field"),
        (b'{"request_id": "a", "start_unix_ns": 1, "e2e_ms": "long", "outcome": "completed"}', "TypeError"),
        (b'{"request_id": "a", "start_unix_ns": 1, "e2e_ms": 1, "outcome": "great"}', "great"),
        (
            b'{"request_id": "a", "start_unix_ns": 1, "e2e_ms": 1, "outcome": "failed", "stages_ms": [1]}',
            "AttributeErr",
        ),
        (
            b'{"request_id": "a", "start_unix_ns": 1, "e2e_ms": 1, "outcome": "failed", "timeline": {"at_ms": []}}',
            "kind",
        ),
    ],
)
def test_what_is_no_record_is_refused_with_its_place(line, says):
    with pytest.raises(InputError, match=says) as caught:
        from_public_json(line, place="x.jsonl:3")
    assert caught.value.place == "x.jsonl:3"
