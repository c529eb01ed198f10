"""Random settings: the system and the traffic in which a fault happens, drawn so that without the fault all is well."""

from __future__ import annotations

import math
from typing import Final, TypeVar

import msgspec
import numpy as np

from tailrace.govern.lane import LanePolicy
from tailrace.simulate.incidents.site import PATIENT, ClientSide, FrontEnd, GatewaySide, Hop, Service, Site
from tailrace.simulate.incidents.traffic import Class, Traffic
from tailrace.simulate.presets import preset

T = TypeVar("T")
_BATCH: Final = {"a100-llama3-8b": 40, "h100-llama3-8b": 64}
"""A batch at which tokens still come quickly: what a careful operator fills an engine up to."""


_SHORTEST_S: Final = 25.0
"""A window is at least so long, however many requests that is."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A healthy site with its traffic, and what of it can be seen."""

    site: Site
    traffic: Traffic
    before: bool
    """A window from before the fault is at hand."""
    host_signals: bool
    gpu_signals: bool
    sample_s: float
    """How often machine signals are read."""
    margin: float
    """The objectives are so many times what the healthy system does."""
    load: float
    """Rate of the healthy traffic as a share of what its engines can do."""
    size: float
    """Requests in the window, where its length allows that few or that many."""

    def having(self, **changes: object) -> Setting:
        """This setting with other fields."""
        return msgspec.structs.replace(self, **changes)

    def with_site(self, **changes: object) -> Setting:
        """This setting with another site."""
        return self.having(site=msgspec.structs.replace(self.site, **changes))

    def with_traffic(self, **changes: object) -> Setting:
        """This setting with other traffic."""
        return self.having(traffic=msgspec.structs.replace(self.traffic, **changes))


def chance(rng: np.random.Generator, p: float) -> bool:
    """True with probability `p`."""
    return bool(rng.random() < p)


def pick(rng: np.random.Generator, *values: T) -> T:
    """One of them."""
    return values[int(rng.integers(len(values)))]


def spread(rng: np.random.Generator, low: float, high: float) -> float:
    """Between `low` and `high`, even on a logarithmic scale."""
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def draw_setting(rng: np.random.Generator) -> Setting:
    """A healthy setting whose rate and number of requests are not settled yet."""
    name = pick(rng, "a100-llama3-8b", "h100-llama3-8b")
    fast = name.startswith("h100")
    budget = pick(rng, 2048, 4096, 8192) if fast else pick(rng, 512, 1024, 2048)
    classes = _classes(rng, fast=fast)
    sessions = pick(rng, 0, 0, 40, 150)
    traffic = Traffic(
        n=1,
        rate=1.0,
        classes=classes,
        arrivals="poisson",
        grammar=pick(rng, 0.0, 0.0, 0.05, 0.2),
        tools=pick(rng, 0.0, 0.0, 0.15),
        choices=pick(rng, 0.0, 0.0, 0.03),
        choices_n=2,
        sessions=sessions,
        shared_tokens=int(spread(rng, 256, 2048)) if sessions else 0,
        repeats=float(rng.uniform(0.7, 1.0)),
        longest_prompt=16_000 if fast else 8_000,
    )
    site = Site(
        preset=name,
        knobs={
            "max_num_batched_tokens": budget,
            "max_num_seqs": pick(rng, 128, 256),
            "enable_prefix_caching": chance(rng, 0.8),
        },
        front=FrontEnd(token_us=float(rng.uniform(0.4, 1.0)), grammar_ms=spread(rng, 8, 40)),
        service=Service(
            workers=pick(rng, 8, 16, 32),
            before_ms=spread(rng, 2, 25),
            after_ms=spread(rng, 0.5, 4),
            spread=float(rng.uniform(0.2, 0.5)),
        )
        if chance(rng, 0.3)
        else None,
        hop=Hop(latency_ms=spread(rng, 0.1, 3), jitter_ms=spread(rng, 0.02, 0.5)),
        gateway=GatewaySide(
            lanes=(LanePolicy(budgets=PATIENT),),
            chunk_us=spread(rng, 15, 60),
            scrape_s=pick(rng, 1.0, 1.0, 2.0, 5.0),
        ),
        client=ClientSide(
            latency_ms=spread(rng, 0.5, 60),
            up_bytes_per_s=spread(rng, 1e6, 5e7),
            leave_share=pick(rng, 0.0, 0.0, 0.004),
            leave_s=4.0,
        ),
        tells_cached=chance(rng, 0.7),
    )
    return Setting(
        site=site,
        traffic=traffic,
        before=chance(rng, 0.6),
        host_signals=chance(rng, 0.6),
        gpu_signals=chance(rng, 0.6),
        sample_s=pick(rng, 1.0, 2.0, 5.0),
        margin=float(rng.uniform(1.15, 2.0)),
        load=float(rng.uniform(0.2, 0.6)),
        size=spread(rng, 250, 2500 if chance(rng, 0.85) else 5000),
    )


