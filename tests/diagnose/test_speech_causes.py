"""Causes of streaming speech, each with what shows it, what looks like it and is not, and what lowers its level."""

import random

import numpy as np
import pytest

from tailrace.diagnose.observed import Arm, Observed, Place, Quoted, Rows, Series, Setting
from tailrace.model.finding import Level
from tests.diagnose.speech_evidence import audio, found, partial, read, write


def heard(tmp_path, *events) -> Observed:
    """The events in a file, in the order in which they were received."""
    listed = sorted((one for some in events for one in some), key=lambda event: event["t_recv"])
    return read(write(tmp_path / "events.jsonl", listed))


def series(name, at, values, *, axis="session_age", unit="ms", **labels) -> Series:
    return Series(
        name=name,
        labels=labels,
        axis=axis,
        at=np.asarray(at, dtype=float),
        values=np.asarray(values, dtype=float),
        unit=unit,
        place=Place("s.csv"),
    )


def arm(name, keys=None, label="", **values) -> Arm:
    """`ttft_p50=3` -> the median TTFT in ms."""
    made = {}
    for key, value in values.items():
        quantity, _, stat = key.rpartition("_") if key.rpartition("_")[2] in {"p50", "p95", "mean"} else (key, "", "")
        quoted = Quoted(quantity=quantity, stat=stat, value=value, label=label or key, place=Place("t.md", 3))
        made[quoted.key] = quoted
    return Arm(name=name, label=name, keys=keys or {}, values=made, place=Place("t.md", 3))


def turns(**columns) -> Observed:
    n = len(next(iter(columns.values())))
    return Observed(
        rows=[
            Rows(
                kind="turns",
                columns={
                    "turn": np.array([str(at) for at in range(1, n + 1)], dtype=object),
                    **{name: np.array(cells, dtype=float) for name, cells in columns.items()},
                },
                place=Place("turns.jsonl"),
            )
        ]
    )


# -- ASR_SILENT_HANG


def test_speech_without_text_for_seconds_is_a_hang(tmp_path):
    seen = heard(tmp_path, audio(20), [partial(1.2, "so"), partial(18.5, "so the end")])
    finding = found(seen, "ASR_SILENT_HANG")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "17.3 s" in finding.statement
    assert "dBFS" in finding.evidence[1].text


def test_a_hang_that_never_ends_is_told_as_such(tmp_path):
    finding = found(heard(tmp_path, audio(12), [partial(1.2, "so")]), "ASR_SILENT_HANG")
    assert finding is not None
    assert "no result came after it" in finding.statement


@pytest.mark.parametrize(
    ("voiced", "texts"),
    [
        (lambda at: at < 1.0, [partial(1.2, "so"), partial(19.0, "and")]),  # a pause
        (lambda at: at < 1.5, [partial(1.2, "so"), partial(1.9, "so far", kind="final")]),  # nobody speaks any more
        (True, [partial(at / 2, "w" * at) for at in range(1, 40)]),  # text comes all the time
        (lambda at: int(at) % 20 == 5, [partial(1.0, "so"), partial(19.0, "and")]),  # less than a second of voice
    ],
)
def test_silence_is_no_hang(tmp_path, voiced, texts):
    assert found(heard(tmp_path, audio(19.5, voiced=voiced), texts), "ASR_SILENT_HANG") is None


def test_without_a_voice_detector_a_hang_is_suspected(tmp_path):
    loud = [{key: value for key, value in event.items() if key != "voiced"} for event in audio(20)]
    finding = found(heard(tmp_path, loud, [partial(1.2, "so"), partial(18.5, "so the end")]), "ASR_SILENT_HANG")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "voice detector" in finding.missing[0]


def test_without_audio_nobody_can_tell_a_hang_from_a_pause(tmp_path):
    finding = found(heard(tmp_path, [partial(1.2, "so"), partial(18.5, "so the end")]), "ASR_SILENT_HANG")
    assert finding is not None
    assert finding.level is Level.INSUFFICIENT
    assert "voiced" in finding.missing[0]


