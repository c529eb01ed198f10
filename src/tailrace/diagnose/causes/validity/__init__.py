"""Causes in the numbers themselves, and benchmarks: before the four layers."""

from __future__ import annotations

from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.causes.validity.idle_artifact import IdleArtifact
from tailrace.diagnose.causes.validity.metric_bug import MetricBug
from tailrace.diagnose.causes.validity.metric_gap import MetricGap
from tailrace.diagnose.causes.validity.trace_gap import TraceGap

__all__ = ["VALIDITY"]

VALIDITY: Final[tuple[Cause, ...]] = (MetricBug(), MetricGap(), TraceGap(), IdleArtifact())
