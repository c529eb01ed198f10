"""What foreign evidence says, whatever its format: a few kinds of observation, each with unit, clock and source line.

Readers make them, causes ask them. Nothing here opens a file or knows a format.
"""

from tailrace.diagnose.observed.body import Observed
from tailrace.diagnose.observed.kinds import (
    Arm,
    Clock,
    Counter,
    Event,
    Histogram,
    Place,
    Quoted,
    Role,
    Rows,
    Series,
    Setting,
    Understood,
)

__all__ = [
    "Arm",
    "Clock",
    "Counter",
    "Event",
    "Histogram",
    "Observed",
    "Place",
    "Quoted",
    "Role",
    "Rows",
    "Series",
    "Setting",
    "Understood",
]
