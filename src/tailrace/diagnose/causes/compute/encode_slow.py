"""ENCODE_SLOW: the encoder of audio or images carries what the slow requests lose."""

from __future__ import annotations

from typing import ClassVar

from tailrace.diagnose.causes.gateway.stage_slow import StageSlow

__all__ = ["EncodeSlow"]


class EncodeSlow(StageSlow):
    """Encoding audio or images is slow for the slow requests, or for all: the language model behind it is not."""

    code: ClassVar[str] = "ENCODE_SLOW"
    stage: ClassVar[str] = "encode"
    disproof: ClassVar[str] = "The stage takes as long in the requests that are in time."
    of_applications: ClassVar[bool] = False
    part: ClassVar[str] = "the encoder"
    advice: ClassVar[str] = (
        "Look at {part}: its batch size and how long it collects one, the length of what comes in (split long audio, "
        "smaller images), where it runs (the encoder beside the model on one device waits for it), and a cache of "
        "encodings that repeat. The language model's limits change nothing."
    )
