"""What a step costs, from measured kernel times: the most accurate model, for replaying a recorded run.

The rows are those of LLMServingSim's profiler: one layer's dense kernels by tokens in the step, the output head and
sampler by sequences, and attention of one layer on a grid (prefill_chunk, kv_prefill, n_decode, kv_decode), all in
microseconds. Between grid points the tables are interpolated linearly, outside extrapolated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final, Literal

from tailrace.simulate.cost import Chunk

_PS_PER_US: Final = 1_000_000
_TWICE_A_LAYER: Final = "layernorm"
_ONCE: Final = ("embedding", "final_layernorm")


class Curve:
    """Times over one axis."""

    def __init__(self, points: dict[float, float]) -> None:
        self._x = sorted(points)
        self._y = [points[x] for x in self._x]

    def at(self, x: float) -> float:
        """The time at `x`."""
        i, part = _bracket(self._x, x)
        low = self._y[i]
        return low + part * (self._y[i + 1] - low) if part else low


class Grid:
    """Times over several axes; corners may be missing."""

    def __init__(self, points: dict[tuple[float, ...], float]) -> None:
        self._points = points
        self._axes = [sorted(set(axis)) for axis in zip(*points, strict=True)]

    def at(self, *where: float) -> float | None:
        """The time at `where`, or `None` where a corner that is needed was not measured."""
        brackets = [_bracket(axis, x) for axis, x in zip(self._axes, where, strict=True)]
        total = 0.0
        for corner in product((0, 1), repeat=len(brackets)):
            weight = 1.0
            key = []
            for side, axis, (i, part) in zip(corner, self._axes, brackets, strict=True):
                weight *= part if side else 1 - part
                key.append(axis[i + side] if i + side < len(axis) else axis[i])
            if weight:
                value = self._points.get(tuple(key))
                if value is None:
                    return None
                total += weight * value
        return total


class KernelTableCost:
    """Step time as the sum of measured kernels, and fitted overheads.

    `attention`: `additive` sums each chunk's attention and that of the decodes at their mean context; `mixed` looks
    a step with both up in the four-dimensional grid as one. `step_s` and `prefill_step_s` are the engine's overheads
    a step, and a step that carries prefill.
    """

    ctx_ps: int | None = None
    """Interpolated attention is no affine function of the context: steps are not skipped."""

    def __init__(
        self,
        dense: Iterable[tuple[str, float, float]],
        per_sequence: Iterable[tuple[str, float, float]],
        attention: Iterable[tuple[float, float, float, float, float]],
        *,
        layers: int,
        attention_model: Literal["additive", "mixed"] = "additive",
        step_s: float = 0.0,
        prefill_step_s: float = 0.0,
    ) -> None:
        per_token: dict[float, float] = {}
        for name, tokens, time_us in dense:
            times = 2 * layers if name == _TWICE_A_LAYER else 1 if name in _ONCE else layers
            per_token[tokens] = per_token.get(tokens, 0.0) + times * time_us
        heads: dict[float, float] = {}
        for _, sequences, time_us in per_sequence:
            heads[sequences] = heads.get(sequences, 0.0) + time_us
        prefill: dict[tuple[float, ...], float] = {}
        decode: dict[tuple[float, ...], float] = {}
        mixed: dict[tuple[float, ...], float] = {}
        for chunk, before, decodes, context, time_us in attention:
            if not all(_on_grid(x) for x in (chunk, before, decodes, context)):
                continue
            if not decodes:
                prefill[chunk, before] = time_us
            elif not chunk:
                decode[decodes, context] = time_us
            else:
                mixed[chunk, before, decodes, context] = time_us
        self._dense = Curve(per_token)
        self._heads = Curve(heads)
        self._prefill = Grid(prefill)
        self._decode = Grid(decode)
        self._mixed = Grid(mixed) if attention_model == "mixed" else None
        self._layers = layers
        self._step_us = step_s * 1e6
        self._prefill_step_us = prefill_step_s * 1e6

    def decode_ps(self, decodes: int) -> int:
        """Not used: steps of this model are not skipped."""
        return self.step_ps(decodes, decodes, ())

    def step_ps(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> int:
        """A whole step (ps)."""
        tokens = decodes + sum(chunk for chunk, _ in chunks)
        total = self._step_us + self._dense.at(tokens) + self._heads.at(decodes + len(chunks))
        if chunks:
            total += self._prefill_step_us
        return round((total + self._layers * self._attention_us(decodes, context, chunks)) * _PS_PER_US)

    def _attention_us(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> float:
        if chunks and decodes and self._mixed is not None:
            whole = sum(chunk for chunk, _ in chunks)
            before = sum(chunk * held for chunk, held in chunks) / whole
            found = self._mixed.at(whole, before, decodes, context / decodes)
            if found is not None:
                return found
        total = sum(_known(self._prefill.at(chunk, before)) for chunk, before in chunks)
        if decodes:
            total += _known(self._decode.at(decodes, context / decodes))
        return total


def _on_grid(x: float) -> bool:
    """The profiler's axes double from point to point; its study of unequal lengths left odd points in between, which
    form no grid.
    """
    return x == 0 or (x == int(x) and int(x) & (int(x) - 1) == 0)


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("the attention table lacks a corner of its pure prefill or decode grid")
    return value


def _bracket(axis: Sequence[float], x: float) -> tuple[int, float]:
    """Index of the grid interval for `x` and the position in it: 0..1 inside, beyond outside."""
    if len(axis) == 1:
        return 0, 0.0
    i = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    low = axis[i]
    return i, (x - low) / (axis[i + 1] - low)
