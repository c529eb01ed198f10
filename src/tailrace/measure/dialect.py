"""What an event means: the protocol that the meter knows, and the nouns it speaks in."""

from __future__ import annotations

from typing import Annotated, Any, Final, Protocol

import msgspec

from tailrace.model.timeline import EventKind

MAX_COUNT: Final = 2**53
"""Counts beyond this are nonsense; up to it they are exact in every column, chart and JSON reader."""
_LONGEST_NUMBER: Final = 32
"""Characters of a number that is written as a text."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A count in a typed decoder."""
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises over foreign bytes; the last one over brackets nested a thousand deep."""


def as_count(value: Any) -> int | None:
    """`value` where it is a plausible count, else `None`: what others write there reaches every reader of records."""
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def as_coerced(value: Any) -> int | None:
    """The count that a lenient reader takes `value` for: `"100"` and `100.0` are 100 to engines that coerce."""
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return as_count(value)


def as_text(value: Any) -> str:
    """`value` where it is a text, else nothing: `str` of foreign JSON may be of any size and depth."""
    return value if isinstance(value, str) else ""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the engine said them; cumulative over the stream so far. `None` is "not said", never 0."""

    prompt: int | None = None
    """All prompt tokens, cached ones included."""
    completion: int | None = None
    """All generated tokens, reasoning included."""
    cached: int | None = None
    reasoning: int | None = None


class EngineFault(msgspec.Struct, frozen=True, gc=False):
    """An error as the engine worded it."""

    message: str
    type: str = ""
    code: int | None = None
    """The HTTP status that the engine meant, where it named one."""


class Meaning(msgspec.Struct, gc=False):
    """What one event, or one whole body, says.

    Field order is that of the hot path: a plain token event fills the first three positions only.
    """

    kind: EventKind
    text: int = 0
    """Length of the generated text in characters (of every choice together)."""
    response_id: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    usage_final: bool = False
    """The counts are the request's totals, not a running tally."""
    fault: EngineFault | None = None
    timings: dict[str, Any] | None = None
    """Per-request timings in the engine's own words: vLLM's `metrics`, llama.cpp's `timings`, SGLang's `meta_info`.
    The key `_field` names the field they came from."""
    done: bool = False
    """The end marker."""
    has_content: bool = False
    """Answer text is in it, whatever else is."""


class Dialect(Protocol):
    """Reads events of one API. Stateless: one instance serves any number of streams."""

    @property
    def name(self) -> str:
        """A short name for reports: `openai.chat`."""

    @property
    def ends_with_body(self) -> bool:
        """Whether a stream has no end marker of its own: the proper end of its body is it."""

    def read(self, event: bytes | None, data: bytes) -> Meaning:
        """What the event `data`, named `event`, means. Never raises: nonsense is of kind `OTHER`."""

    def plain_text(self, event: bytes | None, data: bytes) -> str:
        """The text of an event that is nothing but one piece of text, as the decoded string; empty for any other.

        Nothing else in the event may depend on the text: the meter replaces it to recognise events alike.
        """

    def read_body(self, body: bytes) -> Meaning:
        """What a whole (non-streamed) answer means. Kind `ERROR` for an error body; never raises."""
