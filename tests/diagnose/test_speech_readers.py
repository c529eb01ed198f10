"""Speech events, agents' payloads and traces as systems write them, and what damage does to them."""

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.observed import Series
from tailrace.diagnose.readers.formats import format_of
from tailrace.diagnose.readers.source import Kind, kind_of
from tailrace.diagnose.speech_evidence.turns import turns_of
from tailrace.model.errors import InputError
from tailrace.model.finding import Level
from tests.diagnose.speech_evidence import audio, found, partial, read, write


def rows_of(observed, kind):
    (rows,) = observed.table(kind)
    return rows


def given_text(tmp_path, text, name="events.jsonl"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path)


# -- events


def test_seconds_and_milliseconds_are_told_by_their_names(tmp_path):
    events = [
        {
            "stream_id": "s",
            "t_recv_ms": 1500,
            "kind": "partial",
            "text": "so",
            "audio_start_ms": 0,
            "audio_end_ms": 1200,
        },
        {"stream_id": "s", "t_recv": 2.5, "kind": "final", "text": "so it", "audio_start_s": 0, "audio_end_s": 2.2},
    ]
    rows = rows_of(read(write(tmp_path / "e.jsonl", events)), "speech")
    assert rows.numbers("t_recv").tolist() == [1.5, 2.5]
    assert rows.numbers("audio_end").tolist() == [1.2, 2.2]


