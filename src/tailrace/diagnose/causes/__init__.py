"""The catalogue: one file a cause, one folder a layer. Adding one is writing its file and naming it in its folder."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.compute import COMPUTE
from tailrace.diagnose.causes.gateway import GATEWAY
from tailrace.diagnose.causes.mix import MIX
from tailrace.diagnose.causes.scheduler import SCHEDULER
from tailrace.diagnose.causes.speech import SPEECH
from tailrace.diagnose.causes.validity import JUDGEMENTS, VALIDITY

__all__ = ["CAUSES"]

CAUSES: Final[tuple[Cause, ...]] = (*VALIDITY, *SCHEDULER, *GATEWAY, *COMPUTE, *MIX, *SPEECH, *JUDGEMENTS)
"""In the order in which ties are printed."""
