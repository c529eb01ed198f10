"""Audio: recordings of any length, for servers that transcribe.

Nobody's voice: bursts of a buzz with moving formant-like bands between pauses, loud enough that a voice detector does
not throw it away, and never the same twice in a run. What a recogniser makes of it is nonsense, and its time is the
time of a recording of that length; decoding costs depend on what is said, so give recordings of speech where answers
matter.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

import numpy as np

from tailrace.model.errors import InputError

SAMPLE_RATE: Final = 16_000
"""What recognisers take, samples a second."""
_POOL_SECONDS: Final = 120
_HEAD: Final = 44


@lru_cache(maxsize=2)
def _pool(seed: int) -> bytes:
    """Two minutes of sound, from which recordings are cut: 16-bit mono."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 0xA0D1]))
    count = _POOL_SECONDS * SAMPLE_RATE
    step = SAMPLE_RATE // 8  # a syllable
    syllables = count // step
    pitch = np.repeat(rng.uniform(90, 220, syllables), step)
    phase = np.cumsum(pitch) * (2 * np.pi / SAMPLE_RATE)
    loud = np.repeat(np.where(rng.random(syllables) < 0.2, 0.02, rng.uniform(0.4, 1.0, syllables)), step)
    sound = np.zeros(count)
    for harmonic in range(1, 13):
        strength = np.repeat(rng.uniform(0.05, 1.0, syllables), step) / harmonic
        sound += strength * np.sin(harmonic * phase)
    sound = sound * loud / np.abs(sound).max() + rng.normal(0, 0.003, count)
    out: bytes = np.clip(sound * 20_000, -32_768, 32_767).astype("<i2").tobytes()
    return out


def wav(seed: int, mark: bytes, milliseconds: int) -> bytes:
    """A WAV file (16 kHz, mono, 16 bit) of so many milliseconds; `mark` (8 bytes or more) chooses which."""
    pool = _pool(seed)
    size = max(1, milliseconds * SAMPLE_RATE // 1000) * 2
    start = int.from_bytes(mark[:8], "big") % (len(pool) // 2) * 2
    out = pool[start : start + size]
    while len(out) < size:
        out += pool[: size - len(out)]
    return _wav_head(len(out)) + out


def _wav_head(size: int) -> bytes:
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, SAMPLE_RATE, SAMPLE_RATE * 2, 2, 16, b"data", size,
    )  # fmt: skip


def wav_seconds(content: bytes, *, place: str) -> float:
    """How long a WAV file is. InputError where it is none."""
    remedy = "Give WAV files (RIFF, PCM); `ffmpeg -i in.mp3 -ar 16000 -ac 1 out.wav` makes one"
    if len(content) < _HEAD or content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise InputError("this is no WAV file", place=place, remedy=remedy)
    at, bytes_a_second = 12, 0
    while at + 8 <= len(content):
        name, size = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        if name == b"fmt " and at + 24 <= len(content):
            bytes_a_second = int.from_bytes(content[at + 16 : at + 20], "little")
        elif name == b"data" and bytes_a_second:
            # A recorder that was piped leaves the size open.
            return min(size, len(content) - at - 8) / bytes_a_second
        at += 8 + size + (size & 1)
    raise InputError("the WAV file has no sound in it", place=place, remedy=remedy)
