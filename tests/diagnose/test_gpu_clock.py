"""COMPUTE_POWER_CAP and COMPUTE_THERMAL: the clock falls under load, and the requests under it are slower."""

import msgspec
import pytest

from tailrace.cli.objectives import parse_objectives
from tailrace.diagnose.engine import diagnose
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.hardware import Hardware
from tailrace.engines.nvidia_smi import read_query
from tailrace.model.finding import Level
from tailrace.store.table import RecordTable
from tests.diagnose.machines import gpu, span
from tests.diagnose.simulated import answer, as_gateway, codes, found, served

CAP, HEAT = "COMPUTE_POWER_CAP", "COMPUTE_THERMAL"


def halves(speed=0.55):
    """The second half of the requests on a slower device; and when that half begins."""
    fast = as_gateway(served(rate=3.0, long_share=0.0))
    slow = as_gateway(served(rate=3.0, long_share=0.0, speed=speed))
    begin, end = span(fast)
    middle = (begin + end) // 2
    return [a if a.start_unix_ns < middle else b for a, b in zip(fast, slow, strict=True)], middle


def judged(records, hardware):
    tight = sorted(record.tpot_ns for record in records)[int(0.6 * len(records))] // 1_000_000
    return answer(records, hardware=hardware, objectives=parse_objectives([f"tpot_p99={max(1, tight)}ms"]))


def test_a_power_cap_under_which_requests_are_slower():
    records, middle = halves()
    first = found(judged(records, gpu(records, lambda at: at >= middle)), CAP)
    assert first is not None
    assert (first.layer, first.level) == ("compute", Level.CONSISTENT)
    assert "1980 to 1400 MHz" in first.statement
    assert first.explains_ms > 0


def test_heat_is_another_cause():
    records, middle = halves()
    result = judged(records, gpu(records, lambda at: at >= middle, reasons=("hw_slowdown", "hw_thermal")))
    assert found(result, HEAT).level is Level.CONSISTENT
    assert CAP not in codes(result)


def test_requests_that_are_as_fast_under_the_limit_disprove_it():
    records = as_gateway(served(rate=3.0, long_share=0.0))
    begin, end = span(records)
    result = judged(records, gpu(records, lambda at: at >= (begin + end) // 2))
    assert CAP not in codes(result)
    assert any("sw_power_cap" in item.text for item in result.observations)


def test_a_small_fall_is_the_usual_play_of_the_boost():
    records, middle = halves()
    assert CAP not in codes(judged(records, gpu(records, lambda at: at >= middle, low=1830.0)))


def test_an_idle_devices_low_clock_is_no_limit():
    records, middle = halves()
    assert not {CAP, HEAT} & set(
        codes(judged(records, gpu(records, lambda at: at >= middle, low=210, reasons=("idle",))))
    )


def test_a_clock_that_is_low_without_a_reason_is_not_explained_by_one():
    records, middle = halves()
    assert not {CAP, HEAT} & set(codes(judged(records, gpu(records, lambda at: at >= middle, reasons=()))))


def test_without_clocks_the_rule_does_not_run():
    records, middle = halves()
    result = judged(records, gpu(records, lambda at: at >= middle, clock=False))
    assert CAP not in codes(result)
    assert any(need.startswith(CAP) for need in result.needs)


def test_a_log_without_a_time_zone_cannot_be_laid_beside_requests():
    records, middle = halves()
    finding = found(judged(records, gpu(records, lambda at: at >= middle, zone=False)), CAP)
    assert finding.level is Level.SUSPECTED
    assert "time zone" in finding.missing[0]


def test_a_limit_over_all_of_the_window_has_nothing_to_be_compared_with():
    records, _ = halves()
    assert CAP not in codes(judged(records, gpu(records, lambda _: True)))


def test_a_limit_that_was_not_there_before_is_suspected_where_no_equal_work_shows_the_pace():
    usual, now = (
        as_gateway(served(seed, rate=3.0, long_share=0.0, speed=speed)) for seed, speed in ((5, 1.0), (6, 0.5))
    )
    tight = sorted(record.tpot_ns for record in now)[len(now) // 2] // 1_000_000
    objectives = parse_objectives([f"tpot_p99={max(1, tight)}ms"])

    def asked(low):
        seen = gpu(now, lambda _: True, low=low, reasons=("hw_thermal",))
        gpus = [msgspec.structs.replace(state, max_sm_clock_mhz=1980.0) for state in seen.gpus]
        machine = msgspec.structs.replace(seen, gpus=gpus)
        return found(answer(now, before=usual[:12], hardware=machine, objectives=objectives), HEAT)

    finding = asked(700.0)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "equal work" in finding.missing[0]
    assert asked(1600.0) is None, "a fifth of the clock may be the usual play"


@pytest.mark.needs("shared")
def test_the_shared_log_alone(shared):
    """1965 -> 1580 MHz is 19.6 %; without requests it is no more than a suspicion."""
    states, _ = read_query((shared / "data" / "cases" / "inputs" / "CP-09.nvsmi.csv").read_text())
    result = diagnose(EvidenceSet(RecordTable.from_records([]), hardware=Hardware(gpus=states)))
    (finding,) = result.findings
    assert (finding.code, finding.level) == (CAP, Level.SUSPECTED)
    assert "1965 to 1580 MHz (-19.6%)" in finding.statement
    assert finding.missing == ["records of requests from the same time"]


@pytest.mark.needs("shared")
def test_a_low_power_draw_at_a_flat_clock_is_no_cap(shared):
    states, _ = read_query((shared / "data" / "cases" / "inputs" / "CP-02.nvsmi.csv").read_text())
    result = diagnose(EvidenceSet(RecordTable.from_records([]), hardware=Hardware(gpus=states)))
    assert result.findings == []
    assert any("busy 48%" in item.text for item in result.observations)


def test_the_reasons_go_before_the_draw():
    """At its limit by the numbers, but the device says that nothing limits it."""
    records, middle = halves()
    hardware = gpu(records, lambda at: at >= middle, reasons=())
    silent = [msgspec.structs.replace(state, reasons=None) for state in hardware.gpus]
    assert CAP not in codes(judged(records, hardware))
    assert CAP in codes(judged(records, msgspec.structs.replace(hardware, gpus=silent)))