def log_of(running, generated) -> list[Series]:
    at = 10.0 * np.arange(len(running))
    return [
        series("running", at, running, axis="time", unit="count", engine="0"),
        series("output_tok_s", at, generated, axis="time", unit="tok/s", engine="0"),
    ]


def test_a_full_encoder_cache_with_requests_that_stand_still_is_suspected():
    settings = [
        Setting(name="endpoint", value="/v1/realtime", place=Place("f.json")),
        Setting(name="encoder_cache_usage_pct", value=100, place=Place("f.json")),
    ]
    finding = found(Observed(settings=settings, series=log_of([1, 1, 1, 1], [12, 0, 0, 0])), "ASR_SILENT_HANG")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "Running is 1" in finding.statement
    assert finding.rivals == ["ENGINE_STALL"]


@pytest.mark.parametrize(
    ("settings", "generated"),
    [
        ([("endpoint", "/v1/realtime"), ("encoder_cache_usage_pct", 60)], [12, 0, 0, 0]),  # there is room
        ([("endpoint", "/v1/chat/completions"), ("encoder_cache_usage_pct", 100)], [12, 0, 0, 0]),  # no speech
        ([("endpoint", "/v1/realtime"), ("encoder_cache_usage_pct", 100)], [12, 11, 12, 12]),  # tokens come
        ([("endpoint", "/v1/realtime"), ("encoder_cache_usage_pct", 100)], [12, 0, 12, 12]),  # one line
    ],
)
def test_an_encoder_cache_alone_is_no_hang(settings, generated):
    told = [Setting(name=name, value=value) for name, value in settings]
    assert found(Observed(settings=told, series=log_of([1, 1, 1, 1], generated)), "ASR_SILENT_HANG") is None


# -- ASR_EMPTY_DELTAS


def blanks(begin: float, n: int, step: float = 0.08) -> list[dict]:
    return [partial(round(begin + step * at, 3), "", mode="append") for at in range(n)]


def test_blank_deltas_over_speech(tmp_path):
    finding = found(heard(tmp_path, audio(10), [partial(0.5, "so")], blanks(1.0, 100)), "ASR_EMPTY_DELTAS")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "12.5 a second" in finding.statement
    assert found(heard(tmp_path, audio(10), [partial(0.5, "so")], blanks(1.0, 100)), "ASR_SILENT_HANG") is None


@pytest.mark.parametrize(
    ("voiced", "texts"),
    [
        (False, []),
        (lambda at: at < 1.0, [partial(0.5, "so")]),
        (True, [partial(round(1.04 + 0.8 * at, 3), "word") for at in range(11)]),  # blanks between words
    ],
)
def test_blanks_in_silence_or_between_words_are_right(tmp_path, voiced, texts):
    assert found(heard(tmp_path, audio(10, voiced=voiced), texts, blanks(1.0, 100)), "ASR_EMPTY_DELTAS") is None


def test_blanks_without_audio_are_a_question(tmp_path):
    finding = found(heard(tmp_path, blanks(1.0, 100)), "ASR_EMPTY_DELTAS")
    assert finding is not None
    assert finding.level is Level.INSUFFICIENT


# -- ASR_LAG_GROWS

AGES = np.arange(60.0, 660.0, 60.0)


@pytest.mark.parametrize("name", ["chunk_service", "feed_ms", "service_time_ms"])
@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_chunks_that_take_longer_with_the_age_of_the_session(name, scale):
    noise = np.random.default_rng(1).normal(0, 0.05, AGES.size)
    seen = Observed(
        series=[
            series(name, AGES, scale * (3.2 + AGES / 50 + noise)),
            series("sessions", AGES, np.ones(AGES.size), unit="count"),
        ]
    )
    finding = found(seen, "ASR_LAG_GROWS")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "ms per minute" in finding.statement
    assert f"{scale * 1.2:.1f}" in f"{finding.evidence[2].value:.1f}"


