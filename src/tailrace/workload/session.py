"""Sessions: several turns of one user, each sent some time after the answer to the one before.

The history grows with what the server really answered, so only the new message of a turn has a planned length.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from tailrace.workload.leave import Leave
from tailrace.workload.length import Fixed, Length


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    """How long the sessions of a class are, and how long their users think."""

    turns: Length = Fixed(1)
    think: Length = Fixed(0)
    """From the end of an answer to the next turn's intended send (milliseconds)."""
    follow_up: Length | None = None
    """Tokens of the message of a later turn; `None`: as those of the first."""


class Turn(NamedTuple):
    """A turn after the first. Its intended send time is the end of the answer before it plus `think_ns`."""

    think_ns: int
    prompt_tokens: int
    """Of its own message, without the history."""
    output_tokens: int
    text: str | None = None
    """The message itself, where it was recorded rather than drawn."""
    leave: Leave | None = None


class SessionDraw(NamedTuple):
    """One session's later turns, before their leaves are drawn."""

    think_ms: list[int]
    prompt_tokens: list[int]
    output_tokens: list[int]


def draw_session(
    sessions: Sessions, *, prompt: Length, output: Length, correlation: float, rng: np.random.Generator
) -> SessionDraw:
    """The later turns of one session; lengths are those of its class unless it has `follow_up`."""
    z = rng.standard_normal()
    count = max(1, int(sessions.turns.at(np.array([z]))[0])) - 1
    draws = rng.standard_normal((3, count))
    mixed = correlation * draws[1] + np.sqrt(1 - correlation**2) * draws[2]
    prompts = (sessions.follow_up or prompt).at(draws[1])
    return SessionDraw(
        sessions.think.at(draws[0]).tolist(),
        np.maximum(prompts, 1).tolist(),
        np.maximum(output.at(mixed), 1).tolist(),
    )
