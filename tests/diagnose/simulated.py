"""Records of the simulated engine in virtual time, as a gateway or a client before it would have written them."""

from functools import cache

import msgspec
import numpy as np

from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.record import broken_invariants
from tailrace.simulate.knobs import EngineKnobs
from tailrace.simulate.presets import PRESETS
from tailrace.simulate.request import SimRequest
from tailrace.simulate.run import VirtualRun
from tailrace.store.table import RecordTable

MS = 1_000_000
WALL = 1_700_000_000_000_000_000
UNCHUNKED = {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}


@cache
def served(
    seed=1,
    *,
    rate=6.0,
    n=600,
    long_share=0.1,
    long_tokens=(5000, 7500),
    short_tokens=(50, 400),
    output=(60, 300),
    preset="a100-llama3-8b",
    speed=1.0,
    at=None,
    **knobs,
):
    """Poisson arrivals (or those of `at`) of chat with some documents, served to the end; one record a request, in
    order of arrival.
    """
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1e12 / rate, n)).astype(np.int64) if at is None else at
    requests = []
    for i in range(n):
        long = rng.random() < long_share
        prompt = int(rng.integers(*(long_tokens if long else short_tokens)))
        requests.append(
            SimRequest(f"r{i:06}", prompt, int(rng.integers(*output)), int(at[i]), tag="long" if long else "short")
        )
    chosen = PRESETS[preset]
    start = {name: getattr(chosen.knobs, name) for name in EngineKnobs.__struct_fields__}
    run = VirtualRun(EngineKnobs(**{**start, **knobs}), chosen.cost(speed=speed), unix_ns=WALL, keep_timelines="all")
    return tuple(sorted(run.records(requests), key=lambda record: record.start_unix_ns))


def traffic(*counts_and_rates, seed=1):
    """Arrivals (ps) of `count, rate, count, rate, ...`: Poisson at one rate after the other."""
    rng = np.random.default_rng(seed)
    pairs = zip(counts_and_rates[::2], counts_and_rates[1::2], strict=True)
    gaps = [rng.exponential(1e12 / rate, count) for count, rate in pairs]
    return tuple(np.cumsum(np.concatenate(gaps)).astype(np.int64).tolist())


def as_gateway(records, **extra):
    """What a gateway writes that has the engine's report and scrapes."""
    return [
        msgspec.structs.replace(record, vantage="gateway", run_offset_ns=None, intended_to_sent_ns=None, **extra)
        for record in records
    ]


def as_client(records):
    """What a load generator sees: the first token unsplit, and nothing of the engine's state."""
    out = []
    for record in records:
        seen = msgspec.structs.replace(
            record,
            vantage="client",
            queue_ns=None,
            queue_engine_ns=None,
            prefill_ns=None,
            unattributed_ns=record.ttft_ns,
            stage_sources={"unattributed": "measured", "decode": "measured"},
            preemptions=None,
            cached_tokens=None,
            **dict.fromkeys(
                f"{name}_at_{when}"
                for name in ("running", "waiting", "kv_usage")
                for when in ("admission", "first_token")
            ),
        )
        assert broken_invariants(seen) == []
        out.append(seen)
    return out


def without_state(records):
    """A gateway that could not scrape the engine."""
    return [
        msgspec.structs.replace(
            record,
            preemptions=None,
            **dict.fromkeys(
                f"{name}_at_{when}"
                for name in ("running", "waiting", "kv_usage")
                for when in ("admission", "first_token")
            ),
        )
        for record in records
    ]


def evidence(records, *, before=None, **extra):
    table = RecordTable.from_records(records)
    earlier = None if before is None else RecordTable.from_records(before)
    return EvidenceSet(table, before=earlier, **extra)


def answer(records, **extra):
    return diagnose(evidence(records, **extra))


def codes(result):
    return [finding.code for finding in result.findings]


def found(result, code):
    return next((finding for finding in result.findings if finding.code == code), None)
