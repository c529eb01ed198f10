"""Causes in the request mix: layer 4.

Nothing is slower and nothing is broken: other requests came, at other moments, or ask for more work each.
"""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.mix.bursty_arrivals import Bursty
from tailrace.diagnose.causes.mix.cache_miss import CacheMiss
from tailrace.diagnose.causes.mix.decoding_options import DecodingOptions
from tailrace.diagnose.causes.mix.mix_shift import MixShift
from tailrace.diagnose.causes.mix.structured_output import StructuredOutput

__all__ = ["MIX"]

MIX: Final[tuple[Cause, ...]] = (
    StructuredOutput(),
    CacheMiss(),
    Bursty(),
    DecodingOptions(),
    MixShift(),
)
