"""One window and five that follow it, each with an unmoved mean: four causes of a worse p99, and none."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np

from tests.analyze.tables import MS, request, table

N = 4000
HIT = 0.025
"""Share of the requests that a fault hits."""
EXTRA_MS = 1600.0
WINDOW_MS = 2000.0
"""The batcher's window."""
KINDS = ("nothing", "more long prompts", "a blocked post-processing thread", "a batch window", "a slower client")
STEP_MS = 80.0


def _with_postprocess(record, ms):
    more = round(ms * MS)
    return msgspec.structs.replace(
        record,
        postprocess_ns=more,
        e2e_ns=record.e2e_ns + more,
        stage_sources={**record.stage_sources, "postprocess": "measured"},
    )


@cache
def records(kind: str, seed: int):
    """`nothing`, or one of the four; the body is made as much faster as the fault costs, so that the mean stays."""
    draw = np.random.default_rng(seed)
    share = {"more long prompts": 0.04}.get(kind, 0.015)
    hit = draw.random(N) < HIT if kind not in ("nothing", "more long prompts") else np.zeros(N, dtype=bool)
    long = draw.random(N) < share
    cost = {"nothing": 0.0, "more long prompts": 0.025 * 1400.0, "a batch window": HIT * WINDOW_MS}.get(
        kind, HIT * EXTRA_MS
    )
    gap = (20.0 * 15.0 - cost) / 20.0
    out = []
    for i in range(N):
        prefill = (1450.0 if long[i] else 50.0) * draw.lognormal(0, 0.2)
        queue = WINDOW_MS + draw.exponential(2.0) if hit[i] and kind == "a batch window" else draw.exponential(4.0)
        blocked = EXTRA_MS * draw.lognormal(0, 0.2) if hit[i] and kind == "a slower client" else 0.0
        record = request(
            i,
            at_ms=i * STEP_MS + draw.uniform(0, STEP_MS),
            lane="default",
            prompt=int((6000 if long[i] else 300) * draw.uniform(0.8, 1.2)),
            queue_ms=queue,
            prefill_ms=prefill,
            gaps_ms=(gap * draw.lognormal(0, 0.1, 20)).tolist(),
            response_ms=blocked,
        )
        post = EXTRA_MS * draw.lognormal(0, 0.2) if hit[i] and "post" in kind else draw.exponential(3.0)
        out.append(_with_postprocess(record, post))
    return tuple(out)


@cache
def window(kind: str, seed: int):
    """The same as a table."""
    return table(records(kind, seed))
