"""How well queue and prefill are inferred on the simulated engine, whose truth is known.

A setting is an engine with its knobs and a load. Its run in virtual time gives the truth; the model sees what a gateway
would: when each request was sent and when its tokens were read, both late by a random time, its counts, nothing else.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec
import numpy as np

from tailrace.analyze.inferred_waits import infer_waits
from tailrace.measure.inference.waits import Quality
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import MS
from tailrace.model.timeline import EventKind, Timeline
from tailrace.simulate.knobs import knobs_from
from tailrace.simulate.presets import preset
from tailrace.simulate.request import SimRequest
from tailrace.simulate.run import VirtualRun, from_plan
from tailrace.store.table import RecordTable
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload, generators, plan

_PREFIX_TOKENS: Final = 16


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """An engine and a load."""

    name: str
    rate: float
    mix: str = "chat"
    preset: str = "a100-llama3-8b"
    knobs: dict[str, object] = {}
    shared: float = 0.0
    """Share of the requests whose prompt begins like that of others, and is partly cached."""
    says_cached: bool = True
    """Whether the engine says how much of a prompt was cached; vLLM does not unless it is told to."""
    strangers: float = 0.0
    """Share of the requests that others sent: the model sees nothing of them."""
    merged: int = 1
    """Tokens in an event."""


SETTINGS: Final = (
    Setting(name="chat, light", rate=1.5),
    Setting(name="chat", rate=5),
    Setting(name="chat, near saturation", rate=7),
    Setting(name="chat, overload", rate=10),
    Setting(name="chat, H100", rate=12, preset="h100-llama3-8b"),
    Setting(name="chat and long, budget 512", rate=4, mix="chat:0.95,long:0.05", knobs={"max_num_batched_tokens": 512}),
    Setting(
        name="chat and long, budget 8192", rate=4, mix="chat:0.95,long:0.05", knobs={"max_num_batched_tokens": 8192}
    ),
    Setting(
        name="chat and long, not chunked", rate=4, mix="chat:0.95,long:0.05", knobs={"enable_chunked_prefill": False}
    ),
    Setting(
        name="short and document, not chunked",
        rate=2,
        mix="short:0.8,document:0.2",
        knobs={"enable_chunked_prefill": False},
    ),
    Setting(name="code", rate=4, mix="code"),
    Setting(name="short", rate=20, mix="short"),
    Setting(name="chat, 16 places", rate=4.5, knobs={"max_num_seqs": 16}),
    Setting(name="short, 8 places", rate=10, mix="short", knobs={"max_num_seqs": 8}),
    Setting(name="chat, few KV blocks, preemptions", rate=4, knobs={"num_gpu_blocks": 1800}),
    Setting(name="chat, cached prefixes", rate=6, shared=0.6),
    Setting(name="chat, cached prefixes not told", rate=6, shared=0.6, says_cached=False),
    Setting(
        name="chat and long, threshold 512",
        rate=4,
        mix="chat:0.95,long:0.05",
        knobs={"long_prefill_token_threshold": 512},
    ),
    Setting(name="chat, priorities", rate=6, knobs={"policy": "priority"}),
    Setting(name="chat, half of it others'", rate=5, strangers=0.5),
    Setting(name="three tokens an answer", rate=6, mix="brief=800~0.8/3"),
    Setting(name="one token an answer", rate=5, mix="brief=1000~0.7/1"),
    Setting(name="chat, four tokens an event", rate=5, merged=4),
)


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of some runs. Errors in ms, against the engine's own stamps."""

    setting: str
    n: int
    queue_shown: float
    """Share of the requests with a shown queue."""
    prefill_shown: float
    median_queue_error_ms: float
    p90_queue_error_ms: float
    median_prefill_error_ms: float
    p90_prefill_error_ms: float
    queue_good: float
    """Share of the shown ones that are within max(15 %, 10 ms) of the truth."""
    prefill_good: float
    covered: float
    """Share of the shown stages whose error is not larger than stated."""


def true_records(setting: Setting, seed: int, requests: int) -> list[RequestRecord]:
    """The run with its truth."""
    chosen = preset(setting.preset)
    knobs = knobs_from(chosen.knobs, setting.knobs)
    workload = Workload(arrivals=Arrivals(kind=ArrivalKind.POISSON, rate=setting.rate), mix=parse_mix(setting.mix))
    planned = plan(workload, generators(seed))
    asked = list(islice(from_plan(planned, max_model_len=knobs.max_model_len), requests))
    rng = np.random.default_rng(seed)
    for request in asked:
        _individual(request, setting, rng, priorities=knobs.policy == "priority")
    run = VirtualRun(knobs, chosen.cost(), keep_timelines="all")
    return list(run.records(asked))


