"""The tail by prompt and output length: a grid of cells, each with its n, unsupported ones marked."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.classes import prompt_tokens
from tailrace.analyze.counted import completed
from tailrace.stats.quantiles import quantile, supported
from tailrace.store.table import RecordTable

__all__ = ["OUTPUT_EDGES", "PROMPT_EDGES", "LengthCell", "edge_label", "length_places", "tail_by_length"]

PROMPT_EDGES: Final = (0, 256, 1024, 4096, 16384)
OUTPUT_EDGES: Final = (0, 64, 256, 1024)
"""Lower edges in tokens; the last bucket is open."""


class LengthCell(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one prompt bucket and one output bucket (ms)."""

    prompt: str
    output: str
    n: int
    p50: float | None
    p95: float | None
    p99: float | None
    """`None` where n(1 - p) < 5: too few requests to say."""
    max: float | None
    share: float
    """Of all requests in the grid."""


def edge_label(edges: tuple[int, ...], i: int) -> str:
    """`256-1023`, `16384+`."""
    return f"{edges[i]}+" if i + 1 == len(edges) else f"{edges[i]}-{edges[i + 1] - 1}"


def length_places(
    table: RecordTable,
    prompt_edges: tuple[int, ...] = PROMPT_EDGES,
    output_edges: tuple[int, ...] = OUTPUT_EDGES,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(prompt bucket, output bucket) of each row; -1 in both where a length is not known or it did not complete."""
    prompts, outputs = prompt_tokens(table), table.column("output_tokens")
    known = completed(table) & ~np.isnan(prompts) & ~np.isnan(outputs)
    row = np.searchsorted(prompt_edges, np.nan_to_num(prompts), side="right") - 1
    column = np.searchsorted(output_edges, np.nan_to_num(outputs), side="right") - 1
    return np.where(known, row, -1).astype(np.int64), np.where(known, column, -1).astype(np.int64)


def tail_by_length(
    table: RecordTable,
    metric: str = "ttft",
    prompt_edges: tuple[int, ...] = PROMPT_EDGES,
    output_edges: tuple[int, ...] = OUTPUT_EDGES,
    *,
    values: NDArray[np.float64] | None = None,
) -> list[LengthCell]:
    """Every cell of the grid, row by row (prompt), empty ones included. Completed requests with both lengths known.

    `values` (ms, one a row) stand in the place of the metric's column: those counted from the intended time.
    """
    values = table.ms(metric) if values is None else values
    row, column = length_places(table, prompt_edges, output_edges)
    keep = (row >= 0) & ~np.isnan(values)
    values, row, column = values[keep], row[keep], column[keep]
    cells = []
    for i in range(len(prompt_edges)):
        for j in range(len(output_edges)):
            inside = values[(row == i) & (column == j)]
            n = int(inside.size)
            q = {p: quantile(inside, p) if supported(p, n) else None for p in (0.5, 0.95, 0.99)}
            cells.append(
                LengthCell(
                    prompt=edge_label(prompt_edges, i),
                    output=edge_label(output_edges, j),
                    n=n,
                    p50=q[0.5],
                    p95=q[0.95],
                    p99=q[0.99],
                    max=float(inside.max()) if n else None,
                    share=n / values.size if values.size else 0.0,
                )
            )
    return cells
