"""METRIC_UNIT: chunks were counted as tokens, or the other way round."""

from __future__ import annotations

import re
from typing import ClassVar, Final

import msgspec
import numpy as np

from tailrace.diagnose.arms.as_written import seen, shown
from tailrace.diagnose.arms.asked import concurrency_of, told
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.observed import Arm, Observed, Quoted, Rows
from tailrace.diagnose.record_evidence.event_tokens import HIGH, LOW, PRICE_OF_A_UNIT, event_tokens
from tailrace.model.finding import Action, Evidence, Finding, Level, Proof

__all__ = ["MetricUnit"]

CHUNKS: Final = 5.0
"""Gap / time per token beyond what speculation makes of it, and lengths that differ: chunks of several tokens."""
OFF: Final = 1.3
"""ITL x throughput at one request at once is 1000 ms; more than this factor above it, a gap holds several tokens."""
MATCHES: Final = 0.3
_MOST_MORE: Final = 4
_USAGE: Final = re.compile(r"usage|completion tokens|server|engine", re.IGNORECASE)
_OURS: Final = re.compile(r"client|chunk|event|counted|our\b|measured", re.IGNORECASE)
_ADVICE: Final = (
    "Divide the gaps by the tokens in a chunk (usage.completion_tokens / chunks), or read TPOT, which counts by usage; "
    "label the unit. Compare runs only after both count the same."
)


