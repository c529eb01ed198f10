"""What a load test's requests came to, beside their times. Parts that a run has nothing of are `None`."""

from __future__ import annotations

import msgspec


class LengthsDone(msgspec.Struct, frozen=True, kw_only=True):
    """Planned tokens beside those that the server counted, over the requests for which both are known."""

    n: int
    planned_tokens: int
    counted_tokens: int
    exact: int | None = None
    """Of prompts: how many had exactly the planned tokens."""
    ended_early: int | None = None
    """Of answers: how many had fewer tokens than were asked for."""

    @property
    def share(self) -> float | None:
        """Counted of planned."""
        return self.counted_tokens / self.planned_tokens if self.planned_tokens else None


class PrefixDone(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of all prompt tokens, 0 to 1."""

    planned_share: float | None = None
    """That an earlier prompt of the run had begun with: what a cache that forgets nothing can find."""
    cached_share: float | None = None
    """That the server says it found; `None` where it does not say."""


class SessionsDone(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions of several turns."""

    n: int
    turns: int
    turns_not_sent: int = 0
    """Because one before them failed, or the run's time was over."""
    ttft_p50_first_ms: float | None = None
    ttft_p50_later_ms: float | None = None
    """Of the turns after the first: their history is longer, and may be in a cache."""


class LeavesDone(msgspec.Struct, frozen=True, kw_only=True):
    """Clients that left in mid-answer as planned; no part of any other count."""

    n: int
    ttft_p50_next_ms: float | None = None
    """Of the request that was sent next after each leave: how soon its place was free."""
    ttft_p50_others_ms: float | None = None


class AudioDone(msgspec.Struct, frozen=True, kw_only=True):
    """Recordings that were transcribed."""

    n: int
    audio_seconds: float
    audio_seconds_per_s: float | None = None
    """Over the time in which they were under way: the inverse real-time factor of the whole."""


class WorkDone(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The work of one run."""

    prompts: LengthsDone | None = None
    answers: LengthsDone | None = None
    prefixes: PrefixDone | None = None
    sessions: SessionsDone | None = None
    leaves: LeavesDone | None = None
    audio: AudioDone | None = None
