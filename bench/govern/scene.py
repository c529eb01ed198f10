"""The overload scene: which load, on which engine, under which lanes. The virtual and the real runs share it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from tailrace.gateway.config import load_config
from tailrace.govern.lane import LanePolicy
from tailrace.model.record import RequestRecord
from tailrace.simulate.clients import Call, ClientPolicy, calls_from_plan
from tailrace.simulate.governed import GovernedRun
from tailrace.simulate.knobs import knobs_from
from tailrace.simulate.lane_figures import LaneFigures, RefusalFigures, goodput, lane_figures, refusal_figures
from tailrace.simulate.presets import preset
from tailrace.simulate.seat import EngineSeat
from tailrace.workload.arrivals import ArrivalKind, Arrivals
from tailrace.workload.mix import parse_mix
from tailrace.workload.plan import Workload, generators, plan

CONFIG: Final = Path(__file__).resolve().parents[2] / "examples" / "overload" / "tailrace.yaml"
PRESET: Final = "a100-llama3-8b"
KNOBS: Final[dict[str, Any]] = {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 512}
"""vLLM's default budget of a step, and chunks small enough that a document leaves room in each step."""
MIX: Final = "short:0.9,long:0.1"
"""Prompts and answers in tokens, log-normal: short 80~0.6 (8-400) / 60~0.5 (8-240), long 6000~0.3 (3000-16000) /
200~0.5 (16-800)."""
CHAT: Final = "short"
SECONDS: Final = 600
"""Simulated ten minutes."""
SEED: Final = 5
SUSTAINABLE: Final = 15.6
"""Requests a second of the mix that the engine alone keeps up with: the lowest of what `virtual.sustained` finds."""
KEPT_UP: Final = 0.98
"""An engine keeps up when, in the second half of a run, so many requests end for each that comes."""

_S = 1_000_000_000


class Measured(NamedTuple):
    """One simulated load."""

    run: GovernedRun
    records: list[RequestRecord]
    lanes: dict[str, LaneFigures]
    refusals: RefusalFigures
    cpu_s: float

    @property
    def goodput(self) -> float:
        """Requests a second within every objective, over all lanes."""
        return goodput(self.lanes)

    @property
    def ttft_p99_ms(self) -> float:
        """Of interactive requests."""
        value = self.lanes["interactive"].ttft_p99_ms
        return float("nan") if value is None else value


def lanes(**document: Any) -> list[LanePolicy]:
    """The lanes of the example, with changes to the lane of documents."""
    found = load_config(CONFIG).lane_policies()
    return [msgspec.structs.replace(one, **document) if one.name == "document" else one for one in found]


def calls(rate: float, seconds: float, *, mix: str = MIX, seed: int = SEED) -> list[Call]:
    """What clients ask for. The same seed at another rate is the same requests, nearer together or further apart."""
    workload = Workload(arrivals=Arrivals(kind=ArrivalKind.POISSON, rate=rate), mix=parse_mix(mix))
    out = []
    for call in calls_from_plan(plan(workload, generators(seed)), max_model_len=32_768):
        if call.at_ns >= seconds * _S:
            break
        out.append(call)
    return out


def short_calls(rate: float, seconds: float, *, longest: int, seed: int = SEED) -> list[Call]:
    """Chat alone, with answers of at most `longest` tokens: many requests of a small machine's time."""
    asked = calls(rate, seconds, mix=CHAT, seed=seed)
    return [msgspec.structs.replace(call, output_tokens=min(call.output_tokens, longest)) for call in asked]


def play(
    asked: list[Call],
    *,
    seconds: float,
    governed: bool = True,
    policy: str = "fcfs",
    policies: list[LanePolicy] | None = None,
    seed: int = SEED,
    client: ClientPolicy | None = None,
) -> Measured:
    """Run calls in virtual time. `policy` is the engine's own order: `fcfs` or `priority`."""
    chosen = preset(PRESET)
    policies = policies or lanes()
    seat = EngineSeat("simulated", knobs_from(chosen.knobs, {**KNOBS, "policy": policy}), chosen.cost())
    run = GovernedRun(
        policies,
        [seat],
        governed=governed,
        client=client or ClientPolicy(),
        rng=np.random.default_rng(seed),
        keep_timelines="none",
    )
    began = time.process_time()
    records = list(run.records(asked))
    cpu_s = time.process_time() - began
    return Measured(run, records, lane_figures(records, policies, seconds), refusal_figures(run.refusals), cpu_s)


def measure(rate: float, *, seconds: float = SECONDS, mix: str = MIX, seed: int = SEED, **how: Any) -> Measured:
    """Run the load in virtual time; `how` is passed on to `play`."""
    return play(calls(rate, seconds, mix=mix, seed=seed), seconds=seconds, seed=seed, **how)


def keeps_up(rate: float, *, seconds: float = SECONDS, mix: str = MIX, seeds: tuple[int, ...] = (SEED,)) -> bool:
    """Whether the engine alone keeps up with a load: whether what ends in its second half is what came in it."""
    for seed in seeds:
        came = ended = 0
        for record in measure(rate, seconds=seconds, governed=False, mix=mix, seed=seed).records:
            at = record.run_offset_ns or 0
            came += seconds / 2 * _S <= at
            ended += seconds / 2 * _S <= at + record.e2e_ns < seconds * _S
        if ended < KEPT_UP * came:
            return False
    return True
