"""What configuration alone leads to: one rule a code, asked only where nothing else found that code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.configured.engine_options import advised, cap_low, context_above_cache, step_large, switched_off
from tailrace.diagnose.configured.idle_timeouts import early_end, short_timers
from tailrace.diagnose.configured.limits import client_connections, cpu_limit
from tailrace.diagnose.configured.probes import probe_in_configuration
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Finding

__all__ = ["RULES", "lint"]

Rule = Callable[[Cause, Observed], Finding | None]

_HITS: Final = "prefix cache hits and queries over the window, or how many prompts begin alike"
_GAPS: Final = "gaps of the streams beside a long prompt's prefill"
RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "GW_UPSTREAM_TIMEOUT": (
        partial(short_timers, kinds=("read",)),
        partial(short_timers, kinds=("total",)),
        early_end,
    ),
    "GW_IDLE_TIMEOUT": (partial(short_timers, kinds=("idle",)),),
    "GW_PROBE_KILL": (probe_in_configuration,),
    "GW_CONN_POOL_CAP": (client_connections,),
    "FE_CPU_STARVED": (cpu_limit,),
    "MIX_CACHE_MISS": (
        partial(
            advised,
            codes=("PREFIX_CACHING_OFF",),
            missing=_HITS,
        ),
        partial(
            switched_off,
            option="prefix_caching",
            words="a system prompt or a chat's history is computed anew for every request",
            advice="--enable-prefix-caching (the default of current versions)",
            missing=_HITS,
        ),
    ),
    "SCHED_PREFILL_STEALS_DECODE": (
        step_large,
        partial(
            advised,
            codes=("CHUNKED_PREFILL_OFF", "PREFILL_PAUSES_DECODE", "BATCH_TOKENS_LARGE"),
            missing=_GAPS,
        ),
        partial(
            switched_off,
            option="chunked_prefill",
            words="a long prompt is computed in one piece, and every stream stands still meanwhile",
            advice="--enable-chunked-prefill with --max-num-batched-tokens 2048",
            missing=_GAPS,
        ),
    ),
    "SCHED_ADMISSION_DEADLOCK": (context_above_cache,),
    "SCHED_BATCHER_WAIT": (
        partial(advised, codes=("BATCH_DELAY_LONG",), missing="queue times at low load: do they cluster at the window"),
    ),
    "SCHED_INSTANCE_LIMIT": (
        partial(advised, codes=("ONE_INSTANCE",), missing="requests that wait while the device idles"),
    ),
    "TUNE_NOT_SCALE": (cap_low,),
}
"""Code -> its rules, the first that finds something counts. None of them says more than `suspected`."""


def lint(causes: Iterable[Cause], observed: Observed, found: Iterable[str]) -> list[Finding]:
    """Suspicions of the causes that are not among the codes `found`."""
    if not observed.settings:
        return []
    known = set(found)
    out = []
    for cause in causes:
        if cause.code in known or cause.code not in RULES:
            continue
        finding = next((one for rule in RULES[cause.code] if (one := rule(cause, observed)) is not None), None)
        if finding is not None:
            out.append(finding)
    return out
