"""Readings over restarts, their ring, and the windows between them."""

from __future__ import annotations

import math
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.odometer import Odometer, Reading
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.reading_ring import KEPT_NS, MOST, SPACING_NS, ReadingRing
from tailrace.engines.window import means_of, signals_view, window_between
from tailrace.model.thresholds import S
from tests.conftest import shared_path
from tests.engines.scrapes import VLLM_PHASE, Observed


def fed(*texts: str) -> list[Reading]:
    odometer = Odometer()
    return [odometer.feed(parse_scrape(text), index * S) for index, text in enumerate(texts)]


def test_what_was_counted_before_us_is_not_ours() -> None:
    first, second = fed("vllm:generation_tokens_total 500", "vllm:generation_tokens_total 520")
    assert first.counters["generation_tokens"] == {"": 0}
    window = window_between(first, second)
    assert (window.total("generation_tokens"), window.rate("generation_tokens")) == (20, 20)
    assert window.total("preemptions") is None
    assert window.rate("preemptions") is None


def test_a_restart_takes_nothing_back() -> None:
    start = "process_start_time_seconds {}\nvllm:generation_tokens_total {}\n"
    readings = fed(start.format(1, 100), start.format(1, 150), start.format(900, 30), start.format(900, 45))
    window = window_between(readings[0], readings[-1])
    assert window.total("generation_tokens") == 50 + 30 + 15
    assert (window.restarts, readings[-1].restarts) == (1, 1)
    assert "lower bounds" in window.notes[0]


def test_several_engines_that_answer_in_turn_are_noticed() -> None:
    start = "process_start_time_seconds {}\nvllm:generation_tokens_total {}\n"
    readings = fed(*(start.format(index % 2, 100 + index) for index in range(10)))
    assert "in turn" in window_between(readings[0], readings[-1]).notes[0]


def test_half_an_answer_is_no_restart_and_counts_nothing_twice() -> None:
    whole = "vllm:generation_tokens_total {}\nvllm:num_preemptions_total 1\n"
    whole += 'vllm:request_queue_time_seconds_bucket{{le="+Inf"}} {}\nvllm:request_queue_time_seconds_sum 2\n'
    readings = fed(whole.format(1000, 5), "vllm:num_preemptions_total 1\n", "", whole.format(1010, 7))
    assert window_between(readings[0], readings[1]).total("generation_tokens") is None, "absent, not 0"
    window = window_between(readings[0], readings[3])
    assert (window.total("generation_tokens"), window.timings["queue"].n) == (10, 2)
    assert window.restarts == 0


def test_an_address_that_first_says_nothing_is_no_engine_yet() -> None:
    readings = fed("", "", "vllm:generation_tokens_total 1000000", "vllm:generation_tokens_total 1000007")
    assert window_between(readings[0], readings[3]).total("generation_tokens") == 7


def test_reasons_are_told_apart_and_bounded() -> None:
    def text(count: int) -> str:
        lines = [f'vllm:request_success_total{{finished_reason="r{index}"}} {count}' for index in range(40)]
        return "\n".join([*lines, f'vllm:request_success_total{{finished_reason="abort"}} {count}'])

    first, second = fed(text(0), text(2))
    window = window_between(first, second)
    assert window.total("finished") == 82
    assert len(window.counters["finished"]) == 33
    assert window.counters["finished"]["other"] == 18
    assert window.total("aborted") == 2


def test_llamacpp_has_means_and_no_quantiles() -> None:
    text = "llamacpp:prompt_seconds_total {}\nllamacpp:prompt_tokens_total {}\n"
    first, second = fed(text.format(1.0, 100), text.format(3.0, 300))
    window = window_between(first, second)
    assert means_of(window)["prefill_token"] == (0.01, 200)
    view = signals_view(window)["prefill_token"]
    assert (view["mean_ms"], view["n"], view["of"]) == (10.0, 200, "tokens")
    assert "p99_ms" not in view


def test_llamacpp_counts_cached_prompt_tokens_beside_the_computed_ones() -> None:
    text = "llamacpp:prompt_tokens_total {}\nllamacpp:prompt_tokens_cached_total {}\n"
    window = window_between(*fed(text.format(0, 0), text.format(70, 90)))
    assert window.prefix_hit == 90 / 160
    assert signals_view(window)["prefix_hit"]["n"] == 160


@pytest.mark.needs("shared")
def test_triton_queue_mean_and_its_summaries() -> None:
    text = (shared_path() / "data/engine_samples/triton/metrics_2.51.0.prom").read_text(encoding="utf-8")
    later = text.replace(
        'nv_inference_queue_duration_us{model="stream_tok",version="1"} 71282',
        'nv_inference_queue_duration_us{model="stream_tok",version="1"} 91282',
    ).replace(
        'nv_inference_request_success{model="stream_tok",version="1"} 4',
        'nv_inference_request_success{model="stream_tok",version="1"} 8',
    )
    assert later != text
    first, second = fed(text, later)
    window = window_between(first, second)
    view = signals_view(window)["queue"]
    assert (view["mean_ms"], view["n"]) == (pytest.approx(5.0), 4)
    assert view["engine_window"]["p50_ms"] == [pytest.approx(2.731), pytest.approx(5.031)]
    assert view["metric"] == "nv_inference_queue_duration_us / nv_inference_request_success"
    assert set(window.timings) == set(), "compute times of a model that streams are no stages"
    assert window.counters["failed"].keys() >= {"REJECTED", "CANCELED"}


