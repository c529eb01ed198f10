"""Objectives as people name them: `ttft_p99`. One reader for the configuration file and for every command line."""

from __future__ import annotations

import re
from typing import Final

METRICS: Final = ("ttft", "tpot", "chunk_gap", "e2e")
QUANTILES: Final = {"50": 0.5, "90": 0.9, "95": 0.95, "99": 0.99, "999": 0.999}
FORM: Final = (
    f"Write METRIC_pQUANTILE with a metric of {', '.join(METRICS)} and a quantile of "
    f"{', '.join(f'p{name}' for name in QUANTILES)}"
)
"""How a name is to be written, for error messages."""

_NAME: Final = re.compile(rf"({'|'.join(METRICS)})_p({'|'.join(QUANTILES)})")


def objective_text(metric: str, quantile: float) -> str:
    """`("ttft", 0.99)` -> `ttft_p99`: the inverse of `objective_name`."""
    return f"{metric}_p{next(name for name, value in QUANTILES.items() if value == quantile)}"


def objective_name(text: str) -> tuple[str, float] | None:
    """`ttft_p99` -> `("ttft", 0.99)`; `None` for what is no objective."""
    match = _NAME.fullmatch(text)
    return None if match is None else (match[1], QUANTILES[match[2]])
