"""The DCGM exporter's text. No device was there: the fixture was written from names and values read in its source."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.engines.dcgm import SIGNALS, read_dcgm
from tailrace.model.gpu_state import GpuState

READ_IN_SOURCE = (Path(__file__).parent / "read_in_source" / "dcgm.prom").read_text()


def first(text, **labels):
    states, _ = read_dcgm(text, 0)
    return states[0]


def test_every_signal_of_a_device_with_its_unit_and_name():
    states, _ = read_dcgm(READ_IN_SOURCE, 7, 8)
    assert [state.index for state in states] == ["0", "1"]
    one = states[0]
    assert (one.uuid, one.name, one.source, one.at_ns, one.at_unix_ns) == ("GPU-aaa", "Card 80GB", "dcgm", 7, 8)
    assert one.utilisation == 0.97
    assert (one.sm_active, one.sm_occupancy, one.tensor_active, one.dram_active) == (0.882, 0.231, 0.194, 0.642)
    assert one.memory_used_bytes == 72000 * 2**20
    assert one.memory_free_bytes == 9000 * 2**20
    assert (one.sm_clock_mhz, one.memory_clock_mhz) == (1980, 2619)
    assert (one.power_w, one.power_limit_w, one.temperature_c) == (512.125, 700, 61)
    assert one.reasons == ["sw_power_cap"]
    assert one.last_xid == 31
    assert one.pcie_tx_bytes_per_s == 35e6
    assert one.names["power_limit_w"] == "DCGM_FI_DEV_POWER_MGMT_LIMIT"
    assert one.names["reasons"] == "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"


def test_what_a_device_does_not_tell_is_absent_and_never_zero():
    other = read_dcgm(READ_IN_SOURCE, 0)[0][1]
    assert other.utilisation == 0.0  # said
    assert other.reasons == ["idle"]
    assert other.power_w is other.sm_active is other.last_xid is other.memory_used_bytes is None


def test_a_blank_value_of_dcgm_is_absent():
    assert first(READ_IN_SOURCE).memory_temperature_c is None
    for blank in ("2147483632", "9223372036854775792", "140737488355328"):
        assert read_dcgm(f'DCGM_FI_DEV_GPU_TEMP{{gpu="0"}} {blank}\n', 0)[0] == []


def test_the_links_are_not_added_to_their_sum():
    assert first(READ_IN_SOURCE).nvlink_tx_bytes_per_s == 1.2e9


def test_a_counter_under_the_name_of_a_rate_is_not_read():
    text = '# TYPE DCGM_FI_PROF_PCIE_TX_BYTES counter\nDCGM_FI_PROF_PCIE_TX_BYTES{gpu="0"} 5\n'
    assert first(text + 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n').pcie_tx_bytes_per_s is None


def test_a_share_above_one_has_another_unit_and_is_not_read():
    text = 'DCGM_FI_PROF_SM_ACTIVE{gpu="0"} 88\nDCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n'
    assert first(text).sm_active is None


def test_the_instances_of_a_partitioned_device_are_apart():
    text = "".join(
        f'DCGM_FI_PROF_SM_ACTIVE{{gpu="0",UUID="GPU-a",GPU_I_PROFILE="3g.40gb",GPU_I_ID="{number}"}} 0.{number}\n'
        for number in (1, 2)
    )
    assert {state.index: state.sm_active for state in read_dcgm(text, 0)[0]} == {"0/1": 0.1, "0/2": 0.2}


def test_the_old_exporters_lower_case_names():
    text = 'dcgm_gpu_utilization{gpu="0",uuid="GPU-x"} 50\ndcgm_sm_clock{gpu="0",uuid="GPU-x"} 1200\n'
    assert (first(text).utilisation, first(text).sm_clock_mhz, first(text).uuid) == (0.5, 1200, "GPU-x")


def test_the_new_name_of_the_reasons_goes_before_the_old_one():
    text = 'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0"} 4\nDCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0"} 64\n'
    assert first(text).reasons == ["hw_thermal"]


def test_a_name_that_is_not_read_is_reported():
    _, unread = read_dcgm(READ_IN_SOURCE, 0)
    assert unread == ["DCGM_FI_DEV_VGPU_LICENSE_STATUS"]


def test_every_signal_is_a_field_of_the_state():
    assert set(SIGNALS) <= set(GpuState.__struct_fields__)


@settings(max_examples=40)
@given(st.text() | st.lists(st.sampled_from(READ_IN_SOURCE.splitlines())).map("\n".join))
def test_no_text_breaks_it(text):
    for state in read_dcgm(text, 0)[0]:
        assert state.utilisation is None or 0 <= state.utilisation <= 1
