"""The closed form against the kernel tables from which its constants were fitted, and its shape."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tailrace.model.errors import InputError
from tailrace.simulate.cost import ClosedFormCost, ModelShape
from tailrace.simulate.presets import A100, PRESETS, preset
from tests.simulate.tables import data, rows

NAMES = {"a100": "a100-llama3-8b", "h100": "h100-llama3-8b"}


@pytest.mark.needs("shared")
@pytest.mark.parametrize("gpu", NAMES)
def test_matrix_products_within_six_percent_rms(gpu):
    cost = preset(NAMES[gpu]).cost()
    errors = [
        cost.products_ps(int(row[0])) / 1e9 / float(row[6]) - 1
        for row in rows(data() / "profiles" / f"aic_{gpu}_llama3-8b_gemm.csv")
    ]
    assert np.sqrt(np.mean(np.square(errors))) <= 0.06
    assert max(map(abs, errors)) <= 0.15


@pytest.mark.needs("shared")
@pytest.mark.parametrize("gpu", NAMES)
def test_decode_attention_within_nine_percent_in_the_median(gpu):
    cost = preset(NAMES[gpu]).cost()
    errors = []
    for batch, context, latency_ms in rows(data() / "profiles" / f"aic_{gpu}_llama3-8b_decode_attention.csv"):
        b, c = int(batch), int(context)
        if b <= 256 and 128 <= c <= 16_384:
            errors.append(abs(cost.decode_attention_ps(b, b * c) / 1e9 / (32 * float(latency_ms)) - 1))
    assert len(errors) > 40
    assert np.median(errors) <= 0.09


@pytest.mark.needs("shared")
@pytest.mark.parametrize("gpu", NAMES)
def test_prefill_attention_within_ten_percent_in_the_median(gpu):
    cost = preset(NAMES[gpu]).cost()
    errors = [
        abs(cost.prefill_attention_ps(int(isl), 0) / 1e9 / (32 * float(latency_ms)) - 1)
        for batch, isl, latency_ms in rows(data() / "profiles" / f"aic_{gpu}_llama3-8b_prefill_attention.csv")
        if batch == "1" and int(isl) >= 512
    ]
    assert np.median(errors) <= 0.10


# Sums of kernels at context 1,024 (ms): facts measured from the tables, without the engine's own overheads.
KERNEL_SUMS = {
    "a100-llama3-8b": {1: 11.05, 32: 14.47, 64: 16.67, 128: 23.35, 256: 41.74},
    "h100-llama3-8b": {1: 6.19, 32: 8.12, 64: 10.12, 128: 12.07, 256: 18.79},
}


@pytest.mark.parametrize("name", KERNEL_SUMS)
def test_decode_steps_lie_near_the_sums_of_kernels(name):
    chosen = preset(name)
    bare = msgspec.structs.replace(
        chosen, accelerator=msgspec.structs.replace(chosen.accelerator, step_s=0.0, seq_s=0.0)
    ).cost()
    for batch, expected_ms in KERNEL_SUMS[name].items():
        assert bare.step_ps(batch, batch * 1024, ()) / 1e9 == pytest.approx(expected_ms, rel=0.15)


@pytest.mark.parametrize("name", PRESETS)
def test_a_piggybacked_decode_is_nearly_free_and_a_long_prompt_is_not(name):
    cost = preset(name).cost()
    alone = cost.step_ps(0, 0, [(2048, 0)])
    with_decodes = cost.step_ps(3, 3 * 512, [(2045, 0)])
    assert alone < with_decodes < alone * 1.06
    decode = cost.step_ps(4, 4 * 512, ())
    assert cost.step_ps(4, 4 * 512, [(8192, 0)]) > 15 * decode
    assert cost.step_ps(4, 4 * 512, [(512, 7680)]) < 4 * decode


@pytest.mark.parametrize("name", PRESETS)
def test_decode_is_affine_in_the_context(name):
    cost = preset(name).cost()
    for batch in (1, 7, 200):
        for context in (batch, 1000 * batch, 8191 * batch + 3):
            assert cost.step_ps(batch, context, ()) == cost.decode_ps(batch) + cost.ctx_ps * context


def test_a_model_and_a_pair_of_gpus_that_nothing_was_fitted_on():
    """Yi-34B on two A100: the shape that was measured on it (prefill of 8,192 tokens 1.86 s, hybrid step + 0.2 %)."""
    yi = ModelShape(
        name="yi-34b",
        layers=60,
        heads=56,
        head_size=128,
        layer_weight_bytes=67e9,
        layer_parameters=33.5e9,
        head_parameters=64_000 * 7_168,
        kv_bytes_per_token=2 * 60 * 8 * 128 * 2,
    )
    cost = ClosedFormCost(yi, msgspec.structs.replace(A100, bandwidth=2 * A100.bandwidth, flops=2 * A100.flops))

    def seconds(decodes: int, chunks: list[tuple[int, int]]) -> float:
        return cost.step_ps(decodes, decodes * 1024, chunks) / 1e12

    assert seconds(3, [(1021, 0)]) < 1.02 * seconds(0, [(1024, 0)])
    assert 1.1 < seconds(0, [(8192, 0)]) < 2.2
    assert seconds(8, [(8192, 0)]) >= seconds(0, [(8192, 0)])
    assert max(seconds(8, [(512, at)]) for at in range(0, 8192, 512)) < 0.22


def test_speed_divides_every_duration():
    chosen = preset("a100-llama3-8b")
    one, two = chosen.cost(), chosen.cost(speed=2.0)
    for step in ((1, 100, []), (64, 64_000, [(512, 0), (100, 1000)])):
        assert two.step_ps(*step) == pytest.approx(one.step_ps(*step) / 2, rel=1e-4)


def test_an_unknown_preset_lists_those_there_are():
    with pytest.raises(InputError, match="a100-llama3-8b, h100-llama3-8b"):
        preset("tpu")
