"""Incidents by number: kind, block of seeds and index give one incident, always the same.

Blocks keep apart what must not meet: rules are made while looking at `tune`, the published figure comes from
`publish`, and the tests run `test`.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec
import numpy as np

from tailrace.model.engine_state import EngineState
from tailrace.model.gpu_state import GpuState
from tailrace.model.host_state import HostState
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import S
from tailrace.simulate.incidents.fault import Fault
from tailrace.simulate.incidents.faults import BY_KIND
from tailrace.simulate.incidents.machine import ENGINE_PID, gpu_states, host_states
from tailrace.simulate.incidents.measures import Bounds, Measures, breaks, differs, held, keeps, measure, objectives
from tailrace.simulate.incidents.setting import Setting, chance, draw_setting, pick, settled
from tailrace.simulate.incidents.world import Seen, World
from tailrace.simulate.incidents.writer import RecordWriter

BLOCKS: Final[dict[str, int]] = {"tune": 11, "publish": 23, "test": 37}
CONTROL: Final = "control"
LONGEST: Final = 5000
_WALL_NS: Final = 1_790_000_000_000_000_000
_STEPS: Final = 4
"""How often a fault that nobody would notice is made stronger before another setting is drawn."""
_SETTINGS: Final = 12
_CALIBRATION: Final = 1500
_LONGER: Final = 3
"""Where windows are kept short, what is promised comes from one of so many times their length."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One labelled incident, and everything that production would have of it."""

    kind: str
    block: str
    index: int
    code: str
    """The answer that is wanted; empty for a control: nothing is wrong."""
    acceptable: frozenset[str]
    """Codes that count as right, `code` among them."""
    strength: float
    setting: Setting
    """With the fault."""
    records: list[RequestRecord]
    before: list[RequestRecord] | None
    states: list[EngineState]
    hosts: list[HostState]
    gpus: list[GpuState]
    engine_pids: list[int]
    bounds: Bounds
    """The objectives: metric -> quantile -> ns."""

    @property
    def name(self) -> str:
        """As it is reproduced: `kind/block/index`."""
        return f"{self.kind}/{self.block}/{self.index}"


def make_incident(kind: str, index: int, block: str = "tune", *, longest: int = LONGEST) -> Incident:
    """The incident of this number. `longest` bounds its requests; another bound gives another incident.

    Raises:
        KeyError: there is no such kind or block.
        RuntimeError: no setting in which anybody would notice the fault was found; the kind is mis-specified.
    """
    if kind == CONTROL:
        return _control(index, block, longest)
    fault = BY_KIND[kind]
    for attempt in range(_SETTINGS):
        seeds = _seeds(kind, index, block, attempt)
        found = _attempt(fault, index, block, seeds, longest)
        if found is not None:
            return found
    raise RuntimeError(f"{kind}/{block}/{index}: in none of {_SETTINGS} settings does the fault have an effect")


def _seeds(kind: str, index: int, block: str, attempt: int) -> list[np.random.SeedSequence]:
    words = [BLOCKS[block], zlib.crc32(kind.encode()), index, attempt]
    return np.random.SeedSequence(words).spawn(6)


def _attempt(
    fault: Fault, index: int, block: str, seeds: list[np.random.SeedSequence], longest: int
) -> Incident | None:
    rng = _generator(seeds[0])
    setting = fault.prepare(draw_setting(rng), rng)
    if fault.before is not None:
        setting = setting.having(before=fault.before)
    if fault.signals:
        # Where signals decide they are at hand in most settings.
        shown = chance(rng, 0.85)
        setting = setting.having(**{f"{fault.signals}_signals": shown})
        if not shown:
            # A machine that is slower than it was: without its signals only the window before can tell.
            setting = setting.having(before=True)
    setting = settled(setting, longest=longest)
    with_e2e = chance(rng, 0.7)
    strength = float(rng.random())
    healthy = measure(_run(setting, seeds[1]).flows)
    earlier = _run(setting, seeds[5]) if setting.before else None
    bounds = objectives(healthy, setting.margin, with_e2e=with_e2e)
    for _ in range(_STEPS):
        changed = fault.change(setting, strength, _generator(seeds[2]))
        seen = _run(changed, seeds[1])
        faulty = measure(seen.flows)
        if differs(healthy, faulty) and _noticed(earlier, bounds, seen, healthy):
            shown = {"gpu": setting.gpu_signals, "host": setting.host_signals}.get(fault.signals, True)
            return _told(
                kind=fault.kind,
                block=block,
                index=index,
                code=fault.code,
                acceptable=frozenset({fault.code, *fault.also, *(() if shown else fault.without_signals)}),
                strength=strength,
                setting=changed,
                healthy=setting,
                seen=seen,
                earlier=earlier,
                bounds=bounds,
                seeds=seeds,
            )
        if strength >= 1.0:
            return None
        strength = min(1.0, strength + 0.3)
    return None


