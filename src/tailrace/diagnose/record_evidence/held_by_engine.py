"""METRIC_GAP of records: what the engine holds against what our records account for (L = lambda W)."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.analyze.timebase import starts_ns
from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.model.finding import Evidence, Finding, Level

__all__ = ["held_by_engine"]

LEAST: Final = 100


def held_by_engine(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Running and waiting at admission, on average, far above arrival rate x time in the system."""
    table = evidence.table
    held = table.column("running_at_admission") + table.column("waiting_at_admission")
    held = held[~np.isnan(held)]
    if held.size < LEAST or evidence.vantage != "gateway":
        return None
    span = float(starts_ns(table).max()) / 1e9
    if span <= 0:
        return None
    ours = float(table.column("e2e_ns").sum()) / 1e9 / span
    seen = float(held.mean())
    if seen <= 1.5 * ours + 3.0:
        return None
    return cause.finding(
        statement=f"The engine holds {seen:.1f} requests on average, our records account for {ours:.1f} (Little's "
        "law): others use this engine too, or records are missing.",
        evidence=[
            Evidence(text=f"running + waiting at admission: {seen:.1f} on average", source="record", value=seen),
            Evidence(text=f"arrival rate x time in system = {ours:.1f}", source="record", value=ours),
        ],
        explains_ms=None,
        relation=f"{seen:.1f} > 1.5 x {ours:.1f} + 3",
        n=int(held.size),
        advice="Route all clients of this engine through the gateway, or give it an engine of its own.",
        price="None.",
        verify=evidence.verify_command,
        level=Level.SUSPECTED,
    )
