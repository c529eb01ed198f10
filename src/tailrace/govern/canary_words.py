"""Findings of a canary in words, with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tailrace.govern.canary_policy import Finding

_NAMES: Final = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "end-to-end time"}
_TAILS: Final = {"p99": ("p99", "1 %"), "p998": ("p99.8", "0.2 %")}


def say(finding: Finding) -> str:
    """One comparison as a sentence."""
    base = f"{finding.canary} canary requests, {finding.stable} stable ones; z {finding.z:.1f}, "
    base += f"{finding.bound:.1f} decides"
    if finding.test == "errors":
        return f"{finding.events} of the canary's requests failed, {finding.due:.1f} would be its due ({base})"
    metric, _, kind = finding.test.partition(".")
    name = _NAMES.get(metric, metric)
    if kind == "mean":
        change = f"{abs(finding.effect):.1%} {'longer' if finding.effect >= 0 else 'shorter'}"
        least = f", at least {finding.low:.1%}" if finding.low is not None and finding.low > 0 else ""
        return f"{name} is {change} among like requests{least} ({base})"
    quantile, share = _TAILS[kind]
    return (
        f"{finding.events} of the canary's requests lie beyond the {quantile} of the {name} of their like, "
        f"{finding.due:.1f} would be its due ({share}; {base})"
    )


def plain(finding: Finding) -> dict[str, Any]:
    """One comparison as data."""
    return {
        "test": finding.test,
        "z": round(finding.z, 3),
        "decides_at": round(finding.bound, 3),
        "effect_pct": round(finding.effect * 100, 2),
        "at_least_pct": None if finding.low is None else round(finding.low * 100, 2),
        "canary_requests": finding.canary,
        "stable_requests": finding.stable,
        "events": finding.events,
        "due": round(finding.due, 2),
        "design_effect": round(finding.deff, 2),
        "text": say(finding),
    }


def strongest(findings: Sequence[Finding]) -> Finding | None:
    """The one that is furthest towards (or beyond) its bound."""
    return max(findings, key=lambda finding: finding.z / finding.bound, default=None)
