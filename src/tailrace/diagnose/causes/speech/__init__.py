"""Causes in streaming speech, in whatever layer the cause lies."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause

__all__ = ["SPEECH"]

SPEECH: Final[tuple[Cause, ...]] = ()