@given(st.lists(st.lists(st.floats(0, 20), max_size=10), min_size=2, max_size=8), st.data())
def test_any_two_readings_give_what_was_seen_between_them(rounds: list[list[float]], data: st.DataObject) -> None:
    name = "vllm:request_queue_time_seconds"
    observed, odometer, readings = Observed(VLLM_PHASE, name), Odometer(), []
    observed.see([1.0])
    for index, values in enumerate(rounds):
        observed.see(values, str(index % 2))
        readings.append(odometer.feed(observed.scrape(), index * S))
    begin = data.draw(st.integers(0, len(rounds) - 1))
    end = data.draw(st.integers(begin, len(rounds) - 1))
    window = window_between(readings[begin], readings[end])
    truth = [value for values in rounds[begin + 1 : end + 1] for value in values]
    delta = window.timings["queue"]
    assert delta.n == len(truth)
    for bound, count in zip(delta.seen.bounds, delta.seen.counts, strict=True):
        assert count == sum(1 for value in truth if value <= bound)
    assert window.restarts == 0


@given(st.lists(st.integers(0, 3 * S), max_size=200))
def test_the_ring_keeps_its_bounds_and_the_newest(pauses: list[int]) -> None:
    ring, at, stamps = ReadingRing(), 0, []
    for pause in pauses:
        at += pause
        stamps.append(at)
        ring.add(Reading(at, {}, {}, {}, {}))
    assert len(ring) <= MOST
    assert (ring.newest is None) == (not pauses)
    if len(ring) >= 2:
        assert ring.newest.at_ns == at
        begin, end = ring.window(60 * S)
        assert end.at_ns == at
        assert begin.at_ns < at or pauses.count(0)
        held = [reading.at_ns for reading in ring.between(0, at)]
        assert held == sorted(held)
        # Long stretches are never lost: whoever asks for a minute gets one where there was one.
        if stamps[0] <= at - 60 * S:
            assert at - begin.at_ns >= 60 * S - 4 * S


def test_the_ring_holds_its_minutes_at_any_pace() -> None:
    for pace in (S // 100, S, 5 * S):
        ring = ReadingRing()
        for at in range(0, 2 * KEPT_NS, pace):
            ring.add(Reading(at, {}, {}, {}, {}))
        begin, end = ring.window(KEPT_NS)
        assert KEPT_NS - 7 * S <= end.at_ns - begin.at_ns <= KEPT_NS + S
        assert len(ring) <= MOST


def moved_on(text: str, by: float) -> str:
    """A scrape all of whose numbers have grown."""
    return re.sub(r" [0-9.e+]+$", lambda found: f" {float(found[0]) + by}", text, flags=re.MULTILINE)


@pytest.mark.needs("shared")
def test_the_memory_of_a_ring_is_what_is_stated() -> None:
    """Below 2 MB: a captured scrape in which every number moves, kept as often as the ring keeps any."""
    text = (shared_path() / "data/engine_samples/vllm/metrics_0.32.0.prom").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if line.startswith("vllm:") and "_created" not in line)
    ring, odometer = ReadingRing(), Odometer()
    odometer.feed(parse_scrape(text), 0)
    tracemalloc.start()
    try:
        for index in range(1, 41):
            ring.add(odometer.feed(parse_scrape(moved_on(text, 7 * index)), index * SPACING_NS))
            if index == 20:
                half = tracemalloc.get_traced_memory()[0]
        each = (tracemalloc.get_traced_memory()[0] - half) / 20
    finally:
        tracemalloc.stop()
    assert len(ring) == 40
    assert ring.newest.timings.keys() >= {"queue", "prefill", "decode", "ttft", "itl", "tpot", "e2e"}
    assert 1000 < each < 2 * 1024 * 1024 / MOST


def test_what_is_not_finite_is_no_observation() -> None:
    text = 'vllm:generation_tokens_total {}\nvllm:request_queue_time_seconds_bucket{{le="0.3"}} {}\n'
    text += 'vllm:request_queue_time_seconds_bucket{{le="+Inf"}} {}\nvllm:request_queue_time_seconds_sum {}\n'
    readings = fed(text.format(1, 1, 1, 0.1), text.format("NaN", 2, 2, "NaN"), text.format("+Inf", 3, 3, 0.3))
    window = window_between(readings[0], readings[-1])
    assert window.total("generation_tokens") is None or math.isfinite(window.total("generation_tokens"))
    assert window.timings["queue"].n == 2
    for noun in signals_view(window).values():
        for value in noun.values():
            assert not isinstance(value, float) or math.isfinite(value)
