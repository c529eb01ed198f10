"""Records of known content: each request is told by its stages and the times of its tokens."""

from tailrace.model.outcome import REASON_KIND, Reason
from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.model.timeline import EventKind, Timeline
from tailrace.store.run_file import Run, RunHeader
from tailrace.store.table import RecordTable

MS = 1_000_000


def request(
    i,
    *,
    at_ms=0.0,
    lane="short",
    prompt=200,
    queue_ms=0.0,
    gateway_queue_ms=0.0,
    prefill_ms=30.0,
    gaps_ms=(),
    response_ms=0.0,
    reason=Reason.NONE,
    vantage="gateway",
    timeline=True,
    tokens=True,
    **extra,
):
    """A streamed request that waited, was prefilled, and then brought one token after each gap."""
    client = vantage == "client"
    queue, prefill, response = (round(ms * MS) for ms in (queue_ms + gateway_queue_ms, prefill_ms, response_ms))
    gaps = [round(gap * MS) for gap in gaps_ms]
    first = queue + prefill
    stamps = [first]
    for gap in gaps:
        stamps.append(stamps[-1] + gap)
    decode = stamps[-1] - first
    stages = (
        {"unattributed_ns": first, "decode_ns": decode}
        if client
        else {"queue_ns": queue, "prefill_ns": prefill, "decode_ns": decode, "response_ns": response}
    )
    sources = {key.removesuffix("_ns"): "measured" for key in stages}
    if not client:
        stages["queue_gateway_ns"] = round(gateway_queue_ms * MS)
        stages["queue_engine_ns"] = queue - stages["queue_gateway_ns"]
        sources["queue"] = sources["prefill"] = "reported(metrics)"
    ordered = sorted(gaps)
    done = reason is Reason.NONE
    fields = {
        "request_id": f"r{i:06}",
        "vantage": vantage,
        "lane": lane,
        "prompt_tokens": prompt,
        "output_tokens": len(stamps) if done else None,
        "output_tokens_source": "usage" if done else "",
        "start_unix_ns": 1_700_000_000_000_000_000 + round(at_ms * MS),
        "stage_sources": sources,
        "e2e_ns": stamps[-1] + response,
        "e2e_last_token_ns": stamps[-1] if done else None,
        "ttft_ns": first if done else None,
        "chunk_gap_count": len(gaps),
        "chunk_gap_max_ns": ordered[-1] if gaps else None,
        "chunk_gap_p50_ns": ordered[len(gaps) // 2] if gaps else None,
        "tpot_ns": decode // len(gaps) if gaps and done else None,
        "client_blocked_ns": response,
        "outcome": REASON_KIND[reason],
        "reason": reason,
        "timeline": Timeline(
            at_ns=stamps, kind=[EventKind.CONTENT] * len(stamps), tokens=[1 if tokens else -1] * len(stamps)
        )
        if timeline
        else None,
        **stages,
        **extra,
    }
    record = RequestRecord(**fields)
    assert broken_invariants(record) == []
    return record


def table(records):
    return RecordTable.from_records(records)


def run(records, *, trailer=None, path="a.run", **header):
    return Run(path=path, header=RunHeader(**header), records=list(records), trailer=trailer)