def test_without_the_number_of_sessions_growth_is_suspected():
    finding = found(Observed(series=[series("chunk_service", AGES, 3.2 + AGES / 50)]), "ASR_LAG_GROWS")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "number of sessions" in finding.missing[0]


@pytest.mark.parametrize(
    ("values", "sessions"),
    [
        (4.8 - AGES / 2000, np.ones(AGES.size)),  # falls
        (4.5 + 0.02 * np.sin(AGES), np.ones(AGES.size)),  # stands
        (5.0 * np.arange(1, 11), np.arange(1, 11)),  # follows the sessions
    ],
)
def test_what_does_not_grow_with_age_is_no_leak(values, sessions):
    seen = Observed(series=[series("chunk_service", AGES, values), series("sessions", AGES, sessions, unit="count")])
    assert found(seen, "ASR_LAG_GROWS") is None


def test_a_backlog_is_audio_received_minus_processed():
    seen = Observed(
        series=[
            series("audio_received_s", AGES, AGES, unit="s"),
            series("audio_processed_s", AGES, 0.9 * AGES, unit="s"),
            series("sessions", AGES, np.full(AGES.size, 4.0), unit="count"),
        ]
    )
    finding = found(seen, "ASR_LAG_GROWS")
    assert finding is not None
    assert "backlog" in finding.statement
    assert "6000.00 ms per minute" in finding.statement


def test_results_that_fall_behind_the_audio(tmp_path):
    texts = [
        partial(round(end + 0.3 + end / 20, 3), f"w{end}", end=float(end), utterance=f"u{end}", kind="final")
        for end in range(2, 60, 3)
    ]
    finding = found(heard(tmp_path, audio(60), texts), "ASR_LAG_GROWS")
    assert finding is not None
    assert "falls behind" in finding.statement
    steady = [
        partial(end + 0.3, f"w{end}", end=float(end), utterance=f"u{end}", kind="final") for end in range(2, 60, 3)
    ]
    assert found(heard(tmp_path, audio(60), steady), "ASR_LAG_GROWS") is None


# -- ASR_REDECODE_GROWTH


def utterances(grow: float, *, back: bool = True, mode="replace") -> list[dict]:
    out = []
    for number in range(4):
        begin = 10.0 * number
        for step in range(1, 17):
            end = begin + step * 0.5
            base = 0.2 if back else 0.2 + grow * 8 * number
            out.append(
                partial(
                    round(end + base + grow * step * 0.5, 4),
                    "w" * step,
                    end=end,
                    utterance=f"u{number}",
                    mode=mode,
                    audio_start_s=begin,
                )
            )
    return out


def test_a_lag_that_grows_in_each_utterance_and_falls_back(tmp_path):
    seen = heard(tmp_path, audio(40), utterances(0.1))
    finding = found(seen, "ASR_REDECODE_GROWTH")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "100 ms for each second" in finding.statement
    assert found(seen, "ASR_LAG_GROWS") is None


def test_a_lag_that_does_not_fall_back_is_the_sessions(tmp_path):
    seen = heard(tmp_path, audio(40), utterances(0.1, back=False))
    assert found(seen, "ASR_REDECODE_GROWTH") is None
    assert found(seen, "ASR_LAG_GROWS") is not None
    assert found(heard(tmp_path, audio(40), utterances(0.0)), "ASR_REDECODE_GROWTH") is None


def test_without_audio_the_growth_is_suspected(tmp_path):
    finding = found(heard(tmp_path, utterances(0.1)), "ASR_REDECODE_GROWTH")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "audio" in finding.missing[0]


# -- ASR_FINAL_LATE and ASR_VAD_SILENCE_LONG


def test_a_turn_that_waits_for_the_final():
    seen = turns(
        end_of_turn=[3200, 600, 640],
        transcription_delay=[3190, 300, 310],
        llm_ttft=[1500, 500, 510],
        tts_ttfb=[250, 240, 260],
    )
    finding = found(seen, "ASR_FINAL_LATE")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "4.95 s voice to voice" in finding.statement
    assert "only the first turn" in finding.statement
    assert found(seen, "ASR_VAD_SILENCE_LONG") is None


