"""Templates and synthetic recordings."""

from __future__ import annotations

import contextlib
import json
import wave
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import InputError
from tailrace.workload.audio import wav, wav_seconds
from tailrace.workload.template import Template

VALUES = {"prompt": "p", "model": "m", "request_id": "r", "session_id": "", "max_tokens": 5, "prompt_tokens": 9,
          "number": 3, "messages": []}  # fmt: skip


@given(text=st.text(max_size=60), model=st.text(max_size=10), tokens=st.integers(1, 10**6))
def test_any_text_goes_into_its_quotes(text: str, model: str, tokens: int):
    template = Template('{"q": "Q: {{prompt}}!", "m": "{{ model }}", "n": {{max_tokens}}, "l": {{messages}}}')
    messages = [{"role": "user", "content": text}]
    filled = template.fill(VALUES | {"prompt": text, "model": model, "max_tokens": tokens, "messages": messages})
    assert json.loads(filled) == {"q": f"Q: {text}!", "m": model, "n": tokens, "l": messages}


def test_a_body_that_is_no_json():
    assert Template("ask {{prompt}} {{number}}").fill(VALUES) == b"ask p 3"


@pytest.mark.parametrize(
    ("text", "said", "place"),
    [
        ('{\n\n "a": "{{promt}}"}', "nothing fills {{promt}}", "t:3"),
        ("{}", "no place for anything", "t"),
        ('{"a": {{prompt}}}', "no JSON", "t"),
        ('{"a": "{{prompt}}"', "no JSON", "t"),
        ('{"a": "{{}}"}', "nothing fills", "t:1"),
    ],
)
def test_what_is_no_template(text: str, said: str, place: str):
    with pytest.raises(InputError) as caught:
        Template(text, place=place.partition(":")[0])
    assert said in caught.value.message
    assert caught.value.place == place


@given(ms=st.integers(1, 200_000), mark=st.binary(min_size=8, max_size=16))
def test_a_recording_is_as_long_as_asked(ms: int, mark: bytes):
    content = wav(1, mark, ms)
    assert wav_seconds(content, place="x") == pytest.approx(ms / 1000, abs=1e-4)
    with wave.open(BytesIO(content)) as sound:
        assert (sound.getframerate(), sound.getsampwidth(), sound.getnchannels()) == (16_000, 2, 1)


def test_recordings_differ_and_are_loud_enough_to_be_heard():
    sounds = [wav(1, bytes([i]) * 8, 3000) for i in range(50)]
    assert len(set(sounds)) == 50
    import numpy as np

    levels = [float(np.abs(np.frombuffer(one[44:], "<i2").astype(float)).mean()) for one in sounds]
    assert min(levels) > 500


@given(st.binary(max_size=200))
def test_any_bytes_are_a_recording_or_one_error(content: bytes):
    for data in (content, b"RIFF\0\0\0\0WAVE" + content):
        with contextlib.suppress(InputError):
            assert wav_seconds(data, place="x") >= 0
