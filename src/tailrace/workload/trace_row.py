"""One recorded request, and one line that is none."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BadRow", "TraceRow"]


class TraceRow(NamedTuple):
    """One recorded request. `at_ns` counts from the first row; `blocks` are ids of prefix blocks, in order."""

    at_ns: int
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Requests whose blocks begin alike have prompts that begin alike."""
    name: str = ""
    """What the trace calls its class or model; empty where it says nothing."""
    block_tokens: int = 512


class BadRow(NamedTuple):
    """A line that cannot be read, by its number in the file (from 1)."""

    line: int
    why: str
