"""Whether weights and KV cache fit the card, how much of it the engine takes, and over how many cards it is spread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.engines.advice.case import Case, amount
from tailrace.engines.advice.lengths import Of
from tailrace.engines.advice.plan import plan_evidence, plan_of
from tailrace.model.check import CheckFinding, Weight
from tailrace.model.finding import Evidence

_HIGH: Final = 0.95
_LOW: Final = 0.7


def judge_card(case: Case) -> Iterator[CheckFinding]:
    """Memory share, fit, tensor parallelism; for engines that keep a model on cards."""
    if case.engine not in {"vllm", "simulated", "sglang", "tgi"}:
        return
    yield from _share(case)
    yield from _parallel(case)
    yield from _fit(case)
    if case.facts.flag("enforce_eager") and not case.on_cpu:
        yield case.finding(
            "ENFORCE_EAGER",
            Weight.WARNING,
            "CUDA graphs are off (enforce_eager): every decode step pays the launch of each kernel from the CPU.",
            subject="--enforce-eager",
            evidence=case.shown("enforce_eager"),
            advice="Leave --enforce-eager out, except to look for a fault or where graphs do not fit the memory.",
            effect="Shorter decode steps at small batches: less time per output token.",
            price="A longer start (graphs are captured) and up to a few GB of the card's memory.",
            verify=case.compare_runs(),
        )


def _share(case: Case) -> Iterator[CheckFinding]:
    share = case.number("gpu_memory_utilization")
    if share is None:
        return
    name = "--mem-fraction-static" if case.engine == "sglang" else "--gpu-memory-utilization"
    if not 0 < share <= 1:
        yield case.finding(
            "MEMORY_SHARE_RANGE",
            Weight.ERROR,
            f"{name} is a share between 0 and 1, not {share:g}.",
            subject=name,
            evidence=case.shown("gpu_memory_utilization"),
            advice=f"{name} 0.9",
            effect="The engine starts.",
            price="None.",
            verify="The engine's start.",
        )
    elif share > _HIGH:
        yield case.finding(
            "MEMORY_SHARE_HIGH",
            Weight.WARNING,
            f"The engine takes {share:.0%} of the card. More is not better: what graphs, fragmentation and other "
            "processes on the card need comes on top, and when it is missing the engine dies in the middle of "
            "traffic.",
            subject=name,
            evidence=case.shown("gpu_memory_utilization"),
            advice=f"{name} 0.9",
            effect="No out-of-memory at the first large batch; a restart costs minutes, the memory some requests at "
            "once.",
            price="Less KV cache: about 5 % of the card, so some fewer requests run at once.",
            verify=f"{case.compare_runs()}; the log's line `KV cache size` before and after",
        )
    elif share < _LOW and not case.on_cpu:
        yield case.finding(
            "MEMORY_SHARE_LOW",
            Weight.ADVICE,
            f"The engine takes only {share:.0%} of the card.",
            subject=name,
            evidence=case.shown("gpu_memory_utilization"),
            advice=f"{name} 0.9, unless something else lives on the card.",
            effect="More KV cache: more requests at once, fewer preemptions, more prefix hits.",
            price="Less room for other processes on the card.",
        )


def _parallel(case: Case) -> Iterator[CheckFinding]:
    cards, shape, card = case.number("tensor_parallel"), case.shape, case.card
    if cards is None or cards < 2:
        return
    count = int(cards)
    if shape is not None and shape.heads and shape.heads % count:
        yield case.finding(
            "TP_DIVIDES_HEADS",
            Weight.ERROR,
            f"Tensor parallelism over {count} cards must divide the model's {shape.heads} attention heads: the engine "
            "refuses.",
            subject="--tensor-parallel-size",
            evidence=[*case.shown("tensor_parallel"), Evidence(f"{shape.heads} heads", shape.source, "heads")],
            advice="--tensor-parallel-size "
            + str(max(n for n in (1, 2, 4, 8, 16) if shape.heads % n == 0 and n <= count)),
            effect="The engine starts.",
            price="Less memory in all with fewer cards.",
            verify="The engine's start.",
        )
        return
    if shape is not None and shape.kv_heads and count > shape.kv_heads:
        yield case.finding(
            "TP_COPIES_KV",
            Weight.ADVICE,
            f"The model has {shape.kv_heads} KV heads and is spread over {count} cards: KV heads are copied, so the "
            "cache does not grow beyond that number of cards.",
            subject="--tensor-parallel-size",
            evidence=[*case.shown("tensor_parallel"), Evidence(f"{shape.kv_heads} KV heads", shape.source, "kv_heads")],
            advice=f"--tensor-parallel-size {shape.kv_heads} and more replicas, where the weights fit.",
            effect="The same KV cache a replica with fewer cards; the others serve more requests.",
            price="A single request runs on fewer cards: its own time per token rises.",
        )
    if shape is None or card is None:
        case.need("whether fewer cards would do: give the model's size and the card (--model-size 8b --gpu a100-80g)")
        return
    layers = shape.layers or 32
    if card.link == "PCIe":
        yield case.finding(
            "TP_OVER_PCIE",
            Weight.WARNING,
            f"{count} {card.name} talk over PCIe: each step waits for 2 x {layers} all-reduces over a link some ten "
            "times slower than NVLink.",
            subject="--tensor-parallel-size",
            evidence=[*case.shown("tensor_parallel"), Evidence(f"link: {card.link}", "table of cards", "link")],
            advice="Replicas instead (data parallel, one gateway in front), or --pipeline-parallel-size, where the "
            "weights fit fewer cards.",
            effect="Shorter steps: less time per token, above all in prefill.",
            price="Less KV cache a replica; with pipeline stages, a single request is not faster than on one card.",
            verify=case.compare_runs(),
        )
    plan = plan_of(case, cards=1)
    needed = case.lengths.quantile(0.95, Of.TOTAL) if case.lengths is not None else None
    if plan is not None and plan.kv_tokens is not None and plan.kv > 0 and plan.kv_tokens > 16 * (needed or 2048):
        yield case.finding(
            "TP_NOT_NEEDED",
            Weight.ADVICE,
            f"The weights ({amount(plan.weights)}) fit one {card.name} and leave about {plan.kv_tokens:,.0f} tokens "
            f"of KV cache; {count} cards are spent on one copy.",
            subject="--tensor-parallel-size",
            evidence=plan_evidence(case, plan),
            advice=f"{count} replicas of --tensor-parallel-size 1 behind the gateway.",
            effect="More requests per second in all: no all-reduces, and each card decodes its own batch.",
            price="One request alone is slower: its weights are read by one card. Keep tensor parallelism if the time "
            "per token of a single stream is what matters.",
        )


def _fit(case: Case) -> Iterator[CheckFinding]:
    if case.on_cpu:
        return
    plan = plan_of(case)
    if plan is None or case.card is None or case.shape is None:
        if case.card is None:
            case.need("whether weights and KV cache fit the card: give --gpu, and --model-size or --model-config")
        elif case.shape is None:
            case.need("whether weights and KV cache fit the card: give --model-size 8b or --model-config config.json")
        return
    evidence = plan_evidence(case, plan)
    if plan.kv <= 0:
        yield case.finding(
            "MODEL_DOES_NOT_FIT",
            Weight.ERROR,
            f"{case.shape.name} does not fit: {amount(plan.weights)} of weights and {amount(plan.reserve)} for a step "
            f"are more than the {amount(plan.granted)} that the engine takes of {case.card.name}.",
            subject="memory",
            evidence=evidence,
            advice="A larger --tensor-parallel-size, quantised weights (--quantization fp8, awq), or a larger card.",
            effect="The engine starts.",
            price="More cards and all-reduces, or a little of the model's quality.",
            verify="The engine's start.",
        )
        return
    if plan.kv_tokens is None:
        case.need("tokens of KV cache on this card: the model's shape is not known (--model-config config.json)")
        return
    longest = case.number("max_model_len")
    if longest is not None and plan.kv_tokens < longest and case.number("kv_tokens") is None:
        yield case.finding(
            "CONTEXT_ABOVE_KV",
            Weight.ERROR,
            f"About {plan.kv_tokens:,.0f} tokens of KV cache are left, less than max_model_len ({longest:,.0f}): the "
            "engine refuses to start.",
            subject="--max-model-len",
            evidence=[*evidence, *case.shown("max_model_len")],
            advice=f"--max-model-len {int(plan.kv_tokens * 0.9) // 256 * 256}, --kv-cache-dtype fp8, or more cards.",
            effect="The engine starts.",
            price="Longer requests are refused; an 8-bit cache costs a little quality.",
            verify="The engine's start.",
        )
        return
    typical = case.lengths.quantile(0.5, Of.TOTAL) if case.lengths is not None else None
    held = f", {plan.kv_tokens / typical:,.0f} requests of median length" if typical else ""
    yield case.finding(
        "MODEL_FITS",
        Weight.INFO,
        f"{case.shape.name} fits {case.card.name}: about {plan.kv_tokens:,.0f} tokens of KV cache are left{held}. The "
        "engine's own number (log, /metrics) is the one to trust.",
        subject="memory",
        evidence=evidence,
    )
