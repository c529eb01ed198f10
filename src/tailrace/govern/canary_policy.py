"""What a canary is asked to prove, and the words for where it stands. Plain data."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from tailrace.model.thresholds import S

STABLE: Final = "stable"
CANARY: Final = "canary"
SHADOW: Final = "shadow"


class CanaryState(StrEnum):
    """Where the canary stands."""

    RUNNING = "running"
    """It has its step's share and is compared; a step that is held long enough without a regression widens."""
    PAUSED = "paused"
    """It keeps its share, is compared and may be rolled back, but does not widen."""
    PINNED = "pinned"
    """An operator set the share: compared and shown, neither widened nor rolled back."""
    PROMOTED = "promoted"
    """It takes everything."""
    ROLLED_BACK = "rolled_back"
    """It was found worse: it takes nothing."""
    ABORTED = "aborted"
    """An operator ended it: it takes nothing."""


class CanaryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a canary widens and what ends it. Times in ns, shares of 1."""

    name: str = CANARY
    """The experiment: sessions are dealt out by it, and another name deals anew."""
    steps: tuple[float, ...] = (0.10, 0.25, 0.50, 1.0)
    hold_ns: int = 1800 * S
    """The least time on a step before it widens. A rollback does not wait for it."""
    min_requests: int = 500
    """The least number of the canary's finished requests on a step before it widens."""
    alpha: float = 0.01
    """The chance that a canary that is no worse is ever rolled back: over all looks, metrics and steps together."""
    power: float = 0.9
    """The chance that an effect of the stated size is found in the stated time."""
    tolerance: float = 0.03
    """A uniform slow-down up to this much is accepted."""
    tail_tolerance: float = 0.25
    """So is this much more than the due number of very slow or failed requests."""
    look_ns: int = 2 * S
    """How often the evidence is judged."""
    recent_ns: int = 300 * S
    """Beside all of a step's evidence, that of windows so long is judged for itself: a regression that begins in the
    middle of a step is found no later than one window after it began, plus the time that it takes to be found."""
    settle_ns: int = 0
    """After a step begins: requests that end within it are not compared (a cold cache, graphs being captured)."""
    declared_rate: float | None = None
    """Requests a second of both routes together, for what is said before anything was measured."""
    kv_usage: float = 0.95
    """A canary whose backends use more of their KV cache than this does not widen."""
    gpu_utilization: float | None = None
    """Likewise for the GPU (share of 1), where it is readable; no guard by default: a busy GPU is paid for."""


class Observation(NamedTuple):
    """One finished request, as a canary hears it. A metric that was not seen is 0."""

    canary: bool
    prompt_tokens: int
    output_tokens: int
    ttft_ns: int
    tpot_ns: int
    e2e_ns: int
    failed: bool
    group: int = 0
    """A number that all requests of one session share; 0: it has none."""
    prompt_bytes: int = 0
    """Size of the request: what failures are stratified by, as a request that failed has no count of tokens."""


class Finding(NamedTuple):
    """One comparison at one look."""

    test: str
    """`ttft.mean`, `ttft.p99`, `ttft.p998`, ..., `errors`."""
    z: float
    bound: float
    """The z that decides, over all looks."""
    canary: int
    """The canary's requests behind it."""
    stable: int
    effect: float
    """Relative: 0.3 = 30 % slower; of a tail or of errors, how many times the due number, less 1."""
    low: float | None = None
    """Of a mean: at least this much slower, over all looks."""
    events: int = 0
    """Of a tail or of errors: the canary's requests beyond the threshold, or failed."""
    due: float = 0.0
    """How many there would be if both routes were the same."""
    deff: float = 1.0
    """By how much dependence inflates the variance."""

    @property
    def decided(self) -> bool:
        """Whether it is enough for a rollback."""
        return self.z > self.bound
