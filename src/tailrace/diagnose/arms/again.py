"""The command that repeats a measurement under the load that an arm names."""

from __future__ import annotations

from tailrace.diagnose.arms.pairs import loads
from tailrace.diagnose.observed import Arm

__all__ = ["MEASURE", "again"]

MEASURE = "tailrace bench http://localhost:8000 --rate 5 --duration 60"
"""Where what was measured cannot be believed: measure it anew, with a load generator that keeps every stamp."""

_OPTIONS = (
    ("concurrency", "--concurrency"),
    ("max_concurrency", "--concurrency"),
    ("sessions", "--concurrency"),
    ("offered_rps", "--rate"),
    ("prompt_tokens", "--prompt-tokens"),
    ("output_tokens", "--output-tokens"),
)


def again(arm: Arm | None = None, *, more: str = "") -> str:
    """`tailrace bench URL …` before and after the change, and the comparison of both."""
    known = {} if arm is None else loads(arm)
    parts, given = [], set()
    for name, option in _OPTIONS:
        if name in known and option not in given and known[name] > 0:
            given.add(option)
            parts.append(f"{option} {known[name]:g}")
    if not given & {"--concurrency", "--rate"}:
        parts.insert(0, "--rate 5")
    load = " ".join([*parts, *([more] if more else [])])
    return (
        f"tailrace bench http://localhost:8000 {load} --duration 60 --out after.run && tailrace compare "
        "before.run after.run"
    )
