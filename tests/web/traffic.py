"""Records as a busy gateway would write them, and a `PageSource` over a list that a test may extend."""

from __future__ import annotations

import time

import numpy as np

from tailrace.model.outcome import REASON_KIND, OutcomeKind, Reason
from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.model.thresholds import MS, S
from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.table import RecordTable
from tailrace.web.source import LiveNow

SOURCES = {
    "ingress": "measured",
    "queue": "measured",
    "queue.gateway": "measured",
    "queue.engine": "reported(metrics.queue_time_ms)",
    "preprocess": "inferred(header_time)",
    "prefill": "reported(metrics.time_to_first_token_ms)",
    "decode": "measured",
    "postprocess": "measured",
    "response": "measured",
    "unattributed": "measured",
}
_BAD = (
    (Reason.QUEUE_FULL, "queue", 429),
    (Reason.QUEUE_TIMEOUT, "queue", 503),
    (Reason.FIRST_TOKEN_TIMEOUT, "prefill", 504),
    (Reason.STREAM_CUT, "decode", 200),
    (Reason.ENGINE_ERROR, "prefill", 500),
    (Reason.CLIENT_DISCONNECT, "decode", 200),
)


def realistic_records(
    n: int, *, seed: int = 1, now_unix_ns: int | None = None, span_s: float = 200
) -> list[RequestRecord]:
    """Short chats and a few long documents on an engine whose prefill is not chunked; about 3 % do not complete."""
    rng = np.random.default_rng(seed)
    now = time.time_ns() if now_unix_ns is None else now_unix_ns
    out = []
    for number in range(n):
        long = rng.random() < 0.1
        prompt = int(rng.lognormal(8.8, 0.5)) if long else int(rng.lognormal(5.6, 0.9)) + 8
        output = max(1, int(rng.lognormal(5.2, 0.7)))
        busy = rng.random() < 0.05
        gateway_wait = int(rng.exponential(8 * MS) * (30 if busy else 1))
        engine_wait = int(rng.exponential(15 * MS) * (80 if busy else 1))
        prefill = int(prompt / 8000 * S * rng.uniform(0.9, 1.2)) + 12 * MS
        gaps = rng.gamma(9, 2.6, output - 1) * MS if output > 1 else np.zeros(0)
        hits = rng.random(len(gaps)) < (0.012 if busy else 0.002)
        gaps = (gaps + hits * rng.uniform(200, 900, len(gaps)) * MS).astype(np.int64)
        stages = {
            "ingress": int(rng.uniform(0.1, 0.6) * MS),
            "queue": gateway_wait + engine_wait,
            "preprocess": int(rng.uniform(1, 3) * MS),
            "prefill": prefill,
            "decode": int(gaps.sum()),
            "postprocess": int(rng.uniform(0.2, 2) * MS),
            "response": int(rng.exponential(3 * MS)),
            "unattributed": int(rng.exponential(2 * MS)),
        }
        reason, died, status = (Reason.NONE, "", 200) if rng.random() > 0.03 else _BAD[int(rng.integers(len(_BAD)))]
        if died == "queue":
            stages = {"ingress": stages["ingress"], "queue": stages["queue"] * 3}
            engine_wait, gateway_wait = 0, stages["queue"]
        elif died == "prefill":
            stages.pop("decode"), stages.pop("postprocess")
        tokens = "decode" in stages
        first = sum(stages.get(name, 0) for name in ("ingress", "queue", "preprocess", "prefill"))
        at = (first + np.concatenate(([0], np.cumsum(gaps)))).tolist() if tokens else []
        slow = (["ttft"] if first > 500 * MS else []) + (["stall"] if len(gaps) and gaps.max() > 500 * MS else [])
        keep = bool(slow or reason) or rng.random() < 0.01
        timeline = Timeline(
            at_ns=[first - 2 * MS, *at, at[-1] + MS] if at else [],
            kind=[EventKind.ROLE] + [EventKind.CONTENT] * len(at) + [EventKind.DONE] if at else [],
            tokens=[0] + [1] * len(at) + [0] if at else [],
        )
        e2e = sum(stages.values())
        end = now - int(rng.uniform(0, span_s) * S)
        record = RequestRecord(
            request_id=f"req-{seed:02d}{number:06d}-{int(rng.integers(1 << 40)):010x}",
            lane="long_document" if long else "interactive",
            endpoint="/v1/chat/completions",
            model="llama-3-8b-instruct",
            backend="a100-1",
            engine="vllm",
            engine_version="0.11.0",
            prompt_tokens=prompt,
            prompt_tokens_source="usage",
            output_tokens=output if tokens else None,
            output_tokens_source="usage" if tokens else "",
            start_unix_ns=end - e2e,
            **{f"{name}_ns": value for name, value in stages.items()},
            queue_gateway_ns=gateway_wait,
            queue_engine_ns=engine_wait or None,
            stage_sources={
                name: SOURCES[name] for name in (*stages, "queue.gateway", *(["queue.engine"] * bool(engine_wait)))
            },
            e2e_ns=e2e,
            e2e_last_token_ns=first + stages["decode"] if tokens else None,
            ttft_ns=first if tokens else None,
            tpot_ns=stages["decode"] // (output - 1) if tokens and output > 1 else None,
            stall_count=int((gaps > 500 * MS).sum()) if tokens else 0,
            stall_longest_ns=int(gaps.max()) if tokens and len(gaps) and gaps.max() > 500 * MS else None,
            outcome=REASON_KIND[reason] if reason else OutcomeKind.COMPLETED,
            reason=reason,
            died_in=died,
            error="upstream closed the connection" if reason is Reason.STREAM_CUT else "",
            http_status=status,
            finish_reason="stop" if not reason else "",
            running_at_admission=int(rng.integers(4, 40)),
            waiting_at_admission=int(rng.integers(0, 6)),
            slow=slow,
            keep_reason="slow" if slow else "",
            timeline=timeline if keep else None,
        )
        assert not broken_invariants(record)
        out.append(record)
    return out


