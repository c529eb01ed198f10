"""FE_CPU_STARVED: the engine is ready to run and gets no CPU."""

import msgspec

from tailrace.cli.objectives import parse_objectives
from tailrace.model.finding import Action, Layer, Level
from tests.diagnose.machines import bad_seconds, delayed, gpu, host, span
from tests.diagnose.simulated import answer, as_gateway, codes, found, served

CODE = "FE_CPU_STARVED"


def calm():
    return as_gateway(served(rate=4.0, long_share=0.0))


def slow(ms=900):
    records = calm()
    bad = bad_seconds(records)
    return delayed(records, bad, ms), bad


def test_threads_that_wait_in_a_run_queue_while_the_slow_requests_live():
    records, bad = slow()
    result = answer(records, hardware=host(records, bad, wait=0.8, quota=None))
    first = result.findings[0]
    assert (first.code, first.layer, first.level) == (CODE, Layer.GATEWAY, Level.CONSISTENT)
    assert first.action is Action.FIX
    assert "cores of its own" in first.advice
    assert any("no CPU limit" in item.text for item in first.evidence)


def test_a_cpu_limit_that_stops_the_engine_gets_other_advice():
    records, bad = slow()
    first = answer(records, hardware=host(records, bad, throttled=10)).findings[0]
    assert (first.code, first.level) == (CODE, Level.CONSISTENT)
    assert "CPU limit" in first.advice
    assert "of 0.5 cores" in first.statement


def test_a_tenth_of_the_time_is_the_usual_play():
    records, bad = slow()
    assert CODE not in codes(answer(records, hardware=host(records, bad, wait=0.3)))
    assert CODE not in codes(answer(records, hardware=host(records, bad, throttled=4)))


def test_utilisation_alone_is_no_verdict():
    records, bad = slow()
    hardware = host(records, bad)
    busy = [msgspec.structs.replace(state, busy=1.0, load_1m=40.0) for state in hardware.host]
    result = answer(records, hardware=msgspec.structs.replace(hardware, host=busy))
    assert CODE not in codes(result)
    assert any("host CPU busy 100%" in item.text for item in result.observations)


def test_where_nobody_is_slow_nothing_is_named():
    records = calm()
    result = answer(records, hardware=host(records, bad_seconds(records), wait=0.9))
    assert result.findings == []
    assert any("waited for a CPU" in item.text for item in result.observations)


def test_a_wait_that_fell_into_other_seconds_is_not_the_cause():
    records, bad = slow()
    elsewhere = [(begin + 5_000_000_000, end + 5_000_000_000) for begin, end in bad]
    finding = found(answer(records, hardware=host(records, elsewhere, wait=0.8)), CODE)
    assert finding is None or finding.level is not Level.CONSISTENT


def test_those_who_lost_nothing_were_hit_as_hard():
    records, _ = slow()
    always = [(0, 2**63)]
    assert CODE not in codes(answer(records, hardware=host(records, always, wait=0.5)))


def everybody_slower(objective_ms, **machine):
    """All tokens come slowly, and the engine lacked its CPU all the time: nobody stands apart."""
    records = as_gateway(served(rate=3.0, long_share=0.0, speed=0.55))
    objectives = parse_objectives([f"tpot_p99={objective_ms}ms"])
    return found(answer(records, hardware=host(records, [(0, 2**63)], **machine), objectives=objectives), CODE)


def usual_pace_ms():
    records = as_gateway(served(rate=3.0, long_share=0.0, speed=0.55))
    return sorted(record.tpot_ns for record in records)[len(records) // 2] / 1e6


def test_where_all_are_hit_the_objective_that_would_have_been_kept_decides():
    pace = usual_pace_ms()
    finding = everybody_slower(round(0.8 * pace), wait=0.4)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "all requests of this one were hit alike" in finding.missing[0]
    assert everybody_slower(round(0.8 * pace), wait=0.4, quota=None) is not None
    assert everybody_slower(max(1, round(0.3 * pace)), wait=0.4) is None, "with all its CPU it would miss it as well"
    assert everybody_slower(round(0.8 * pace), wait=0.05) is None


def test_stretches_without_a_cpu_in_which_every_token_is_slow():
    fast, slow = (as_gateway(served(rate=3.0, long_share=0.0, speed=speed)) for speed in (1.0, 0.55))
    begin, end = span(fast)
    last = end - (end - begin) // 4
    mixed = [a if a.start_unix_ns < last else b for a, b in zip(fast, slow, strict=True)]
    usual = sorted(record.tpot_ns for record in fast)[len(fast) // 2] / 1e6
    objectives = parse_objectives([f"tpot_p95={round(1.3 * usual)}ms"])
    stretch = host(mixed, [(last, 2**63)], wait=0.35)
    finding = found(answer(mixed, hardware=stretch, objectives=objectives), CODE)
    assert finding is not None
    assert "in the worst fifth of the intervals" in finding.statement
    assert any("usual gap x" in item.text for item in finding.evidence)
    elsewhere = host(mixed, [(begin, begin + (end - begin) // 4)], wait=0.35)
    assert found(answer(mixed, hardware=elsewhere, objectives=objectives), CODE) is None


def test_without_the_machine_the_rule_does_not_run_and_says_what_it_lacks():
    records, _ = slow()
    result = answer(records)
    assert CODE not in codes(result)
    assert any(need.startswith(CODE) and "/signals" in need for need in result.needs)


def test_without_the_engines_process_the_machines_pressure_is_a_suspicion():
    records, bad = slow()
    hardware = host(records, [(0, 2**63)], role=None, pressure=0.6)
    finding = found(answer(records, hardware=hardware), CODE)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "signals.engine_pid" in finding.missing[0]
    assert CODE not in codes(answer(records, hardware=host(records, bad, role=None, pressure=0.2)))


def test_half_of_the_samples_missing_lowers_the_level():
    records, bad = slow()
    hardware = host(records, bad, wait=0.8)
    some = msgspec.structs.replace(
        hardware, host=[state for state in hardware.host if state.at_unix_ns // 1_000_000_000 % 3 == 0]
    )
    finding = found(answer(records, hardware=some), CODE)
    assert finding is None or finding.level is Level.SUSPECTED


def test_a_clock_that_was_lowered_too_is_a_rival():
    records, bad = slow()
    both = host(records, bad, wait=0.8).joined(gpu(records, lambda at: any(a <= at < b for a, b in bad)))
    finding = found(answer(records, hardware=both), CODE)
    assert finding is not None
    assert finding.level is Level.SUSPECTED
    assert "clock" in finding.rivals[0]
