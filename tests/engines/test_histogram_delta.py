from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.engines.coarse_buckets import check_objectives, remedy
from tailrace.engines.histogram_delta import HistogramDelta, bucket_around, histogram_delta
from tailrace.engines.prometheus_text import Histogram, parse_scrape
from tests.conftest import shared_path
from tests.engines.scrapes import VLLM_PHASE, Observed, nearest_rank

seconds = st.floats(0, 20, allow_nan=False)
bounds = st.lists(st.floats(0.001, 15), min_size=1, max_size=12, unique=True).map(sorted)
quantiles = st.sampled_from([0.0, 0.01, 0.07, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0])


@example(bounds=[1.1600270978199871, 10.132880731131495], earlier=[], later=[[2.0]], q=0.0)
@given(
    bounds, st.lists(seconds, max_size=40), st.lists(st.lists(seconds, max_size=20), min_size=1, max_size=3), quantiles
)
def test_a_span_brackets_the_true_quantile(
    bounds: list[float], earlier: list[float], later: list[list[float]], q: float
) -> None:
    """What happened between two scrapes, in up to three engines behind one address."""
    observed = Observed(bounds)
    observed.see(earlier)
    before = observed.scrape()
    for engine, values in enumerate(later):
        observed.see(values, str(engine))
    delta = histogram_delta(before, observed.scrape(), "h")
    assert delta is not None or not earlier
    truth = [value for values in later for value in values]
    if delta is None:
        assert not truth
        return
    assert delta.n == len(truth)
    assert delta.resets == 0
    span = delta.quantile(q)
    if not truth:
        assert (span, delta.mean) == (None, None)
        return
    assert span is not None
    true = nearest_rank(truth, q)
    assert span.low <= true <= span.high
    assert span.low < true or span.low == 0
    assert delta.mean == pytest.approx(sum(truth) / len(truth), abs=1e-6)
    if span.estimate is None:
        # No number below the first bound, none above the last.
        assert span.high == bounds[0] or span.high == math.inf
    else:
        assert span.low <= span.estimate <= span.high
    for value in (true, 1.0):
        share = delta.share_at_most(value)
        assert share is not None
        exact = sum(1 for one in truth if one <= value) / len(truth)
        assert share[0] - 1e-12 <= exact <= share[1] + 1e-12


@given(st.lists(seconds, min_size=1, max_size=30), st.lists(seconds, min_size=1, max_size=30))
def test_after_a_restart_it_is_what_came_since(old: list[float], new: list[float]) -> None:
    observed, fresh = Observed(VLLM_PHASE), Observed(VLLM_PHASE)
    observed.see(old)
    fresh.see(new)
    delta = histogram_delta(observed.scrape(), fresh.scrape(), "h", anew=True)
    assert delta is not None
    assert (delta.n, delta.resets) == (len(new), 1)
    # Without the start time it shows only where a count fell; then the same, else no more than what is new.
    blind = histogram_delta(observed.scrape(), fresh.scrape(), "h")
    assert blind is not None
    assert blind.n == len(new) if blind.resets else blind.n <= len(new)


def test_above_the_last_bound_there_is_no_number() -> None:
    observed = Observed((1.0, 10.0))
    before = observed.scrape()
    observed.see([0.5, 11.0, 12.0])
    span = histogram_delta(before, observed.scrape(), "h").quantile(0.99)
    assert (span.low, span.high, span.estimate) == (10.0, math.inf, None)
    assert span.text() == "> 10 s"


def test_a_first_bucket_that_ends_at_zero_is_exact() -> None:
    """SGLang's queue time has a bucket of what did not wait at all."""
    delta = HistogramDelta(Histogram([0.0, 0.001, 0.005], [8, 8, 10], 0.006, 10))
    assert delta.quantile(0.5).exact
    assert delta.quantile(0.5).text() == "0 s"
    assert delta.quantile(0.99).text(1e3, "ms") == "1 to 5 ms"


