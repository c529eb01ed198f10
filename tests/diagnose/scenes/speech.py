"""Streaming speech: chunks, results, turns."""

from __future__ import annotations

import json

from tailrace.diagnose.observed import Observed, Place, Setting
from tests.diagnose.scenes.scene import Scene
from tests.diagnose.speech_evidence import audio, partial
from tests.diagnose.test_speech_causes import AGES, arm, blanks, series, turns, utterances


def events(*groups):
    listed = sorted((one for some in groups for one in some), key=lambda event: event["t_recv"])
    return "".join(json.dumps(event) + "\n" for event in listed)


def late(end):
    return 0.02 if end < 6 else 0.02 + min(2.5, (end - 6) * 0.9)


def words(delay, step=1, until=20):
    return [partial(round(end + delay(end), 3), "w", end=float(end)) for end in range(1, until, step)]


def unvoiced(made):
    return [{key: value for key, value in event.items() if key != "voiced"} for event in made]


def silence(*settings):
    return Observed(
        settings=[
            Setting(name="speech.min_endpointing_delay", value=1500.0, unit="ms", place=Place("agent.py", 9)),
            *settings,
        ]
    )


HANG = [partial(1.2, "so"), partial(18.5, "so the end")]
SAMPLE_RATES = [("client.sample_rate", 24000), ("server.sample_rate_hz", 16000)]
RATES = Observed(settings=[Setting(name=name, value=value) for name, value in SAMPLE_RATES])
SESSIONS = Observed(series=[series("sessions", AGES, [1.0] * AGES.size, unit="count")])
FED = Observed(series=[series("samples_fed", AGES, 24000 * AGES, unit="")])
GROWS = Observed(series=[series("chunk_service", AGES, 3.2 + AGES / 50)])
TIMED = turns(end_of_turn=[1520, 1510, 1530], transcription_delay=[300, 310, 290])

SPEECH = (
    Scene(
        "AUDIO_RATE_MISMATCH",
        "suspected",
        {"fed": FED, "rate": Observed(settings=[Setting(name="sample_rate", value=16000)])},
        {"rate": Observed(settings=[Setting(name="sample_rate", value=24000)])},
        {"rate": None},
    ),
    Scene(
        "ASR_SILENT_HANG",
        "consistent",
        {"e.jsonl": events(audio(20), HANG)},
        {"e.jsonl": events(audio(19.5, voiced=lambda at: at < 1.0), HANG)},
        {"e.jsonl": events(unvoiced(audio(20)), HANG)},
        "voice detector",
    ),
    Scene(
        "ASR_EMPTY_DELTAS",
        "consistent",
        {"e.jsonl": events(audio(10), [partial(0.5, "so")], blanks(1.0, 100))},
        {"e.jsonl": events(audio(10, voiced=False), blanks(1.0, 100))},
        {"e.jsonl": events(blanks(1.0, 100))},
    ),
    Scene(
        "ASR_LAG_GROWS",
        "consistent",
        {"chunks": GROWS, "sessions": SESSIONS},
        {"chunks": Observed(series=[series("chunk_service", AGES, 4.8 - AGES / 2000)])},
        {"sessions": None},
        "sessions",
    ),
    Scene(
        "ASR_REDECODE_GROWTH",
        "consistent",
        {"e.jsonl": events(audio(40), utterances(0.1))},
        {"e.jsonl": events(audio(40), utterances(0.0))},
        {"e.jsonl": events(utterances(0.1))},
        "audio",
    ),
    Scene(
        "CLIENT_UPLOAD_LATE",
        "consistent",
        {"e.jsonl": events(audio(20, delay=late), words(lambda end: late(end) + 0.2))},
        {"e.jsonl": events(audio(20), words(lambda end: 3.0, until=17))},
        {"e.jsonl": events(audio(20, delay=late))},
        "results|recogniser|loop",
    ),
    Scene(
        "ASR_FINAL_LATE",
        "consistent",
        {"turns": turns(end_of_turn=[4120, 700], transcription_delay=[4110, 300])},
        {"turns": TIMED},
        {"turns": turns(end_of_turn=[4120, 700])},
        "transcription delay",
    ),
    Scene(
        "ASR_VAD_SILENCE_LONG",
        "consistent",
        {"turns": TIMED, "silence": silence()},
        {"turns": turns(end_of_turn=[800, 2900, 1400], transcription_delay=[100, 90, 80])},
        {"silence": None},
        "configured silence",
    ),
    Scene(
        "ASR_CHUNK_TOO_LARGE",
        "consistent",
        {"e.jsonl": events(audio(20, chunk=1.0), words(lambda _: 0.15))},
        {"e.jsonl": events(audio(20, chunk=0.1), words(lambda _: 0.15))},
        {"e.jsonl": events(words(lambda _: 0.15))},
    ),
    Scene(
        "AUDIO_UNDERRUN",
        "consistent",
        {"arms": Observed(arms=[arm("TTS, 10 streams", {"streams": 10.0}, rtf=1.25)])},
        {"arms": Observed(arms=[arm("TTS, 10 streams", {"streams": 10.0}, rtf=0.8)])},
        {"arms": Observed(arms=[arm("TTS", rtf=1.25)])},
        "streams",
    ),
)
