"""A case's memory plan: the arithmetic of `memory` with what is known of one engine."""

from __future__ import annotations

from tailrace.engines.advice.case import Case, amount
from tailrace.engines.advice.memory import MemoryPlan, cache_dtype, plan_memory
from tailrace.engines.flags.vllm_history import default_batch, default_memory_share
from tailrace.model.finding import Evidence


def plan_of(case: Case, *, cards: int | None = None) -> MemoryPlan | None:
    """How one card's memory is divided; today's defaults stand in for what nobody said. `None` without card or size."""
    if case.shape is None or case.card is None:
        return None
    share = case.number("gpu_memory_utilization") or default_memory_share(case.version) or 0.9
    usual = default_batch(case.card.memory / 2**30, a100="a100" in case.card.name, cpu=False) or (2048, 256)
    return plan_memory(
        case.shape,
        case.card,
        dtype=case.precision,
        kv_dtype=case.facts.text("kv_dtype") or "auto",
        share=share,
        batched_tokens=case.number("max_num_batched_tokens") or usual[0],
        seqs=case.number("max_num_seqs") or usual[1],
        cards=cards or int(case.number("tensor_parallel") or 1),
    )


def plan_evidence(case: Case, plan: MemoryPlan) -> list[Evidence]:
    """The plan's parts."""
    shape, card = case.shape, case.card
    if shape is None or card is None:
        return []
    source = f"estimate, to about 1 GB; {shape.source}; table of cards"
    out = [
        Evidence(f"{amount(plan.total)} on {card.name}, {amount(plan.granted)} for the engine", source, "granted"),
        Evidence(f"weights {amount(plan.weights)} a card", source, "weights", plan.weights, "B"),
        Evidence(f"a step, graphs and context {amount(plan.reserve)}", source, "reserve", plan.reserve, "B"),
        Evidence(f"left for the KV cache {amount(plan.kv)}", source, "kv", plan.kv, "B"),
    ]
    kv_dtype = case.facts.text("kv_dtype") or "auto"
    per_token = shape.kv_bytes(cache_dtype(kv_dtype, case.precision))
    if per_token is not None:
        out.append(
            Evidence(f"{per_token:,.0f} bytes of KV cache a token", source, "kv_bytes_per_token", per_token, "B")
        )
    return out
