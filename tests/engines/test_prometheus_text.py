from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as ClientHistogram

from tailrace.engines.prometheus_text import Histogram, SeriesMemo, parse_scrape
from tailrace.engines.signals import read_state
from tailrace.engines.vllm import Vllm

LINES = r"""
# HELP a_total Help text.
# TYPE a_total counter
a_total{x="1",y="q\"u\\o\nte"} 1.5e3 1700000000000
a_total{x="2",} +Inf
a_created 5
b NaN
c -2
d_bucket{le="0.1"} 3 # {trace_id="x"} 0.05
  e   7
not a sample line at all
f
# EOF
"""


def test_lines_of_every_kind() -> None:
    scrape = parse_scrape(LINES)
    assert scrape.samples["a_total"][0].labels == {"x": "1", "y": 'q"u\\o\nte'}
    assert scrape.samples["a_total"][0].value == 1500
    assert math.isinf(scrape.samples["a_total"][1].value)
    assert scrape.type_of("a_total") == "counter"
    assert "b" not in scrape
    assert "a_created" not in scrape
    assert (scrape.total("c"), scrape.total("e"), scrape.total("d_bucket")) == (-2, 7, 3)
    assert scrape.total("f") is None


def test_sum_and_largest_over_series() -> None:
    scrape = parse_scrape('g{e="0"} 0.5\ng{e="1"} 0.9\n')
    assert scrape.total("g") == pytest.approx(1.4)
    assert scrape.largest("g") == 0.9
    assert scrape.total("absent") is None
    assert scrape.largest("absent") is None


def test_prefixes_limit_the_work() -> None:
    scrape = parse_scrape("vllm:a 1\npython_gc 2\n", prefixes=("vllm:",))
    assert scrape.names == {"vllm:a"}


label_text = st.text(max_size=8)


@given(
    rows=st.dictionaries(label_text, st.floats(allow_nan=False, allow_infinity=True), min_size=1, max_size=5),
    n=st.integers(0, 10**6),
)
def test_reads_back_what_the_reference_client_writes(rows: dict[str, float], n: int) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("demo_gauge", "With \\ and\nlines", ["who"], registry=registry)
    for label, value in rows.items():
        gauge.labels(label).set(value)
    Counter("demo", "Counts", registry=registry).inc(n)
    scrape = parse_scrape(generate_latest(registry).decode())
    assert {sample.labels["who"]: sample.value for sample in scrape.samples["demo_gauge"]} == rows
    assert scrape.total("demo_total") == n
    assert scrape.type_of("demo_total") == "counter"


def test_histogram_of_the_reference_client() -> None:
    registry = CollectorRegistry()
    source = ClientHistogram("h", "H", ["e"], buckets=(0.1, 0.5, 1.0), registry=registry)
    for value in (0.05, 0.3, 0.3, 0.9):
        source.labels("0").observe(value)
    source.labels("1").observe(5.0)
    histogram = parse_scrape(generate_latest(registry).decode()).histogram("h")
    assert histogram == Histogram([0.1, 0.5, 1.0], [1, 3, 4], pytest.approx(6.55), 5)
    assert histogram is not None
    assert histogram.mean == pytest.approx(1.31)
    assert histogram.quantile_range(0.5) == (0.1, 0.5)
    assert histogram.quantile(0.5) == pytest.approx(0.1 + 0.4 * 1.5 / 2)
    assert histogram.quantile(0.1) is None, "below the first bound nobody knows"
    assert histogram.quantile(0.99) is None, "above the last bound nobody knows"
    assert histogram.quantile_range(0.99) == (1.0, math.inf)
    assert histogram.share_at_most(0.5) == 0.6
    assert histogram.share_at_most(0.4) is None


def test_an_empty_histogram_has_no_answers() -> None:
    empty = Histogram([0.1], [0.0], 0.0, 0.0)
    assert (empty.mean, empty.quantile(0.5), empty.quantile_range(0.5), empty.share_at_most(0.1)) == (None,) * 4
    assert parse_scrape("x 1").histogram("x") is None


@given(st.text(max_size=80))
def test_any_text_is_read_without_raising(text: str) -> None:
    parse_scrape(text)
    parse_scrape(f'a{{x="{text}"}} 1')


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-3", "1e300"])
def test_a_value_that_cannot_be_is_no_signal(value):
    state = read_state(
        parse_scrape(f"vllm:num_requests_running {value}\nvllm:kv_cache_usage_perc {value}\n"), Vllm.signals, 0
    )
    assert (state.running, state.kv_usage) == (None, None)


def test_created_series_dropped() -> None:
    scrape = parse_scrape("# TYPE a counter\na_total 5\n# TYPE a_created gauge\na_created 1.7e9\n")
    assert scrape.names == {"a", "a_total"}


def test_a_series_told_twice_counts_once() -> None:
    scrape = parse_scrape('a{x="1",y="2"} 5\na{y="2",x="1"} 5\na{x="2",y="2"} 1\n')
    assert scrape.total("a") == 6
    assert scrape.duplicates == 1


def test_histograms_with_different_bounds_keep_what_both_know() -> None:
    text = """
h_bucket{e="0",le="0.1"} 1
h_bucket{e="0",le="0.5"} 4
h_bucket{e="0",le="+Inf"} 5
h_bucket{e="1",le="0.5"} 2
h_bucket{e="1",le="0.8"} 3
h_bucket{e="1",le="+Inf"} 3
h_sum{e="0"} 2
h_sum{e="1"} 1
"""
    found = parse_scrape(text).histogram("h")
    assert found == Histogram([0.5], [6], 3.0, 8)


def test_an_engine_that_saw_nothing_takes_no_bounds_away() -> None:
    text = (
        'h_bucket{e="0",le="1"} 0\nh_bucket{e="0",le="+Inf"} 0\nh_bucket{e="1",le="2"} 4\nh_bucket{e="1",le="+Inf"} 4\n'
    )
    found = parse_scrape(text).histogram("h")
    assert found is not None
    assert (found.bounds, found.counts) == ([2.0], [4])


def test_summary_of_several_models_is_a_span() -> None:
    text = 's{m="a",quantile="0.5"} 10\ns{m="b",quantile="0.5"} 30\ns{m="a",quantile="0.9"} NaN\n'
    text += 's_sum{m="a"} 6\ns_count 2\n'
    summary = parse_scrape(text).summary("s")
    assert summary is not None
    assert summary.quantiles == {0.5: (10, 30)}
    assert summary.mean == 3
    assert parse_scrape("s_sum 1\ns_count 2").summary("s") is None


@given(st.lists(st.sampled_from(LINES.strip().split("\n")), max_size=12), st.lists(st.floats(), max_size=12))
def test_a_memo_changes_nothing_but_the_cost(lines: list[str], values: list[float]) -> None:
    memo = SeriesMemo()
    for value in [0.0, *values]:
        text = "\n".join([*lines, f'm{{a="b c",d="}}"}} {value}', f'm{{a="2"}} 3 # {{t="x"}} {value}'])
        plain, remembered = parse_scrape(text), parse_scrape(text, memo=memo)
        assert plain.samples == remembered.samples
        assert (plain.types, plain.duplicates) == (remembered.types, remembered.duplicates)


def test_a_number_that_nobody_can_have_counted_is_left_out() -> None:
    told = parse_scrape('a_total 1e308\nb_total 7\nh_bucket{le="1"} -1e308\nh_bucket{le="+Inf"} 3\nh_count 3\n')
    assert told.series("a_total") == {}
    assert told.series("b_total") == {(): 7.0}
    assert told.histograms("h")[()].count == 3
    assert told.histograms("h")[()].bounds == []
