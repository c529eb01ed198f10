"""Arrivals, grammars, options, versions, pauses, positions: what is asked for, and how fast it is done."""

import msgspec
import numpy as np
import pytest

from tailrace.diagnose.causes.compute.device_limits import Comm, MemoryBound
from tailrace.diagnose.causes.compute.gap_at_position import GapAtPosition
from tailrace.diagnose.causes.compute.idle_ramp import IdleRamp
from tailrace.diagnose.causes.compute.kernel_regression import KernelRegression
from tailrace.diagnose.causes.gateway.detokenize_growth import DetokenizeGrowth
from tailrace.diagnose.causes.mix.bursty_arrivals import Bursty
from tailrace.diagnose.causes.mix.decoding_options import DecodingOptions
from tailrace.diagnose.causes.mix.mix_shift import MixShift
from tailrace.diagnose.causes.mix.structured_output import StructuredOutput
from tailrace.diagnose.hardware import Hardware
from tailrace.model.finding import Action, Layer, Level
from tests.diagnose.altered import S, calm, restamped, stamps
from tests.diagnose.machines import gpu
from tests.diagnose.simulated import MS, as_gateway, evidence, served


def paced(records, factor):
    return [restamped(r, stamps(r)[0] + (stamps(r) - stamps(r)[0]) * factor) for r in records]


def versioned(records, version):
    return [msgspec.structs.replace(r, engine_version=version) for r in records]


def test_a_new_version_that_is_slower_at_equal_work():
    old, new = versioned(calm(), "0.9.1"), versioned(paced(calm(2), 1.4), "0.9.2")
    finding = KernelRegression().judge(evidence(new, before=old))
    assert (finding.code, finding.level, finding.action) == (
        "COMPUTE_KERNEL_REGRESSION",
        Level.CONSISTENT,
        Action.ROLLBACK,
    )
    assert KernelRegression().judge(evidence(versioned(paced(calm(2), 1.4), "0.9.1"), before=old)) is None
    assert KernelRegression().judge(evidence(versioned(calm(2), "0.9.2"), before=old)) is None
    both = [msgspec.structs.replace(r, quantization="fp8") for r in new]
    before = [msgspec.structs.replace(r, quantization="bf16") for r in old]
    assert KernelRegression().judge(evidence(both, before=before)).level is Level.SUSPECTED


def ramped(ms, *, pause_s=4.0, under_load=False):
    out, busy = [], 0
    for record in calm(rate=0.25, n=150):
        idle = record.start_unix_ns - busy
        late = int(ms * MS) if idle > pause_s * S or (under_load and idle < 0) else 0
        out.append(restamped(record, stamps(record) + late))
        busy = max(busy, record.start_unix_ns + record.e2e_ns)
    return out


def test_the_first_request_after_a_pause():
    finding = IdleRamp().judge(evidence(ramped(700, pause_s=2.0)))
    assert (finding.code, finding.layer, finding.level) == ("COMPUTE_IDLE_RAMP", Layer.COMPUTE, Level.CONSISTENT)
    assert IdleRamp().judge(evidence(ramped(0))) is None
    assert IdleRamp().judge(evidence(calm(rate=8.0))) is None, "never idle"


def device(records, count=1, name="NVIDIA H100", **values):
    states = gpu(records, lambda _: False).gpus
    return Hardware(
        gpus=[
            msgspec.structs.replace(state, index=str(i), name=name, **values) for i in range(count) for state in states
        ]
    )


def test_decoding_that_waits_for_memory():
    slow = paced(calm(n=150), 6.0)
    finding = MemoryBound().judge(evidence(slow, hardware=device(slow, dram_active=0.85, tensor_active=0.1)))
    assert (finding.code, finding.level) == ("COMPUTE_MEMORY_BOUND", Level.CONSISTENT)
    assert MemoryBound().judge(evidence(slow, hardware=device(slow, dram_active=0.85))).level is Level.SUSPECTED
    assert MemoryBound().judge(evidence(slow, hardware=device(slow, dram_active=0.85, tensor_active=0.8))) is None
    quick = calm(n=150)
    assert MemoryBound().judge(evidence(quick, hardware=device(quick, dram_active=0.9, tensor_active=0.1))) is None
    assert MemoryBound().cannot_run(evidence(quick))


def test_devices_that_wait_for_each_other():
    slow = paced(calm(n=150), 6.0)
    full = {"pcie_tx_bytes_per_s": 52e9, "pcie_rx_bytes_per_s": 50e9, "sm_active": 0.2}
    finding = Comm().judge(evidence(slow, hardware=device(slow, 2, **full)))
    assert (finding.code, finding.level) == ("COMPUTE_COMM", Level.CONSISTENT)
    assert Comm().judge(evidence(slow, hardware=device(slow, 2, name="unheard of", **full))).level is Level.SUSPECTED
    assert Comm().judge(evidence(slow, hardware=device(slow, 1, **full))) is None
    light = {**full, "pcie_tx_bytes_per_s": 3e9, "pcie_rx_bytes_per_s": 3e9}
    assert Comm().judge(evidence(slow, hardware=device(slow, 2, **light))) is None