def test_every_turn_may_wait_for_its_final():
    finding = found(turns(end_of_turn=[2200, 2300, 2100], transcription_delay=[2190, 2290, 2100]), "ASR_FINAL_LATE")
    assert finding is not None
    assert "first turn" not in finding.statement
    assert finding.n == 3


def test_a_turn_that_waits_for_its_timer_does_not_wait_for_the_final():
    timed = turns(end_of_turn=[1520, 1510, 1530], transcription_delay=[300, 310, 290])
    assert found(timed, "ASR_FINAL_LATE") is None
    finding = found(timed, "ASR_VAD_SILENCE_LONG")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "configured silence" in finding.missing[0]
    timed.settings = [Setting(name="speech.min_endpointing_delay", value=1500.0, unit="ms", place=Place("agent.py", 9))]
    finding = found(timed, "ASR_VAD_SILENCE_LONG")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "1500 ms are the configured silence; 20 ms" in finding.statement


@pytest.mark.parametrize(
    ("name", "value"), [("endpointing_ms", 1500), ("endpointing_s", 1.5), ("vad_silence_ms", 1500), ("stop_secs", 1.5)]
)
def test_a_silence_is_told_in_many_ways(name, value):
    seen = turns(end_of_turn=[1520, 1610, 1530], transcription_delay=[300, 310, 290])
    seen.settings = [Setting(name=name, value=value)]
    finding = found(seen, "ASR_VAD_SILENCE_LONG")
    assert finding is not None
    assert finding.level is Level.CONSISTENT


def test_short_or_uneven_ends_are_no_timer():
    assert found(turns(end_of_turn=[500, 510, 520], transcription_delay=[100, 90, 80]), "ASR_VAD_SILENCE_LONG") is None
    uneven = turns(end_of_turn=[800, 2900, 1400], transcription_delay=[100, 90, 80])
    assert found(uneven, "ASR_VAD_SILENCE_LONG") is None


def test_without_the_transcription_delay_a_late_end_is_suspected():
    finding = found(turns(end_of_turn=[4120, 700]), "ASR_FINAL_LATE")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "transcription delay" in finding.missing[0]


def test_finals_that_come_late_after_their_audio(tmp_path):
    texts = [partial(end + 1.8, "w", end=end, utterance=f"u{end}", kind="final") for end in (2.0, 5.0, 8.0)]
    finding = found(heard(tmp_path, audio(10), texts), "ASR_FINAL_LATE")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "1.78 s" in finding.statement
    prompt = [partial(end + 0.4, "w", end=end, utterance=f"u{end}", kind="final") for end in (2.0, 5.0, 8.0)]
    assert found(heard(tmp_path, audio(10), prompt), "ASR_FINAL_LATE") is None


# -- ASR_CHUNK_TOO_LARGE


def test_words_that_wait_for_their_chunk(tmp_path):
    texts = [partial(end + 0.15, "w", end=float(end)) for end in range(1, 20)]
    finding = found(heard(tmp_path, audio(20, chunk=1.0), texts), "ASR_CHUNK_TOO_LARGE")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "chunks of 1000 ms" in finding.statement
    assert "500 ms" in finding.statement
    assert found(heard(tmp_path, audio(20, chunk=0.1), texts), "ASR_CHUNK_TOO_LARGE") is None
    late = [partial(end + 3.0, "w", end=float(end)) for end in range(1, 17)]
    assert found(heard(tmp_path, audio(20, chunk=1.0), late), "ASR_CHUNK_TOO_LARGE") is None


def test_arms_with_other_chunks_tell_whether_they_matter():
    follows = [
        arm("60 ms", {"chunk_ms": 60.0}, first_partial_p50=180.0),
        arm("960 ms", {"chunk_ms": 960.0}, first_partial_p50=760.0),
    ]
    assert found(Observed(arms=follows), "ASR_CHUNK_TOO_LARGE") is not None
    stays = [
        arm("60 ms", {"chunk_ms": 60.0}, first_partial_p50=740.0),
        arm("960 ms", {"chunk_ms": 960.0}, first_partial_p50=760.0),
    ]
    assert found(Observed(arms=stays), "ASR_CHUNK_TOO_LARGE") is None


