"""nvidia-smi's tables. No device was there: tables made from the documented form, and the shared logs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.engines.clock_reasons import decode, reason_of_column
from tailrace.engines.nvidia_smi import GPU_QUERIES, is_query_header, read_apps, read_query

READ_IN_SOURCE = """index, uuid, name, utilization.gpu [%], memory.used [MiB], memory.free [MiB], memory.total [MiB], \
clocks.current.sm [MHz], clocks.max.sm [MHz], clocks.current.memory [MHz], power.draw [W], enforced.power.limit [W], \
temperature.gpu, clocks_event_reasons.active
0, GPU-aaa, Card 80GB, 97 %, 72000 MiB, 9000 MiB, 81559 MiB, 1980 MHz, 1980 MHz, 2619 MHz, 512.13 W, 700.00 W, 61, \
0x0000000000000004
1, GPU-bbb, Card 80GB, [N/A], [Not Supported], N/A, 81559 MiB, 345 MHz, 1980 MHz, 2619 MHz, [N/A], 700.00 W, 33, \
0x0000000000000001
"""


def test_a_call_for_all_devices():
    (one, other), notes = read_query(READ_IN_SOURCE, 5, 6)
    assert notes == []
    assert (one.index, one.uuid, one.name, one.at_ns, one.at_unix_ns) == ("0", "GPU-aaa", "Card 80GB", 5, 6)
    assert (one.utilisation, one.memory_used_bytes, one.memory_total_bytes) == (0.97, 72000 << 20, 81559 << 20)
    assert (one.sm_clock_mhz, one.max_sm_clock_mhz, one.power_w, one.power_limit_w) == (1980, 1980, 512.13, 700)
    assert (one.temperature_c, one.reasons) == (61, ["sw_power_cap"])
    assert other.utilisation is other.memory_used_bytes is other.memory_free_bytes is other.power_w is None
    assert other.reasons == ["idle"]


def test_a_log_is_spaced_by_its_stamps_and_has_no_wall_clock():
    log = """timestamp, index, clocks_throttle_reasons.sw_power_cap, clocks_throttle_reasons.hw_thermal_slowdown, \
power.draw [W]
2026/02/27 23:59:59.500, 0, Active, Not Active, 300.00 W
2026/02/28 00:00:00.750, 0, Not Active, Not Active, 200.00 W
"""
    (one, other), notes = read_query(log, at_unix_ns=1)
    assert notes == []
    assert other.at_ns - one.at_ns == 1_250_000_000
    assert one.at_unix_ns is other.at_unix_ns is None
    assert (one.reasons, other.reasons) == (["sw_power_cap"], [])


def test_without_units_in_the_cells_the_header_has_them_or_the_value_is_unknown():
    (one,), _ = read_query("index, utilization.gpu [%], memory.used [MiB]\n0, 50, 1024\n")
    assert (one.utilisation, one.memory_used_bytes) == (0.5, 1 << 30)
    (bare,), _ = read_query("index, utilization.gpu, memory.used\n0, 50, 1024\n")
    assert bare.utilisation is bare.memory_used_bytes is None


def test_columns_that_are_not_read_and_lines_that_are_no_rows_are_named():
    _, notes = read_query("index, pstate, power.draw [W]\n0, P0, 80.00 W\nUnable to determine the device handle\n")
    assert notes == ["column 'pstate' is not read", "1 line(s) are no rows of the query"]


def test_the_header_of_a_second_run_in_one_file_is_no_row():
    text = "index, power.draw [W]\n0, 80.00 W\nindex, power.draw [W]\n0, 90.00 W\n"
    states, notes = read_query(text)
    assert ([state.power_w for state in states], notes) == ([80, 90], [])


@pytest.mark.parametrize(
    "line", ["a, b, c", "index", "timestamp, value", "Time (%),Total Time (ns),Instances,Avg (ns),Name", "0, 97 %, 1 W"]
)
def test_other_tables_are_not_taken_for_it(line):
    assert not is_query_header(line)


def test_what_is_asked_for_is_understood():
    for query in GPU_QUERIES:
        states, notes = read_query(query.replace(",", ", ") + "\n" + ", ".join("1" for _ in query.split(",")) + "\n")
        assert (len(states), notes) == (1, [])


def test_processes_on_the_devices_whatever_their_names_hold():
    text = """gpu_uuid, pid, process_name, used_gpu_memory [MiB]
GPU-aaa, 4711, VLLM::EngineCore, 70000 MiB
GPU-aaa, 4800, python train.py --a 1, 2, 3, 900 MiB
GPU-bbb, 5, [Not Found], [N/A]
"""
    apps = read_apps(text)
    assert [(one.pid, one.name, one.memory_bytes) for one in apps["GPU-aaa"]] == [
        (4711, "VLLM::EngineCore", 70000 << 20),
        (4800, "python train.py --a 1, 2, 3", 900 << 20),
    ]
    assert apps["GPU-bbb"][0].memory_bytes is None
    assert read_apps("gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n") == {}


@pytest.mark.needs("shared")
def test_the_shared_logs_are_understood_to_the_last_line(shared):
    for path, count in (("CP-02", 8), ("CP-09", 7)):
        states, notes = read_query((shared / "data" / "cases" / "inputs" / f"{path}.nvsmi.csv").read_text())
        assert (len(states), notes) == (count, [])
    assert states[-1].sm_clock_mhz == 1580


def test_reasons_by_bit_and_by_column():
    assert decode(0) == []
    assert decode(0x4 | 0x40) == ["sw_power_cap", "hw_thermal"]
    assert decode(0x2000 | 0x1) == ["idle", "0x2000"]
    assert reason_of_column("clocks_event_reasons.sw_thermal_slowdown") == "sw_thermal"
    assert reason_of_column("clocks_throttle_reasons.hw_slowdown") == "hw_slowdown"
    assert reason_of_column("clocks.sm") is None


@settings(max_examples=40)
@given(st.text() | st.lists(st.sampled_from(READ_IN_SOURCE.splitlines())).map("\n".join))
def test_no_text_breaks_it(text):
    read_query(text)
    read_apps(text)
