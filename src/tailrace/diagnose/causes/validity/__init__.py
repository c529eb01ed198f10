"""Causes in the numbers themselves, and benchmarks: before the four layers.

`JUDGEMENTS` say that a comparison holds or does not; `VALIDITY` that a number is not what it is called: wrong by
itself, measured of other work, by a load that nobody has, or only of those who survived.
"""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.validity.ab_tail import AbTailImproved, AbTailRegressed
from tailrace.diagnose.causes.validity.bench_load import BenchClientQueue, BenchClosedLoop, BenchUnstable
from tailrace.diagnose.causes.validity.bucket_ceiling import BucketCeiling
from tailrace.diagnose.causes.validity.contradiction import Contradiction
from tailrace.diagnose.causes.validity.coordinated_omission import CoordinatedOmission
from tailrace.diagnose.causes.validity.definition_change import DefinitionChange
from tailrace.diagnose.causes.validity.idle_artifact import IdleArtifact
from tailrace.diagnose.causes.validity.mean_dilution import MeanDilution
from tailrace.diagnose.causes.validity.metric_bug import MetricBug
from tailrace.diagnose.causes.validity.metric_gap import MetricGap
from tailrace.diagnose.causes.validity.metric_unit import MetricUnit
from tailrace.diagnose.causes.validity.survivor_bias import SurvivorBias
from tailrace.diagnose.causes.validity.trace_gap import TraceGap
from tailrace.diagnose.causes.validity.unequal_work import UnequalWork
from tailrace.diagnose.causes.validity.warm_up import WarmUp

__all__ = ["CHECKS", "JUDGEMENTS", "VALIDITY"]

VALIDITY: Final[tuple[Cause, ...]] = (
    MetricBug(),
    MetricUnit(),
    Contradiction(),
    CoordinatedOmission(),
    MeanDilution(),
    MetricGap(),
    TraceGap(),
    IdleArtifact(),
    DefinitionChange(),
)
"""Numbers that are wrong: before everything else."""
JUDGEMENTS: Final[tuple[Cause, ...]] = (
    BenchClosedLoop(),
    BenchUnstable(),
    BenchClientQueue(),
    AbTailRegressed(),
    AbTailImproved(),
    BucketCeiling(),
    SurvivorBias(),
    WarmUp(),
    UnequalWork(),
)
"""What a measurement can carry: where a cause is as sure, the cause is the answer."""
CHECKS: Final[tuple[Cause, ...]] = (*VALIDITY, *JUDGEMENTS)
"""Their rules on records run first, and what they find may forbid everything else."""
