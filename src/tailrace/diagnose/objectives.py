"""Objectives as they are typed: `ttft_p99=500ms`, `short/tpot_p95=80ms`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tailrace.model.errors import InputError
from tailrace.model.thresholds import MS, Objectives, S

__all__ = ["parse_objectives"]

_FORM: Final = re.compile(r"(?:(?P<lane>[\w.-]+)/)?(?P<metric>ttft|tpot|e2e)_p(?P<p>50|90|95|999|99)")
_BOUND: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)")
_REMEDY: Final = "Write METRIC_pN=TIME, for example ttft_p99=500ms, tpot_p99=80ms, e2e_p95=10s, or short/ttft_p99=1s."


def parse_objectives(texts: Iterable[str]) -> Objectives | None:
    """Read `--objective` values; `None` when there is none. InputError names the one that cannot be read."""
    bounds: dict[str, dict[float, int]] = {}
    for text in texts:
        name, _, bound = text.partition("=")
        form, time = _FORM.fullmatch(name.strip()), _BOUND.fullmatch(bound.strip())
        if form is None or time is None:
            raise InputError(f"cannot read {text!r}", place="--objective", remedy=_REMEDY)
        metric = f"{form['lane']}/{form['metric']}" if form["lane"] else form["metric"]
        p = 0.999 if form["p"] == "999" else int(form["p"]) / 100
        bounds.setdefault(metric, {})[p] = round(float(time["number"]) * (MS if time["unit"] == "ms" else S))
    return Objectives(bounds=bounds) if bounds else None
