"""DECODE_SLOWDOWN: every token takes longer than before, at equal batch, lengths and KV."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.equal_work import batch_of, pace_of
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.window import Window
from tailrace.model.finding import Action, Evidence, Finding
from tailrace.stats.bootstrap import Arm, compare_quantiles
from tailrace.stats.decomposition import BUCKET_ROWS

__all__ = ["DecodeSlowdown"]

SLOWER: Final = 0.10
BATCH_EQUAL: Final = 0.15
_EDGES: Final = (0, 256, 1024, 4096, 16384)


class DecodeSlowdown(Cause):
    """The usual gap rose in every length bucket while the batch did not."""

    code: ClassVar[str] = "DECODE_SLOWDOWN"
    stage: ClassVar[str] = "decode"
    needs: ClassVar[tuple[str, ...]] = ("a window from before", "running requests (the batch)")
    disproof: ClassVar[str] = "The batch grew by as much, or only some lengths are slower."
    action: ClassVar[Action] = Action.FIX
    only_with_before: ClassVar[bool] = True

    def judge(self, evidence: EvidenceSet) -> Finding | None:
        """Pace at least a tenth slower in every bucket with enough rows, at equal batch."""
        before, window = evidence.before, evidence.now
        if before is None or before.n < BUCKET_ROWS or window.n < BUCKET_ROWS:
            return None
        old, new = pace_of(before), pace_of(window)
        buckets = self._buckets(before, window, old, new)
        if not buckets or min(ratio for _, ratio, _ in buckets) < 1.0 + SLOWER:
            return None
        keep = [~np.isnan(old), ~np.isnan(new)]
        change = compare_quantiles(
            Arm(old[keep[0]], before.start[keep[0]] / 1e9),
            Arm(new[keep[1]], window.start[keep[1]] / 1e9),
            [0.5],
            block_s=10.0,
            rng=np.random.default_rng(20),
        )[0]
        if change.low <= 0:
            return None
        batch = (batch_of(before), batch_of(window))
        missing, checked = [], []
        if np.isnan(batch).any():
            missing.append("running requests at the first token (the engine's /metrics)")
        else:
            grew = batch[1] / max(batch[0], 1.0) - 1.0
            checked.append(f"the batch went from {batch[0]:.0f} to {batch[1]:.0f} running requests")
            if grew > BATCH_EQUAL:
                return None
        tokens = np.nan_to_num(window.done.column("output_tokens"), nan=0.0)
        explains = (change.b - change.a) * window.in_tail(tokens)
        versions = [set(side.done.column("engine_version").astype(str)) - {""} for side in (before, window)]
        rolled = bool(versions[0] and versions[1] and versions[0] != versions[1])
        worst = "; ".join(f"{name} tokens {ratio - 1:+.0%} (n = {n})" for name, ratio, n in buckets)
        return self.finding(
            statement=f"Every token takes longer: the usual gap went from {change.a:.1f} to {change.b:.1f} ms "
            f"({change.change:+.0%}) in every length bucket, at an equal batch.",
            evidence=[
                Evidence(
                    text=f"usual gap {change.a:.1f} -> {change.b:.1f} ms, {change.change:+.0%} (95 % interval "
                    f"{change.low:+.0%} to {change.high:+.0%}, n = {change.n_a} and {change.n_b})",
                    source="record:chunk_gap_p50_ns",
                    name="pace_ms",
                    value=round(change.b, 2),
                    unit="ms",
                ),
                Evidence(text=f"by prompt length: {worst}", source="record:prompt_tokens", name="buckets"),
                *(Evidence(text=text, source="record:running_at_first_token", name="batch") for text in checked),
            ],
            explains_ms=explains,
            relation=f"({change.b:.1f} - {change.a:.1f}) ms x {window.in_tail(tokens):.0f} tokens = {explains:.0f} ms",
            n=change.n_b,
            advice="Roll the engine back: its version changed with the pace."
            if rolled
            else "Look at the accelerator: clocks, power cap, temperature, neighbours on the same GPU, a new build.",
            price="None.",
            verify="tailrace compare before.run after.run",
            missing=missing,
            disproof_checked=checked,
            action=Action.ROLLBACK if rolled else Action.FIX,
        )

    @staticmethod
    def _buckets(
        before: Window, window: Window, old: NDArray[np.float64], new: NDArray[np.float64]
    ) -> list[tuple[str, float, int]]:
        out = []
        places = [
            np.searchsorted(_EDGES, np.nan_to_num(side.tokens, nan=-1.0), side="right") for side in (before, window)
        ]
        for i in range(len(_EDGES) + 1):
            a, b = old[(places[0] == i) & ~np.isnan(old)], new[(places[1] == i) & ~np.isnan(new)]
            if min(a.size, b.size) < BUCKET_ROWS:
                continue
            name = "unknown" if i == 0 else f"{_EDGES[i - 1]}+"
            out.append((name, float(np.median(b)) / max(float(np.median(a)), 1e-9), int(b.size)))
        return out
