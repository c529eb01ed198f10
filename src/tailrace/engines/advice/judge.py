"""All rules on one engine."""

from __future__ import annotations

from typing import Final

from tailrace.engines.advice.capacity import judge_capacity
from tailrace.engines.advice.card_fit import judge_card
from tailrace.engines.advice.case import Case, Rule
from tailrace.engines.advice.chunking import judge_chunking
from tailrace.engines.advice.in_force import judge_sources
from tailrace.engines.advice.llamacpp import judge_llamacpp
from tailrace.engines.advice.metric_buckets import judge_buckets
from tailrace.engines.advice.option_names import judge_options
from tailrace.engines.advice.scheduling import judge_scheduling
from tailrace.engines.advice.sglang import judge_sglang
from tailrace.engines.advice.tgi import judge_tgi, judge_trtllm
from tailrace.engines.advice.triton import judge_triton
from tailrace.engines.advice.visibility import judge_visibility, known_traps
from tailrace.model.check import CheckFinding, Weight

RULES: Final[tuple[Rule, ...]] = (
    judge_options,
    judge_sources,
    judge_card,
    judge_capacity,
    judge_chunking,
    judge_scheduling,
    judge_buckets,
    judge_visibility,
    judge_sglang,
    judge_llamacpp,
    judge_triton,
    judge_tgi,
    judge_trtllm,
    known_traps,
)
_ORDER: Final = {weight: order for order, weight in enumerate(Weight)}


def by_weight(findings: list[CheckFinding]) -> list[CheckFinding]:
    """Errors first; within a weight in the order in which rules found them."""
    return sorted(findings, key=lambda finding: _ORDER[finding.weight])


def judge(case: Case) -> list[CheckFinding]:
    """What every rule says of one engine, ordered by weight. `case.needs` then says what could not be judged."""
    return by_weight([finding for rule in RULES for finding in rule(case)])