class MetricUnit(Cause):
    """A token rate and a gap that cannot both be per token."""

    code: ClassVar[str] = "METRIC_UNIT"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = (
        "mean and peak token rate, or gap and token rate at one request at once, or both token counts",
    )
    disproof: ClassVar[str] = "Client count / usage.completion_tokens is 1.00 +- 0.05."
    action: ClassVar[Action] = Action.FIX
    ends: ClassVar[bool] = True

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Tokens of the events against the engine's own count."""
        return event_tokens(self, evidence)

    def observe(self, observed: Observed) -> Finding | None:
        """Peak below mean; ITL x tokens/s far above 1000 at concurrency 1; counts that differ."""
        found = [self._peak(arm) for arm in observed.arms]
        found += [self._rate(arm, observed) for arm in observed.arms]
        found += [self._chunks(arm) for arm in observed.arms]
        found += [self._told(arm) for arm in [*observed.arms, *_stated_counts(observed)]]
        found += [self._counts(rows) for rows in observed.table("requests")]
        best = surest(found)
        others = [one for one in found if one is not None and one is not best]
        if best is None or not others:
            return best
        known = {item.text for item in best.evidence}
        more = [item for one in others for item in one.evidence if item.text not in known][:_MOST_MORE]
        relation = "; ".join(dict.fromkeys((best.relation, *(one.relation for one in others[:2]))))
        return msgspec.structs.replace(best, evidence=[*best.evidence, *more], relation=relation)

    def _peak(self, arm: Arm) -> Finding | None:
        peak, mean = arm.quoted("peak_output_tok_s"), arm.quoted("output_tok_s")
        if peak is None or mean is None or peak.relative or mean.relative or not 0 < peak.value < 0.98 * mean.value:
            return None
        ratio = mean.value / peak.value
        accept = arm.quoted("accept_length")
        fits = accept is not None and abs(ratio / accept.value - 1.0) <= MATCHES
        evidence = [seen(arm, mean), seen(arm, peak), _ratio(ratio, arm)]
        words = ""
        if accept is not None:
            evidence.append(seen(arm, accept))
            words = f", near the accept length {accept.value:g}" if fits else ""
        return self.finding(
            statement=f"The peak token rate {shown(peak.value)} tok/s is below the mean {shown(mean.value)} tok/s, "
            "which is "
            f"impossible: the peak counts chunks, not tokens ({ratio:.2f} tokens in a chunk{words}).",
            evidence=evidence,
            explains_ms=None,
            relation=f"{shown(mean.value)}/{shown(peak.value)} = {ratio:.2f}"
            + (f" ~ accept length {accept.value:g}" if fits and accept is not None else ""),
            n=int(arm.get("n") or 0),
            advice=_ADVICE,
            price=PRICE_OF_A_UNIT,
            verify="tailrace bench http://localhost:8000 --concurrency 1 --requests 20",
            level=Level.PROVEN if fits else Level.CONSISTENT,
            proof=Proof.IMPOSSIBLE,
        )

    def _rate(self, arm: Arm, observed: Observed) -> Finding | None:
        """At one request at once a stream makes all the tokens: a token takes 1000 / rate ms."""
        rate = arm.quoted("output_tok_s") or arm.quoted("decode_tok_s")
        gap = arm.quoted("itl", "p50", "mean", "")
        if rate is None or gap is None or rate.relative or gap.relative or rate.value <= 0 or gap.unit != "ms":
            return None
        if concurrency_of(arm, observed) != 1:
            return None
        expected = 1000.0 / rate.value
        ratio = gap.value / expected
        if ratio <= OFF:
            return None
        accept = arm.quoted("accept_length")
        evidence = [
            seen(arm, rate),
            seen(arm, gap),
            Evidence(
                text=f"1000 / {shown(rate.value)} = {expected:.2f} ms a token at concurrency 1; {shown(gap.value)} / "
                f"{expected:.2f} = {ratio:.2f}",
                source=str(gap.place) or "facts",
                name="tokens_per_chunk",
                value=round(ratio, 3),
            ),
        ]
        if accept is not None:
            evidence.append(seen(arm, accept))
        return self.finding(
            statement=f"At concurrency 1, {shown(rate.value)} tok/s means {expected:.2f} ms a token, but ITL says "
            f"{shown(gap.value)} ms: the gap is one per chunk, and a chunk holds about {ratio:.2f} tokens. The unit "
            "differs, "
            "not the engine.",
            evidence=evidence,
            explains_ms=None,
            relation=f"1000/{shown(rate.value)} = {expected:.2f} ms expected, {shown(gap.value)} ms shown",
            n=int(arm.get("n") or 0),
            advice=_ADVICE,
            price=PRICE_OF_A_UNIT,
            verify="tailrace bench http://localhost:8000 --concurrency 1 --requests 20",
        )

    def _chunks(self, arm: Arm) -> Finding | None:
        """Mean gap against mean time per token: they are one number where a chunk holds a token."""
        ratios = []
        for stat in ("mean", "p50"):
            gap, token = arm.quoted("itl", stat), arm.quoted("tpot", stat)
            if gap is None or token is None or gap.relative or token.relative or token.value <= 0:
                continue
            if gap.unit != token.unit or gap.value / token.value < CHUNKS:
                return None
            ratios.append((gap.value / token.value, gap, token))
        if not ratios or ratios[0][1].stat != "mean":
            return None
        ratio, gap, token = ratios[0]
        return self.finding(
            statement=f"ITL {gap.stat} {shown(gap.value, 'ms')} and TPOT {token.stat} {shown(token.value, 'ms')} "
            f"cannot both be per token: ITL is the gap between chunks, and a chunk holds about {ratio:.1f} tokens. "
            f"The stream comes in bursts, one every {shown(gap.value, 'ms')}; the engine makes a token every "
            f"{shown(token.value, 'ms')}.",
            evidence=[
                *(seen(arm, item) for _, one, two in ratios for item in (one, two)),
                Evidence(
                    text=f"ITL / TPOT = {ratio:.1f} tokens in a chunk", source=str(gap.place) or "facts",
                    name="tokens_per_chunk", value=round(ratio, 3),
                ),
            ],
            explains_ms=None,
            relation=f"{shown(gap.value)}/{shown(token.value)} = {ratio:.1f}",
            n=int(arm.get("n") or 0),
            advice=_ADVICE + " Then see who gathers them: the engine's own interval (SGLang --stream-interval, several "
            "scheduler steps), the server's batching of writes, or a proxy that buffers.",
            price=PRICE_OF_A_UNIT,
            verify="tailrace bench http://localhost:8000 --concurrency 1 --requests 20",
        )  # fmt: skip

    def _told(self, arm: Arm) -> Finding | None:
        """Both counts in one row of a table."""
        counts = [v for v in arm.values.values() if not v.relative and "token" in v.label.lower() and v.value > 0]
        usage = next((v for v in counts if _USAGE.search(v.label.replace("_", " "))), None)
        ours = next((v for v in counts if v is not usage and _OURS.search(v.label.replace("_", " "))), None)
        if usage is None or ours is None or LOW <= ours.value / usage.value <= HIGH:
            return None
        ratio = ours.value / usage.value
        each = f" of about {1 / ratio:.2f} tokens each" if ratio < 1 else ""
        return self.finding(
            statement=f"{arm.name}: the client counts {shown(ours.value)} tokens where the engine's usage says "
            f"{shown(usage.value)} ({ratio:.2f} x): it counts chunks{each}, and every number per token is off by that "
            "factor.",
            evidence=[
                seen(arm, ours),
                seen(arm, usage),
                Evidence(text=f"{ratio:.2f} x, that is {1 / ratio:.2f} tokens in one that was counted",
                         source=str(ours.place) or "facts", name="token_ratio", value=round(ratio, 3)),
            ],
            explains_ms=None,
            relation=f"{shown(ours.value)}/{shown(usage.value)} = {ratio:.2f}, not 1.00",
            n=int(arm.get("n") or 1),
            advice=_ADVICE,
            price="Numbers per token and per chunk of older runs cannot be compared.",
            verify="tailrace bench http://localhost:8000 --concurrency 1 --requests 20",
        )  # fmt: skip

    def _counts(self, rows: Rows) -> Finding | None:
        usage, ours = rows.numbers("usage_completion_tokens"), rows.numbers("output_tokens")
        known = (usage > 0) & (ours > 0)
        if not known.any():
            return None
        ratio = float(np.median(ours[known] / usage[known]))
        if LOW <= ratio <= HIGH:
            return None
        n = int(known.sum())
        source = str(rows.place)
        counted, told_ = float(ours[known].sum()), float(usage[known].sum())
        return self.finding(
            statement=f"The client counts {ratio:.2f} x the tokens that the engine's usage says (n = {n}): it counts "
            "chunks"
            + (f" of about {1 / ratio:.2f} tokens each" if ratio < 1 else "")
            + ", and every number per token is off by that factor.",
            evidence=[
                Evidence(
                    text=f"output_tokens / usage_completion_tokens = {ratio:.2f} (median of n = {n} requests)"
                    + (f", that is {1 / ratio:.2f} tokens in one that was counted" if ratio < 1 else ""),
                    source=source,
                    name="token_ratio",
                    value=round(ratio, 3),
                ),
                Evidence(
                    f"{counted:g} tokens counted, {told_:g} in the usage ({float(np.median(usage[known])):g} each, "
                    f"median): {told_ / counted:.3g} x",
                    source, "usage_tokens", told_, "tokens",
                ),
            ],
            explains_ms=None,
            relation=f"client count / usage = {counted:g} / {told_:g} = {counted / told_:.3g}, not 1.00",
            n=n,
            advice=_ADVICE,
            price=PRICE_OF_A_UNIT,
            verify="tailrace bench http://localhost:8000 --concurrency 1 --requests 20",
            missing=[] if n >= 3 else ["more requests with both counts"],
        )  # fmt: skip


def _stated_counts(observed: Observed) -> list[Arm]:
    """The token counts that a form states, as one arm."""
    counts = [item for item in told(observed) if item.number is not None and "token" in item.name]
    if len(counts) < 2:
        return []
    values = {
        item.name: Quoted(
            quantity=item.name, value=item.number or 0.0, unit="tokens", label=item.name, place=item.place
        )
        for item in counts
    }
    return [Arm(name="the form", label="the form", values=values, place=counts[0].place)]


def _ratio(ratio: float, arm: Arm) -> Evidence:
    return Evidence(
        text=f"mean / peak = {ratio:.2f}",
        source=str(arm.place) or "facts",
        name="tokens_per_chunk",
        value=round(ratio, 3),
    )
