"""Ready-made engines: a model on an accelerator, with the KV blocks that fit.

Shares of peak are fits of public kernel measurements (aiconfigurator-core 0.12.0 tables for vLLM on A100-SXM-80GB and
H100-SXM, Apache-2.0): matrix products within 5.0 % rms (A100) and 3.7 % (H100), decode attention within 5.4 % and
8.6 % in the median. Two public sources disagree by 25 % about A100 prefill, so +/-25 % is the honest uncertainty of
`mfu`. The overhead a step is the engine's, not the GPU's: 1.0 ms for a current vLLM on A100, 1.6 ms on H100 (from
7.8 ms a token measured end to end at batch 8 against 6.0 ms of kernels).
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.model.errors import InputError
from tailrace.simulate.cost import Accelerator, ClosedFormCost, ModelShape
from tailrace.simulate.knobs import EngineKnobs

LLAMA3_8B: Final = ModelShape(
    name="llama3-8b",
    layers=32,
    heads=32,
    head_size=128,
    layer_weight_bytes=13.96e9,
    layer_parameters=6.98e9,
    head_parameters=128_256 * 4_096,
    kv_bytes_per_token=131_072,
)

A100: Final = Accelerator(
    name="a100",
    bandwidth=2.039e12,
    flops=3.12e14,
    mbu=0.72,
    mfu=0.87,
    knee=1.54,
    mbu_attention=0.74,
    mfu_attention=0.60,
    decode_layer_s=17.9e-6,
    decode_layer_seq_s=0.045e-6,
    prefill_layer_s=12.8e-6,
    prefill_layer_token_s=0.028e-6,
    step_s=1.0e-3,
)

H100: Final = Accelerator(
    name="h100",
    bandwidth=3.35e12,
    flops=9.89e14,
    mbu=0.77,
    mfu=0.80,
    knee=2.52,
    mbu_attention=0.89,
    mfu_attention=0.71,
    decode_layer_s=10.8e-6,
    decode_layer_seq_s=0.085e-6,
    prefill_layer_s=12.5e-6,
    prefill_layer_token_s=0.014e-6,
    step_s=1.6e-3,
)


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator, a model, and the knobs with which that engine starts."""

    name: str
    accelerator: Accelerator
    model: ModelShape
    knobs: EngineKnobs

    def cost(self, *, speed: float = 1.0) -> ClosedFormCost:
        """The step-time model of this preset; `speed` 2.0 halves every duration."""
        return ClosedFormCost(self.model, self.accelerator, speed=speed)

    @property
    def model_name(self) -> str:
        """The name under which the model is served; it says that nothing real answers."""
        return f"{self.model.name}-simulated"


# 80 GB x 0.9 less 16 GB of weights and about 1.2 GB of activations, in blocks of 16 x 128 KiB.
_KV_BLOCKS_80GB: Final = 27_000

PRESETS: Final[dict[str, Preset]] = {
    f"{accelerator.name}-{LLAMA3_8B.name}": Preset(
        name=f"{accelerator.name}-{LLAMA3_8B.name}",
        accelerator=accelerator,
        model=LLAMA3_8B,
        knobs=EngineKnobs(num_gpu_blocks=_KV_BLOCKS_80GB),
    )
    for accelerator in (A100, H100)
}
"""By name: `a100-llama3-8b`, `h100-llama3-8b`."""


def preset(name: str) -> Preset:
    """The preset called `name`; `InputError` lists the names there are."""
    found = PRESETS.get(name)
    if found is None:
        raise InputError(f"there is no preset {name!r}", place="--preset", remedy=f"Use one of {', '.join(PRESETS)}.")
    return found
