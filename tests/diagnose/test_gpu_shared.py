"""COMPUTE_GPU_SHARED: a process that is none of the engine's is on its device, and tokens are slower meanwhile."""

import pytest

from tailrace.model.finding import Action, Level
from tailrace.model.gpu_state import GpuProcess
from tests.diagnose.machines import gpu, span
from tests.diagnose.simulated import as_gateway, codes, found, served
from tests.diagnose.test_gpu_clock import halves, judged

CODE = "COMPUTE_GPU_SHARED"
TRAINER = GpuProcess(pid=99, name="python train.py", memory_bytes=6 << 30)


def shared_with(records, when, stranger=TRAINER, **more):
    return gpu(records, when, low=1980.0, reasons=(), strangers=(stranger,), **more)


def test_a_stranger_while_which_requests_are_slower():
    records, middle = halves()
    first = found(judged(records, shared_with(records, lambda at: at >= middle)), CODE)
    assert first is not None
    assert (first.layer, first.level, first.action) == ("compute", Level.CONSISTENT, Action.FIX)
    assert "python train.py (pid 99, 6.0 GiB)" in first.statement


def test_a_stranger_who_takes_no_time_is_none():
    records = as_gateway(served(rate=3.0, long_share=0.0))
    begin, end = span(records)
    assert CODE not in codes(judged(records, shared_with(records, lambda at: at >= (begin + end) // 2)))


def test_a_process_that_only_holds_a_context_is_none():
    records, middle = halves()
    watcher = GpuProcess(pid=5, name="exporter", memory_bytes=400 << 20)
    assert CODE not in codes(judged(records, shared_with(records, lambda at: at >= middle, watcher)))


def test_one_who_was_there_all_the_time_is_a_suspicion():
    records, _ = halves()
    finding = found(judged(records, shared_with(records, lambda _: True)), CODE)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "without the other process" in finding.missing[0]


@pytest.mark.parametrize("engine", [False])
def test_where_the_engine_is_not_recognised_nobody_is_a_stranger(engine):
    records, middle = halves()
    result = judged(records, shared_with(records, lambda at: at >= middle, engine=engine))
    assert CODE not in codes(result)
    assert any(need.startswith(CODE) and "signals.engine_pid" in need for need in result.needs)