def gapped(where, share=0.1, seed=0):
    rng = np.random.default_rng(seed)
    out = []
    for record in calm(n=300):
        at = stamps(record)
        if rng.random() < share:
            place = where(at.size, rng)
            if 0 < place < at.size:
                at = np.where(np.arange(at.size) >= place, at + 4 * S, at)
        out.append(restamped(record, at))
    return out


def test_streams_that_stop_at_one_place():
    finding = GapAtPosition().judge(evidence(gapped(lambda n, _: 40)))
    assert (finding.code, finding.level) == ("STREAM_GAP_AT_POSITION", Level.SUSPECTED)
    assert "40 tokens after the first" in finding.statement
    late = GapAtPosition().judge(evidence(gapped(lambda n, _: n - 12)))
    assert "before the last" in late.statement
    assert GapAtPosition().judge(evidence(gapped(lambda n, rng: int(rng.integers(1, n))))) is None


def growing(ms_per_token):
    out = []
    for record in as_gateway(served(rate=0.4, n=60, long_share=0.3, long_tokens=(3000, 6000), output=(200, 900))):
        at = stamps(record)
        index = np.arange(at.size)
        out.append(restamped(record, at + (ms_per_token * MS * index * (index + 1) / 2).astype(np.int64)))
    return out


def test_answers_whose_tokens_get_slower():
    finding = DetokenizeGrowth().judge(evidence(growing(0.05)))
    assert (finding.code, finding.level) == ("FE_DETOKENIZE_GROWTH", Level.CONSISTENT)
    assert DetokenizeGrowth().judge(evidence(growing(0.0))) is None
    same = [msgspec.structs.replace(r, prompt_tokens=500) for r in growing(0.05)]
    assert DetokenizeGrowth().judge(evidence(same)).level is Level.SUSPECTED


def test_requests_that_come_in_bursts():
    rng = np.random.default_rng(0)
    records, out = calm(rate=3.0, n=450), []
    zero = records[0].start_unix_ns
    for i, record in enumerate(records):
        burst = zero + (i // 45) * 15 * S
        wait = int((i % 45) * 60 * MS)
        late = restamped(record, stamps(record) + wait)
        out.append(msgspec.structs.replace(late, start_unix_ns=burst + int(rng.uniform(0, 0.8) * S)))
    finding = Bursty().judge(evidence(out))
    assert (finding.code, finding.layer, finding.level) == ("MIX_BURSTY_ARRIVALS", Layer.MIX, Level.CONSISTENT)
    assert Bursty().judge(evidence(as_gateway(served(rate=25.0, long_share=0.0, max_num_seqs=32)))) is None
    again = Bursty().judge(evidence(out, before=out))
    assert again.level is Level.SUSPECTED, "it came in bursts before as well"


def with_grammar(ms, *, everybody=False):
    rng = np.random.default_rng(0)
    out = []
    for i, record in enumerate(calm(n=300)):
        mine = i % 8 == 0
        late = int(rng.uniform(0.6, 1.4) * ms * MS) if mine or everybody else 0
        out.append(msgspec.structs.replace(restamped(record, stamps(record) + late), grammar=mine))
    return out


def test_only_requests_with_a_grammar_wait():
    finding = StructuredOutput().judge(evidence(with_grammar(1500)))
    assert (finding.code, finding.level) == ("MIX_STRUCTURED_OUTPUT", Level.CONSISTENT)
    assert StructuredOutput().judge(evidence(with_grammar(1500, everybody=True))) is None
    assert StructuredOutput().judge(evidence(with_grammar(0))) is None
    assert StructuredOutput().cannot_run(evidence(calm(n=300)))


def test_more_sequences_a_request():
    slow = [msgspec.structs.replace(r, n=4 if i % 3 == 0 else 1) for i, r in enumerate(paced(calm(n=300), 1.8))]
    finding = DecodingOptions().judge(evidence(slow, before=calm(n=300)))
    assert (finding.code, finding.level) == ("MIX_DECODING_OPTIONS", Level.CONSISTENT)
    assert DecodingOptions().judge(evidence(paced(calm(n=300), 1.8), before=calm(n=300))) is None
    within = [msgspec.structs.replace(r, n=4) if i % 8 == 0 else r for i, r in enumerate(calm(n=300))]
    within = [paced([r], 3.0)[0] if r.n == 4 else r for r in within]
    assert DecodingOptions().judge(evidence(within)).level is Level.SUSPECTED


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens"])
def test_heavier_requests_are_a_shift_of_the_mix(field):
    before = calm(rate=2.0)
    heavier = [msgspec.structs.replace(r, **{field: getattr(r, field) * 2}) for r in paced(calm(2, rate=2.0), 1.0)]
    slower = [msgspec.structs.replace(r, e2e_ns=r.e2e_ns + S, decode_ns=r.decode_ns + S) for r in heavier]
    finding = MixShift().judge(evidence(slower, before=before))
    assert (finding.code, finding.layer) == ("MIX_SHIFT", Layer.MIX)
    assert MixShift().judge(evidence(calm(2, rate=2.0), before=before)) is None
