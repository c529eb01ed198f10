"""COMPUTE_QUANT_FALLBACK: fewer bits, and no token comes sooner: the fast kernel is not the one that runs."""

from __future__ import annotations

import re
from typing import ClassVar, Final, NamedTuple

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import USUAL_FIRST, condition, figure, number_stated, said
from tailrace.diagnose.arms.shown import evidence_of, number, quantity
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["QuantFallback", "bits_of"]

FALLBACK: Final = 0.8
"""TPOT of low precision / TPOT of 16 bits from which nothing is gained; 0.5 is expected of half the bytes."""
SMALL: Final = 16.0
"""A batch up to which decoding is bound by reading the weights, so that fewer bytes must show."""
_BITS: Final = (
    (4, r"\bint4|\bw4(?:a\d+)?|\bawq|\bgptq|\bnvfp4|\bmxfp4|\bfp4|\bnf4|\bq4(?:[ _][k01](?:[ _][sml])?)?|4[ -]?bit"),
    (8, r"\bfp8|\bint8|\bw8(?:a\d+)?|\be4m3|\be5m2|\bq8(?:[ _]0)?|8[ -]?bit|smooth ?quant"),
    (16, r"\bbf16|\bfp16|\bf16|bfloat16|float16|\bhalf\b|16[ -]?bit|unquanti[sz]ed|full precision"),
)
_WORDS: Final = "|".join(pattern for _, pattern in _BITS)


class _Weights(NamedTuple):
    arm: Arm
    bits: int
    rest: str
    """What else the arm is called, without its precision: the engine, the model."""
    pace: Quoted


def bits_of(words: str) -> int | None:
    """The bits of a weight that words name; `None` where they name none."""
    plain = words.replace("_", " ")
    return next((bits for bits, pattern in _BITS if re.search(pattern, plain, re.IGNORECASE)), None)


