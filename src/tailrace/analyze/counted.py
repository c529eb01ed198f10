"""Which requests of a run are counted, and as what: completed, failed, or left by the load's own client."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.labels import among
from tailrace.analyze.work_done import left_as_planned
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.store.table import RecordTable

__all__ = ["completed", "failed", "left", "left_by_plan", "measured", "measured_rows"]

_CLIENTS_CHOICE: Final = (Reason.CLIENT_DISCONNECT.value, Reason.CLIENT_WRITE_FAILED.value, Reason.BARGE_IN.value)
_LOADS_CHOICE: Final = (*_CLIENTS_CHOICE, Reason.OPERATOR.value, Reason.SHUTDOWN.value)
"""Seen from a load generator, it is the operator too: who ends a run early cuts what is under way."""


def measured_rows(table: RecordTable) -> NDArray[np.bool_]:
    """Which rows count: not the warm-up's, nor those of clients who left because the plan said so.

    The latter neither completed nor failed: they are counted apart (`work_done`).
    """
    warm = among(table.column("lane"), {"warmup"})
    early = table.column("run_offset_ns") < 0
    mask: NDArray[np.bool_] = ~((warm | early).astype(bool) | left_as_planned(table))
    return mask


def measured(table: RecordTable) -> RecordTable:
    """The table of the rows that count."""
    mask = measured_rows(table)
    return table if mask.all() else table.where(mask)


def completed(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests completed."""
    return among(table.column("outcome"), {OutcomeKind.COMPLETED.value})


def left_by_plan(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests a load generator itself gave up, the end of the run included."""
    mask: NDArray[np.bool_] = among(table.column("vantage"), {"client"}) & among(table.column("reason"), _LOADS_CHOICE)
    return mask


def left(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests were given up by their client, whoever looked: how long they would have taken nobody knows."""
    mask: NDArray[np.bool_] = left_by_plan(table) | among(table.column("reason"), _CLIENTS_CHOICE)
    return mask


def failed(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests failed, were refused, timed out, or were cancelled by the server's side."""
    return ~completed(table) & ~left(table)
