"""A serving system in parameters: engines, what stands before them, the gateway, the clients.

A fault of the incident suite is a change of these and of `Traffic`, so that what a diagnosis sees of it is the
simulation's answer and not an author's idea of a symptom. The defaults are a system in which nothing is wrong.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tailrace.govern.lane import LanePolicy
from tailrace.model.thresholds import Budgets, S

PATIENT = Budgets(
    queue_ns=60 * S, first_token_ns=120 * S, idle_ns=120 * S, total_ns=900 * S, unstreamed_total_ns=900 * S
)
"""Budgets that end nobody's request: a site whose operator has not set any."""


class Wear(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine takes from the engine. Shares of 1.0 and zeros: nothing."""

    compute: float = 1.0
    """Share of the accelerator's FLOP/s: its SM clock."""
    memory: float = 1.0
    """Share of its memory bandwidth."""
    host: float = 1.0
    """The engine's own work a step (scheduling, launch, sampling) takes so many times as long."""
    every_s: float = 0.0
    """The three above hold in episodes, one in so many seconds (0: always) ..."""
    for_s: float = 0.0
    """... each so long."""
    pause_every_s: float = 0.0
    """Pauses: a process that serves all streams stands still, about so often (0: never)."""
    pause_ms: float = 0.0
    pause_growth: float = 0.0
    """Each second of uptime makes the pauses so much longer, relative to `pause_ms`."""
    pause_regular: bool = True
    """At even intervals; else by chance (exponential)."""
    pause_in: Literal["core", "front"] = "core"
    """Which process: the one that steps (then nothing is computed), or the one that streams the answers."""
    position_us: float = 0.0
    """CPU time that a step costs for each token that a request in it has generated so far."""
    jit_ms: float = 0.0
    """Compiling when a step has a number of prompt tokens (to the power of two) for the first time."""
    idle_s: float = 0.0
    """After so long without work (0: never) ..."""
    ramp_s: float = 0.0
    """... the accelerator needs so long ..."""
    ramp: float = 1.0
    """... during which it has this share of its FLOP/s and bandwidth."""
    hang_at: float = 0.0
    """When the core stands still once, as a share of the window (0: never)."""
    hang_s: float = 0.0
    cause: Literal["", "thermal", "power", "neighbour", "quota", "contention"] = ""
    """What lowers compute, memory or host: the machine's own signals differ by it."""


class FrontEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's API server: one event loop that reads requests and streams all answers."""

    fixed_us: float = 300.0
    """Work on the loop a request."""
    token_us: float = 0.6
    """Tokenising and templating, a prompt token."""
    on_loop: bool = False
    """Tokenising blocks the event loop; else it is done in a pool beside it."""
    grammar_ms: float = 25.0
    """Compiling a grammar that is not cached: before the request can be queued, beside the loop."""
    grammar_cached: float = 0.9
    """Share of grammar requests whose grammar is compiled already."""
    hold_at: int = 0
    """A parser of tool calls begins to hold text back at this position of the answers that have one (0: never) ..."""
    hold_tokens: int = 0
    """... for so many tokens."""
    held_share: float = 0.0


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service of the user's between gateway and engine that reports its stages in `Server-Timing`."""

    workers: int = 8
    before_ms: float = 6.0
    """Its work before the model is asked (retrieval, templating), median."""
    after_ms: float = 1.0
    """Its work after the last token (safety, formatting), median."""
    spread: float = 0.4
    """Standard deviation of the logarithm of both."""
    lock_ms: float = 0.0
    """Part of its work before the model that only one request at a time can do."""
    encode_ms: float = 0.0
    """An encoder (image, audio) before the prefill, one at a time."""


class Batcher(msgspec.Struct, frozen=True, kw_only=True):
    """A dynamic batcher before the engine's core: it waits for a preferred number of requests, at most so long."""

    window_ms: float = 0.0
    preferred: int = 8


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """Between gateway and engine: the network, and a proxy that may stand there."""

    latency_ms: float = 0.3
    """One way."""
    jitter_ms: float = 0.05
    """Mean of an exponential addition to each packet; order is kept."""
    loss: float = 0.0
    """Share of packets that are lost once."""
    rto_ms: float = 220.0
    """What a lost packet costs: TCP's retransmission timeout."""
    buffer_bytes: int = 0
    """The proxy passes the answer on in buffers of so many bytes (0: as it comes)."""
    coalesce_ms: float = 0.0
    """It gathers text for so long and passes it on as one event."""
    hold_share: float = 0.0
    """Share of answers whose beginning is held back ..."""
    hold_ms: float = 0.0
    """... so long."""
    idle_s: float = 0.0
    """It closes a connection on which the answer has been silent for so long (0: never)."""
    timeout_s: float = 0.0
    """It answers 504, or cuts the stream, when a request has taken so long."""


class GatewaySide(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's own part."""

    lanes: tuple[LanePolicy, ...] = (LanePolicy(budgets=PATIENT),)
    pool: int = 0
    """Connections to one engine at most (0: no bound)."""
    chunk_us: float = 30.0
    """Own work a chunk."""
    parse_ns_per_byte: float = 2.0
    block_every_s: float = 0.0
    """Something else on its event loop, about so often (0: never) ..."""
    block_ms: float = 0.0
    """... for so long."""
    scrape_s: float = 1.0
    balance: Literal["least", "round_robin", "sticky", "weights"] = "least"
    weights: tuple[float, ...] = ()
    scattered: float = 0.0
    """With `sticky`: share of the requests that go to any engine all the same."""
    retries: int = 0
    """Further attempts where an engine fails before its first token."""


class ClientSide(msgspec.Struct, frozen=True, kw_only=True):
    """The clients and their line to the gateway."""

    latency_ms: float = 8.0
    up_bytes_per_s: float = 5e6
    late_share: float = 0.0
    """Share of requests whose body comes in late ..."""
    late_ms: float = 0.0
    """... by so much (median)."""
    slow_share: float = 0.0
    """Share of clients that read slowly ..."""
    slow_bytes_per_s: float = 0.0
    """... at this rate ..."""
    window_bytes: int = 65_536
    """... and so much fits into the buffers between gateway and reader."""
    timeout_s: float = 0.0
    """They close the connection when an answer has taken so long (0: never)."""
    leave_share: float = 0.0
    """Share of requests whose client goes away ..."""
    leave_s: float = 0.0
    """... after a time of this mean (exponential)."""
    resend: int = 0
    """How often a client whose request failed or timed out sends it again."""
    backoff_s: float = 0.5


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """The whole system."""

    preset: str = "a100-llama3-8b"
    knobs: dict[str, int | bool | str] = {}
    """Changes of the preset's own."""
    replicas: int = 1
    wear: Wear = Wear()
    front: FrontEnd = FrontEnd()
    service: Service | None = None
    batcher: Batcher = Batcher()
    hop: Hop = Hop()
    gateway: GatewaySide = GatewaySide()
    client: ClientSide = ClientSide()
    version: str = "0.19.0"
    cancels_reach: bool = True
    """A client that leaves ends its request in the engine."""
    fails_share: float = 0.0
    """Share of attempts that the engine answers with an error at once."""
    tells_cached: bool = True
    """The engine's usage says how many prompt tokens were cached (`--enable-prompt-tokens-details`)."""