def settled(setting: Setting, *, longest: int = 5000) -> Setting:
    """With the rate that its load means for its traffic, and a number of requests that makes a window of that."""
    rate = setting.load * capacity(setting.site, setting.traffic) * setting.site.replicas
    n = int(min(max(setting.size, _SHORTEST_S * rate, 200), longest))
    return setting.with_traffic(rate=rate, n=n)


def _classes(rng: np.random.Generator, *, fast: bool) -> tuple[Class, ...]:
    chat = Class(
        name="chat",
        share=1.0,
        prompt=int(spread(rng, 80, 700)),
        prompt_spread=float(rng.uniform(0.4, 0.9)),
        output=int(spread(rng, 60, 260)),
        output_spread=float(rng.uniform(0.3, 0.7)),
    )
    kind = pick(rng, "chat", "chat+document", "chat+document", "chat+batch")
    if kind == "chat":
        return (chat,)
    if kind == "chat+batch":
        body = Class(name="extract", share=0.2, prompt=int(spread(rng, 500, 1500)), output=80, stream=False)
        return (msgspec.structs.replace(chat, share=0.8), body)
    share = float(rng.uniform(0.03, 0.15))
    document = Class(
        name="document",
        share=share,
        prompt=int(spread(rng, 1800, 5000 if fast else 3500)),
        prompt_spread=0.3,
        output=int(spread(rng, 80, 250)),
        output_spread=0.4,
    )
    return (msgspec.structs.replace(chat, share=1 - share), document)


def capacity(site: Site, traffic: Traffic) -> float:
    """About how many requests a second one engine of the site can do at a batch that keeps tokens quick.

    The time of a request's prompt, and its part of the time of the steps in which it decodes.
    """
    chosen = preset(site.preset)
    cost = chosen.cost()
    budget = int(site.knobs.get("max_num_batched_tokens", chosen.knobs.max_num_batched_tokens))
    prompt = output = 0.0
    shares = sum(one.share for one in traffic.classes)
    for one in traffic.classes:
        part = one.share / shares
        prompt += part * min(one.prompt * math.exp(one.prompt_spread**2 / 2), traffic.longest_prompt)
        output += part * min(one.output * math.exp(one.output_spread**2 / 2), traffic.longest_output)
    cached = 0.8 * traffic.repeats if site.knobs.get("enable_prefix_caching", True) else 0.0
    computed = prompt + (1 - cached) * traffic.shared_tokens * bool(traffic.sessions)
    batch = min(_BATCH[site.preset], int(site.knobs.get("max_num_seqs", 256)))
    context = prompt + traffic.shared_tokens * bool(traffic.sessions) + output / 2
    step = cost.step_ps(batch, int(batch * context), ()) / 1e12
    token = cost.step_ps(0, 0, [(budget, budget)]) / budget / 1e12
    choices = 1 + traffic.choices * (traffic.choices_n - 1)
    return 1 / (computed * token + choices * output * step / batch)


def between(low: float, high: float, strength: float) -> float:
    """From `low` (strength 0) to `high` (strength 1), geometrically."""
    return float(low * (high / low) ** strength)
