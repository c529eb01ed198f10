"""Which requests of a run are counted, and as what: completed, failed, or left by the load's own client."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.store.table import RecordTable

__all__ = ["completed", "failed", "left", "left_as_planned", "left_by_plan", "measured", "measured_rows", "warm_up"]

_CLIENTS_CHOICE: Final = (Reason.CLIENT_DISCONNECT.value, Reason.CLIENT_WRITE_FAILED.value, Reason.BARGE_IN.value)
_LOADS_CHOICE: Final = (*_CLIENTS_CHOICE, Reason.OPERATOR.value, Reason.SHUTDOWN.value)
"""Seen from a load generator, it is the operator too: who ends a run early cuts what is under way."""


def measured_rows(table: RecordTable) -> NDArray[np.bool_]:
    """Which rows are neither of the warm-up nor left by a client whose plan said so.

    The latter neither completed nor failed, and their share is an option of the load test: with them in n, every rate
    would move with it. They are counted apart (`work_done`).
    """
    mask: NDArray[np.bool_] = ~warm_up(table) & ~left_as_planned(table)
    return mask


def warm_up(table: RecordTable) -> NDArray[np.bool_]:
    """Which rows are of the warm-up."""
    warm = table.column("lane") == "warmup"
    early = table.column("run_offset_ns") < 0
    mask: NDArray[np.bool_] = (warm | early).astype(bool)
    return mask


def left_as_planned(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests a load test's own clients left in mid-answer because the plan said so."""
    mask: NDArray[np.bool_] = (table.column("reason") == Reason.LEFT_AS_PLANNED.value).astype(bool)
    return mask


def measured(table: RecordTable) -> RecordTable:
    """The table without its warm-up, and without requests whose clients left as planned."""
    mask = measured_rows(table)
    return table if mask.all() else table.where(mask)


def completed(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests completed."""
    mask: NDArray[np.bool_] = (table.column("outcome") == OutcomeKind.COMPLETED.value).astype(bool)
    return mask


def left_by_plan(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests a load generator itself gave up: by its plan (a cancellation test), or because the run ended."""
    mask: NDArray[np.bool_] = (table.column("vantage") == "client").astype(bool) & np.isin(
        table.column("reason").astype(str), _LOADS_CHOICE
    )
    return mask


def left(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests were given up by their client, whoever looked: how long they would have taken nobody knows."""
    mask: NDArray[np.bool_] = left_by_plan(table) | np.isin(table.column("reason").astype(str), _CLIENTS_CHOICE)
    return mask


def failed(table: RecordTable) -> NDArray[np.bool_]:
    """Which requests failed, were refused, timed out, or were cancelled by the server's side."""
    return ~completed(table) & ~left(table)