DEEPGRAM = {
    "type": "Results", "start": 1.0, "duration": 2.0, "is_final": True, "speech_final": True,
    "channel": {"alternatives": [{"transcript": "so it is", "confidence": 0.9, "words": []}]},
    "metadata": {"request_id": "r"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("message", "kind", "text", "end"),
    [
        (DEEPGRAM, "final", "so it is", 3.0),
        (DEEPGRAM | {"is_final": False}, "partial", "so it is", 3.0),
        (
            {"event": "EndOfTurn", "turn_index": 3, "transcript": "yes", "audio_window_end": 9.5, "sequence_id": 4},
            "final",
            "yes",
            9.5,
        ),
        (
            {
                "type": "Turn",
                "turn_order": 1,
                "end_of_turn": True,
                "transcript": "yes",
                "words": [{"start": 100, "end": 900, "text": "yes"}],
            },
            "final",
            "yes",
            0.9,
        ),
        ({"type": "transcription.delta", "delta": " so"}, "partial", " so", None),
        ({"type": "transcription.done", "text": "so it"}, "final", "so it", None),
        (
            {"type": "conversation.item.input_audio_transcription.completed", "item_id": "i", "transcript": "so"},
            "final",
            "so",
            None,
        ),
        (
            {"results": [{"alternatives": [{"transcript": "to be"}], "is_final": False, "audio_processed": 2.5}]},
            "partial",
            "to be",
            2.5,
        ),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_recognisers_own_messages(tmp_path, message, kind, text, end, wrapped):
    event = {"t_recv": 4.0, "message": message} if wrapped else {"t_recv": 4.0, **message}
    path = write(tmp_path / "e.jsonl", [event, event])
    assert kind_of(path) is Kind.OBSERVED
    rows = rows_of(read(path), "speech")
    assert rows.texts("kind") == [kind, kind]
    assert rows.texts("text") == [text, text]
    seen = rows.numbers("audio_end")[0]
    assert np.isnan(seen) if end is None else seen == pytest.approx(end)


def test_a_list_of_events_is_read_as_lines_are(tmp_path):
    events = [*audio(2), partial(1.2, "so")]
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps(events, indent=1))
    one_line = tmp_path / "one.json"
    one_line.write_text(json.dumps(events))
    lines = rows_of(read(write(tmp_path / "e.jsonl", events)), "speech")
    for path in (listed, one_line):
        rows = rows_of(read(path), "speech")
        assert rows.texts("kind") == lines.texts("kind")
        assert rows.numbers("t_recv").tolist() == lines.numbers("t_recv").tolist()


def test_damage_is_counted_and_the_rest_read(tmp_path):
    good = [json.dumps(event) for event in audio(3)]
    text = "\ufeff" + "\r\n".join(
        [*good[:10], "Traceback (most recent call last):", good[10][:20], '{"a": 1}', *good[10:]]
    )
    observed = given_text(tmp_path, text)
    assert len(rows_of(observed, "speech")) == 30
    (understood,) = observed.understood
    assert (understood.understood, understood.total) == (30, 33)
    assert "11: Traceback" in understood.examples[0]


def test_bytes_that_are_no_text_and_a_line_without_end(tmp_path):
    good = "\n".join(json.dumps(event) for event in audio(1)).encode()
    assert len(rows_of(given_text(tmp_path, good + b"\n\xff\xfe\x00\n" + good), "speech")) == 20
    began = time.process_time()
    huge = good + b'\n{"kind": "partial", "t_recv": 1, "text": "' + b"x" * 10_000_000 + b'"}\n'
    assert len(rows_of(given_text(tmp_path, huge), "speech")) == 11
    assert time.process_time() - began < 5


def test_events_without_a_receive_time_are_refused(tmp_path):
    with pytest.raises(InputError, match="when it was received"):
        given_text(tmp_path, '{"kind": "partial", "text": "so", "audio_end_s": 1.0}\n')


EVENT = st.dictionaries(
    st.sampled_from(
        ["kind", "t_recv", "text", "audio_end_s", "voiced", "stream_id", "words", "t_recv_ms", "type", "x"]
    ),
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.sampled_from(["partial", "final", "audio", "Results", ""])
    | st.lists(st.dictionaries(st.sampled_from(["start", "end"]), st.floats(), max_size=2), max_size=2),
    max_size=8,
)


@given(st.lists(EVENT, min_size=1, max_size=8))
def test_any_objects_are_read_or_refused(tmp_path_factory, events):
    from tailrace.diagnose.causes.speech import SPEECH
    from tailrace.diagnose.readers.speech_events import SPEECH_EVENTS

    path = tmp_path_factory.mktemp("e") / "e.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    try:
        observed = SPEECH_EVENTS.read(path, "e.jsonl")
    except InputError:
        return
    for cause in SPEECH:
        cause.observe(observed)


# -- agents


def turns_in(tmp_path, *lines):
    return turns_of(given_text(tmp_path, "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)))


def test_livekit_in_seconds_in_milliseconds_and_out_of_order(tmp_path):
    (seconds,) = turns_in(
        tmp_path,
        {"type": "llm_metrics", "speech_id": "a", "ttft": 2.1},
        {"type": "eou_metrics", "speech_id": "a", "end_of_utterance_delay": 4.12, "transcription_delay": 4.12},
        {"type": "tts_metrics", "speech_id": "a", "ttfb": 0.361, "duration": 2.0, "audio_duration": 4.0},
    )
    (thousandths,) = turns_in(
        tmp_path,
        {"type": "eou_metrics", "speechId": "a", "endOfUtteranceDelayMs": 4120, "transcriptionDelayMs": 4120},
        {"type": "llm_metrics", "speechId": "a", "ttftMs": 2100},
        {"type": "tts_metrics", "speechId": "a", "ttfbMs": 361, "durationMs": 2000, "audioDurationMs": 4000},
    )
    for name in ("end_of_turn", "transcription_delay", "llm_ttft", "tts_ttfb", "tts_duration", "tts_audio"):
        assert seconds.get(name).tolist() == pytest.approx(thousandths.get(name).tolist())
    assert len(seconds) == 1


@pytest.mark.parametrize(
    "line",
    [
        'DEBUG livekit.agents - EOU metrics {"end_of_utterance_delay": 1.5, "transcription_delay": 0.4}',
        '{"message": "EOU metrics", "end_of_utterance_delay": 1.5, "transcription_delay": 0.4}',
        '{"extra": {"metrics": {"type": "eou_metrics", "end_of_utterance_delay": 1.5, "transcription_delay": 0.4}}}',
        "metrics: EOUMetrics(type='eou_metrics', timestamp=1, end_of_utterance_delay=1.5, transcription_delay=0.4)",
        '{"metrics": {"endOfTurnDelay": 1.5, "transcriptionDelay": 0.4, "llmNodeTtft": 0.6}}',
    ],
)
def test_livekit_as_logs_wrap_it(tmp_path, line):
    (turns,) = turns_in(tmp_path, line, line)
    assert turns.get("end_of_turn")[0] == 1500.0
    assert turns.get("transcription_delay")[0] == 400.0


def test_deepgram_bolna_and_pipecat(tmp_path):
    (deepgram,) = turns_in(
        tmp_path,
        {
            "type": "LatencyReport",
            "stt_latency": 0.12,
            "ttt_token_latency": 0.34,
            "tts_latency": 0.2,
            "total_latency": 0.9,
        },
        {"type": "LatencyReport", "stt_latency": 0.14, "total_latency": 1.9},
    )
    assert deepgram.get("total").tolist() == [900.0, 1900.0]
    bolna = given_text(
        tmp_path,
        json.dumps(
            {
                "latency_data": {
                    "stream_id": 129.5,
                    "time_to_first_audio": 130.8,
                    "transcriber": {"time_to_connect": 226, "turns": [{"turn": 1, "turn_latency": 310}]},
                    "llm": {"time_to_connect": None, "turns": [{"turn": 1, "time_to_first_token": 640}]},
                    "synthesizer": {"time_to_connect": 271, "turns": []},
                }
            },
            indent=2,
        ),
    )
    (turns,) = turns_of(bolna)
    assert (turns.get("transcription_delay")[0], turns.get("llm_ttft")[0]) == (310.0, 640.0)
    assert {item.name: item.value for item in bolna.settings}["speech.transcriber.time_to_connect"] == 226.0
    (pipecat,) = turns_in(
        tmp_path,
        "AnthropicLLMService#0 TTFB: 0.837",
        "CartesiaTTSService#0 TTFB: 0.171",
        "CartesiaTTSService#0 processing time: 0.0005",
        "AnthropicLLMService#0 TTFB: 0.650",
    )
    assert pipecat.get("llm_ttft").tolist() == [837.0, 650.0]


def test_a_recogniser_that_measures_no_duration(tmp_path):
    def metric(duration, **more):
        return {"type": "stt_metrics", "label": "deepgram", "duration": duration, "audio_duration": 5.0, **more}

    observed = given_text(tmp_path, "\n".join(json.dumps(metric(0.0, streamed=True)) for _ in range(4)))
    finding = found(observed, "METRIC_GAP")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "20.0 s of audio" in finding.statement
    measured = given_text(tmp_path, "\n".join(json.dumps(metric(d)) for d in (0.4, 0.0, 0.3)))
    assert found(measured, "METRIC_GAP") is None
    single = found(given_text(tmp_path, json.dumps(metric(0))), "METRIC_GAP")
    assert single is not None
    assert single.level is Level.SUSPECTED


# -- delays that cannot be right


def table_of_turns(**columns):
    from tailrace.diagnose.observed import Observed, Place

    n = len(next(iter(columns.values())))
    return Observed(
        series=[
            Series(
                name=name,
                axis="turn",
                at=np.arange(1.0, n + 1),
                values=np.asarray(cells, dtype=float),
                unit="ms",
                place=Place("turns.csv"),
            )
            for name, cells in columns.items()
        ]
    )


def test_a_delay_that_is_always_zero():
    times = {"speech_end": [4210, 9900, 15020], "final_recv": [4830, 10440, 15710]}
    finding = found(table_of_turns(transcription_delay=[0, 0, 0], **times), "METRIC_BUG")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "0.62 s" in finding.statement
    alone = found(table_of_turns(transcription_delay=[0, 0, 0]), "METRIC_BUG")
    assert alone is not None
    assert found(table_of_turns(transcription_delay=[0, 0]), "METRIC_BUG") is None
    assert found(table_of_turns(transcription_delay=[0, 310, 0], **times), "METRIC_BUG") is None
    assert found(table_of_turns(transcription_delay=[620, 540, 690], **times), "METRIC_BUG") is None


def test_negative_delays():
    finding = found(table_of_turns(transcription_delay=[300, -1200, -900, 250]), "METRIC_BUG")
    assert finding is not None
    assert "-1.20 s" in finding.statement
    assert found(table_of_turns(transcription_delay=[300, -1200, *([250] * 20)]), "METRIC_BUG") is None


@pytest.mark.parametrize("offset", [0.0, 1_700_000_000.0])
def test_arrival_taken_for_the_time_of_words(tmp_path, offset):
    times = [(5.3, 3.1), (10.5, 7.6), (15.5, 13.5), (20.8, 18.2)]
    texts = [partial(at, "w", end=end, transcript_stamp_s=at + offset, kind="final") for at, end in times]
    finding = found(read(write(tmp_path / "e.jsonl", texts)), "METRIC_BUG")
    assert finding is not None
    assert "arrival" in finding.statement
    right = [partial(at, "w", end=end, transcript_stamp_s=end + offset, kind="final") for at, end in times]
    assert found(read(write(tmp_path / "e.jsonl", right)), "METRIC_BUG") is None
    prompt = [partial(at, "w", end=at - 0.2, transcript_stamp_s=at + offset, kind="final") for at, _ in times]
    assert found(read(write(tmp_path / "e.jsonl", prompt)), "METRIC_BUG") is None
    assert found(read(write(tmp_path / "e.jsonl", texts[:2])), "METRIC_BUG") is None


# -- traces

BASE = 1_730_000_000_000_000_000


def span(name, start_s, end_s, number, parent=0, **attributes):
    made = {
        "traceId": f"{attributes.pop('trace', 1):032x}",
        "spanId": f"{number:016x}",
        "name": name,
        "startTimeUnixNano": str(BASE + int(start_s * 1e9)),
        "endTimeUnixNano": str(BASE + int(end_s * 1e9)),
    }
    if parent:
        made["parentSpanId"] = f"{parent:016x}"
    if attributes:
        made["attributes"] = [{"key": key, "value": {"doubleValue": value}} for key, value in attributes.items()]
    return made


def otlp(**services):
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": name}}]},
                "scopeSpans": [{"spans": spans}],
            }
            for name, spans in services.items()
        ]
    }


LATENCY = {"gen_ai.latency.time_in_queue": 0.002, "gen_ai.latency.time_to_first_token": 0.06}


@pytest.mark.parametrize("indent", [None, 1])
def test_a_gap_before_the_engine(tmp_path, indent):
    said = otlp(client=[span("POST", 0, 10, 1)], vllm=[span("llm_request", 8, 10, 2, 1, **LATENCY)])
    finding = found(given_text(tmp_path, json.dumps(said, indent=indent), "t.json"), "TRACE_GAP")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "20%" in finding.statement
    assert "before the first server span" in finding.statement
    assert "8.0 s" in finding.statement


def test_a_gateway_around_the_engine_hides_no_gap(tmp_path):
    said = otlp(
        client=[span("POST", 0, 10, 1)],
        gateway=[span("proxy", 0, 10, 2, 1), span("upstream", 0.1, 9.9, 3, 2)],
        vllm=[span("llm_request", 8, 9.9, 4, 3, **LATENCY)],
    )
    finding = found(given_text(tmp_path, json.dumps(said), "t.json"), "TRACE_GAP")
    assert finding is not None
    assert "19%" in finding.statement


def test_covered_requests_have_no_gap(tmp_path):
    said = otlp(client=[span("POST", 0, 10, 1)], vllm=[span("llm_request", 0.2, 9.9, 2, 1, **LATENCY)])
    assert found(given_text(tmp_path, json.dumps(said), "t.json"), "TRACE_GAP") is None
    parts = otlp(
        client=[span("POST", 0, 10, 1)],
        app=[span("tokenise", 0, 4, 3, 1)],
        vllm=[span("llm_request", 4, 10, 2, 1, **LATENCY)],
    )
    assert found(given_text(tmp_path, json.dumps(parts), "t.json"), "TRACE_GAP") is None


def test_a_gap_after_the_last_token_is_the_clients_write(tmp_path):
    said = otlp(client=[span("POST", 0, 10, 1)], vllm=[span("llm_request", 0, 3, 2, 1, **LATENCY)])
    finding = found(given_text(tmp_path, json.dumps(said), "t.json"), "TRACE_GAP")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert finding.rivals == ["CLIENT_SLOW_READER"]


def test_clocks_that_differ_leave_no_place_for_the_gap(tmp_path):
    said = otlp(client=[span("POST", 0, 10, 1)], vllm=[span("llm_request", 20, 22, 2, 1, **LATENCY)])
    finding = found(given_text(tmp_path, json.dumps(said), "t.json"), "TRACE_GAP")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "20%" in finding.statement
    assert "clocks" in finding.missing[0]


def test_engines_spans_alone_do_not_say_what_they_leave_out(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(otlp(vllm=[span("llm_request", 8, 10, 2, 1, **LATENCY)])))
    result = diagnose_sources([str(path)])
    assert result.findings[0].code == "INSUFFICIENT_EVIDENCE"
    assert "client's" in result.findings[0].missing[0]


def test_traces_one_a_line_with_a_broken_one(tmp_path):
    lines = [
        json.dumps(
            otlp(
                client=[span("POST", 0, 10, 1, trace=at)],
                vllm=[span("llm_request", 8, 10, 2, 1, trace=at, **LATENCY)],
            )
        )
        for at in range(1, 6)
    ]
    observed = given_text(
        tmp_path,
        "\n".join([*lines[:3], '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId"', *lines[3:]]),
        "t.jsonl",
    )
    finding = found(observed, "TRACE_GAP")
    assert finding is not None
    assert finding.n == 5
    (understood,) = observed.understood
    assert (understood.understood, understood.total) == (10, 11)


def test_beginnings_of_other_json_are_left_to_their_readers():
    for text in (
        '{"facts": 1, "arms": {}}',
        '{"id": 1, "t_send_ms": 3, "t_first_ms": 5, "status": "ok"}',
        '{"request_id": "a", "ttft_ms": 5}',
        '{"level": "info", "msg": "kind of late", "t": 3}',
    ):
        form = format_of(text, "x.jsonl")
        assert form is None or form.name not in {"speech events", "voice agent metrics", "OTLP traces"}