def _noticed(earlier: Seen | None, bounds: Bounds, seen: Seen, healthy: Measures) -> bool:
    """Whoever has only what production has would see it: it breaks a promise, or differs from the window before."""
    faulty = measure(seen.flows)
    return breaks(bounds, faulty, measure(held(seen.flows)), usual=healthy) or (
        earlier is not None and differs(measure(earlier.flows), faulty, by_blocks=True)
    )


def _generator(seed: np.random.SeedSequence) -> np.random.Generator:
    """A generator of this seed. Not of the object: what it has spawned before would be missing from what it spawns."""
    return np.random.default_rng(np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key))


def _run(setting: Setting, seed: np.random.SeedSequence) -> Seen:
    return World(setting.site, setting.traffic, _generator(seed), sample_s=setting.sample_s).run()


def _told(
    *,
    kind: str,
    block: str,
    index: int,
    code: str,
    acceptable: frozenset[str],
    strength: float,
    setting: Setting,
    healthy: Setting,
    seen: Seen,
    earlier: Seen | None,
    bounds: Bounds,
    seeds: list[np.random.SeedSequence],
) -> Incident:
    """What production has of a window, and of the one before it."""
    writer_rng, signal_rng = _generator(seeds[3]), _generator(seeds[4])
    records = RecordWriter(setting.site, seen, writer_rng, wall_ns=_WALL_NS).records()
    before = None
    if earlier is not None:
        before = RecordWriter(healthy.site, earlier, writer_rng, wall_ns=_WALL_NS - 3_600 * S).records()
    one_engine = setting.site.replicas == 1
    return Incident(
        kind=kind,
        block=block,
        index=index,
        code=code,
        acceptable=acceptable,
        strength=strength,
        setting=setting,
        records=records,
        before=before,
        states=seen.states if one_engine else [],
        hosts=host_states(setting.site, seen.samples, signal_rng, wall_ns=_WALL_NS) if setting.host_signals else [],
        gpus=gpu_states(setting.site, seen.samples, signal_rng, wall_ns=_WALL_NS) if setting.gpu_signals else [],
        engine_pids=[ENGINE_PID] if setting.host_signals or setting.gpu_signals else [],
        bounds=bounds,
    )


def _control(index: int, block: str, longest: int) -> Incident:
    """Nothing is wrong: the objectives come from a longer window of the same system, and this one keeps them."""
    for attempt in range(_SETTINGS):
        seeds = _seeds(CONTROL, index, block, attempt)
        rng = _generator(seeds[0])
        setting = _healthy(rng, longest)
        with_e2e = chance(rng, 0.7)
        # A p99 of a few hundred requests is a guess: what is promised comes from a longer window.
        longer = setting.with_traffic(n=max(setting.traffic.n, min(_CALIBRATION, _LONGER * longest)))
        bounds = objectives(measure(_run(longer, seeds[2]).flows), setting.margin, with_e2e=with_e2e)
        seen = _run(setting, seeds[1])
        if keeps(bounds, measure(seen.flows)):
            return _told(
                kind=CONTROL,
                block=block,
                index=index,
                code="",
                acceptable=frozenset({""}),
                strength=0.0,
                setting=setting,
                healthy=setting,
                seen=seen,
                earlier=_run(setting, seeds[5]) if setting.before else None,
                bounds=bounds,
                seeds=seeds,
            )
    raise RuntimeError(f"{CONTROL}/{block}/{index}: none of {_SETTINGS} settings keeps its objectives")


def _healthy(rng: np.random.Generator, longest: int) -> Setting:
    """Any load up to a high one, sometimes in bursts that the system takes well, sometimes over several engines."""
    setting = draw_setting(rng)
    setting = setting.having(load=float(rng.uniform(0.1, 0.8)))
    if chance(rng, 0.25):
        setting = setting.with_traffic(
            arrivals="bursts",
            burst_s=float(rng.uniform(4, 15)),
            burst_share=float(rng.uniform(0.1, 0.3)),
            burst_for_s=1.0,
        )
    if chance(rng, 0.15):
        setting = setting.with_site(replicas=pick(rng, 2, 3))
    return settled(setting, longest=longest)