# -- AUDIO_UNDERRUN


def test_synthesis_slower_than_playback():
    finding = found(Observed(arms=[arm("TTS, 10 streams", {"streams": 10.0}, rtf=1.25)]), "AUDIO_UNDERRUN")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "10/1.25 = 8.0 streams" in finding.relation
    assert "about 8" in finding.statement


def test_without_streams_or_a_word_for_synthesis_the_level_falls():
    no_streams = found(Observed(arms=[arm("TTS", rtf=1.25)]), "AUDIO_UNDERRUN")
    assert no_streams is not None
    assert no_streams.level is Level.SUSPECTED
    unnamed = found(Observed(arms=[arm("model A", {"streams": 10.0}, rtf=1.25)]), "AUDIO_UNDERRUN")
    assert unnamed is not None
    assert unnamed.level is Level.SUSPECTED
    assert unnamed.rivals


@pytest.mark.parametrize(
    "made", [arm("TTS", rtf=0.8), arm("ASR server", {"sessions": 9.0}, rtf=1.4), arm("TTS", rtfx=2.0)]
)
def test_real_time_or_a_recogniser_is_no_underrun(made):
    assert found(Observed(arms=[made]), "AUDIO_UNDERRUN") is None


def test_agents_tell_how_long_synthesis_took():
    finding = found(turns(tts_duration=[5200, 4100], tts_audio=[4000, 3000], tts_ttfb=[210, 190]), "AUDIO_UNDERRUN")
    assert finding is not None
    assert finding.level is Level.SUSPECTED  # wall time holds the wait for the text
    assert "1.33" in finding.statement


# -- AUDIO_RATE_MISMATCH and CLIENT_UPLOAD_LATE


@pytest.mark.parametrize(("rate", "made", "read_as"), [(1.5, 24000, 16000), (2 / 3, 16000, 24000), (2.0, 16000, 8000)])
def test_audio_read_at_another_rate(tmp_path, rate, made, read_as):
    seen = heard(tmp_path, audio(12, rate=rate))
    finding = found(seen, "AUDIO_RATE_MISMATCH")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert f"{made} Hz audio were read as {read_as} Hz" in finding.statement
    seen.settings = [
        Setting(name="client.sample_rate", value=made, place=Place("client.py", 3)),
        Setting(name="server.sample_rate_hz", value=read_as, place=Place("server.yaml", 8)),
    ]
    finding = found(seen, "AUDIO_RATE_MISMATCH")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert found(seen, "CLIENT_UPLOAD_LATE") is None


@pytest.mark.parametrize("rate", [1.0, 1.01, 1.24])
def test_real_time_and_odd_paces_are_no_rate(tmp_path, rate):
    assert found(heard(tmp_path, audio(12, rate=rate)), "AUDIO_RATE_MISMATCH") is None


def test_samples_fed_against_the_configured_rate():
    fed = series("samples_fed", AGES, 24000 * AGES, unit="")
    seen = Observed(series=[fed], settings=[Setting(name="sample_rate", value=16000)])
    assert found(seen, "AUDIO_RATE_MISMATCH") is not None
    right = Observed(series=[fed], settings=[Setting(name="sample_rate", value=24000)])
    assert found(right, "AUDIO_RATE_MISMATCH") is None


def test_audio_that_comes_late(tmp_path):
    def late(end):
        return 0.02 if end < 6 else 0.02 + min(2.5, (end - 6) * 0.9)

    texts = [partial(round(end + late(end) + 0.2, 3), "w", end=float(end)) for end in range(1, 20)]
    finding = found(heard(tmp_path, audio(20, delay=late), texts), "CLIENT_UPLOAD_LATE")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    assert "2500 ms" in finding.statement
    bare = found(heard(tmp_path, audio(20, delay=late)), "CLIENT_UPLOAD_LATE")
    assert bare is not None
    assert bare.level is Level.SUSPECTED


