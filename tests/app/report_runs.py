"""Runs to make reports of: two classes, failures, an engine that told its state, hostile names where asked."""

from __future__ import annotations

import numpy as np

from tailrace.model.client_sample import ClientSample
from tailrace.model.conditions import Conditions
from tailrace.model.engine_state import EngineState
from tailrace.model.measurement import ClientHealth
from tailrace.model.outcome import Reason
from tailrace.store.run_file import Arrival, Run, RunHeader, RunTrailer
from tests.analyze.tables import MS, request

EVIL = '</script><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
S = 1000 * MS


def a_run(n: int = 600, *, evil: bool = False, tokens: int = 20, limited: bool = False, open_loop: bool = True) -> Run:
    """A load of short chats and long documents; one in fifty fails."""
    rng = np.random.default_rng(4)
    at_ms = np.cumsum(rng.exponential(25.0, n))
    records = []
    for i in range(n):
        document = i % 7 == 0
        reason = Reason.NONE if i % 50 else (Reason.QUEUE_FULL, Reason.FIRST_TOKEN_TIMEOUT)[i // 50 % 2]
        done = reason is Reason.NONE
        schedule = {"run_offset_ns": round(at_ms[i] * MS), "intended_to_sent_ns": round(rng.exponential(0.4) * MS)}
        records.append(
            request(
                i,
                at_ms=float(at_ms[i]),
                lane=(EVIL if evil else "document") if document else "chat",
                prompt=6000 if document else 300,
                prefill_ms=float((300 if document else 60) * rng.lognormal(0, 0.5)) if done else 4.0,
                gaps_ms=20 * rng.lognormal(0, 0.2, int(rng.integers(2, 2 * tokens))) if done else (),
                reason=reason,
                vantage="client",
                error="" if done else (EVIL if evil else "too many requests"),
                **(schedule if open_loop else {"run_offset_ns": round(at_ms[i] * MS)}),
            )
        )
    said = EVIL if evil else "llama-8b"
    span = float(at_ms[-1]) / 1e3
    return Run(
        path=f"{EVIL if evil else 'a'}.run",
        header=RunHeader(
            target=EVIL if evil else "http://localhost:8000/v1/chat/completions",
            model=said,
            started_unix_ns=1_700_000_000 * S,
            arrival=Arrival(kind="poisson", rate=40.0, seed=4) if open_loop else Arrival(kind="closed", concurrency=8),
            notes=[said],
            conditions=Conditions(engine=said, engine_flags={said: said}, host={"cores": 2}, command=said),
        ),
        records=records,
        trailer=RunTrailer(
            n=n,
            duration_s=span + 1.0,
            client=ClientHealth(
                limited=limited, why="the event loop ran 90 ms late" if limited else "", loop_lag_p99_ms=1.5
            ),
        ),
        states=[
            EngineState(at_ns=second * S, running=second % 5, waiting=second, kv_usage=0.1 * (second % 9))
            for second in range(int(span))
        ],
        health=[
            ClientSample(at_ns=second * S, span_ns=S, loop_lag_max_ns=2 * MS, cpu_share=0.3)
            for second in range(int(span))
        ],
    )