class ListSource:
    """A `PageSource` over a list in memory."""

    def __init__(self, records: list[RequestRecord], live: LiveNow | None = None, title: str = "http://10.0.0.5:8000"):
        self.records = records
        self.title = title
        self.reads = 0
        self.now: LiveNow = live if live is not None else {"in_flight": 0, "lanes": {}, "uptime_s": 400.0}

    async def table(self, since_unix_ns: int | None, limit: int, vantage: str = "gateway") -> RecordTable:
        self.reads += 1
        kept = [
            record
            for record in self.records
            if record.vantage == vantage and (since_unix_ns is None or record.start_unix_ns >= since_unix_ns)
        ]
        kept.sort(key=lambda record: record.start_unix_ns)
        return RecordTable.from_records(kept[-limit:])

    async def record(self, request_id: str, vantage: str | None = None) -> RequestRecord | None:
        return next(
            (one for one in self.records if one.request_id == request_id and vantage in (None, one.vantage)), None
        )

    async def live(self) -> LiveNow:
        return self.now


def busy_live() -> LiveNow:
    """A gateway under load, of a simulated engine, that has dropped a few records."""
    stages = ["decode", "decode", "prefill", "queue.engine", "queue.gateway", "decode"]
    return {
        "in_flight": 31,
        "uptime_s": 4000.0,
        "loop_lag_ms": 0.8,
        "lanes": {
            "interactive": {"running": 24, "running_limit": 64, "queued": 0, "queued_limit": 128},
            "long_document": {
                "running": 4, "running_limit": 4, "queued": 3, "queued_limit": 32, "oldest_wait_ms": 1830.0,
            },
        },
        "streams": [
            {"request_id": f"req-live-{n:08x}", "lane": "long_document" if n % 3 == 0 else "interactive",
             "stage": stages[n % 6], "age_ms": 9400 / (n + 1),
             "tokens": 400 - 30 * n if stages[n % 6] == "decode" else 0}
            for n in range(12)
        ],
        "dropped": {"normal": 0, "slow": 0},
        "engine": "vllm",
        "engine_version": "0.11.0",
        "upstream_ok": True,
        "engine_state": {"running": 28, "waiting": 3, "kv_usage": 0.62},
        "simulated": True,
    }  # fmt: skip
