"""`--objective` as it is typed: `ttft_p99=500ms`, or `short/tpot_p95=80ms` for one lane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace.cli.durations import parse_span
from tailrace.govern.objectives import FORM, objective_name
from tailrace.model.errors import InputError
from tailrace.model.thresholds import Objectives

PLACE: Final = "--objective"


def parse_objectives(texts: Iterable[str]) -> Objectives | None:
    """Read the option's values; `None` when there is none. Raises `InputError` that names the one it cannot read."""
    bounds: dict[str, dict[float, int]] = {}
    for text in texts:
        name, _, bound = text.partition("=")
        lane, _, plain = name.strip().rpartition("/")
        found = objective_name(plain)
        if found is None:
            raise InputError(
                f"cannot read {text!r}",
                place=PLACE,
                remedy=f"{FORM}: ttft_p99=500ms, or short/ttft_p99=1s for one lane.",
            )
        metric = f"{lane}/{found[0]}" if lane else found[0]
        bounds.setdefault(metric, {})[found[1]] = parse_span(bound, place=f"{PLACE} {name.strip()}", bare_seconds=False)
    return Objectives(bounds=bounds) if bounds else None
