"""What a step costs: a closed form over the batch, in integer picoseconds.

Integers, and a decode step that is affine in the sum of contexts, make a run of pure decode steps an arithmetic
series: it can be skipped in one multiplication with exactly the result of stepping through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

PS_PER_NS: Final = 1_000
PS_PER_S: Final = 1_000_000_000_000

Chunk = tuple[int, int]
"""One prefill chunk of a step: (tokens computed now, tokens computed before)."""


class StepCost(Protocol):
    """How long a step takes (ps), as a function of its batch."""

    ctx_ps: int | None
    """Picoseconds per token of decode context when a pure decode step is affine in it; `None` forbids skipping."""

    def decode_ps(self, decodes: int) -> int:
        """A pure decode step without its context term (used only where `ctx_ps` is given)."""
        ...

    def step_ps(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> int:
        """A whole step: `decodes` requests with `context` tokens together, and the prefill chunks."""
        ...


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A dense transformer, reduced to what a step's time depends on."""

    name: str
    layers: int
    heads: int
    head_size: int
    layer_weight_bytes: float
    """Bytes of all layers' matrices, without embedding and output head."""
    layer_parameters: float
    head_parameters: float
    """vocabulary x hidden size."""
    kv_bytes_per_token: int
    """All layers, keys and values."""


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU with the shares of its peaks that kernels reach, and the engine's own overheads."""

    name: str
    bandwidth: float
    """Peak memory bandwidth, bytes/s."""
    flops: float
    """Peak dense bf16 FLOP/s."""
    mbu: float
    """Share of the bandwidth that weight-bound matrix products reach."""
    mfu: float
    """Share of the FLOP/s that compute-bound matrix products reach."""
    knee: float
    """Exponent p of the smooth maximum (memory^p + compute^p)^(1/p) of the two."""
    mbu_attention: float
    mfu_attention: float
    decode_layer_s: float
    """Fixed cost of decode attention, a layer."""
    decode_layer_seq_s: float
    """The same, for each sequence."""
    prefill_layer_s: float
    """Fixed cost of a prefill chunk's attention, a layer."""
    prefill_layer_token_s: float
    step_s: float
    """The engine's overhead a step: scheduling, launch, sampling, detokenising. It depends on the engine's version."""
    prefill_step_s: float = 0.0
    """Further overhead of a step that carries prefill; fit it from a recorded run."""
    seq_s: float = 4e-6
    """Overhead a step for each request in it."""


class ClosedFormCost:
    """Step time from a model's shape and an accelerator's fitted shares.

    ::

        t = step + seq*(D + C) + prefill_step*[C > 0]
          + ((W/(BW*mbu))^p + (2*P*n/(FL*mfu))^p)^(1/p)            matrix products, n tokens in the step
          + max(2*Vd/(BW*mbu), 2*Vd*(D + C)/(FL*mfu))              output head
          + sum(ctx)*kv/(BW*mbu_attn) + L*(c0 + c_seq*D)           decode attention, D requests
          + sum(L*(c1 + c2*chunk) + 4*L*H*hd*chunk*(ctx + chunk/2)/(FL*mfu_attn))     C prefill chunks

    The form and the constants of the presets are fits of public kernel tables; see `presets`. `speed` divides every
    duration (2.0 is an engine twice as fast).
    """

    def __init__(self, model: ModelShape, accelerator: Accelerator, *, speed: float = 1.0) -> None:
        self.model = model
        self.accelerator = accelerator
        self.speed = speed
        ps = PS_PER_S / speed
        a = accelerator
        self._step = round(a.step_s * ps)
        self._seq = round(a.seq_s * ps)
        self._prefill_step = round(a.prefill_step_s * ps)
        self._decode_fixed = round(model.layers * a.decode_layer_s * ps)
        self._decode_seq = round(model.layers * a.decode_layer_seq_s * ps)
        self.ctx_ps: int | None = round(model.kv_bytes_per_token / (a.bandwidth * a.mbu_attention) * ps)
        self._ctx: int = self.ctx_ps or 0
        self._chunk_fixed = round(model.layers * a.prefill_layer_s * ps)
        self._chunk_token = round(model.layers * a.prefill_layer_token_s * ps)
        # 4*L*H*hd*chunk*(ctx + chunk/2) = (2*L*H*hd) * chunk*(2*ctx + chunk): integers stay integers.
        self._chunk_square = round(2 * model.layers * model.heads * model.head_size / (a.flops * a.mfu_attention) * ps)
        self._weights = model.layer_weight_bytes / (a.bandwidth * a.mbu) * ps
        self._per_token = 2 * model.layer_parameters / (a.flops * a.mfu) * ps
        self._head_weights = 2 * model.head_parameters / (a.bandwidth * a.mbu) * ps
        self._head_per_seq = 2 * model.head_parameters / (a.flops * a.mfu) * ps
        self._products: dict[int, int] = {}
        self._heads: dict[int, int] = {}
        self._decode: dict[int, int] = {}

    def products_ps(self, tokens: int) -> int:
        """The layers' matrix products for `tokens` tokens in the step."""
        value = self._products.get(tokens)
        if value is None:
            p = self.accelerator.knee
            value = round((self._weights**p + (self._per_token * tokens) ** p) ** (1 / p))
            self._products[tokens] = value
        return value

    def head_ps(self, sequences: int) -> int:
        """The output head for `sequences` requests."""
        value = self._heads.get(sequences)
        if value is None:
            value = self._heads[sequences] = round(max(self._head_weights, self._head_per_seq * sequences))
        return value

    def decode_attention_ps(self, decodes: int, context: int) -> int:
        """Decode attention of all layers, `context` tokens over `decodes` requests."""
        return self._decode_fixed + self._decode_seq * decodes + self._ctx * context

    def prefill_attention_ps(self, chunk: int, before: int) -> int:
        """Attention of one chunk, all layers, with `before` tokens computed earlier."""
        return self._chunk_fixed + self._chunk_token * chunk + self._chunk_square * chunk * (2 * before + chunk)

    def decode_ps(self, decodes: int) -> int:
        """A pure decode step without its context term (ps)."""
        value = self._decode.get(decodes)
        if value is None:
            value = (
                self._step
                + self._seq * decodes
                + self.products_ps(decodes)
                + self.head_ps(decodes)
                + self._decode_fixed
                + self._decode_seq * decodes
            )
            self._decode[decodes] = value
        return value

    def step_ps(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> int:
        """A whole step (ps)."""
        if not chunks:
            return self.decode_ps(decodes) + self._ctx * context
        tokens = decodes
        total = self._step + self._prefill_step
        fixed, per_token, square = self._chunk_fixed, self._chunk_token, self._chunk_square
        for chunk, before in chunks:
            tokens += chunk
            total += fixed + per_token * chunk + square * chunk * (2 * before + chunk)
        sequences = decodes + len(chunks)
        total += self._seq * sequences + self.products_ps(tokens) + self.head_ps(sequences)
        if decodes:
            total += self._decode_fixed + self._decode_seq * decodes + self._ctx * context
        return total
