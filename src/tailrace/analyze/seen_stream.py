"""One request of ours as another load generator would have seen it: its frames, and what it counts as a success."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord
from tailrace.model.timeline import TOKEN_KINDS, EventKind

__all__ = ["Frame", "Seen", "seen"]

_TEXT = frozenset({EventKind.CONTENT, EventKind.REASONING})


class Frame(NamedTuple):
    """A frame of the stream."""

    ms: float
    """From the send."""
    kind: int
    tokens: int
    """-1 where nobody said."""


class Seen(NamedTuple):
    """A request, in milliseconds from its send."""

    frames: list[Frame]
    """All of them, in order; empty where no timeline was kept."""
    tokens: int | None
    """Output tokens, as well as we know them."""
    from_usage: bool
    asked: int | None
    """The output length that was asked for."""
    connect_ms: float
    """Opening the connection, where this request did; tools that start their clock before it have it in all times."""
    end_ms: float
    done: bool
    """Completed."""
    error_frame: bool
    """It ended with an error inside of the stream: a success to tools that do not read it."""
    start_ms: float
    """The send, from the start of the run."""

    def of(self, *kinds: EventKind) -> list[Frame]:
        """Frames of these kinds."""
        return [frame for frame in self.frames if frame.kind in kinds]

    @property
    def token_frames(self) -> list[Frame]:
        """What carries a token: answer, reasoning, tool call, refusal."""
        return [frame for frame in self.frames if frame.kind in TOKEN_KINDS]

    @property
    def text_frames(self) -> list[Frame]:
        """Answer and reasoning."""
        return [frame for frame in self.frames if frame.kind in _TEXT]

    @property
    def last_ms(self) -> float:
        """The last frame of any kind, `[DONE]` included."""
        return self.frames[-1].ms if self.frames else self.end_ms


def seen(record: RequestRecord) -> Seen:
    """`record` as a client sees it. Comments are frames of nobody."""
    timeline = record.timeline
    frames: list[Frame] = []
    if timeline is not None:
        frames = [
            Frame(at / 1e6, kind, tokens)
            for at, kind, tokens in zip(timeline.at_ns, timeline.kind, timeline.tokens, strict=True)
            if kind != EventKind.COMMENT
        ]
        bare = [frame for frame in frames if frame.kind in TOKEN_KINDS]
        if len(bare) == record.output_tokens:
            # As many frames with tokens as tokens: nothing else is possible.
            frames = [frame._replace(tokens=1) if frame.kind in TOKEN_KINDS else frame for frame in frames]
    late = record.intended_to_sent_ns or 0
    return Seen(
        frames=frames,
        tokens=record.output_tokens,
        from_usage=record.output_tokens_source in ("usage", "chunk_usage"),
        asked=record.max_tokens,
        connect_ms=(record.connect_ns or 0) / 1e6,
        end_ms=record.e2e_ns / 1e6,
        done=record.outcome is OutcomeKind.COMPLETED,
        error_frame=record.outcome is OutcomeKind.FAILED and any(frame.kind == EventKind.ERROR for frame in frames),
        start_ms=((record.run_offset_ns or 0) + late) / 1e6,
    )
