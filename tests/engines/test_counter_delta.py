from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.counter_delta import counter_delta, restarted
from tailrace.engines.prometheus_text import parse_scrape
from tests.conftest import shared_path


def scrape(text: str):
    return parse_scrape(text)


def test_label_sets_are_counters_of_their_own() -> None:
    before = scrape('a{e="0"} 10\na{e="1"} 100\n')
    after = scrape('a{e="0"} 15\na{e="1"} 7\na{e="2"} 3\n')
    delta = counter_delta(before, after, "a")
    assert delta is not None
    assert delta.value == 5 + 7 + 3
    assert delta.resets == 1
    assert delta.at_least
    assert delta.by_label("e") == {"0": 5, "1": 7, "2": 3}


def test_absent_is_not_zero() -> None:
    assert counter_delta(scrape("a 1"), scrape("b 1"), "a") is None
    assert counter_delta(scrape("b 1"), scrape("a 1"), "a").value == 1  # created with its first event
    assert counter_delta(scrape("a 1"), scrape("a +Inf"), "a") is None


def test_a_restart_that_outgrew_the_old_value_shows_in_the_start_time() -> None:
    before = scrape("process_start_time_seconds 1000\na 10\n")
    after = scrape("process_start_time_seconds 2000\na 15\n")
    assert restarted(before, after)
    assert not restarted(before, before)
    assert not restarted(scrape("a 1"), after)
    delta = counter_delta(before, after, "a", anew=restarted(before, after))
    assert (delta.value, delta.resets) == (15, 1)


def test_iteration_tokens_total_is_a_histogram() -> None:
    text = """
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="8"} 6000
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf"} 6095
vllm:iteration_tokens_total_count{engine="0"} 6095
vllm:iteration_tokens_total_sum{engine="0"} 14279
"""
    assert scrape(text).type_of("vllm:iteration_tokens_total") == "histogram"
    assert counter_delta(scrape(text), scrape(text), "vllm:iteration_tokens_total") is None


@pytest.mark.needs("shared")
def test_iteration_tokens_total_is_histogram_in_a_captured_scrape() -> None:
    text = (shared_path() / "data/engine_samples/vllm/metrics_0.32.0.prom").read_text(encoding="utf-8")
    found = scrape(text)
    assert found.type_of("vllm:iteration_tokens_total") == "histogram"
    assert found.histogram("vllm:iteration_tokens_total").count == 6095
    assert counter_delta(found, found, "vllm:iteration_tokens_total") is None
    assert not [name for name in found.names if name.endswith("_created")]


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans()), max_size=30)


@given(steps)
def test_never_more_than_was_counted_and_exact_without_a_restart(told: list[tuple[int, int, bool]]) -> None:
    """Counters of four label sets grow, or restart and grow; each step is scraped."""
    counts = dict.fromkeys("0123", 0)
    truth = seen = resets = 0
    before = scrape("".join(f'a{{e="{name}"}} {value}\n' for name, value in counts.items()))
    for which, by, restart in told:
        name = str(which)
        counts[name] = by if restart else counts[name] + by
        truth += by
        after = scrape("".join(f'a{{e="{name}"}} {value}\n' for name, value in counts.items()))
        delta = counter_delta(before, after, "a")
        assert delta.value >= 0
        seen += delta.value
        resets += delta.resets
        before = after
    assert seen <= truth
    if not any(restart for _, _, restart in told):
        assert (seen, resets) == (truth, 0)