def test_jitter_and_a_slow_recogniser_are_no_late_upload(tmp_path):
    rng = random.Random(3)
    jitter = [event | {"t_recv": event["t_recv"] + rng.random() * 0.2} for event in audio(20)]
    assert found(heard(tmp_path, jitter), "CLIENT_UPLOAD_LATE") is None
    slow = [partial(end + 3.0, "w", end=float(end)) for end in range(1, 17)]
    assert found(heard(tmp_path, audio(20), slow), "CLIENT_UPLOAD_LATE") is None


# -- forms and tables


def form(**context) -> Observed:
    return Observed(
        settings=[Setting(name=name, value=value, place=Place("form.json")) for name, value in context.items()]
    )


def test_a_form_may_tell_of_a_hang_and_of_blanks():
    hang = found(form(endpoint="/v1/realtime", first_delta_s=31, voiced_audio_s=30), "ASR_SILENT_HANG")
    assert hang is not None
    assert hang.level is Level.SUSPECTED
    silent = found(form(endpoint="/v1/realtime", first_delta_s=31), "ASR_SILENT_HANG")
    assert silent is not None
    assert silent.level is Level.INSUFFICIENT
    assert found(form(endpoint="/v1/realtime", first_delta_s=2, voiced_audio_s=30), "ASR_SILENT_HANG") is None
    blank = found(form(endpoint="/v1/realtime", deltas="blank tokens only", tok_s=12.5), "ASR_EMPTY_DELTAS")
    assert blank is not None
    assert blank.level is Level.SUSPECTED
    assert found(form(endpoint="/v1/realtime", note="empty deltas, I think"), "ASR_EMPTY_DELTAS") is None
    assert found(form(endpoint="/v1/chat/completions", deltas="blank"), "ASR_EMPTY_DELTAS") is None


def test_a_table_along_the_age_of_a_session(tmp_path):
    table = tmp_path / "age.md"
    table.write_text("| session age (min) | VAD feed (ms) |\n|---|---|\n| 1 | 4.57 |\n| 5 | 9.8 |\n| 10 | 16.53 |\n")
    finding = found(read(table), "ASR_LAG_GROWS")
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "1.33 ms per minute" in finding.statement
    table.write_text("| session age (min) | VAD feed (ms) |\n|---|---|\n| 1 | 4.8 |\n| 5 | 4.6 |\n| 10 | 4.49 |\n")
    assert found(read(table), "ASR_LAG_GROWS") is None


def test_a_table_of_turns(tmp_path):
    table = tmp_path / "turns.md"
    table.write_text(
        "| turn | end of utterance delay (s) | transcription delay (s) | LLM TTFT (s) | TTS TTFB (s) |\n"
        "|---|---|---|---|---|\n"
        "| 1 | 4.12 | 4.12 | 2.10 | 0.36 |\n| 2 | 0.71 | 0.35 | 0.64 | 0.34 |\n"
    )
    finding = found(read(table), "ASR_FINAL_LATE")
    assert finding is not None
    assert "6.58 s voice to voice" in finding.statement
    assert "cold connection" in finding.statement


def test_an_encoder_that_grew_with_the_total():
    rows = [
        arm("1.0", encode_p95=120, ttft_p95=480, n=400),
        arm("1.1", encode_p95=910, ttft_p95=1290, n=400),
    ]
    finding = found(Observed(arms=rows), "ENCODE_SLOW")
    assert finding is not None
    assert finding.level is Level.CONSISTENT
    few = [arm("1.0", encode_p95=120, ttft_p95=480), arm("1.1", encode_p95=910, ttft_p95=1290)]
    unsure = found(Observed(arms=few), "ENCODE_SLOW")
    assert unsure is not None
    assert unsure.level is Level.SUSPECTED
    elsewhere = [arm("1.0", encode_p95=120, ttft_p95=480), arm("1.1", encode_p95=160, ttft_p95=1290)]
    assert found(Observed(arms=elsewhere), "ENCODE_SLOW") is None
