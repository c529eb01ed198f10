"""The engine's scheduling knobs, named as vLLM names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from tailrace.model.errors import InputError

FIXED_AT_START: Final = frozenset({"num_gpu_blocks", "block_size", "max_model_len"})
"""Knobs that size memory: a running engine cannot change them, as a real one cannot."""


class EngineKnobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator of vLLM may set. The defaults are vLLM's own, with 32,768 tokens of context.

    `InputError` names the knob that is out of its range and what to set instead.
    """

    max_num_seqs: int = 256
    """The most requests that run at once."""
    max_num_batched_tokens: int = 2048
    """The token budget of a step, shared by decodes (one each) and prefill chunks."""
    enable_chunked_prefill: bool = True
    """Off: a prompt is computed whole in one step, and every decode in that step waits for it.

    The budget then limits how many prompts share a step; a single prompt may exceed it (a real engine demands a
    budget of at least `max_model_len` instead).
    """
    long_prefill_token_threshold: int = 0
    """The largest chunk of one prompt in a step; 0 is no limit. Ignored when prompts are not chunked."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    """`priority`: a lower number is served earlier, ties by arrival."""
    enable_prefix_caching: bool = True
    num_gpu_blocks: int = 27_000
    """KV blocks in memory. Take it from the engine's log; it is the most sensitive input of a simulation."""
    block_size: int = 16
    """Tokens in a KV block."""
    max_model_len: int = 32_768
    """The most tokens (prompt + output) of one request."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "block_size", "max_model_len"):
            value = getattr(self, name)
            if value < 1:
                raise InputError(f"{value} is out of range", place=name, remedy="Use a number of at least 1.")
        if self.long_prefill_token_threshold < 0:
            raise InputError(
                f"{self.long_prefill_token_threshold} is out of range",
                place="long_prefill_token_threshold",
                remedy="Use 0 for no limit, or a number of tokens.",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            # vLLM refuses this too: with more decodes than budget, requests at the tail would starve for ever.
            raise InputError(
                f"{self.max_num_batched_tokens} is less than max_num_seqs ({self.max_num_seqs})",
                place="max_num_batched_tokens",
                remedy=f"Use at least {self.max_num_seqs}, or lower max_num_seqs.",
            )

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into the KV cache."""
        return self.num_gpu_blocks * self.block_size

    def changed(self, changes: Mapping[str, Any]) -> EngineKnobs:
        """These knobs with `changes`, for a running engine.

        Raises:
            InputError: an unknown knob, a wrong type, a value out of range, or a knob that is fixed at start.
        """
        known = self.__struct_fields__
        for name, value in changes.items():
            if name not in known:
                raise InputError(f"there is no knob {name!r}", place=name, remedy=f"The knobs are {', '.join(known)}.")
            if name in FIXED_AT_START and value != getattr(self, name):
                raise InputError(
                    "it sizes memory and is fixed at start",
                    place=name,
                    remedy=f"Start the engine with --{name.replace('_', '-')}.",
                )
        return _converted({**msgspec.structs.asdict(self), **changes})


def knobs_from(base: EngineKnobs, given: Mapping[str, Any]) -> EngineKnobs:
    """`base` with those of `given` that are not `None`, all of them settable: for an engine that is to be started.

    Raises:
        InputError: a wrong type or a value out of range.
    """
    changes = {name: value for name, value in given.items() if value is not None}
    if "max_num_seqs" not in changes and changes.get("max_num_batched_tokens", base.max_num_seqs) < base.max_num_seqs:
        # A small budget asks for a small batch; only a contradiction that was typed is an error.
        changes["max_num_seqs"] = changes["max_num_batched_tokens"]
    return _converted({**msgspec.structs.asdict(base), **changes})


def _converted(values: dict[str, Any]) -> EngineKnobs:
    try:
        return msgspec.convert(values, EngineKnobs)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        # msgspec ends its message with the path: "Expected `int`, got `str` - at `$.max_num_seqs`".
        text, _, path = str(error).partition(" - at ")
        raise InputError(text, place=path.strip("`").removeprefix("$.") or "knobs") from None
