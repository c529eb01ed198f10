"""A canary against the stable route since its step began: the evidence, and every test of it at every look."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.govern.canary_evidence import (
    BATCHES,
    GROUPS,
    Excess,
    FailureEvidence,
    LatencyEvidence,
    Shift,
    octave_quarters,
    pace_strata,
    prompt_strata,
    whole_strata,
)
from tailrace.govern.canary_policy import CanaryPolicy, Finding, Observation
from tailrace.stats.sequential import boundary, student_t

LATENCIES: Final = (("ttft", prompt_strata, 3), ("tpot", pace_strata, 4), ("e2e", whole_strata, 5))
"""Name, strata, column of the observation."""
WEIGHTS: Final = {"mean": 0.16, "p99": 0.04, "p998": 0.08, "errors": 0.16}
"""The part of the alpha that one test may spend; three latencies have three each: 3 * 0.28 + 0.16 = 1."""
STEP_ALPHA: Final = 0.75
"""The part of the alpha that the steps' whole evidence may spend; the rest is that of the windows within them."""
TAILS: Final = ("p99", "p998")
_MOST_HEARD: Final = 4096
"""Observations that wait for a look at most; then they are counted at once."""

Rows = NDArray[np.float64]
"""Observations as rows, in the order of `Observation`'s fields."""


class Comparison:
    """All evidence of one step. Hearing costs a tuple; counting and judging are done a look at a time."""

    def __init__(self, policy: CanaryPolicy, alpha: float, now: int) -> None:
        self.policy = policy
        self.alpha = alpha
        """What this step's looks may spend together."""
        self.began = now
        self.latencies = {name: LatencyEvidence() for name, _, _ in LATENCIES}
        self.failures = FailureEvidence()
        self.output = np.zeros((2, 2))
        """Per route: completed requests and their output tokens."""
        self.spread: float | None = None
        """The largest standard deviation of ln(latency) within strata, of the three, once measured."""
        self.deff = 1.0
        self._batch_ns = policy.look_ns
        self._heard: list[Observation] = []
        self._grouped = False

    @property
    def requests(self) -> tuple[int, int]:
        """Compared requests: of the stable route, of the canary."""
        seen = self.failures.n.sum(axis=1)
        return int(seen[0]), int(seen[1])

    def hear(self, observation: Observation, now: int) -> None:
        """One finished request."""
        self._heard.append(observation)
        if len(self._heard) >= _MOST_HEARD:
            self.count(now)

    def count(self, now: int) -> None:
        """Take what was heard into the evidence."""
        if self._heard:
            rows, self._heard = np.array(self._heard, dtype=np.float64), []
            self.hear_rows(rows, now)

    def hear_rows(self, rows: Rows, now: int) -> None:
        """Many finished requests at once, a row each, that ended by `now`."""
        batch = (now - self.began) // self._batch_ns
        while batch >= BATCHES:
            self._halve()
            batch = (now - self.began) // self._batch_ns
        arm = rows[:, 0].astype(np.int64)
        prompt, output = octave_quarters(rows[:, 1]), octave_quarters(rows[:, 2])
        failed = rows[:, 6] > 0.0
        group = rows[:, 7].astype(np.int64)
        self._grouped = self._grouped or bool((group > 0).any())
        group %= GROUPS
        self.failures.add(arm, octave_quarters(rows[:, 8]), failed, batch, group)
        well = ~failed
        self.output[0] += np.bincount(arm[well], minlength=2)
        self.output[1] += np.bincount(arm[well], weights=rows[well, 2], minlength=2)
        for name, strata, column in LATENCIES:
            value = rows[:, column]
            there = value > 0.0
            if there.any():
                code = strata(prompt[there], output[there])
                self.latencies[name].add(arm[there], code, np.log(value[there]), batch, group[there])

    def _halve(self) -> None:
        self._batch_ns *= 2
        for evidence in self.latencies.values():
            evidence.halve()
        self.failures.tally.halve()

    def judge(self, now: int) -> list[Finding]:
        """Every test, as of now. Fewer than all where there is too little to say anything."""
        self.count(now)
        policy = self.policy
        batches = min(BATCHES, (now - self.began) // self._batch_ns + 1)
        out = []
        for name, evidence in self.latencies.items():
            seen = evidence.requests(0), evidence.requests(1)
            shift = evidence.shift(batches, math.log1p(policy.tolerance), grouped=self._grouped)
            if shift is None:
                continue
            out.append(self._mean(f"{name}.mean", shift, seen))
            if name == "ttft" or self.spread is None:
                self.spread, self.deff = shift.spread, shift.deff
            excesses = evidence.excesses(batches, policy.tail_tolerance, grouped=self._grouped) or ()
            for tail, excess in zip(TAILS, excesses, strict=False):
                out.append(self._excess(f"{name}.{tail}", excess, seen[0], self.alpha * WEIGHTS[tail]))
        failures = self.failures.excess(batches, policy.tail_tolerance, grouped=self._grouped)
        if failures is not None:
            out.append(self._excess("errors", failures, self.requests[0], self.alpha * WEIGHTS["errors"]))
        return out

    def _mean(self, test: str, shift: Shift, seen: tuple[int, int]) -> Finding:
        bound = boundary(shift.n, self.alpha * WEIGHTS["mean"])
        return Finding(
            test,
            shift.z,
            bound,
            seen[1],
            seen[0],
            math.expm1(shift.shift),
            low=math.expm1(shift.shift - student_t(bound, shift.freedom) * shift.error),
            deff=shift.deff,
        )

    def _excess(self, test: str, excess: Excess, stable: int, alpha: float) -> Finding:
        effect = excess.events / excess.due - 1.0 if excess.due > 0.0 else 0.0
        return Finding(
            test,
            excess.z,
            boundary(excess.n, alpha),
            excess.requests,
            stable,
            effect,
            events=excess.events,
            due=excess.due,
            deff=excess.deff,
        )
