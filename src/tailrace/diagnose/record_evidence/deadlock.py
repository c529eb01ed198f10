"""SCHED_ADMISSION_DEADLOCK: nothing runs, requests wait, and nothing is computed."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.engine_counts import intervals_of, longest_run
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.finding import Evidence, Finding

__all__ = ["deadlock_in_scrapes"]

TWICE: Final = 2
LEAST_S: Final = 2.0


def deadlock_in_scrapes(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Two intervals in a row or more."""
    if cause.cannot_run(evidence):
        return None
    series = intervals_of(evidence.states)
    gauges = [(state.running, state.waiting) for state in evidence.states]
    none = np.array([a == 0 == b for (a, _), (b, _) in pairwise(gauges)], dtype=bool)
    stuck = none & (series.waiting > 0) & ~(series.generated > 0) & ~(series.prompts > 0)
    seconds, low, high = longest_run(stuck, series.seconds, least=TWICE)
    if seconds < LEAST_S:
        return None
    waiting = float(series.waiting[low:high].max())
    known = not np.isnan(series.generated[low:high]).any()
    prompts = evidence.now.every.column("prompt_tokens")
    largest = float(np.nanmax(prompts)) if prompts.size and not np.isnan(prompts).all() else None
    return cause.finding(
        statement=f"The engine's queue is stuck: nothing runs, up to {waiting:.0f} requests wait and no token "
        f"comes "
        f"out for {seconds:.0f} s.",
        evidence=[
            Evidence(
                f"running 0, waiting up to {waiting:.0f}, no prompt or output token over {seconds:.0f} s "
                f"({high - low} intervals)",
                "metric:running, waiting, generation_tokens_total",
                "stuck_s",
                round(seconds, 1),
                "s",
            ),
            *(
                [Evidence(f"the largest prompt has {largest:,.0f} tokens", "record:prompt_tokens", "prompt", largest)]
                if largest
                else []
            ),
        ],
        explains_ms=seconds * 1e3,
        relation=f"running = 0, waiting = {waiting:.0f}, tokens = 0 for {seconds:.0f} s",
        n=high - low,
        advice="Refuse prompts that can never fit the KV cache (max_model_len below its capacity, a lane's "
        "max_prompt_tokens), and restart the engine: the request at the head will not leave by itself.",
        price="Such prompts get an error at once.",
        verify=(
            "tailrace diagnose before.prom after.prom  # two scrapes of /metrics 10 s apart: running, "
            "waiting and the token counters"
        ),
        missing=[] if known else ["the token counters of the same time"],
        disproof_checked=["no token was produced in these intervals"] if known else [],
    )