class QuantFallback(Cause):
    """TPOT of low precision / TPOT of 16 bits is about 1 at a small batch."""

    code: ClassVar[str] = "COMPUTE_QUANT_FALLBACK"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "TPOT with both precisions at a small batch",
        "the batch (concurrency)",
        "the kernel that was chosen",
    )
    disproof: ClassVar[str] = (
        "The ratio is below 0.8, or the batch is large (then decoding is not bound by the weights)."
    )
    action: ClassVar[Action] = Action.FIX

    def observe(self, observed: Observed) -> Finding | None:
        """The ratio within each engine and batch; other engines' ratios beside it."""
        arms = [found for arm in observed.arms if (found := _weights(arm)) is not None]
        ratios = _ratios(arms)
        slow = [item for item in ratios if item[2] >= FALLBACK]
        if not slow:
            return None
        low, full, ratio = max(slow, key=lambda item: item[2])
        load = condition(low.arm, r"\bconcurrency\b|\bbatch(?: size)?\b|in flight")
        stated = number_stated(observed, r"^(?:concurrency|batch size|batch|running|max concurrency)$")
        batch = load if load is not None else None if stated is None else stated.number
        if batch is not None and batch > SMALL:
            return None
        best = min((item for item in ratios if item[0].rest != low.rest), key=lambda item: item[2], default=None)
        expected = low.bits / full.bits
        missing = []
        if batch is None:
            missing.append("the batch size (concurrency): at a large batch the ratio says nothing")
        missing.append("the kernel that the engine chose (its start-up log names the quantisation kernel)")
        parallel = number_stated(observed, r"tensor parallel|^tp$|tp size")
        tp = parallel.number if parallel is not None else condition(low.arm, r"tensor parallel|\btp\b")
        rivals = ["COMPUTE_COMM"] if tp is not None and tp > 1 else []
        rate = low.pace.quantity not in ("tpot", "itl", "chunk_gap")
        others = [f"{item[0].arm.name}: {item[2]:.2f}" for item in ratios if item[0] is not low]
        return self.finding(
            statement=f"{low.arm.name} is no faster than {full.arm.name}: {quantity(low.pace)} {_pair(low, full)}, a "
            "ratio of "
            f"{ratio:.2f} where about {expected:.2g} is expected: a fallback kernel, not the fast one, computes the "
            "quantised weights.",
            evidence=[
                evidence_of(low.arm, low.pace),
                evidence_of(full.arm, full.pace),
                Evidence(
                    f"ratio {ratio:.2f} (expected about {expected:.2g})",
                    str(low.pace.place) or "form",
                    "ratio",
                    round(ratio, 4),
                ),
                *(evidence_of(item.arm, item.pace) for item in arms if item not in (low, full)),
                *(
                    [
                        Evidence(
                            f"{best[0].arm.name} / {best[1].arm.name} = {best[2]:.2f}: the hardware can do it",
                            str(best[0].pace.place) or "form",
                            "other_ratio",
                            round(best[2], 4),
                        )
                    ]
                    if best is not None and best[2] < FALLBACK
                    else []
                ),
                *(
                    [Evidence(f"batch {batch:g}", str(low.arm.place) or "form", "batch", batch)]
                    if batch is not None
                    else []
                ),
            ],
            explains_ms=None if rate else low.pace.value - expected * full.pace.value,
            relation=f"{_of(full if rate else low)} / {_of(low if rate else full)} = {ratio:.2f}; expected "
            f"{low.bits} / {full.bits} bits = {expected:.2g}",
            n=len(arms),
            advice="Look in the engine's start-up log for the kernel that the quantised layers use, and at what "
            "makes it fall "
            "back (GPU generation, group size, shapes, an offline checkpoint's scheme); try online quantisation, "
            "another "
            "kernel or another version. At tensor parallelism above 1, look at the share of communication first.",
            price="Another scheme or checkpoint: quality must be checked again.",
            verify=again(low.arm, more="--concurrency 1"),
            missing=missing if batch is None or rivals else [],
            rivals=rivals,
            disproof_checked=[
                f"batch {batch:g}" if batch is not None else "the batch is not known",
                *([f"other ratios: {'; '.join(others)}"] if others else []),
            ],
        )


def _pair(low: _Weights, full: _Weights) -> str:
    return f"{number(low.pace.value, low.pace.unit)} against {number(full.pace.value, full.pace.unit)}"


def _of(item: _Weights) -> str:
    return number(item.pace.value, item.pace.unit)


def _weights(arm: Arm) -> _Weights | None:
    words = said(arm)
    bits = bits_of(words)
    pace = figure(arm, "tpot", "itl", stats=USUAL_FIRST) or figure(
        arm, "decode_tok_s", "output_tok_s", stats=USUAL_FIRST
    )
    if bits is None or pace is None or pace.value <= 0:
        return None
    rest = [str(value).lower() for name, value in arm.keys.items() if isinstance(value, str) and bits_of(value) is None]
    rest += [f"{name}={value:g}" for name, value in arm.keys.items() if isinstance(value, float)]
    if not arm.keys:
        rest.append(
            " ".join(
                re.sub(
                    rf"(?:{_WORDS})\w*|offline|online|dynamic|static|quanti[sz]ed|weights?",
                    " ",
                    re.sub(r"[_\W]+", " ", words),
                    flags=re.IGNORECASE,
                ).split()
            ).lower()
        )
    return _Weights(arm, bits, " ".join(rest), pace)


def _ratios(arms: list[_Weights]) -> list[tuple[_Weights, _Weights, float]]:
    """(low, full, TPOT ratio) of every pair that differs in precision only."""
    out = []
    for low in arms:
        for full in arms:
            if low.bits >= 16 or full.bits != 16 or low.rest != full.rest or low.pace.key != full.pace.key:
                continue
            rate = low.pace.quantity not in ("tpot", "itl")
            out.append((low, full, full.pace.value / low.pace.value if rate else low.pace.value / full.pace.value))
    return out
