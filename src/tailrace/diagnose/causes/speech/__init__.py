"""Causes in streaming speech, in whatever layer the cause lies.

One folder, because they share one kind of evidence: streams of audio and text with their own clocks, and turns between
people and a machine.
"""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.speech.audio_underrun import AudioUnderrun
from tailrace.diagnose.causes.speech.chunk_too_large import ChunkTooLarge
from tailrace.diagnose.causes.speech.empty_deltas import EmptyDeltas
from tailrace.diagnose.causes.speech.final_late import FinalLate
from tailrace.diagnose.causes.speech.lag_grows import LagGrows
from tailrace.diagnose.causes.speech.rate_mismatch import RateMismatch
from tailrace.diagnose.causes.speech.redecode_growth import RedecodeGrowth
from tailrace.diagnose.causes.speech.silent_hang import SilentHang
from tailrace.diagnose.causes.speech.upload_late import UploadLate
from tailrace.diagnose.causes.speech.vad_silence_long import VadSilenceLong

__all__ = ["SPEECH"]

SPEECH: Final[tuple[Cause, ...]] = (
    RateMismatch(),
    SilentHang(),
    EmptyDeltas(),
    LagGrows(),
    RedecodeGrowth(),
    UploadLate(),
    FinalLate(),
    VadSilenceLong(),
    ChunkTooLarge(),
    AudioUnderrun(),
)
