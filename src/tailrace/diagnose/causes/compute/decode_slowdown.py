"""DECODE_SLOWDOWN: the engine takes longer than before for the same work, at equal batch, lengths and KV."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from tailrace.diagnose.arm_evidence.slowdown_on_arms import slowdown_on_arms
from tailrace.diagnose.cause import Cause, surest
from tailrace.diagnose.changed import changed_between
from tailrace.diagnose.equal_work import equal_pace
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.expected_pace import equal_demand
from tailrace.diagnose.log_evidence.pace_step import pace_step_in_served
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.record_evidence.slower_than_before import slower_than_before
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding

__all__ = ["DecodeSlowdown"]

SLOWER: Final = 0.10


def _cost(window: Window, paces: list[tuple[float, str]], code: str) -> None:
    """What the slower pace costs each request: excess a token x its tokens, of its answer or of its prompt."""
    cost = np.zeros(window.n)
    for excess, what in paces:
        tokens = window.done.column("output_tokens") if what == "decode" else window.tokens
        cost += max(excess, 0.0) * np.nan_to_num(tokens, nan=0.0)
    window.slowed = np.maximum(window.slowed, cost)
    window.explain(code, cost)


class DecodeSlowdown(Cause):
    """The usual gap rose in every length bucket while the batch did not."""

    code: ClassVar[str] = "DECODE_SLOWDOWN"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("a window from before", "running requests (the batch)")
    disproof: ClassVar[str] = "The batch grew by as much, or only some lengths are slower."
    action: ClassVar[Action] = Action.FIX
    only_with_before: ClassVar[bool] = True

    def observe(self, observed: Observed) -> Finding | None:
        """From tables and forms with both windows; from an engine's log in which the pace steps up."""
        return surest([slowdown_on_arms(self, observed), pace_step_in_served(self, observed)])

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Pace at least a tenth slower at equal batch and length, of decoding or of the prefill as it is reported."""
        before, window = evidence.before, evidence.now
        if before is None:
            return None
        decode, prefill = (equal_pace(before, window, what) for what in ("decode", "prefill"))
        slower = [item for item in (decode, prefill) if item and item.change >= SLOWER and item.low > 0]
        if not slower or (decode is not None and decode.high < 0):
            return self._otherwise(evidence)
        if slower[0].what == "prefill" and not equal_demand(before, window):
            return None  # more is asked, and prefills share the steps with more: tokens keep their pace
        first = slower[0]
        missing = [] if first.batch_known else ["running requests at the first token (the engine's /metrics)"]
        changed = changed_between(evidence)
        explains = sum(item.explains for item in slower)
        _cost(window, [(item.b - item.a, item.what) for item in slower], self.code)
        words = {"decode": "a token", "prefill": "a prompt token's prefill"}
        told = "; ".join(f"{words[item.what]} {item.a:.3g} -> {item.b:.3g} ms ({item.change:+.0%})" for item in slower)
        return self.finding(
            statement=f"The engine is slower at equal work: {told}, at equal batch and length.",
            evidence=[
                *(
                    Evidence(
                        f"{words[item.what]} {item.a:.3g} -> {item.b:.3g} ms, {item.change:+.0%} (95 % interval "
                        f"{item.low:+.0%} to {item.high:+.0%}; {item.cells} cells of equal batch and length, "
                        f"n = {item.n_a} and {item.n_b})",
                        "record:chunk_gap_p50_ns"
                        if item.what == "decode"
                        else "record:prefill_ns, record:prompt_tokens",
                        "pace_ms",
                        round(item.b, 4),
                        "ms",
                    )
                    for item in slower
                ),
                *(Evidence(text, "record:running_at_first_token", "batch") for text in first.checked),
            ],
            explains_ms=explains,
            relation="; ".join(
                f"({item.b:.3g} - {item.a:.3g}) ms x {item.tokens:.0f} tokens = {item.explains:.0f} ms"
                for item in slower
            ),
            n=first.n_b,
            advice=f"Roll the engine back: {'; '.join(changed)} changed with the pace."
            if changed
            else "Look at the accelerator: clocks, power cap, temperature, neighbours on the same GPU, a new build. No "
            "limit of the scheduler and no further replica of the same kind mends it.",
            price="None.",
            verify="tailrace compare before.run after.run",
            missing=missing,
            disproof_checked=first.checked,
            action=Action.ROLLBACK if changed else Action.FIX,
        )

    def _otherwise(self, evidence: EvidenceSet) -> Finding | None:
        """Without equal company in both windows, or at times only."""
        found = slower_than_before(evidence, self.code)
        if found is None:
            return None
        changed = changed_between(evidence)
        tokens = np.nan_to_num(evidence.now.done.column("output_tokens"), nan=0.0)
        slow = np.argsort(np.nan_to_num(evidence.now.done.ms("e2e"), nan=0.0), kind="stable")[
            -max(10, tokens.size // 40) :
        ]
        mean = float(tokens[slow].mean()) if tokens.size else 0.0
        if mean > 0:
            _cost(evidence.now, [(found.explains / mean, "decode")], self.code)
        return self.finding(
            statement=found.statement,
            evidence=found.evidence,
            explains_ms=found.explains,
            relation=found.relation,
            n=found.n,
            advice=f"Roll the engine back: {'; '.join(changed)} changed with the pace."
            if changed and not found.at_times
            else "Look at the accelerator and its machine meanwhile: clocks, power cap, temperature, another process "
            "on the same GPU, a processor that others use. No limit of the scheduler mends it.",
            price="None.",
            verify="tailrace compare before.run after.run",
            disproof_checked=found.checked,
            action=Action.ROLLBACK if changed and not found.at_times else Action.FIX,
        )
