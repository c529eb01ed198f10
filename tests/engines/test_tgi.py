"""TGI by its source: headers as timings, errors under wrong codes, its own routes, its metrics."""

from __future__ import annotations

import pytest

from tailrace.engines.base import Basis, TimingFacts
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.registry import adapter, detect, recognise
from tailrace.measure.dialect import EngineFault
from tailrace.measure.meter import StreamMeter, summarise_body
from tailrace.model.outcome import OutcomeKind, Reason
from tests.engines.read_in_source import tgi as read_in_source
from tests.engines.replay import CHAT, MS, completed, record_of

TGI = adapter("tgi")


def test_it_says_that_it_was_never_run() -> None:
    assert TGI.basis is Basis.READ_IN_SOURCE


def test_headers_of_an_answer_in_one_piece_are_its_timings() -> None:
    said = {name: value for name, value in read_in_source.TIMING_HEADERS.items() if name.encode() in TGI.timing_headers}
    assert set(said) == {name.decode() for name in TGI.timing_headers}
    facts = TimingFacts(sent=0, end=1000 * MS, stream=False, said_headers=said)
    got = TGI.timings(facts, None)
    assert (got.queue_ns, got.preprocess_ns) == (300 * MS, 12 * MS)
    assert (got.prefill_ns, got.decode_ns) == (None, None), "its inference time does not tell them apart"
    assert got.sources == {
        "queue": "reported(header x-queue-time)",
        "preprocess": "reported(header x-validation-time)",
    }


def test_a_streams_headers_say_nothing() -> None:
    facts = TimingFacts(sent=0, headers=MS, end=1000 * MS, said_headers=read_in_source.STREAM_HEADERS)
    assert TGI.timings(facts, None).sources == {}


@pytest.mark.parametrize("text", ["", "soon", "nan", "-4", "1e400", "9" * 30])
def test_a_header_that_is_no_time_is_not_believed(text: str) -> None:
    facts = TimingFacts(sent=0, end=MS, stream=False, said_headers={"x-queue-time": text})
    assert TGI.timings(facts, None).queue_ns is None


@pytest.mark.parametrize(
    ("answer", "reason", "stage"),
    [
        (read_in_source.OVERLOADED, Reason.QUEUE_FULL, "queue"),
        (read_in_source.TOO_LONG, Reason.INPUT_TOO_LONG, "preprocess"),
        (read_in_source.TOO_MUCH, Reason.INPUT_TOO_LONG, "preprocess"),
        (read_in_source.BAD, Reason.BAD_REQUEST, "ingress"),
        (read_in_source.TEMPLATE, Reason.BAD_REQUEST, "ingress"),
        (read_in_source.GENERATION, Reason.ENGINE_ERROR, "prefill"),
        (read_in_source.INCOMPLETE, Reason.ENGINE_ERROR, "prefill"),
    ],
)
def test_errors_by_their_words(answer: tuple[int, bytes], reason: Reason, stage: str) -> None:
    ending = TGI.error(*answer, path=CHAT)
    assert (ending.reason, ending.stage) == (reason, stage)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Model is overloaded", Reason.QUEUE_FULL),
        ("Request failed during generation: CUDA out of memory", Reason.ENGINE_ERROR),
        ("Incomplete generation stream", Reason.ENGINE_ERROR),
        ("Input validation error: `inputs` must have less than 8 tokens. Given: 9", Reason.INPUT_TOO_LONG),
        ("Input validation error: `top_p` must be > 0.0 and < 1.0", Reason.BAD_REQUEST),
    ],
)
def test_every_error_inside_a_stream_calls_itself_422(message: str, reason: Reason) -> None:
    meter = StreamMeter(TGI.dialect(CHAT), origin_ns=0)
    meter.feed(read_in_source.openai_event(message), 5 * MS)
    meter.end(6 * MS, clean=True)
    assert meter.fault == EngineFault(message, "", 422)
    ending = TGI.judge(meter.summary())
    assert ending.outcome is not OutcomeKind.COMPLETED, "[DONE] follows all the same"
    assert ending.reason is reason


def test_its_own_stream_ends_with_the_whole_text() -> None:
    meter = StreamMeter(TGI.dialect("/generate_stream"), origin_ns=0)
    for index, frame in enumerate(read_in_source.GENERATE_STREAM):
        meter.feed(frame, (index + 1) * 10 * MS)
    meter.end(40 * MS, clean=True)
    summary = meter.summary()
    assert completed(TGI, summary)
    assert (summary.prompt_tokens, summary.output_tokens, summary.finish_reason) == (5, 3, "eos_token")
    assert summary.first_token_at == 10 * MS
    assert summary.last_token_at == 20 * MS, "the end of sequence has no text"
    record_of(TGI, summary, headers=MS)


def test_its_own_stream_cut_is_cut() -> None:
    meter = StreamMeter(TGI.dialect("/generate_stream"), origin_ns=0)
    meter.feed(read_in_source.GENERATE_STREAM[0], 10 * MS)
    meter.end(40 * MS, clean=True)
    assert TGI.judge(meter.summary()).reason is Reason.STREAM_CUT


def test_its_own_error_frame() -> None:
    meter = StreamMeter(TGI.dialect("/generate_stream"), origin_ns=0)
    meter.feed(read_in_source.GENERATE_STREAM[0] + read_in_source.STREAM_ERROR, 10 * MS)
    meter.end(40 * MS, clean=True)
    ending = TGI.judge(meter.summary())
    assert (ending.reason, ending.stage, ending.retry_other) == (Reason.ENGINE_ERROR, "decode", False)


@pytest.mark.parametrize("body", [b'{"generated_text":"Hi"}', b'[{"generated_text":"Hi"}]'])
def test_its_own_body(body: bytes) -> None:
    meaning = TGI.dialect("/generate").read_body(body)
    assert meaning.done
    assert summarise_body(meaning, origin_ns=0, now=MS).finished


def test_triton_paths_stay_tritons() -> None:
    assert TGI.dialect("/v2/models/m/generate").name == "triton.generate"


def test_state_and_detection() -> None:
    state = TGI.parse_metrics(read_in_source.METRICS, 1)
    assert (state.running, state.waiting, state.generation_tokens_total) == (5, 3, 620)
    assert state.queue_seconds_total == 1.5
    assert detect({}, parse_scrape(read_in_source.METRICS).names).name == "tgi"
    assert detect(read_in_source.STREAM_HEADERS, ()).name == "tgi"


def test_info_gives_it_away_and_tells_its_sizes() -> None:
    hit = recognise("/info", read_in_source.INFO)
    assert hit is not None
    assert (hit.name, hit.version) == ("tgi", "3.3.6-dev0")
    facts = TGI.read_info("/info", read_in_source.INFO)
    assert {key: fact.value for key, fact in facts.items()} == {
        "version": "3.3.6-dev0",
        "model": "acme/model-7b",
        "max_input_len": 1024,
        "max_model_len": 2048,
        "max_queued": 128,
    }
    old = TGI.read_info("/info", read_in_source.OLD_INFO)
    assert (old["dtype"].value, old["max_input_len"].value) == ("torch.float16", 1024)
