"""What to collect where the question is about the way to the engine: hops, replicas, timers, probes, the front end.

What a person writes is no evidence; what it asks about says which numbers would be.
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.diagnose.arm_evidence.paths import is_direct, is_via
from tailrace.diagnose.arms.asked import said
from tailrace.diagnose.observed import Observed

__all__ = ["on_the_way"]

_HOP: Final = (
    "of the hop (proxy, gateway): requests in flight before it and towards the engine (its connection pool), its own "
    "overhead or loop lag, and its CPU, beside the engine's running and waiting"
)
_REPLICAS: Final = (
    "running and waiting requests of each replica (vllm:num_requests_running and _waiting per engine label, or the "
    "log lines of every Engine NNN) from the slow time: skew = busiest / mean"
)
_AGES: Final = (
    "the age and the bytes received of each failed request (access log with request and upstream time), and the "
    "timers of every hop: failures of one age are a timer's"
)
_PROBE: Final = (
    "restarts or ready endpoints beside the queue over time, how long /health took, and the probe's timeoutSeconds, "
    "periodSeconds and failureThreshold"
)
_CHUNKS: Final = (
    "stamps of the same chunks before and behind the hop (first byte from the engine, write to the client), for "
    "the direct path too"
)
_CPU: Final = "two cpu.stat (nr_periods, nr_throttled) around the slow window, and CPU use of each process (top -H)"
_ASKED: Final = (
    (
        re.compile(
            r"load.?balanc|round.?robin|one (?:or two )?(?:cards?|gpus?|replicas?|ranks?|pods?|workers?)|replicas?\b|"
            r"\bdp\b|data.?parallel|uneven|others (?:do nothing|idle)|\bskew|hot ?spot|sticky|affinity",
            re.IGNORECASE,
        ),
        _REPLICAS,
    ),
    (re.compile(r"\b50[234]\b|time[sd]? ?out|disconnect|reset by|cut off|aborted", re.IGNORECASE), _AGES),
    (re.compile(r"probe|liveness|readiness|restarts? (?:the )?pod|pod restarts|crash ?loop", re.IGNORECASE), _PROBE),
    (re.compile(r"all at once|in (?:one )?bursts?|chunks? arrive|buffer", re.IGNORECASE), _CHUNKS),
    (re.compile(r"\bcpu (?:quota|limit)|thrott|\bcores\b|num_?thread|nproc", re.IGNORECASE), _CPU),
    (re.compile(r"proxy|gateway|litellm|nginx|envoy|ingress|router", re.IGNORECASE), _HOP),
)  # fmt: skip


def on_the_way(observed: Observed) -> list[str]:
    """By what the arms are called, how many engines there are, and what the notes ask about."""
    out = []
    names = [said(arm) for arm in observed.arms]
    if any(map(is_via, names)) and any(is_direct(name) or not is_via(name) for name in names):
        out.append(_HOP)
    engines = observed.number("data_parallel", "data_parallel_size", "replicas", "k8s.replicas") or 1.0
    shown = {item.labels.get("engine", "") for item in observed.of_series("running")}
    if engines > max(1, len(shown)):
        out.append(_REPLICAS)
    words = " ".join([*observed.notes, *(str(item.value) for item in observed.settings if item.name == "claim")])
    out += [wanted for pattern, wanted in _ASKED if pattern.search(words)]
    return list(dict.fromkeys(out))[:3]