def test_buckets_below_300ms_refused() -> None:
    observed = Observed(VLLM_PHASE)
    before = observed.scrape()
    observed.see([0.002] * 99 + [0.25])
    delta = histogram_delta(before, observed.scrape(), "h")
    span = delta.quantile(0.99)
    assert (span.estimate, span.text(1e3, "ms")) == (None, "< 300 ms")
    assert delta.mean == pytest.approx(0.00448)
    option = remedy("queue", {}, engine="vllm")
    assert option.startswith('--custom-histogram-buckets \'{"request_latency":[0.001,')
    assert "0.32 and later" in option
    assert json.loads(option.split("'")[1])["request_latency"][:3] == [0.001, 0.002, 0.005]


@pytest.mark.needs("shared")
def test_buckets_below_300ms_refused_in_a_captured_scrape() -> None:
    text = (shared_path() / "data/engine_samples/vllm/metrics_0.32.0.prom").read_text(encoding="utf-8")
    found = parse_scrape(text)
    for phase in ("queue", "prefill", "decode"):
        delta = HistogramDelta(found.histogram(f"vllm:request_{phase}_time_seconds"))
        assert delta.first_bound == 0.3
        assert delta.mean is not None
        if delta.quantile(0.5).high == 0.3:
            assert delta.quantile(0.5).estimate is None


def sglang_ttft() -> list[float]:
    path = shared_path() / "data/engine_samples/sglang/default_buckets_0.5.23.json"
    return json.loads(path.read_text(encoding="utf-8"))["buckets"]["time_to_first_token_seconds"]


@pytest.mark.needs("shared")
def test_sglang_500ms_slo_not_readable() -> None:
    name = "sglang:time_to_first_token_seconds"
    observed = Observed(sglang_ttft(), name)
    before = observed.scrape()
    observed.see([0.15] * 90 + [0.45] * 6 + [0.55] * 3 + [1.5])
    delta = histogram_delta(before, observed.scrape(), name)
    assert bucket_around(delta.seen.bounds, 0.5) == (0.4, 0.6)
    (coarse,) = check_objectives(
        {"ttft": delta}, [("ttft_p99", "ttft", 500_000_000)], names={"ttft": name}, engine="sglang"
    )
    assert coarse.attainment == (0.9, 0.99)
    assert "inside the bucket [0.4, 0.6] s" in coarse.text
    assert "between 90.00% and 99.00% met it" in coarse.text
    assert coarse.remedy.startswith("--bucket-time-to-first-token ")
    assert " 0.5 " in coarse.remedy
    assert coarse.view()["bucket_ms"] == [400.0, 600.0]


def test_an_objective_on_an_edge_is_exact_and_one_beyond_the_last_is_said() -> None:
    delta = HistogramDelta(Histogram([0.25, 0.5], [5, 9], 3.0, 10))
    asked = [("ttft_p99", "ttft", 500_000_000), ("interactive: ttft_p50", "ttft", 2_000_000_000), ("x", "queue", 1)]
    edge, beyond = check_objectives({"ttft": delta}, asked, names={"ttft": "m"}, engine="llamacpp")
    assert (edge.bucket, edge.attainment) == (None, (0.9, 0.9))
    assert beyond.bucket == (0.5, math.inf)
    assert beyond.attainment == (0.9, 1.0)
    assert beyond.view()["bucket_ms"] == [500.0, None]
    assert beyond.remedy == ""
    none = check_objectives({"ttft": HistogramDelta(Histogram([0.4, 0.6], [0, 0], 0, 0))}, asked[:1], names={})
    assert "could not be said" in none[0].text


def test_one_option_of_vllm_speaks_of_all_histograms_that_are_too_coarse() -> None:
    """Two such options on one command line would replace each other."""
    coarse = HistogramDelta(Histogram([0.25, 1.0], [5, 9], 3.0, 10))
    asked = [("ttft_p99", "ttft", 450_000_000), ("e2e_p99", "e2e", 700_000_000)]
    ttft, e2e = check_objectives({"ttft": coarse, "e2e": coarse}, asked, names={}, engine="vllm")
    assert ttft.remedy == e2e.remedy
    families = json.loads(ttft.remedy.split("'")[1])
    assert 0.45 in families["time_to_first_token"]
    assert 0.7 in families["request_latency"]
