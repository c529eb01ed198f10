from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.counter_delta import increase, restarted
from tailrace.engines.odometer import Odometer
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.window import window_between
from tests.conftest import shared_path


def scrape(text: str):
    return parse_scrape(text)


def finished(*texts: str):
    """The window over some scrapes of vLLM's counter of finished requests."""
    odometer = Odometer()
    readings = [odometer.feed(scrape(text), at) for at, text in enumerate(texts)]
    return window_between(readings[0], readings[-1])


def test_label_sets_are_counters_of_their_own() -> None:
    name = 'vllm:request_success_total{{engine="{}",finished_reason="{}"}} {}\n'
    before = name.format(0, "stop", 10) + name.format(1, "stop", 100)
    after = name.format(0, "stop", 15) + name.format(1, "stop", 7) + name.format(2, "length", 3)
    window = finished(before, after)
    assert window.counters["finished"] == {"stop": 5 + 7, "length": 3}
    assert window.restarts == 1


def test_absent_is_not_zero() -> None:
    assert "finished" not in finished("b 1", "b 1").counters
    assert increase(None, 1) == (1, False), "created with its first event"


def test_a_restart_that_outgrew_the_old_value_shows_in_the_start_time() -> None:
    before = scrape("process_start_time_seconds 1000\na 10\n")
    after = scrape("process_start_time_seconds 2000\na 15\n")
    assert restarted(before, after)
    assert not restarted(before, before)
    assert not restarted(scrape("a 1"), after)
    assert increase(10, 15, anew=restarted(before, after)) == (15, True)
    assert increase(10, 15, anew=restarted(before, before)) == (5, False)


def test_iteration_tokens_total_is_a_histogram() -> None:
    text = """
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="8"} 6000
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf"} 6095
vllm:iteration_tokens_total_count{engine="0"} 6095
vllm:iteration_tokens_total_sum{engine="0"} 14279
"""
    assert scrape(text).type_of("vllm:iteration_tokens_total") == "histogram"
    window = finished(text, text.replace("6095", "6100").replace("14279", "14299"))
    assert window.counters["steps"] == {"": 5}, "its count is the number of steps, and its sum no counter of tokens"


@pytest.mark.needs("shared")
def test_iteration_tokens_total_is_histogram_in_a_captured_scrape() -> None:
    text = (shared_path() / "data/engine_samples/vllm/metrics_0.32.0.prom").read_text(encoding="utf-8")
    found = scrape(text)
    assert found.type_of("vllm:iteration_tokens_total") == "histogram"
    assert found.histogram("vllm:iteration_tokens_total").count == 6095
    assert not [name for name in found.names if name.endswith("_created")]


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans()), max_size=30)


@given(steps)
def test_never_more_than_was_counted_and_exact_without_a_restart(told: list[tuple[int, int, bool]]) -> None:
    """Counters of four label sets grow, or restart and grow; each step is scraped."""
    counts = dict.fromkeys("0123", 0)
    truth = seen = resets = 0
    before = dict(counts)
    for which, by, restart in told:
        name = str(which)
        counts[name] = by if restart else counts[name] + by
        truth += by
        for each, value in counts.items():
            grown, reset = increase(before[each], value)
            assert grown >= 0
            seen += grown
            resets += reset
        before = dict(counts)
    assert seen <= truth
    if not any(restart for _, _, restart in told):
        assert (seen, resets) == (truth, 0)
