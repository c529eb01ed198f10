"""Causes in the request mix: layer 4."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.mix.bursty_arrivals import Bursty
from tailrace.diagnose.causes.mix.cache_miss import CacheMiss
from tailrace.diagnose.causes.mix.mix_shift import MixShift

__all__ = ["MIX"]

MIX: Final[tuple[Cause, ...]] = (MixShift(), CacheMiss(), Bursty())
