"""Streams of known truth, for tests of anything that measures: the scenarios, their truth, and the judge."""

from __future__ import annotations

from tailrace.simserve.scenarios import SCENARIOS, Ask, Plan, Shape, Step, StepKind, plan, raw_plan, shape_plan
from tailrace.simserve.truth import Judgement, SentEvent, Tolerance, Truth, judge, time_errors, wrong_facts

__all__ = [
    "SCENARIOS",
    "Ask",
    "Judgement",
    "Plan",
    "SentEvent",
    "Shape",
    "Step",
    "StepKind",
    "Tolerance",
    "Truth",
    "judge",
    "plan",
    "raw_plan",
    "shape_plan",
    "time_errors",
    "wrong_facts",
]
