"""Shipped fakes for our tests and yours: a manual clock, a scripted upstream of known truth.

No floor imports this package.
"""

from __future__ import annotations

from tailrace.simserve.scripted import ScriptedUpstream
from tailrace.testing.clock import ManualClock

__all__ = ["ManualClock", "ScriptedUpstream"]