def _individual(request: SimRequest, setting: Setting, rng: np.random.Generator, *, priorities: bool) -> None:
    if setting.shared and rng.random() < setting.shared:
        family, share = int(rng.integers(0, 20)), rng.uniform(0.2, 0.95)
        blocks = int(request.prompt * share) // _PREFIX_TOKENS
        request.prefix = tuple(hash((family, block)) for block in range(blocks))
        request.prefix_tokens = _PREFIX_TOKENS
    if priorities:
        request.priority = int(rng.integers(0, 2))


def as_seen(record: RequestRecord, setting: Setting, *, late_ms: float, rng: np.random.Generator) -> RequestRecord:
    """The record as somebody outside makes it: later stamps, and nothing reported. `late_ms`: mean of the delay."""
    early = round((0.2 + rng.exponential(late_ms)) * MS) if late_ms else 0
    timeline = record.timeline
    if timeline is not None and timeline.at_ns:
        stamps = np.array(timeline.token_stamps(), dtype=np.int64) + early
        if late_ms:
            late = ((0.1 + rng.exponential(late_ms, len(stamps))) * MS).astype(np.int64)
            stamps = np.maximum.accumulate(stamps + late)
        if setting.merged > 1:
            # The first token comes by itself, the others some at a time, with the last of them.
            stamps = np.append(stamps[:1], np.append(stamps[1:][setting.merged - 1 :: setting.merged], stamps[-1:]))
        kinds = [int(EventKind.CONTENT)] * len(stamps)
        timeline = Timeline(at_ns=stamps.tolist(), kind=kinds, tokens=[1] * len(stamps))
        end = max(record.e2e_ns + early, timeline.at_ns[-1])
        wait = timeline.at_ns[0]
    else:
        end = wait = record.e2e_ns + early
    return msgspec.structs.replace(
        record,
        vantage="client",
        run_offset_ns=(record.run_offset_ns or 0) - early,
        timeline=timeline,
        e2e_ns=end,
        cached_tokens=record.cached_tokens if setting.says_cached else None,
        queue_ns=None,
        queue_engine_ns=None,
        prefill_ns=None,
        decode_ns=end - wait,
        unattributed_ns=wait,
        stage_sources={"decode": "measured", "unattributed": "inferred(remainder)"},
    )


def score(
    setting: Setting,
    seeds: tuple[int, ...],
    *,
    requests: int = 1000,
    late_ms: float = 0.5,
    quality: Quality | None = None,
) -> Score:
    """Infer over runs with these seeds, and compare with the truth."""
    wanted = quality or Quality()
    n = 0
    errors: dict[str, list[float]] = {"queue": [], "prefill": []}
    good: dict[str, list[bool]] = {"queue": [], "prefill": []}
    covered: list[bool] = []
    for seed in seeds:
        truth = true_records(setting, seed, requests)
        rng = np.random.default_rng([seed, 1])
        if setting.strangers:
            truth = [record for record in truth if rng.random() >= setting.strangers]
        seen = [as_seen(record, setting, late_ms=late_ms, rng=rng) for record in truth]
        for record, split in zip(
            truth, infer_waits(RecordTable.from_records(seen), partial=setting.strangers > 0), strict=True
        ):
            if record.ttft_ns is None:
                continue
            n += 1
            if split is None:
                continue
            shown = split.timings(wanted)
            for stage, value, true in (
                ("queue", shown.queue_ns, record.queue_ns or 0),
                ("prefill", shown.prefill_ns, record.prefill_ns or 0),
            ):
                if value is None:
                    continue
                off = abs(value - true)
                errors[stage].append(off / MS)
                good[stage].append(off <= max(0.15 * true, 10 * MS))
                covered.append(off <= split.error_ns)

    def at(stage: str, q: float) -> float:
        return round(float(np.quantile(errors[stage], q)), 3) if errors[stage] else float("nan")

    def share(of: list[bool], total: int) -> float:
        return round(sum(of) / total, 4) if total else float("nan")

    return Score(
        setting=setting.name,
        n=n,
        queue_shown=round(len(errors["queue"]) / n, 4),
        prefill_shown=round(len(errors["prefill"]) / n, 4),
        median_queue_error_ms=at("queue", 0.5),
        p90_queue_error_ms=at("queue", 0.9),
        median_prefill_error_ms=at("prefill", 0.5),
        p90_prefill_error_ms=at("prefill", 0.9),
        queue_good=share(good["queue"], len(good["queue"])),
        prefill_good=share(good["prefill"], len(good["prefill"])),
        covered=share(covered, len(covered)),
    )
