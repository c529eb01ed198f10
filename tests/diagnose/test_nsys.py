"""`nsys stats` as CSV. Tables written from the columns that the tool prints; no profile was taken here."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.app.diagnose import diagnose_sources
from tailrace.diagnose.readers.nsys import is_profile_header, read_nsys
from tailrace.diagnose.readers.source import Kind, kind_of
from tailrace.model.errors import InputError
from tests.diagnose.simulated import UNCHUNKED, as_client, served
from tests.diagnose.test_commands import tailrace_command
from tests.diagnose.test_readers import write_run

KERNELS_READ_IN_SOURCE = """Generating SQLite file report1.sqlite from report1.nsys-rep
Processing [report1.sqlite] with [cuda_gpu_kern_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,600000000,300,2000000.0,1900000.0,1500000,9000000,1000.0,"void attention<(int)128, (bool)1>(float *, int)"
40.0,400000000,4000,100000.0,99000.0,90000,150000,10.0,gemm_f16
"""
CALLS_READ_IN_SOURCE = """Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
70.0,1720000000,4300,400000.0,100000.0,20000,23000000,1000.0,cudaLaunchKernel
30.0,700000000,10,70000000.0,1.0,1,125000000,1.0,cuMemcpyHtoD_v2
"""
SYSTEM_READ_IN_SOURCE = """Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
67.3,335987431,2,167993715.5,167993715.5,2971823,333015608,233376198.5,sem_wait
"""
COPIES_READ_IN_SOURCE = """Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
100.0,250000000,20,12500000,12500000,12500000,12500000,0,[CUDA memcpy Host-to-Device]
"""


def only(text):
    profiles, notes = read_nsys(text)
    assert notes == []
    (profile,) = profiles
    return profile


def test_kernels_with_commas_in_their_names_and_sentences_before():
    profile = only(KERNELS_READ_IN_SOURCE)
    assert profile.report == "cuda_gpu_kern_sum"
    assert [row.name for row in profile.rows] == ["void attention<(int)128, (bool)1>(float *, int)", "gemm_f16"]
    assert (profile.total_ns, profile.count) == (1e9, 4300)
    assert (profile.rows[0].average_ns, profile.rows[0].max_ns) == (2e6, 9e6)


def test_calls_of_the_library_and_of_the_system_have_the_same_columns():
    assert only(CALLS_READ_IN_SOURCE).report == "cuda_api_sum"
    assert only(SYSTEM_READ_IN_SOURCE).report == "osrt_sum"
    assert only(COPIES_READ_IN_SOURCE).report == "cuda_gpu_mem_time_sum"


def test_several_reports_in_one_file():
    text = f"{KERNELS_READ_IN_SOURCE}\nProcessing [x] with [y]...\n\n{CALLS_READ_IN_SOURCE}\n{COPIES_READ_IN_SOURCE}"
    profiles, notes = read_nsys(text)
    assert [profile.report for profile in profiles] == ["cuda_gpu_kern_sum", "cuda_api_sum", "cuda_gpu_mem_time_sum"]
    assert notes == []


def test_a_report_by_grid_is_summed_by_name_and_other_units_are_read():
    text = """Time (%),Total Time (ms),Instances,Avg (ms),GridXYZ,BlockXYZ,Name
60.0,6,2,3, 896    1    1, 128    1    1,gemm
40.0,4,1,4, 448    1    1, 128    1    1,gemm
"""
    (row,) = only(text).rows
    assert (row.total_ns, row.count) == (10e6, 3)


def test_the_older_spelling():
    (row,) = only("Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n100.0,500,5,100,90,110,k\n").rows
    assert (row.total_ns, row.max_ns) == (500, 110)


def test_damaged_rows_are_counted():
    _, notes = read_nsys(KERNELS_READ_IN_SOURCE + "1.0,what,1,1,1,1,1,1,x\n")
    assert notes == ["1 line(s) are no rows of the report"]


@pytest.mark.parametrize("line", ["", "Time (%)", "a,b,c", "timestamp, index, power.draw [W]", "Time (%),Name"])
def test_other_tables_are_not_taken_for_it(line):
    assert not is_profile_header(line)


@settings(max_examples=40)
@given(st.text() | st.lists(st.sampled_from(KERNELS_READ_IN_SOURCE.splitlines())).map("\n".join))
def test_no_text_breaks_it(text):
    for profile in read_nsys(text)[0]:
        assert profile.total_ns >= 0


def write(tmp_path):
    path = tmp_path / "stats.csv"
    path.write_text(f"{KERNELS_READ_IN_SOURCE}\n{CALLS_READ_IN_SOURCE}\n{COPIES_READ_IN_SOURCE}")
    return path


def test_a_profile_alone_is_shown_and_explains_nothing(tmp_path):
    path = write(tmp_path)
    assert kind_of(path) is Kind.PROFILE
    result = diagnose_sources([str(path)])
    assert (result.findings, result.action) == ([], "collect")
    texts = [item.text for item in result.observations]
    assert any(text.startswith("60.0% void attention<(int)128, (bool)1>") for text in texts)
    assert any(
        "a launch takes 400.0 us (4300), a kernel 232.6 us" in text and "waits for the host" in text for text in texts
    )
    assert any("copies are 20.0%" in text for text in texts)
    assert "records of requests" in result.needs[0]


def test_a_profile_beside_a_run_does_not_change_its_verdict(tmp_path):
    run = write_run(tmp_path / "a.run", as_client(served(**UNCHUNKED)))
    alone, both = diagnose_sources([run]), diagnose_sources([run, str(write(tmp_path))])
    assert [(one.code, one.level) for one in both.findings] == [(one.code, one.level) for one in alone.findings]
    assert both.observations
    assert alone.observations == []


@pytest.mark.tier("ci")
def test_as_it_is_typed(tmp_path):
    done = tailrace_command("diagnose", str(write(tmp_path)), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["observations"][0]["source"] == "profile:cuda_gpu_kern_sum"


def test_a_table_without_rows_is_an_error_of_the_input(tmp_path):
    empty = tmp_path / "empty.csv"
    empty.write_text(KERNELS_READ_IN_SOURCE.splitlines()[3] + "\n")
    with pytest.raises(InputError, match="no row in it"):
        diagnose_sources([str(empty)])
