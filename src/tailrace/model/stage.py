"""Stages: the named parts of a request's time, in the order in which they happen.

Rule 1 of every record: the stages present add up to the end-to-end time exactly, in integer
nanoseconds; what nobody can explain is the stage `unattributed`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Stage(StrEnum):
    """The top-level stages. A part of a stage is written `stage.part`, for example `queue.engine`."""

    INGRESS = "ingress"
    QUEUE = "queue"
    PREPROCESS = "preprocess"
    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    MODEL = "model"
    """A service's call of the hop behind it, to the last token. Never in a gateway's record, which splits that call."""
    POSTPROCESS = "postprocess"
    RESPONSE = "response"
    UNATTRIBUTED = "unattributed"


STAGES: Final[tuple[Stage, ...]] = tuple(Stage)
"""In the order of a request's life; `unattributed` last."""

QUEUE_GATEWAY: Final = "queue.gateway"
QUEUE_ENGINE: Final = "queue.engine"


class SourceKind(StrEnum):
    """How a stage's value is known."""

    MEASURED = "measured"
    """Stamped by our own monotonic clock."""
    REPORTED = "reported"
    """The engine or the application said so; the detail names the field."""
    INFERRED = "inferred"
    """A model computed it; the detail names the method."""


def source(kind: SourceKind, detail: str = "") -> str:
    """Spell a source as records keep it: `measured`, `reported(metrics.queue_time_ms)`, `inferred(method)`."""
    return f"{kind.value}({detail})" if detail else kind.value
