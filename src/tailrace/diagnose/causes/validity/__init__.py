"""Causes in the numbers themselves, and benchmarks: before the four layers."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.validity.idle_artifact import IdleArtifact

__all__ = ["VALIDITY"]

VALIDITY: Final[tuple[Cause, ...]] = (IdleArtifact(),)
